/** A token bucket, refilled when it is used. Times are in milliseconds on the clock of `performance.now()`. */
export class TokenBucket {
  readonly tokensPerSecond: number;
  readonly capacity: number;
  readonly #tokensPerMs: number;
  #tokens: number;
  #refilledAtMs: number;

  /** Starts full. `tokensPerSecond` and `capacity` are above zero. */
  constructor(tokensPerSecond: number, capacity: number, nowMs: number) {
    this.tokensPerSecond = tokensPerSecond;
    this.capacity = capacity;
    this.#tokensPerMs = tokensPerSecond / 1000;
    this.#tokens = capacity;
    this.#refilledAtMs = nowMs;
  }

  /** Takes a token and returns 0; or takes none and returns the milliseconds until the next one. */
  take(nowMs: number): number {
    const elapsedMs = Math.max(0, nowMs - this.#refilledAtMs);
    this.#tokens = Math.min(this.capacity, this.#tokens + elapsedMs * this.#tokensPerMs);
    this.#refilledAtMs = Math.max(nowMs, this.#refilledAtMs);
    if (this.#tokens < 1) return (1 - this.#tokens) / this.#tokensPerMs;
    this.#tokens -= 1;
    return 0;
  }

  /** Puts one token back. */
  refund(): void {
    this.#tokens = Math.min(this.capacity, this.#tokens + 1);
  }
}
