/** The memory that requests and answers of all clients take together: bounded, and free again at once. */

import { ClientGone, GatewayError } from './errors.ts';
import { collectAll } from './garbage.ts';
import { HeldBody } from './held-body.ts';
import type { SharedCounter, SharedMemory } from './shared-memory.ts';

/** A smaller holder is bounded by `maxBufferedBytes` alone: small requests go on when memory is short. */
const SMALL_BYTES = 65_536;
/** Resident memory is read at most this often; and all garbage collected, while it is too much. */
const READING_MS = 50;
const COLLECTING_MS = 1000;

export interface BudgetLimits {
  /** Of all reservations together. */
  readonly maxBufferedBytes: number;
  /** Limit of the whole process: the kernel ends one that takes more. */
  readonly memoryBytes: number;
}

/** One for the process, over all its threads. */
export class ByteBudget {
  /** A reload may set them below what is reserved; then `reserve` fails until enough is freed. */
  limits: BudgetLimits;
  readonly #reserved: SharedCounter;
  /** Of what is reserved for bodies, what has come. */
  readonly held: SharedCounter;
  /** Bytes of streams that wait for more, 1 for each that holds nothing: new requests must not take their room. */
  readonly waiting: SharedCounter;
  /** Resident memory without bodies. */
  #otherBytes = 0;
  #readAtMs = -Infinity;
  #collectedAtMs = -Infinity;

  constructor(limits: BudgetLimits, memory: SharedMemory) {
    this.limits = limits;
    this.#reserved = memory.inFlightCounter('bytes');
    this.held = memory.inFlightCounter('bytes of bodies');
    this.waiting = memory.inFlightCounter('bytes of streams that wait for memory');
  }

  get reservedBytes(): number {
    return this.#reserved.value;
  }

  /** Reserves bytes for a holder that will have `total`. Returns false, and reserves nothing, if they do not fit. */
  reserve(bytes: number, total: number): boolean {
    if (total > SMALL_BYTES && !this.#isMemoryLeft(bytes)) return false;
    return this.#reserved.addWithin(bytes, this.limits.maxBufferedBytes);
  }

  free(bytes: number): void {
    this.#reserved.add(-bytes);
  }

  /** Returns whether an eighth of the memory is left once all that is reserved has come. */
  #isMemoryLeft(bytes: number): boolean {
    const maxOtherBytes = (this.limits.memoryBytes / 8) * 7 - this.#reserved.value - bytes;
    const nowMs = performance.now();
    if (nowMs - this.#readAtMs > READING_MS) this.#readMemory(nowMs);
    if (this.#otherBytes > maxOtherBytes && nowMs - this.#collectedAtMs > COLLECTING_MS) {
      this.#collectedAtMs = nowMs;
      collectAll();
      this.#readMemory(nowMs);
    }
    return this.#otherBytes <= maxOtherBytes;
  }

  #readMemory(nowMs: number): void {
    this.#readAtMs = nowMs;
    this.#otherBytes = process.memoryUsage.rss() - this.held.value;
  }
}

/**
 * The bytes that one holder has reserved, and the body that it keeps there. `resize` takes the total and not a difference, so
 * nothing is freed twice; and whoever creates it calls `end`, so nothing stays reserved.
 */
export class Reservation {
  readonly budget: ByteBudget;
  #bytes = 0;
  #readers = 0;
  #hasEnded = false;
  #body: HeldBody | undefined;

  constructor(budget: ByteBudget) {
    this.budget = budget;
  }

  /** Changes it to `bytes`, and returns false if they do not fit now. Throws `ClientGone` if it has ended. */
  tryResize(bytes: number): boolean {
    if (bytes === this.#bytes) return true;
    if (this.#hasEnded) throw new ClientGone();
    const more = bytes - this.#bytes;
    if (more < 0) this.budget.free(-more);
    else if (!this.budget.reserve(more, bytes)) return false;
    this.#bytes = bytes;
    return true;
  }

  /** Changes it to `bytes`; 0 also frees the body. Throws `rateLimit` if they do not fit, and `ClientGone` if it has ended. */
  resize(bytes: number): void {
    const isAfterOthers = bytes > SMALL_BYTES && this.budget.waiting.value > 0;
    if ((bytes > this.#bytes && isAfterOthers) || !this.tryResize(bytes)) throw noRoom();
    if (bytes > 0) return;
    this.#body?.free();
    this.#body = undefined;
  }

  /**
   * Begins to wait for room, and returns what ends the wait. Throws `rateLimit` if it can come from nobody: if all that
   * is reserved is held by streams that wait, one of them has to give way.
   */
  wait(): () => void {
    const { budget } = this;
    const bytes = Math.max(1, this.#bytes);
    budget.waiting.add(bytes);
    const end = () => budget.waiting.add(-bytes);
    if (this.#bytes === 0 || budget.waiting.value < budget.reservedBytes) return end;
    end();
    throw noRoom();
  }

  /** Begins to keep a body of up to `maxBytes`; what was reserved for it is the holder's concern. */
  keepBody(maxBytes: number): HeldBody {
    this.#body = new HeldBody(maxBytes, this.budget.held);
    return this.#body;
  }

  /** The body is kept until everybody who began to read it has called `endReading`. */
  beginReading(): void {
    this.#readers += 1;
  }

  endReading(): void {
    this.#readers -= 1;
    if (this.#readers === 0) this.resize(0);
  }

  /** Frees everything, once and for all. */
  end(): void {
    this.resize(0);
    this.#hasEnded = true;
  }
}

/** The failure of bytes that do not fit. It names no provider, so that no fallback is tried. */
export function noRoom(): GatewayError {
  const text = 'Rate limit exceeded: too many bytes in flight';
  return new GatewayError('rateLimit', text, { retryAfterSeconds: 1, limit: 'memory' });
}
