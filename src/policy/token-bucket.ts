/** A token bucket, refilled when it is asked. */

/** Holds `capacity` tokens, of which `tokensPerSecond` come back; both are above zero. Full at first. */
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

  /** Takes a token and returns 0; or takes none, and returns the milliseconds until the next one. `nowMs` never goes back. */
  take(nowMs: number): number {
    const refilled = this.#tokens + (nowMs - this.#refilledAtMs) * this.#tokensPerMs;
    this.#tokens = Math.min(this.#capacity, refilled);
    this.#refilledAtMs = nowMs;
    if (this.#tokens < 1) return (1 - this.#tokens) / this.#tokensPerMs;
    this.#tokens -= 1;
    return 0;
  }

  /** Puts one token back. */
  refund(): void {
    this.#tokens += 1;
  }
}
