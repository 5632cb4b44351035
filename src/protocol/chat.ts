/** `POST /v1/chat/completions`. */

import { CHOICES, isEmptyCompletion } from './choices.ts';
import type { Endpoint } from './endpoint.ts';
import { ModelRequestParser } from './model-request.ts';

export const CHAT: Endpoint = {
  path: '/chat/completions',
  operation: 'chat',
  Parser: ModelRequestParser,
  ...CHOICES,
  isEmpty: isEmptyCompletion,
};
