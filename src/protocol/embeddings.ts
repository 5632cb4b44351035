/** `POST /v1/embeddings`. */

import { UnstreamedParser } from './model-request.ts';
import { CHOICES } from './choices.ts';
import type { Endpoint } from './endpoint.ts';

class EmbeddingsParser extends UnstreamedParser {
  constructor(mayListModels: boolean) {
    super(mayListModels, 'input');
  }
}

export const EMBEDDINGS: Endpoint = {
  path: '/embeddings',
  operation: 'embeddings',
  Parser: EmbeddingsParser,
  ...CHOICES,
  ignoresFallback: true,
};
