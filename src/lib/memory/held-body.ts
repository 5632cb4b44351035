/** Keeps the bodies of requests and complete answers in reserved memory. */

import { type Reservation, type ReservedMemory, SMALL_BYTES } from './byte-budget.ts';
import { ChunkBuffer } from '../chunk-buffer.ts';

const GROWTH_BYTES = 1_048_576;

/**
 * `close` frees the body at once, even while it is read. `drop` frees it as soon as nobody reads
 * it: a reader calls `retain`, and `release` when it has finished. The creator calls `close` at the
 * end in any case.
 */
export class HeldBody implements ReservedMemory {
  readonly #reservation: Reservation;
  #maxBytes = 0;
  #tooLarge!: () => Error;
  size = 0;
  #short: ChunkBuffer | undefined;
  /**
   * A long body, in a buffer that grows in place. Creating it takes 0.1 ms, too long for a short
   * body.
   */
  #long: ArrayBuffer | undefined;
  #readers = 0;
  #isDropped = false;

  constructor(reservation: Reservation) {
    this.#reservation = reservation;
  }

  /**
   * @param announcedBytes - reserved at once; 0 if the sender announces no length
   * @param tooLarge - creates the error for a body longer than `maxBytes`
   */
  begin(announcedBytes: number, maxBytes: number, tooLarge: () => Error): void {
    this.#maxBytes = maxBytes;
    this.#tooLarge = tooLarge;
    this.#reserve(announcedBytes);
  }

  /** @throws the error from `tooLarge`, or as `Reservation.resize` */
  push(chunk: Buffer): void {
    const size = this.size + chunk.length;
    if (size > this.#reservation.bytes) this.#reserve(size);
    if (!this.#long && size <= SMALL_BYTES) (this.#short ??= new ChunkBuffer()).push(chunk);
    else this.#pushLong(chunk);
    this.size = size;
    this.#reservation.budget.bodyBytes += chunk.length;
  }

  #reserve(bytes: number): void {
    if (bytes > this.#maxBytes) throw this.#tooLarge();
    this.#reservation.resize(bytes);
  }

  #pushLong(chunk: Buffer): void {
    const maxBytes = this.#maxBytes;
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

  /** The bytes so far. A long body has to pass `copyIfResizable` before it is sent. */
  get parts(): readonly Buffer[] {
    return this.#long ? [Buffer.from(this.#long, 0, this.size)] : (this.#short?.parts ?? []);
  }

  get reservedBytes(): number {
    return this.#reservation.bytes;
  }

  retain(): void {
    this.#readers += 1;
  }

  release(): void {
    this.#readers -= 1;
    if (this.#readers === 0 && this.#isDropped) this.close();
  }

  /** No reader may be added afterwards. */
  drop(): void {
    this.#isDropped = true;
    if (this.#readers === 0) this.close();
  }

  /** A long body's `parts` become empty, even where a reader still holds them. */
  close(): void {
    this.#reservation.close();
    this.#short = undefined;
    this.#long?.resize(0);
    this.#long = undefined;
    this.#reservation.budget.bodyBytes -= this.size;
    this.size = 0;
  }
}

/**
 * Copies a long body's bytes, because the socket reads them later and the body may be freed before.
 */
export function copyIfResizable(bytes: Buffer): Buffer {
  return (bytes.buffer as ArrayBuffer).resizable ? Buffer.from(bytes) : bytes;
}
