/** What the gateway learns about a request while it is answered, for its access line. */

import type { Attempt } from '../lib/attempt.ts';
import type { GatewayError } from '../lib/errors.ts';

/** Filled in as it becomes known. Times are on the clock of `performance.now()`. */
export class AccessRecord {
  /** The name of the client whose key was sent; keys of `[server.auth]` have none. */
  client: string | undefined;
  /** Whose answer or error the client gets. */
  provider: string | undefined;
  model: string | undefined;
  stream: boolean | undefined;
  requestBytes: number | undefined;
  traceId: string | undefined;
  /** In order, those that were skipped too. */
  readonly tries: Attempt[] = [];
  /** The attempt whose answer or error the client gets. */
  attempt: Attempt | undefined;
  /** The request's body was complete. */
  bodyReadAtMs: number | undefined;
  /** The gateway has repeated the request, with another key perhaps, or asked a fallback. */
  hasRetried = false;
  /** The failure that was answered, or that ended a stream. */
  failure: GatewayError | undefined;

  /**
   * Returns how long a chat completion took until its answer's head; undefined if its body was never read. `gatewayMs` is
   * neither the client's upload nor `upstreamMs`, which goes from the first attempt to the end of the last one.
   */
  timeSpent(
    headAtMs: number,
  ): { readonly gatewayMs: number; readonly upstreamMs?: number } | undefined {
    if (this.bodyReadAtMs === undefined) return undefined;
    const totalMs = headAtMs - this.bodyReadAtMs;
    const first = this.tries.find(({ isAsked }) => isAsked);
    const last = this.tries.findLast(({ isAsked }) => isAsked);
    if (!first || !last) return { gatewayMs: totalMs };
    const upstreamMs = (last.endedAtMs ?? headAtMs) - first.beganAtMs;
    return { gatewayMs: totalMs - upstreamMs, upstreamMs };
  }
}
