/** `POST /v1/completions`. Its streams differ from those of chat only inside their `choices`. */

import { ChatRequestParser } from './chat-request.ts';
import type { Endpoint } from './endpoint.ts';

class CompletionsParser extends ChatRequestParser {
  constructor(mayListModels: boolean) {
    super(mayListModels, 'prompt');
  }
}

export const COMPLETIONS: Endpoint = {
  path: '/completions',
  operation: 'text_completion',
  Parser: CompletionsParser,
};
