/** `POST /v1/completions`. Its answers differ from those of chat only inside their `choices`. */

import { ModelRequestParser } from './model-request.ts';
import { ChoiceStream, CHOICES, isSilent } from './choices.ts';
import type { Endpoint } from './endpoint.ts';

class CompletionStream extends ChoiceStream {
  override hasContent(choice: unknown): boolean {
    return !isSilent(choice);
  }
}

export const COMPLETIONS: Endpoint = {
  path: '/completions',
  operation: 'text_completion',
  Parser: ModelRequestParser,
  required: 'prompt',
  ...CHOICES,
  Stream: CompletionStream,
};
