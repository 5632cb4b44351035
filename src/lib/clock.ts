/** A clock for what the threads of the process share. */

/** `performance.now()` counts from the start of its own thread. */
const threadStartMs = Number(process.hrtime.bigint()) / 1e6 - performance.now();

/** Milliseconds on a monotonic clock that is the same in all threads of the process. */
export function sharedNowMs(): number {
  return threadStartMs + performance.now();
}

/** The same in whole milliseconds: sums of them are exact. */
export function sharedNowWholeMs(): number {
  return Math.round(sharedNowMs());
}
