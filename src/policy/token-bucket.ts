/** A token bucket, refilled when it is asked. */

/**
 * Holds `capacity` tokens, of which `tokensPerSecond` come back; both are above zero. Full at
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
   * Returns the tokens that it holds, which are below zero if more were taken. `nowMs` never goes
   * back.
   */
  level(nowMs: number): number {
    const refilled = this.#tokens + (nowMs - this.#refilledAtMs) * this.#tokensPerMs;
    this.#tokens = Math.min(this.#capacity, refilled);
    this.#refilledAtMs = nowMs;
    return this.#tokens;
  }

  /** Returns the milliseconds until it holds so many tokens; 0 if it does. */
  waitMs(tokens: number, nowMs: number): number {
    return Math.max(0, tokens - this.level(nowMs)) / this.#tokensPerMs;
  }

  /** Takes so many tokens, whatever it holds; puts them back if the number is negative. */
  take(tokens: number): void {
    this.#tokens -= tokens;
  }
}
