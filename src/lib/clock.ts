/** A clock for what the threads of the process share, and timers of any length. */

/** 25 days. setTimeout fires at once beyond it. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

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

/** As setTimeout; waits of more than `MAX_TIMER_MS`, such as sums of settings, end there. */
export function startTimer(callback: () => void, ms: number): NodeJS.Timeout {
  return setTimeout(callback, Math.min(ms, MAX_TIMER_MS));
}
