/** The strings, numbers and literals of JSON (RFC 8259), read from chunks: each may be split between two. */

import { BACKSLASH, byteSet, QUOTE, SPACE } from './ascii.ts';

/** The longest string whose text is kept, in bytes as written: `assistant` with every letter escaped has 54. */
const MAX_WORD_BYTES = 64;
/** What is read as it is written. */
const PLAIN_WORD = /^[ -[\]-~]*$/;
/** Only letters may be escaped in a word: decoding other escapes would cost more than the scan. */
const ESCAPED_WORD = /^(?:[a-z]|\\u00[4-7][0-9a-f]|\\u017f)+$/i;
/** The letter U+017F in UTF-8, read as Latin-1. It is an `s` to readers that ignore case. */
const LONG_S = '\u00c5\u00bf';

const LETTER_U = 0x75;
/** The bytes of `\\u0041` after the backslash. */
const ESCAPE_BYTES = 5;
const IS_HEX_DIGIT = byteSet('0123456789abcdefABCDEF');
/** The bytes that may follow a backslash, except `u`. */
const IS_ESCAPED = byteSet('"\\/bfnrt');
/** The bytes of a string that stand for themselves. */
const IS_PLAIN = byteSet('"\\').map((isSet, byte) => (isSet === 0 && byte >= SPACE ? 1 : 0));

/** Reads one scalar after the other; each class has a `begin` that makes it ready for the next one. */
export interface ScalarReader {
  /** The scalar has been read to its end. */
  readonly isWhole: boolean;
  /**
   * Reads on at `start`. Returns the offset of the byte after the scalar, or `bytes.length` if it may go on in the
   * next chunk. If the scalar is not whole and the offset is another one, the byte there is wrong.
   */
  read(bytes: Buffer, start: number): number;
}

/** Of nearly every chat request and completion, by their lengths. */
const COMMON_WORDS: string[][] = [];
for (const word of (
  'id role name user tool stop model usage index tools stream system object length content message choices created ' +
  'messages logprobs assistant max_tokens tool_calls temperature service_tier finish_reason system_fingerprint'
).split(' ')) {
  (COMMON_WORDS[word.length] ??= []).push(word);
}

/**
 * Returns the common word that these bytes are, if they are one. Without it, text would be made of each name, which
 * takes a third of the scan of a short request.
 */
function commonWord(bytes: Buffer, start: number, end: number): string | undefined {
  const words = COMMON_WORDS[end - start];
  if (words === undefined) return undefined;
  for (const word of words) {
    let at = 0;
    while (at < word.length && bytes[start + at] === word.charCodeAt(at)) at += 1;
    if (at === word.length) return word;
  }
  return undefined;
}

export class StringReader implements ScalarReader {
  isWhole = false;
  /** Whether the text is wanted. */
  #isWanted = false;
  /** The text so far, as written. */
  #written = '';
  #common: string | undefined;
  /** How many bytes the escape sequence under way may still have, counted as for `\u`; 0 if there is none. */
  #escapeBytesLeft = 0;

  /** The next byte to be read is the one after the opening quote. */
  begin(isTextWanted: boolean): void {
    this.isWhole = false;
    this.#isWanted = isTextWanted;
    this.#written = '';
    this.#common = undefined;
  }

  /**
   * What the string says, in ASCII and U+017F; '' if it is longer than MAX_WORD_BYTES, or has escapes other than of
   * these letters. Other text is not decoded.
   */
  get word(): string {
    const written = this.#written;
    if (this.#common !== undefined) return this.#common;
    if (written.length > MAX_WORD_BYTES) return '';
    if (PLAIN_WORD.test(written)) return written;
    const escaped = written.replaceAll(LONG_S, '\\u017f');
    if (!escaped.includes('\\')) return escaped;
    return ESCAPED_WORD.test(escaped) ? String(JSON.parse(`"${escaped}"`)) : '';
  }

  read(bytes: Buffer, start: number): number {
    const end = this.#readToEnd(bytes, start);
    if (!this.#isWanted || this.#written.length > MAX_WORD_BYTES) return end;
    const textEnd = this.isWhole ? end - 1 : end;
    const isAll = this.isWhole && this.#written === '';
    this.#common = isAll ? commonWord(bytes, start, textEnd) : undefined;
    if (this.#common === undefined) {
      const cutEnd = Math.min(textEnd, start + MAX_WORD_BYTES + 1);
      this.#written += bytes.toString('latin1', start, cutEnd);
    }
    return end;
  }

  #readToEnd(bytes: Buffer, start: number): number {
    const { length } = bytes;
    let at = start;
    while (at < length) {
      if (this.#escapeBytesLeft > 0) {
        at = this.#readEscape(bytes, at);
        if (this.#escapeBytesLeft > 0) return at;
        continue;
      }
      // Nearly all bytes of a prompt are read by this line.
      while (at < length && IS_PLAIN[bytes[at]!] === 1) at += 1;
      if (at === length) return at;
      if (bytes[at] === QUOTE) {
        this.isWhole = true;
        return at + 1;
      }
      if (bytes[at] !== BACKSLASH) return at;
      at += 1;
      if (at < length && IS_ESCAPED[bytes[at]!] === 1) at += 1;
      else this.#escapeBytesLeft = ESCAPE_BYTES;
    }
    return at;
  }

  /** Reads on in an escape sequence, up to its end or the first byte that does not belong to it. */
  #readEscape(bytes: Buffer, start: number): number {
    let left = this.#escapeBytesLeft;
    let at = start;
    for (; left > 0 && at < bytes.length; at += 1) {
      const byte = bytes[at]!;
      const isLetter = left === ESCAPE_BYTES;
      if (isLetter && IS_ESCAPED[byte] === 1) left = 1;
      else if (isLetter ? byte !== LETTER_U : IS_HEX_DIGIT[byte] === 0) break;
      left -= 1;
    }
    this.#escapeBytesLeft = left;
    return at;
  }
}

/** A part of a number. `next` has the part that each byte belongs to if it follows; `undefined` if it may not. */
interface NumberPart {
  readonly mayEnd: boolean;
  readonly next: (NumberPart | undefined)[];
}

/** The parts of `-10.5e+7` are start, minus, integer, integer, point, fraction, e, sign, exponent. */
const NUMBER = {
  start: createPart(false),
  minus: createPart(false),
  zero: createPart(true),
  integer: createPart(true),
  point: createPart(false),
  fraction: createPart(true),
  e: createPart(false),
  sign: createPart(false),
  exponent: createPart(true),
};
connect(['start'], '-', 'minus');
connect(['start', 'minus'], '0', 'zero');
connect(['start', 'minus'], '123456789', 'integer');
connect(['integer'], '0123456789', 'integer');
connect(['zero', 'integer'], '.', 'point');
connect(['point', 'fraction'], '0123456789', 'fraction');
connect(['zero', 'integer', 'fraction'], 'eE', 'e');
connect(['e'], '+-', 'sign');
connect(['e', 'sign', 'exponent'], '0123456789', 'exponent');

function createPart(mayEnd: boolean): NumberPart {
  return { mayEnd, next: Array.from({ length: 256 }, () => undefined) };
}

/** After each of the parts `from`, these bytes belong to the part `to`. */
function connect(from: (keyof typeof NUMBER)[], bytes: string, to: keyof typeof NUMBER): void {
  for (const byte of Buffer.from(bytes)) {
    for (const name of from) NUMBER[name].next[byte] = NUMBER[to];
  }
}

export class NumberReader implements ScalarReader {
  isWhole = false;
  #part = NUMBER.start;

  /** The next byte to be read is the first one. */
  begin(): void {
    this.isWhole = false;
    this.#part = NUMBER.start;
  }

  read(bytes: Buffer, start: number): number {
    let part = this.#part;
    for (let at = start; at < bytes.length; at += 1) {
      const next = part.next[bytes[at]!];
      if (next === undefined) {
        this.isWhole = part.mayEnd;
        return at;
      }
      part = next;
    }
    this.#part = part;
    return bytes.length;
  }
}

export class LiteralReader implements ScalarReader {
  #literal = '';
  #lettersRead = 0;

  /** The next byte to be read is the first one. */
  begin(literal: 'true' | 'false' | 'null'): void {
    this.#literal = literal;
    this.#lettersRead = 0;
  }

  get isWhole(): boolean {
    return this.#lettersRead === this.#literal.length;
  }

  read(bytes: Buffer, start: number): number {
    const literal = this.#literal;
    let read = this.#lettersRead;
    let at = start;
    while (at < bytes.length && bytes[at] === literal.charCodeAt(read)) {
      at += 1;
      read += 1;
    }
    this.#lettersRead = read;
    return at;
  }
}
