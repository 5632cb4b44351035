/**
 * The memory that the requests and answers of all clients take together: counted and bounded.
 * `held-body.ts` keeps bodies there, `event-room.ts` has what streams need of it.
 */

import { ClientGone, GatewayError } from './errors.ts';
import { collectGarbage } from './garbage-collector.ts';

/**
 * A smaller holder is bounded by `maxBufferedBytes` alone: small requests go on when memory is
 * short.
 */
export const SMALL_BYTES = 65_536;
/** Resident memory is read at most this often; and all garbage collected, while it is too much. */
const READING_MS = 50;
const COLLECTING_MS = 1000;

/**
 * Limits of all reservations together, and of the whole process: the kernel ends one that takes
 * more.
 */
type BudgetLimits = { readonly maxBufferedBytes: number; readonly memoryBytes: number };

/** What a listener's requests and answers take together. */
export class ByteBudget {
  /**
   * A reload may set them below what is reserved; then nothing more is reserved until enough is
   * freed.
   */
  limits: BudgetLimits;
  reservedBytes = 0;
  /** The bytes that have come of what is reserved for bodies. */
  bodyBytes = 0;
  /**
   * Bytes of the streams that wait for memory, at least 1 for each: while above 0, no body becomes
   * larger than 64 KiB.
   */
  waitingBytes = 0;
  /**
   * The rooms of the streams that had to wait, in that order, and since when
   * (`performance.now()`): each until its stream has passed bytes on.
   */
  readonly queue = new Map<{ readonly waitingBytes: number }, number>();
  /** Resident memory without bodies. */
  #otherBytes = 0;
  #readAtMs = -Infinity;
  #collectedAtMs = -Infinity;

  constructor(limits: BudgetLimits) {
    this.limits = limits;
  }

  /**
   * Returns whether an eighth of the memory is left once `bytes` and all that is reserved have
   * come.
   */
  isMemoryLeft(bytes: number): boolean {
    const maxOtherBytes = (this.limits.memoryBytes / 8) * 7 - this.reservedBytes - bytes;
    const nowMs = performance.now();
    if (nowMs - this.#readAtMs > READING_MS) this.#readMemory(nowMs);
    if (this.#otherBytes > maxOtherBytes && nowMs - this.#collectedAtMs > COLLECTING_MS) {
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

/** The bytes of the budget that one holder has reserved: a total, so that none is freed twice. */
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
   * Changes it to `bytes`; returns false if all were more than `max` then, or if memory is short.
   * Throws `ClientGone` if it is closed, and `internal` if `bytes` is no count: the budget would be
   * wrong until the process ends.
   */
  tryResize(bytes: number, max = this.budget.limits.maxBufferedBytes): boolean {
    if (bytes === this.#bytes) return true;
    if (this.#isClosed) throw new ClientGone();
    if (!(bytes >= 0)) throw GatewayError.from(new RangeError(`${bytes} bytes are reserved`));
    const { budget } = this;
    const more = bytes - this.#bytes;
    if (more > 0) {
      if (bytes > SMALL_BYTES && !budget.isMemoryLeft(more)) return false;
      if (budget.reservedBytes + more > max) return false;
    }
    budget.reservedBytes += more;
    this.#bytes = bytes;
    return true;
  }

  /**
   * Changes it to `bytes` of a body. Throws as `tryResize` does, and `rateLimit` if they do not fit
   * or if the body becomes large while streams wait.
   */
  resize(bytes: number): void {
    const becomesLarge = this.#bytes <= SMALL_BYTES && bytes > SMALL_BYTES;
    const othersWait = becomesLarge && this.budget.waitingBytes > 0;
    if (othersWait || !this.tryResize(bytes)) throw noRoom();
  }

  /** Frees all of it. Nothing can be reserved any more. */
  close(): void {
    this.tryResize(0);
    this.#isClosed = true;
  }
}

/** The failure of bytes that do not fit. */
export function noRoom(): GatewayError {
  const text = 'Rate limit exceeded: too many bytes in flight';
  return new GatewayError('rateLimit', text, { retryAfterSeconds: 1, limit: 'memory' });
}
