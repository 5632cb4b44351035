/** Counts and bounds the memory for all requests and answers together. */

import { ClientGone, GatewayError } from '../errors.ts';
import { collectGarbage } from './garbage-collector.ts';

/**
 * Up to this size a reservation is bounded by `maxBufferedBytes` alone, so that small requests
 * still pass when resident memory is short.
 */
export const SMALL_BYTES = 65_536;
const READ_EVERY_MS = 50;
const COLLECTED_EVERY_MS = 1000;

/**
 * `maxBufferedBytes` bounds all reservations together. `memoryBytes` is the process's memory,
 * because the kernel kills a process that takes more.
 */
type BudgetLimits = { readonly maxBufferedBytes: number; readonly memoryBytes: number };

export class ByteBudget {
  /**
   * A reload may lower the limits below `reservedBytes`. Reservations then fail until enough bytes
   * are freed.
   */
  limits: BudgetLimits;
  reservedBytes = 0;
  /** The bytes of bodies that have arrived. Their reservations may be larger. */
  bodyBytes = 0;
  /**
   * Bytes held by the streams that wait now, at least 1 for each stream. While it is above 0, no
   * body may grow beyond `SMALL_BYTES`.
   */
  waitingBytes = 0;
  /**
   * Streams that had to wait for memory, oldest first, with the time of the first wait
   * (`performance.now()`). A stream leaves once it has passed its bytes on or given them up.
   */
  readonly waitingStreams = new Map<{ readonly isWaiting: boolean }, number>();
  /** Resident memory without bodies, at the last reading. */
  #otherBytes = 0;
  #readAtMs = -Infinity;
  #collectedAtMs = -Infinity;

  constructor(limits: BudgetLimits) {
    this.limits = limits;
  }

  /**
   * Returns whether an eighth of `memoryBytes` stays free once `bytes` more and all reserved bytes
   * have arrived.
   */
  isMemoryLeft(bytes: number): boolean {
    const maxOtherBytes = (this.limits.memoryBytes / 8) * 7 - this.reservedBytes - bytes;
    const nowMs = performance.now();
    if (nowMs - this.#readAtMs > READ_EVERY_MS) this.#readMemory(nowMs);
    if (this.#otherBytes > maxOtherBytes && nowMs - this.#collectedAtMs > COLLECTED_EVERY_MS) {
      this.#collectedAtMs = nowMs;
      collectGarbage();
      this.#readMemory(nowMs);
    }
    return this.#otherBytes <= maxOtherBytes;
  }

  #readMemory(nowMs: number): void {
    this.#readAtMs = nowMs;
    this.#otherBytes = process.memoryUsage.rss() - this.bodyBytes;
  }
}

/** A holder's share of the budget, kept as a total, so that no byte is freed twice. */
export class Reservation {
  readonly budget: ByteBudget;
  #bytes = 0;
  #isClosed = false;

  constructor(budget: ByteBudget) {
    this.budget = budget;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /**
   * @returns false, without a change, if `max` would be exceeded by all reservations together, or
   * memory is short
   * @throws `ClientGone` if the reservation is closed
   * @throws `internal` if `bytes` is negative or not a number, because the budget would stay wrong
   * until the process ends
   */
  tryResize(bytes: number, max = this.budget.limits.maxBufferedBytes): boolean {
    if (bytes === this.#bytes) return true;
    if (this.#isClosed) throw new ClientGone();
    if (!(bytes >= 0)) throw GatewayError.from(new RangeError(`${bytes} bytes are reserved`));
    const { budget } = this;
    const addedBytes = bytes - this.#bytes;
    if (addedBytes > 0) {
      if (bytes > SMALL_BYTES && !budget.isMemoryLeft(addedBytes)) return false;
      if (budget.reservedBytes + addedBytes > max) return false;
    }
    budget.reservedBytes += addedBytes;
    this.#bytes = bytes;
    return true;
  }

  /**
   * @throws `rateLimit` if the bytes do not fit, or if the body grows beyond `SMALL_BYTES` while
   * streams wait; else as `tryResize`
   */
  resize(bytes: number): void {
    const becomesLarge = this.#bytes <= SMALL_BYTES && bytes > SMALL_BYTES;
    const othersWait = becomesLarge && this.budget.waitingBytes > 0;
    if (othersWait || !this.tryResize(bytes)) throw noRoom();
  }

  /** Nothing can be reserved afterwards. */
  close(): void {
    this.tryResize(0);
    this.#isClosed = true;
  }
}

export interface ReservedMemory {
  readonly reservedBytes: number;
  close(): void;
}

export function noRoom(): GatewayError {
  const text = 'The gateway is short of memory: too many bytes in flight';
  return new GatewayError('rateLimit', text, { retryAfterSeconds: 1, limit: 'memory' });
}
