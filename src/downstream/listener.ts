/** A listener's state and time limits, which all its connections share. */

import type { ByteBudget } from '../lib/memory/byte-budget.ts';
import type { AnswerBroken } from './broken-request.ts';
import type { Call, OnReplyHead } from './call.ts';

/** Tests pass shorter limits. */
export const CLIENT_TIME_LIMITS = {
  headersMs: 15_000,
  /** An upload is refused after this long without a byte, or if it is then too slow on average. */
  requestMs: 60_000,
  /** Between two checks of `limitLingering`. */
  lingerCheckMs: 1000,
  /** See `Connection.#closeCut`. */
  failedStreamMs: 2000,
  /** A client that reads nothing for this long is cut off. node:http has no such limit. */
  sendTimeoutMs: 60_000,
};

interface RequestCounts {
  inFlight: number;
  finished: number;
  cancelled: number;
  openStreams: number;
}

export interface ListenerState {
  readonly timeLimits: typeof CLIENT_TIME_LIMITS;
  readonly budget: ByteBudget;
  handler: {
    /** Answers a call, and calls `call.close()` once its response has closed. Never rejects. */
    readonly handle: (call: Call) => Promise<void>;
    readonly answerBroken: AnswerBroken;
    readonly onReplyHead?: OnReplyHead;
  };
  isDraining: boolean;
  readonly counts: RequestCounts;
  /** Set at a drain's deadline. Later requests are cancelled with it too. */
  cancelReason: Error | undefined;
}
