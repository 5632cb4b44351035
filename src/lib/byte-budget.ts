/** The memory that requests and answers of all clients take together: bounded, and given back as soon as the last reader has it. */

import { ChunkBuffer } from './chunk-buffer.ts';
import { ClientGone, GatewayError } from './errors.ts';
import { collectGarbage } from './garbage-collector.ts';

/** A smaller holder is bounded by `maxBufferedBytes` alone: small requests go on when memory is short. */
const SMALL_BYTES = 65_536;
const GROWTH_BYTES = 1_048_576;
/** The largest event that a stream may have, what is held before it, and the read that ends it. */
const EVENT_ROOM_BYTES = 18_874_368;
/** Resident memory is read at most this often; and all garbage collected, while it is too much. */
const READING_MS = 50;
const COLLECTING_MS = 1000;

/** Limits of all reservations together, and of the whole process: the kernel ends one that takes more. */
type BudgetLimits = { readonly maxBufferedBytes: number; readonly memoryBytes: number };

/** What a listener's requests and answers take together. */
export class ByteBudget {
  /** A reload may set them below what is reserved; then `reserve` fails until enough is freed. */
  limits: BudgetLimits;
  reservedBytes = 0;
  /** The bytes that have come of what is reserved for bodies. */
  bodyBytes = 0;
  /** Bytes of the streams that wait for memory, at least 1 for each: while above 0, no body becomes larger than 64 KiB. */
  waitingBytes = 0;
  /** The streams that had to wait, in that order, each until its event is whole. */
  readonly queue = new Set<Reservation>();
  /** Resident memory without bodies. */
  #otherBytes = 0;
  #readAtMs = -Infinity;
  #collectedAtMs = -Infinity;

  constructor(limits: BudgetLimits) {
    this.limits = limits;
  }

  /** Reserves bytes for a holder that will have `total`. Returns false, and reserves nothing, if all were more than `max` then. */
  reserve(bytes: number, total: number, max: number): boolean {
    if (total > SMALL_BYTES && !this.#isMemoryLeft(bytes)) return false;
    if (this.reservedBytes + bytes > max) return false;
    this.reservedBytes += bytes;
    return true;
  }

  free(bytes: number): void {
    this.reservedBytes -= bytes;
  }

  /** Returns whether an eighth of the memory is left once all that is reserved has come. */
  #isMemoryLeft(bytes: number): boolean {
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

/**
 * The bytes that one holder has reserved, and the body that it keeps there. `resize` takes the total and not a difference, so
 * nothing is freed twice; and whoever creates it calls `close`, so nothing stays reserved.
 */
export class Reservation {
  readonly budget: ByteBudget;
  #bytes = 0;
  #readers = 0;
  #isDropped = false;
  #isClosed = false;
  #body: HeldBody | undefined;

  constructor(budget: ByteBudget) {
    this.budget = budget;
  }

  /** Changes it to `bytes`, and returns false if they do not fit now. Throws `ClientGone` if it is closed. */
  tryResize(bytes: number, max = this.budget.limits.maxBufferedBytes): boolean {
    if (bytes === this.#bytes) return true;
    if (this.#isClosed) throw new ClientGone();
    const more = bytes - this.#bytes;
    if (more < 0) this.budget.free(-more);
    else if (!this.budget.reserve(more, bytes, max)) return false;
    this.#bytes = bytes;
    return true;
  }

  /**
   * As `tryResize`, for an event that is not whole yet. Room for one event is kept for the stream that has waited longest:
   * if all had only parts of their events, none could go on.
   */
  tryGrow(bytes: number): boolean {
    const { limits, queue } = this.budget;
    const keptBytes = Math.min(limits.maxBufferedBytes / 2, EVENT_ROOM_BYTES);
    if (this.tryResize(bytes, limits.maxBufferedBytes - keptBytes)) return true;
    queue.add(this);
    return this.#isFirst && this.tryResize(bytes);
  }

  get #isFirst(): boolean {
    return this.budget.queue.values().next().value === this;
  }

  /** The event is whole, or given up: the next stream goes first. */
  leaveQueue(): void {
    this.budget.queue.delete(this);
  }

  /** Changes it to `bytes`. Throws `rateLimit` if they do not fit, and `ClientGone` if it is closed. */
  resize(bytes: number): void {
    const becomesLarge = this.#bytes <= SMALL_BYTES && bytes > SMALL_BYTES;
    const isAfterOthers = becomesLarge && this.budget.waitingBytes > 0;
    if (isAfterOthers || !this.tryResize(bytes)) throw noRoom();
  }

  /** Gives all of it back, and the body. */
  free(): void {
    this.tryResize(0);
    this.leaveQueue();
    this.#body?.free();
    this.#body = undefined;
  }

  /** Begins to wait for room, and returns what ends the wait. Throws `rateLimit` for the first of the queue if all the others wait too. */
  wait(): () => void {
    const { budget } = this;
    const bytes = Math.max(1, this.#bytes);
    budget.waitingBytes += bytes;
    const end = () => (budget.waitingBytes -= bytes);
    const othersGoOn = budget.waitingBytes < budget.reservedBytes;
    if (this.#bytes === 0 || !this.#isFirst || othersGoOn) return end;
    end();
    throw noRoom();
  }

  /** Begins to keep a body: reserves the bytes that are announced, and more if more come. */
  holdBody(limits: BodyLimits): HeldBody {
    this.#body = new HeldBody(this, limits);
    return this.#body;
  }

  /** Nobody begins to read the body any more. It is kept until everybody who called `retainBody` has called `releaseBody`. */
  dropBody(): void {
    this.#isDropped = true;
    if (this.#readers === 0) this.free();
  }

  retainBody(): void {
    this.#readers += 1;
  }

  releaseBody(): void {
    this.#readers -= 1;
    if (this.#readers === 0 && this.#isDropped) this.free();
  }

  /** Frees everything, once and for all. */
  close(): void {
    this.free();
    this.#isClosed = true;
  }
}

interface BodyLimits {
  readonly announcedBytes: number;
  readonly maxBytes: number;
  /** Creates the error of a body that is longer. */
  readonly tooLarge: () => Error;
}

/** The bytes of one body, kept until they are sent: long ones in memory that the system has back at once. */
export class HeldBody {
  readonly #reservation: Reservation;
  readonly #limits: BodyLimits;
  readonly #short = new ChunkBuffer();
  /** Grows in its place, and shrinks without waiting for the collector. A short body is not worth the 0.1 ms. */
  #long: ArrayBuffer | undefined;
  size = 0;

  /** Throws as `push` does. */
  constructor(reservation: Reservation, limits: BodyLimits) {
    this.#reservation = reservation;
    this.#limits = limits;
    this.#reserve(limits.announcedBytes);
  }

  /** All bytes. Those of a long body are to be copied by `copyIfResizable` before they are sent. */
  get parts(): readonly Buffer[] {
    return this.#long ? [Buffer.from(this.#long, 0, this.size)] : this.#short.parts;
  }

  /** Takes a chunk. Throws `tooLarge`, or what `Reservation.resize` throws. */
  push(chunk: Buffer): void {
    const size = this.size + chunk.length;
    if (size > this.#limits.announcedBytes) this.#reserve(size);
    if (!this.#long && size <= SMALL_BYTES) this.#short.push(chunk);
    else this.#pushLong(chunk);
    this.size = size;
    this.#reservation.budget.bodyBytes += chunk.length;
  }

  /** Gives the memory back. `parts` of a long body that somebody still has are empty then. */
  free(): void {
    this.#short.takeParts();
    this.#long?.resize(0);
    this.#reservation.budget.bodyBytes -= this.size;
    this.size = 0;
  }

  #reserve(bytes: number): void {
    if (bytes > this.#limits.maxBytes) throw this.#limits.tooLarge();
    this.#reservation.resize(bytes);
  }

  #pushLong(chunk: Buffer): void {
    const { maxBytes } = this.#limits;
    const start = this.#long ? this.size : 0;
    const bytes = this.#long ? chunk : Buffer.concat([...this.#short.takeParts(), chunk]);
    this.#long ??= new ArrayBuffer(0, { maxByteLength: maxBytes });
    const end = start + bytes.length;
    if (end > this.#long.byteLength) {
      this.#long.resize(Math.min(maxBytes, Math.ceil(end / GROWTH_BYTES) * GROWTH_BYTES));
    }
    new Uint8Array(this.#long, start).set(bytes);
  }
}

/** Returns bytes that may be handed to a socket: it reads them later, when the body may have been freed. */
export function copyIfResizable(bytes: Buffer): Buffer {
  return (bytes.buffer as ArrayBuffer).resizable ? Buffer.from(bytes) : bytes;
}

/** The failure of bytes that do not fit. It names no provider, so that no fallback is tried. */
export function noRoom(): GatewayError {
  const text = 'Rate limit exceeded: too many bytes in flight';
  return new GatewayError('rateLimit', text, { retryAfterSeconds: 1, limit: 'memory' });
}
