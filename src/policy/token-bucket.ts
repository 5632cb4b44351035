/** A token bucket without a timer: reading its level refills it. */

/**
 * Holds up to `capacity` tokens and regains `tokensPerSecond`; both must be above zero. Full at
 * first.
 */
export class TokenBucket {
  readonly #tokensPerMs: number;
  readonly #capacity: number;
  #tokens: number;
  #refilledAtMs = -Infinity;

  constructor(tokensPerSecond: number, capacity: number) {
    this.#tokensPerMs = tokensPerSecond / 1000;
    this.#capacity = capacity;
    this.#tokens = capacity;
  }

  /**
   * Returns how many tokens are left, below zero if more were taken. `nowMs` must never go back.
   */
  level(nowMs: number): number {
    const refilled = this.#tokens + (nowMs - this.#refilledAtMs) * this.#tokensPerMs;
    this.#tokens = Math.min(this.#capacity, refilled);
    this.#refilledAtMs = nowMs;
    return this.#tokens;
  }

  /** Returns the milliseconds until the bucket holds `tokens`, or 0 if it does now. */
  waitMs(tokens: number, nowMs: number): number {
    return Math.max(0, tokens - this.level(nowMs)) / this.#tokensPerMs;
  }

  /** Takes tokens, whatever the level; a negative number puts tokens back. */
  take(tokens: number): void {
    this.#tokens -= tokens;
  }
}
