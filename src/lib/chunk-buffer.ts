/** The bookkeeping of one piece takes 300 bytes, however short it is: so many are joined. */
const JOINED_PIECES = 512;

/** Bytes that come in pieces and are wanted together. Whoever pushes bounds `size`. */
export class ChunkBuffer {
  #pieces: Buffer[] = [];
  /** How many of them, from the first on, are joined ones. */
  #joined = 0;
  #size = 0;

  /** Bytes in all. */
  get size(): number {
    return this.#size;
  }

  push(piece: Buffer): void {
    this.#size += piece.length;
    if (this.#pieces.push(piece) < this.#joined + JOINED_PIECES) return;
    this.#pieces.push(Buffer.concat(this.#pieces.splice(this.#joined)));
    this.#joined += 1;
  }

  /** All bytes as one; none are left. */
  take(): Buffer {
    const pieces = this.#pieces;
    const whole = pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces, this.#size);
    this.#pieces = [];
    this.#joined = 0;
    this.#size = 0;
    return whole;
  }
}
