/** A bound on the memory that requests and answers of all clients take together. */

import { ClientGone, GatewayError } from './errors.ts';
import type { SharedCounter } from './shared-memory.ts';

/** One for the process, over all its threads. */
export class ByteBudget {
  /** Limit on all reservations together. A reload may set it below `reservedBytes`; then `reserve` fails until enough is freed. */
  maxBytes: number;
  readonly #reserved: SharedCounter;

  constructor(maxBytes: number, reserved: SharedCounter) {
    this.maxBytes = maxBytes;
    this.#reserved = reserved;
  }

  get reservedBytes(): number {
    return this.#reserved.value;
  }

  /** Reserves bytes, or frees them if `bytes` is negative. Returns false, and reserves nothing, if they do not fit. */
  reserve(bytes: number): boolean {
    if (bytes > 0) return this.#reserved.addWithin(bytes, this.maxBytes);
    this.#reserved.add(bytes);
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
