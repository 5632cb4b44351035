/** What threads measure. */

/** Of connections to providers that have carried a request. */
export interface ConnectionFigures {
  readonly open: number;
  /** Since the start. */
  readonly made: number;
  /** Requests that were sent on a connection that had carried one before. */
  readonly reused: number;
}

/** How late the event loop was, in milliseconds. */
export interface LoopDelay {
  readonly mean: number;
  readonly p99: number;
  readonly max: number;
}
