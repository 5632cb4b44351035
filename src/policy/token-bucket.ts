/** A token bucket in one cell of shared memory. */

const NS_PER_MS = 1e6;
const NS_PER_SECOND = 1e9;

/**
 * Holds the time at which it is full again, as GCRA does with its theoretical arrival time: a token taken moves it
 * forward by the time that one token takes. Threads may take at the same time: each token is taken once. Times are in
 * milliseconds of `sharedNowMs()`.
 */
export class TokenBucket {
  /** In nanoseconds. */
  readonly #perToken: bigint;
  readonly #perBucket: bigint;
  readonly #fullAt: BigInt64Array;

  /** `block` has 8 bytes; filled with zeros it is a full bucket. `tokensPerSecond` and `capacity` are whole and above zero. */
  constructor(tokensPerSecond: number, capacity: number, block: SharedArrayBuffer) {
    // A whole number: sums of them are exact.
    this.#perToken = BigInt(Math.floor(NS_PER_SECOND / tokensPerSecond));
    this.#perBucket = this.#perToken * BigInt(capacity);
    this.#fullAt = new BigInt64Array(block);
  }

  /** Takes a token and returns 0; or takes none and returns the milliseconds until the next one. */
  take(nowMs: number): number {
    const now = BigInt(Math.floor(nowMs * NS_PER_MS));
    let fullAt = Atomics.load(this.#fullAt, 0);
    for (;;) {
      const next = (fullAt > now ? fullAt : now) + this.#perToken;
      const wait = next - now - this.#perBucket;
      if (wait > 0n) return Number(wait) / NS_PER_MS;
      const found = Atomics.compareExchange(this.#fullAt, 0, fullAt, next);
      if (found === fullAt) return 0;
      fullAt = found;
    }
  }

  /** Puts one token back. */
  refund(): void {
    Atomics.sub(this.#fullAt, 0, this.#perToken);
  }
}
