/** How fast a target of `balance = "fastest"` begins its streams. */

/** Older times are ignored, and a target is tried again after so long without a time. */
const WINDOW_MS = 300_000;
/** Bounds the memory of a target, and the work to sort its times. */
const MAX_TIMES = 64;
/** The times that show whether the target is slow now. A single long prompt must not. */
const NEWEST_TIMES = 3;
/** A target is busy if its newest times are this multiple of its usual time. */
const BUSY_FACTOR = 10;
/**
 * A shorter usual time counts as this. Otherwise a local target with a usual time of 1 ms would be
 * busy after each pause of this process of 10 ms.
 */
const LEAST_USUAL_MS = 10;

/** A target's times from a sent request to the first token of its stream. */
export class FirstTokenTimes {
  #times: readonly { readonly atMs: number; readonly tookMs: number }[] = [];
  #triedAtMs = -Infinity;

  /** Adds the time of a stream that begins now. */
  add(tookMs: number): void {
    const atMs = performance.now();
    this.#times = [...this.#times, { atMs, tookMs }].slice(-MAX_TIMES);
  }

  /**
   * Adds how long a stream has waited in vain, if that is longer than usual. Without such times a
   * target that hangs would keep the median from before.
   */
  addSilence(waitedMs: number): void {
    if (waitedMs > this.state.usualMs) this.add(waitedMs);
  }

  /**
   * Returns whether a target without a time is to be asked now. Returns true once in five minutes,
   * because all requests until the first time, and all after a failure, would ask the target.
   */
  beginTrial(): boolean {
    const nowMs = performance.now();
    if (nowMs - this.#triedAtMs < WINDOW_MS) return false;
    this.#triedAtMs = nowMs;
    return true;
  }

  /**
   * Returns the median of the last five minutes, in milliseconds; Infinity without a stream.
   * `isBusy`: the median of the three newest times is ten times as long.
   */
  get state(): { readonly usualMs: number; readonly isBusy: boolean } {
    const sinceMs = performance.now() - WINDOW_MS;
    const times = this.#times.filter(({ atMs }) => atMs >= sinceMs).map(({ tookMs }) => tookMs);
    const usualMs = medianOf(times);
    const busyMs = Math.max(usualMs, LEAST_USUAL_MS) * BUSY_FACTOR;
    const isSlow = medianOf(times.slice(-NEWEST_TIMES)) >= busyMs;
    return { usualMs, isBusy: isSlow && times.length > 0 };
  }
}

/** Returns the lower median; Infinity without values. */
function medianOf(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[(values.length - 1) >> 1] ?? Infinity;
}
