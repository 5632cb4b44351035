/** `POST /v1/embeddings`. */

import { UnstreamedParser } from './model-request.ts';
import { CHOICES } from './choices.ts';
import type { Endpoint } from './endpoint.ts';

export const EMBEDDINGS: Endpoint = {
  path: '/embeddings',
  operation: 'embeddings',
  Parser: UnstreamedParser,
  required: 'input',
  ...CHOICES,
  ignoresFallback: true,
};
