/** What the gateway learns about a request while it is answered, for its access line. */

import type { GatewayError } from '../lib/errors.ts';
import type { AnswerSummary, TryFacts } from '../lib/request-facts.ts';

/**
 * Filled in as it becomes known. Times are on the clock of `performance.now()`. A class, so that all records have one
 * shape: V8 would copy an object that grows member by member, again and again.
 */
export class AccessRecord {
  /** The name of the client whose key was sent; keys of `[server.auth]` have none. */
  client: string | undefined;
  provider: string | undefined;
  model: string | undefined;
  stream: boolean | undefined;
  requestBytes: number | undefined;
  traceId: string | undefined;
  /** In order. */
  readonly tries: TryFacts[] = [];
  /** The index in `tries` of the attempt whose answer or error the client gets. */
  answeredTry: number | undefined;
  /** Of the attempt that was answered. */
  answer: AnswerSummary | undefined;
  /** The request's body was complete. */
  bodyReadAtMs: number | undefined;
  /** The first attempt began. */
  askedAtMs: number | undefined;
  /** The last attempt had its answer, or failed. */
  answeredAtMs: number | undefined;
  /** The gateway has repeated the request, with another key perhaps, or asked a fallback. */
  hasRetried = false;
  /** The failure that was answered, or that ended a stream. */
  failure: GatewayError | undefined;
}
