/** A token bucket without a timer: its level is calculated from the time. */

/**
 * Holds up to `capacity` tokens and regains `tokensPerSecond`; both must be above zero. Full at
 * first.
 */
export class TokenBucket {
  readonly #tokensPerMs: number;
  readonly #capacity: number;
  /** The tokens at `#takenAtMs`. */
  #tokens: number;
  #takenAtMs = -Infinity;

  constructor(tokensPerSecond: number, capacity: number) {
    this.#tokensPerMs = tokensPerSecond / 1000;
    this.#capacity = capacity;
    this.#tokens = capacity;
  }

  level(nowMs: number): number {
    const refilled = this.#tokens + (nowMs - this.#takenAtMs) * this.#tokensPerMs;
    return Math.min(this.#capacity, refilled);
  }

  waitMs(tokens: number, nowMs: number): number {
    return Math.max(0, tokens - this.level(nowMs)) / this.#tokensPerMs;
  }

  resetMs(nowMs: number): number {
    return this.waitMs(this.#capacity, nowMs);
  }

  /**
   * Takes tokens, whatever the level; a negative number puts tokens back, up to the capacity.
   * `nowMs` must never go back.
   */
  take(tokens: number, nowMs: number): void {
    this.#tokens = this.level(nowMs) - tokens;
    this.#takenAtMs = nowMs;
  }
}
