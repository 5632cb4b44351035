/** What each thread measures by itself. */

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

export interface ThreadFigures {
  /** To providers. Undefined if the transport does not know them. */
  readonly connections: ConnectionFigures | undefined;
  readonly loopDelayMs: LoopDelay;
}

/** Returns the sums. Undefined if none of the threads knows its connections. */
export function sumConnections(
  parts: readonly (ConnectionFigures | undefined)[],
): ConnectionFigures | undefined {
  const known = parts.filter((part) => part !== undefined);
  if (known.length === 0) return undefined;
  const sum = (name: keyof ConnectionFigures) =>
    known.reduce((before, part) => before + part[name], 0);
  return { open: sum('open'), made: sum('made'), reused: sum('reused') };
}
