/**
 * The memory that the requests and answers of all clients take together: bounded, and given back
 * with its last reader.
 */

import { ChunkBuffer } from './chunk-buffer.ts';
import { ClientGone, GatewayError } from './errors.ts';
import { collectGarbage } from './garbage-collector.ts';

/**
 * A smaller holder is bounded by `maxBufferedBytes` alone: small requests go on when memory is
 * short.
 */
const SMALL_BYTES = 65_536;
const GROWTH_BYTES = 1_048_576;
/** The part of the budget that is kept for the stream that has waited longest. */
const KEPT_PART = 1 / 8;
/**
 * A stream waits no longer for bodies that are slow to come, clients that do not read, and
 * providers that do not end an event.
 */
const MAX_WAIT_MS = 2000;
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
   * The streams that had to wait, in that order, and since when (`performance.now()`): each until
   * it has passed bytes on.
   */
  readonly queue = new Map<Reservation, number>();
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

interface BodyLimits {
  readonly announcedBytes: number;
  readonly maxBytes: number;
  /** Creates the error of a body that is longer. */
  readonly tooLarge: () => Error;
}

/**
 * The bytes that one holder has reserved, and the body that it keeps there. A size is a total and
 * not a difference, so nothing is freed twice; whoever creates it calls `close`, so nothing stays
 * reserved. `dropBody` frees the body when its last reader has released it, `free` at once, `close`
 * for good.
 *
 * A stream calls `tryGrow` for each chunk of an event. If that returns false, the stream passes on
 * what it holds of the event if it `isStuck`; else it calls `wait`, and `endWait` before it tries
 * again. It calls `leaveQueue` once bytes are passed on or given up.
 */
export class Reservation {
  readonly budget: ByteBudget;
  #bytes = 0;
  /** Its part of the bytes of the streams that wait. */
  #waitingBytes = 0;
  #isClosed = false;
  #limits: BodyLimits | undefined;
  /** The length of the body so far. */
  size = 0;
  #short: ChunkBuffer | undefined;
  /**
   * A long body: grows in its place, and shrinks without the collector. A short one is not worth
   * the 0.1 ms.
   */
  #long: ArrayBuffer | undefined;
  #readers = 0;
  #isDropped = false;

  constructor(budget: ByteBudget) {
    this.budget = budget;
  }

  /**
   * Changes it to `bytes`; returns false if all were more than `max` then, or if memory is short.
   * Throws `ClientGone` if it is closed.
   */
  tryResize(bytes: number, max = this.budget.limits.maxBufferedBytes): boolean {
    if (bytes === this.#bytes) return true;
    if (this.#isClosed) throw new ClientGone();
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
   * As `tryResize`, for a stream whose event is not whole yet. An eighth of the budget is kept for
   * the stream that has waited longest, so that no other stream takes all that becomes free.
   */
  tryGrow(bytes: number): boolean {
    const { limits, queue } = this.budget;
    if (this.tryResize(bytes, limits.maxBufferedBytes * (1 - KEPT_PART))) return true;
    if (!queue.has(this)) queue.set(this, performance.now());
    return this.#isFirst && this.tryResize(bytes);
  }

  /**
   * No stream that waits had to wait earlier. A stream ahead of it that got its room may dawdle.
   */
  get #isFirst(): boolean {
    for (const other of this.budget.queue.keys()) {
      if (other === this) return true;
      if (other.#waitingBytes > 0) return false;
    }
    return false;
  }

  /** Lets the next stream go first: this stream has passed its held bytes on, or given them up. */
  leaveQueue(): void {
    this.budget.queue.delete(this);
  }

  /**
   * This stream has waited longest, and nobody makes room: all other bytes that are reserved belong
   * to streams that wait, or two seconds have passed.
   */
  get isStuck(): boolean {
    const { queue, reservedBytes, waitingBytes } = this.budget;
    if (!this.#isFirst) return false;
    if (waitingBytes + this.#bytes >= reservedBytes) return true;
    return performance.now() - queue.get(this)! >= MAX_WAIT_MS;
  }

  /** Begins to wait for room, until `endWait` is called or the memory is given back. */
  wait(): void {
    this.#waitingBytes = Math.max(1, this.#bytes);
    this.budget.waitingBytes += this.#waitingBytes;
  }

  endWait(): void {
    this.budget.waitingBytes -= this.#waitingBytes;
    this.#waitingBytes = 0;
  }

  /**
   * Changes it to `bytes`. Throws `tooLarge` of the body, `rateLimit` if they do not fit, and
   * `ClientGone` if it is closed.
   */
  resize(bytes: number): void {
    if (this.#limits && bytes > this.#limits.maxBytes) throw this.#limits.tooLarge();
    const becomesLarge = this.#bytes <= SMALL_BYTES && bytes > SMALL_BYTES;
    const othersWait = becomesLarge && this.budget.waitingBytes > 0;
    if (othersWait || !this.tryResize(bytes)) throw noRoom();
  }

  /**
   * Begins to keep a body: reserves the bytes that are announced, and more if more come. Throws as
   * `resize` does.
   */
  holdBody(limits: BodyLimits): this {
    this.#limits = limits;
    this.resize(limits.announcedBytes);
    return this;
  }

  /** Takes a chunk of the body. Throws as `resize` does. */
  push(chunk: Buffer): void {
    const size = this.size + chunk.length;
    if (size > this.#limits!.announcedBytes) this.resize(size);
    if (!this.#long && size <= SMALL_BYTES) (this.#short ??= new ChunkBuffer()).push(chunk);
    else this.#pushLong(chunk, this.#limits!.maxBytes);
    this.size = size;
    this.budget.bodyBytes += chunk.length;
  }

  #pushLong(chunk: Buffer, maxBytes: number): void {
    const start = this.#long ? this.size : 0;
    const bytes = this.#short ? Buffer.concat([...this.#short.parts, chunk]) : chunk;
    this.#short = undefined;
    this.#long ??= new ArrayBuffer(0, { maxByteLength: maxBytes });
    const end = start + bytes.length;
    if (end > this.#long.byteLength) {
      this.#long.resize(Math.min(maxBytes, Math.ceil(end / GROWTH_BYTES) * GROWTH_BYTES));
    }
    new Uint8Array(this.#long, start).set(bytes);
  }

  /**
   * The body. The bytes of a long one are to be copied by `copyIfResizable` before they are sent.
   */
  get parts(): readonly Buffer[] {
    return this.#long ? [Buffer.from(this.#long, 0, this.size)] : (this.#short?.parts ?? []);
  }

  retainBody(): void {
    this.#readers += 1;
  }

  releaseBody(): void {
    this.#readers -= 1;
    if (this.#readers === 0 && this.#isDropped) this.free();
  }

  /**
   * Nobody begins to read the body any more: it is kept until everybody who has retained it has
   * released it.
   */
  dropBody(): void {
    this.#isDropped = true;
    if (this.#readers === 0) this.free();
  }

  /** Gives all of it back. `parts` of a long body that somebody still has are empty then. */
  free(): void {
    this.tryResize(0);
    this.endWait();
    this.leaveQueue();
    this.#short = undefined;
    this.#long?.resize(0);
    this.#long = undefined;
    this.budget.bodyBytes -= this.size;
    this.size = 0;
  }

  /** Frees everything, once and for all. */
  close(): void {
    this.free();
    this.#isClosed = true;
  }
}

/**
 * Returns bytes that may be handed to a socket: it reads them later, when the body may have been
 * freed.
 */
export function copyIfResizable(bytes: Buffer): Buffer {
  return (bytes.buffer as ArrayBuffer).resizable ? Buffer.from(bytes) : bytes;
}

/** The failure of bytes that do not fit. */
export function noRoom(): GatewayError {
  const text = 'Rate limit exceeded: too many bytes in flight';
  return new GatewayError('rateLimit', text, { retryAfterSeconds: 1, limit: 'memory' });
}
