/** The bytes of one body, kept until they are sent: long ones in memory that the system has back at once. */

import { ChunkBuffer } from './chunk-buffer.ts';
import type { SharedCounter } from './shared-memory.ts';

/** A shorter body is kept as it was read. For a longer one the system's own pages are worth their 0.1 ms. */
const SHORT_BYTES = 65_536;
const GROWTH_BYTES = 1_048_576;

export class HeldBody {
  readonly #maxBytes: number;
  readonly #held: SharedCounter;
  readonly #short = new ChunkBuffer();
  /** Grows in its place, and shrinks without waiting for the collector. */
  #long: ArrayBuffer | undefined;
  size = 0;

  /** The caller of `push` keeps `size` within `maxBytes`. `held` counts the bytes of all bodies. */
  constructor(maxBytes: number, held: SharedCounter) {
    this.#maxBytes = maxBytes;
    this.#held = held;
  }

  /** All bytes. Those of a long body are to be copied by `toSendable` before they are sent. */
  get parts(): readonly Buffer[] {
    return this.#long ? [Buffer.from(this.#long, 0, this.size)] : this.#short.parts;
  }

  /** Takes a chunk; a long body takes a copy of it. */
  push(chunk: Buffer): void {
    const size = this.size + chunk.length;
    if (!this.#long && size <= SHORT_BYTES) this.#short.push(chunk);
    else {
      this.#long ??= this.#begin();
      this.#write(this.#long, chunk, this.size);
    }
    this.size = size;
    this.#held.add(chunk.length);
  }

  /** Gives the memory back. `parts` of a long body that somebody still has are empty then. */
  free(): void {
    this.#short.takeParts();
    this.#long?.resize(0);
    this.#held.add(-this.size);
    this.size = 0;
  }

  #begin(): ArrayBuffer {
    const long = new ArrayBuffer(0, { maxByteLength: this.#maxBytes });
    let at = 0;
    for (const part of this.#short.takeParts()) {
      this.#write(long, part, at);
      at += part.length;
    }
    return long;
  }

  #write(long: ArrayBuffer, chunk: Buffer, at: number): void {
    const end = at + chunk.length;
    if (end > long.byteLength) {
      long.resize(Math.min(this.#maxBytes, Math.ceil(end / GROWTH_BYTES) * GROWTH_BYTES));
    }
    new Uint8Array(long, at).set(chunk);
  }
}

/** Returns bytes that may be handed to a socket: it reads them later, when the body may have been freed. */
export function toSendable(bytes: Buffer): Buffer {
  return (bytes.buffer as ArrayBuffer).resizable ? Buffer.from(bytes) : bytes;
}
