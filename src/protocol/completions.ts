/** `POST /v1/completions`. Its answers differ from those of chat only inside their `choices`. */

import { ModelRequestParser } from './model-request.ts';
import { ChoiceStream, CHOICES, isSilent } from './choices.ts';
import type { Endpoint } from './endpoint.ts';

class CompletionsParser extends ModelRequestParser {
  constructor(mayListModels: boolean) {
    super(mayListModels, 'prompt');
  }
}

export const COMPLETIONS: Endpoint = {
  path: '/completions',
  operation: 'text_completion',
  Parser: CompletionsParser,
  ...CHOICES,
  startStream: (notes, failsEmpty) =>
    new ChoiceStream(notes, failsEmpty, (choice) => !isSilent(choice)),
};
