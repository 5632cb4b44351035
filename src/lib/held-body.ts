/** The bodies of requests and complete answers, in the memory that is reserved for them. */

import { type Reservation, SMALL_BYTES } from './byte-budget.ts';
import { ChunkBuffer } from './chunk-buffer.ts';

const GROWTH_BYTES = 1_048_576;

/**
 * A body, kept in reserved memory until its last reader has released it. Whoever creates it calls
 * `close`, so that nothing stays reserved.
 */
export class HeldBody {
  readonly #reservation: Reservation;
  #maxBytes = 0;
  #tooLarge!: () => Error;
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

  /** `reservation` may have some bytes of the body already. */
  constructor(reservation: Reservation) {
    this.#reservation = reservation;
  }

  /**
   * Begins to keep the body: reserves the bytes that are announced, and more if more come. Throws
   * as `push` does; `tooLarge` creates the error of a body longer than `maxBytes`.
   */
  begin(announcedBytes: number, maxBytes: number, tooLarge: () => Error): void {
    this.#maxBytes = maxBytes;
    this.#tooLarge = tooLarge;
    this.#reserve(announcedBytes);
  }

  /** Takes a chunk. Throws `tooLarge` of the body, or as `resize` of the reservation does. */
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

  /**
   * The bytes so far. Those of a long body are to be copied by `copyIfResizable` before they are
   * sent.
   */
  get parts(): readonly Buffer[] {
    return this.#long ? [Buffer.from(this.#long, 0, this.size)] : (this.#short?.parts ?? []);
  }

  /** Adds a reader. */
  retain(): void {
    this.#readers += 1;
  }

  /** Removes a reader. */
  release(): void {
    this.#readers -= 1;
    if (this.#readers === 0 && this.#isDropped) this.close();
  }

  /** Closes it once every reader has released it; no new reader comes. */
  drop(): void {
    this.#isDropped = true;
    if (this.#readers === 0) this.close();
  }

  /**
   * Frees the body, and takes no other. `parts` of a long body that a reader has are empty then.
   */
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
 * Returns bytes that may be handed to a socket: it reads them later, when the body may have been
 * freed.
 */
export function copyIfResizable(bytes: Buffer): Buffer {
  return (bytes.buffer as ArrayBuffer).resizable ? Buffer.from(bytes) : bytes;
}
