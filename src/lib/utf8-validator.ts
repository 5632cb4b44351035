/** Checks UTF-8 that arrives in chunks: a character may be split between two. */

// Whole: on an old Node an import by name fails before any code can say which one is needed.
import buffer from 'node:buffer';

const NOTHING = Buffer.alloc(0);

export class Utf8Validator {
  /** The first bytes of a character whose rest is in the next chunk. */
  #incomplete = NOTHING;

  /** Returns whether the text is valid as far as it is there. */
  push(chunk: Buffer): boolean {
    const bytes = this.#incomplete.length === 0 ? chunk : Buffer.concat([this.#incomplete, chunk]);
    const end = bytes.length - incompleteLength(bytes);
    if (end === bytes.length) {
      this.#incomplete = NOTHING;
      return buffer.isUtf8(bytes);
    }
    // A copy: a part of the chunk would keep all of it.
    this.#incomplete = Buffer.from(bytes.subarray(end));
    return buffer.isUtf8(bytes.subarray(0, end));
  }

  /** Returns whether the text may end here. */
  get isComplete(): boolean {
    return this.#incomplete.length === 0;
  }
}

/** How many bytes at the end of `bytes`, 0 to 3, are the beginning of a longer character. */
function incompleteLength(bytes: Buffer): number {
  for (let length = 1; length <= 3 && length <= bytes.length; length += 1) {
    const byte = bytes[bytes.length - length]!;
    const isContinuation = byte >= 0x80 && byte < 0xc0;
    if (isContinuation) continue;
    const characterLength = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return characterLength > length ? length : 0;
  }
  return 0;
}
