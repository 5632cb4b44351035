/** What the gateway learns about a request while it is answered, for its access line. */

import type { GatewayError } from '../lib/errors.ts';
import type { AnswerSummary, TryFacts } from '../lib/request-facts.ts';

/** Filled in as it becomes known. Times are on the clock of `performance.now()`. */
export interface AccessRecord {
  /** The name of the client whose key was sent; keys of `[server.auth]` have none. */
  client?: string | undefined;
  provider?: string;
  model?: string;
  stream?: boolean;
  requestBytes?: number;
  traceId?: string;
  /** In order. */
  readonly tries: TryFacts[];
  /** The index in `tries` of the attempt whose answer or error the client gets. */
  answeredTry?: number;
  /** Of the attempt that was answered. */
  answer?: AnswerSummary;
  /** The request's body was complete. */
  bodyReadAtMs?: number;
  /** The first attempt began. */
  askedAtMs?: number;
  /** The last attempt had its answer, or failed. */
  answeredAtMs?: number;
  /** The gateway has repeated the request, with another key perhaps, or asked a fallback. */
  hasRetried?: boolean;
  /** The failure that was answered, or that ended a stream. */
  failure?: GatewayError;
}
