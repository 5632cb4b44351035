/** Connections to providers, counted. */

/** Of connections that have carried a request. */
export interface ConnectionFigures {
  readonly open: number;
  /** Since the start. */
  readonly made: number;
  /** Requests that were sent on a connection that had carried one before. */
  readonly reused: number;
}
