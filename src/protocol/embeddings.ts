/** `POST /v1/embeddings`. */

import { ModelRequestParser } from './model-request.ts';
import { CHOICES } from './choices.ts';
import type { Endpoint } from './endpoint.ts';

class EmbeddingsParser extends ModelRequestParser {
  constructor(mayListModels: boolean) {
    super(mayListModels, 'input');
  }

  /** The answer is never a stream: a provider ignores or refuses `stream`. */
  override finish(body: { readonly parts: readonly Buffer[] }) {
    return { ...super.finish(body), stream: false, mayAskForUsage: false };
  }
}

export const EMBEDDINGS: Endpoint = {
  path: '/embeddings',
  operation: 'embeddings',
  Parser: EmbeddingsParser,
  ...CHOICES,
  ignoresFallback: true,
};
