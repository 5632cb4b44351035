/** How fast a target of `balance = "fastest"` begins its streams. */

/** Older times are ignored. */
const WINDOW_MS = 300_000;
/** Bounds the memory of a target, and the work to sort its times. */
const MAX_TIMES = 64;
/** The times that show whether the target is slow now. A single long prompt must not. */
const NEWEST_TIMES = 3;
/** The newest times of a busy target are this multiple of its usual time. */
const BUSY = 10;

/** A target's times from a request to the first token of its stream. */
export class FirstTokenTimes {
  #times: readonly { readonly atMs: number; readonly tookMs: number }[] = [];

  /** Adds the time of a stream that begins now. */
  add(tookMs: number): void {
    const atMs = performance.now();
    this.#times = [...this.#times, { atMs, tookMs }].slice(-MAX_TIMES);
  }

  /**
   * Returns the median of the last five minutes, in milliseconds; Infinity without a stream.
   * `isBusy`: the median of the newest times is ten times as long.
   */
  get state(): { readonly usualMs: number; readonly isBusy: boolean } {
    const sinceMs = performance.now() - WINDOW_MS;
    const times = this.#times.filter(({ atMs }) => atMs >= sinceMs).map(({ tookMs }) => tookMs);
    const usualMs = medianOf(times);
    const isSlow = medianOf(times.slice(-NEWEST_TIMES)) >= usualMs * BUSY;
    return { usualMs, isBusy: isSlow && times.length > 0 };
  }
}

/** Returns the lower median; Infinity without values. */
function medianOf(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[(values.length - 1) >> 1] ?? Infinity;
}
