/** Bytes in parts: collected, sliced and joined with as few copies as possible. */

/** Shorter chunks are joined, because a Buffer takes 300 bytes beside its content. */
const LONG_BYTES = 4096;
const JOINED_CHUNKS = 512;

/** Collects chunks whose bytes are needed together. The caller bounds `size`. */
export class ChunkBuffer {
  parts: Buffer[] = [];
  /** How many parts are final. Only short chunks follow them. */
  #fixed = 0;
  size = 0;

  push(chunk: Buffer): void {
    this.size += chunk.length;
    const isLong = chunk.length >= LONG_BYTES;
    if (isLong) this.#join();
    // An array literal takes less memory than an empty array after `push`.
    if (this.parts.length === 0) this.parts = [chunk];
    else this.parts.push(chunk);
    if (isLong) this.#fixed = this.parts.length;
    else if (this.parts.length - this.#fixed === JOINED_CHUNKS) this.#join();
  }

  #join(): void {
    if (this.parts.length - this.#fixed > 1) {
      this.parts.push(Buffer.concat(this.parts.splice(this.#fixed)));
    }
    this.#fixed = this.parts.length;
  }

  take(): Buffer {
    return joinParts(this.takeParts());
  }

  takeParts(): readonly Buffer[] {
    const { parts } = this;
    this.parts = [];
    this.#fixed = 0;
    this.size = 0;
    return parts;
  }
}

/** Returns the bytes from offset `start` up to but not including `end`, without a copy. */
export function sliceParts(parts: readonly Buffer[], start: number, end = Infinity): Buffer[] {
  const found: Buffer[] = [];
  let offset = 0;
  for (const part of parts) {
    const from = Math.max(start - offset, 0);
    const to = Math.min(end - offset, part.length);
    if (from < to) found.push(part.subarray(from, to));
    offset += part.length;
  }
  return found;
}

export function sliceText(parts: readonly Buffer[], start: number, end: number): string {
  return joinParts(sliceParts(parts, start, end)).toString('utf8');
}

/**
 * Returns the parts with `text` in place of the bytes from `start` up to but not including `end`.
 * Long parts are not copied.
 */
export function replaceText(
  parts: readonly Buffer[],
  { text, start, end }: { readonly text: string; readonly start: number; readonly end: number },
): Buffer[] {
  const [only] = parts;
  if (parts.length > 1 || only!.length > LONG_BYTES) {
    return [...sliceParts(parts, 0, start), Buffer.from(text), ...sliceParts(parts, end)];
  }
  const textBytes = Buffer.byteLength(text);
  const replaced = Buffer.allocUnsafe(only!.length - (end - start) + textBytes);
  only!.copy(replaced, 0, 0, start);
  replaced.write(text, start);
  only!.copy(replaced, start + textBytes, end);
  return [replaced];
}

/** Returns the parts in one Buffer. A single part is not copied. */
export function joinParts(parts: readonly Buffer[]): Buffer {
  return parts.length === 1 ? parts[0]! : Buffer.concat(parts);
}

export function lengthOf(parts: readonly Buffer[]): number {
  let sum = 0;
  for (const { length } of parts) sum += length;
  return sum;
}

/**
 * Returns the parts without a byte order mark at their start. JSON may not begin with the mark. In
 * a stream that begins with the gateway's keep-alive comment, the mark would come behind the
 * comment and become part of a field name.
 */
export function withoutMark(parts: readonly Buffer[]): readonly Buffer[] {
  return sliceText(parts, 0, 3) === '\ufeff' ? sliceParts(parts, 3) : parts;
}
