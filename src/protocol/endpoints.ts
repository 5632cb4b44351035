/** The endpoints whose requests name a model. Routes, provider paths and settings follow them. */

import { COMPLETIONS } from './completions.ts';
import { EMBEDDINGS } from './embeddings.ts';
import { CHAT } from './chat.ts';
import type { Endpoint } from './endpoint.ts';
import { COUNT_TOKENS, MESSAGES } from './messages.ts';
import { RESPONSES } from './responses.ts';

/** The endpoints that `[server] endpoints` adds. */
export const MORE_ENDPOINTS: readonly Endpoint[] = [
  EMBEDDINGS,
  COMPLETIONS,
  RESPONSES,
  MESSAGES,
  COUNT_TOKENS,
];
/** A path that `[server] endpoints` adds too. Its requests have no body. */
export const MODEL_PATH = '/v1/models/{id}';
export const ENDPOINTS: readonly Endpoint[] = [CHAT, ...MORE_ENDPOINTS];

/** Returns the endpoint's path for clients. */
export const clientPathOf = ({ path }: Endpoint) => `/v1${path}`;
