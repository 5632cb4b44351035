/** A bound on the memory that requests and answers of all clients take together. */

import { ClientGone, GatewayError } from './errors.ts';

/** One for the process. */
export class ByteBudget {
  /** Limit on all reservations together. A reload may set it below `reservedBytes`; then `reserve` fails until enough is freed. */
  maxBytes: number;
  #reservedBytes = 0;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  get reservedBytes(): number {
    return this.#reservedBytes;
  }

  /** Reserves bytes, or frees them if `bytes` is negative. Returns false, and reserves nothing, if they do not fit. */
  reserve(bytes: number): boolean {
    if (bytes > 0 && this.#reservedBytes + bytes > this.maxBytes) return false;
    this.#reservedBytes += bytes;
    return true;
  }
}

/**
 * What one holder has reserved. `resize` takes the total and not a difference, so nothing is freed
 * twice; and whoever creates it calls `end`, so nothing stays reserved.
 */
export class Reservation {
  readonly #budget: ByteBudget;
  #bytes = 0;
  #hasEnded = false;

  constructor(budget: ByteBudget) {
    this.#budget = budget;
  }

  /** Changes it to `bytes`. Throws `rateLimit` if they do not fit, and `ClientGone` if it has ended. */
  resize(bytes: number): void {
    if (bytes === this.#bytes) return;
    if (this.#hasEnded) throw new ClientGone();
    if (!this.#budget.reserve(bytes - this.#bytes)) {
      // The failure names no provider: no other one is asked.
      const text = 'Rate limit exceeded: too many bytes in flight';
      throw new GatewayError('rateLimit', text, { retryAfterSeconds: 1, limit: 'memory' });
    }
    this.#bytes = bytes;
  }

  /** Frees everything, once and for all. */
  end(): void {
    this.resize(0);
    this.#hasEnded = true;
  }
}
