/**
 * An incremental JSON scanner (RFC 8259). It takes a text in chunks, checks the syntax and reports the outer values, but
 * builds nothing: the work for each byte is bounded, and so is the memory for a text of any size.
 */

import {
  BACKSLASH,
  byteSet,
  CLOSE_BRACE,
  CLOSE_BRACKET,
  COLON,
  COMMA,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  SPACE,
} from './ascii.ts';
import { invalidRequest } from './errors.ts';

export const MAX_JSON_ELEMENTS = 500_000;
export const MAX_JSON_DEPTH = 256;
/** Deeper values are checked, but not reported: the parts of a message's content are at depth 4. */
const MAX_REPORTED_DEPTH = 4;
/** The longest string that is decoded, in bytes as written: `assistant` with every letter escaped has 54. */
const MAX_TEXT_BYTES = 64;

const ONE_SPACE = Buffer.from(' ');
const IS_BLANK = byteSet(' \t\r\n');
/** The bytes of a string that stand for themselves. */
const IS_PLAIN = byteSet('"\\').map((isSet, byte) => (isSet === 0 && byte >= SPACE ? 1 : 0));
const LETTER_U = 0x75;
const IS_ESCAPED = byteSet('"\\/bfnrtu');
const IS_HEX_DIGIT = byteSet('0123456789abcdefABCDEF');
/** Value of `#escapeLeft` after a backslash; below it, how many hexadecimal digits are missing. */
const AFTER_BACKSLASH = 5;
/** The bytes of numbers and literals. */
const IS_WORD = byteSet('+-.0123456789Eaeflnrstu');
const WORD = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/;
/** A long number is kept without its further digits: they make no difference to the syntax. */
const LONG_DIGITS = /(\d\d)\d+/g;
const PLAIN_TEXT = /^[ -[\]-~]*$/;

export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'true' | 'false' | 'null';

/** A value that has ended. */
export interface JsonValue {
  readonly kind: JsonKind;
  /** The number of objects and arrays that it is in. */
  readonly depth: number;
  /** Its name in an object; '' if that is longer than MAX_TEXT_BYTES, on the deepest level, and in an array. */
  readonly name: string;
  /** Offsets in bytes from the start of the text. */
  readonly start: number;
  readonly end: number;
  /** The text of a string; '' if that is longer than MAX_TEXT_BYTES, on the deepest level, and of another value. */
  readonly text: string;
}

/**
 * The next token: the text's or a member's `value`, the `first` item or name or the end of the container, another `item`
 * or name, a `colon`, a `comma` or that end; or the current one, if it has begun.
 */
type State = 'value' | 'first' | 'item' | 'colon' | 'comma' | 'inName' | 'inString' | 'inWord';

/** Scans one JSON text, which has at most `maxElements` objects, arrays, members and plain array items. */
export class JsonScanner {
  readonly #report: (value: JsonValue) => void;
  readonly #maxElements: number;
  /** Why what has come cannot become JSON within the bounds. */
  fault: Error | undefined;
  #state: State = 'value';
  /** Bytes of the chunks before this one. */
  #scannedBytes = 0;
  #elements = 0;
  #depth = 0;
  /** By depth: the byte that ends the container of the values there, and the name and start of the current value. */
  readonly #closers: number[] = [-1];
  readonly #names: string[] = [''];
  readonly #starts: number[] = [0];
  /** The part of the current string, number or literal that came in earlier chunks; of a string only its beginning. */
  #written = '';
  /** Bytes that the escape sequence may still have, counted as for `\u`; 0 outside of one. */
  #escapeLeft = 0;

  /** `report` is called with each value down to MAX_REPORTED_DEPTH when it ends, so with a container after its items. */
  constructor(report: (value: JsonValue) => void, maxElements = MAX_JSON_ELEMENTS) {
    this.#report = report;
    this.#maxElements = maxElements;
  }

  /** Scans the next chunk of the text, which is UTF-8, up to the first fault. */
  push(bytes: Buffer): void {
    if (this.fault) return;
    let at = 0;
    try {
      while (at < bytes.length) {
        const state = this.#state;
        if (state === 'inString' || state === 'inName') at = this.#readString(bytes, at);
        else if (state === 'inWord') at = this.#readWord(bytes, at);
        else if (IS_BLANK[bytes[at]!] !== 1) at = this.#readToken(bytes[at]!, at);
        else while (at < bytes.length && IS_BLANK[bytes[at]!] === 1) at += 1;
      }
    } catch (error) {
      this.fault = error as Error;
    }
    this.#scannedBytes += bytes.length;
  }

  /**
   * The text is complete. Returns `invalidRequest` if it is not JSON, with the offset of the wrong byte (of a number or
   * literal, its first), or exceeds a bound.
   */
  end(): Error | undefined {
    // White space ends a number, and changes nothing else that is complete.
    this.push(ONE_SPACE);
    const isWhole = this.#depth === 0 && this.#state === 'comma';
    return this.fault ?? (isWhole ? undefined : this.#faultAt(-1));
  }

  /** Reads one of `{ } [ ] , :`, or the beginning of a name or a value; returns where to read on. */
  #readToken(byte: number, at: number): number {
    const closer = this.#closers[this.#depth]!;
    const state = this.#state;
    if (byte === closer && (state === 'first' || state === 'comma')) {
      this.#depth -= 1;
      return this.#endValue(closer === CLOSE_BRACE ? 'object' : 'array', at + 1);
    }
    if (state === 'value') return this.#beginValue(byte, at);
    if (state === 'first' || state === 'item') {
      this.#count();
      if (closer === CLOSE_BRACKET) return this.#beginValue(byte, at);
      if (byte === QUOTE) return this.#begin('inName', at + 1);
    }
    if (state === 'colon' && byte === COLON) return this.#begin('value', at + 1);
    if (state === 'comma' && byte === COMMA && this.#depth > 0) return this.#begin('item', at + 1);
    throw this.#faultAt(at);
  }

  #beginValue(byte: number, at: number): number {
    this.#starts[this.#depth] = this.#scannedBytes + at;
    if (byte === OPEN_BRACE) return this.#open(CLOSE_BRACE, at);
    if (byte === OPEN_BRACKET) return this.#open(CLOSE_BRACKET, at);
    return byte === QUOTE ? this.#begin('inString', at + 1) : this.#begin('inWord', at);
  }

  #begin(state: State, at: number): number {
    this.#state = state;
    this.#written = '';
    return at;
  }

  #readString(bytes: Buffer, start: number): number {
    const { length } = bytes;
    let at = start;
    while (at < length) {
      if (this.#escapeLeft > 0) {
        this.#readEscape(bytes[at]!, at);
      } else {
        // Nearly all bytes of a prompt are read by this line.
        while (at < length && IS_PLAIN[bytes[at]!] === 1) at += 1;
        if (at === length) break;
        if (bytes[at] === QUOTE) return this.#endString(bytes, start, at);
        if (bytes[at] !== BACKSLASH) throw this.#faultAt(at);
        this.#escapeLeft = AFTER_BACKSLASH;
      }
      at += 1;
    }
    if (this.#written.length <= MAX_TEXT_BYTES) {
      this.#written += bytes.toString('latin1', start, start + MAX_TEXT_BYTES + 1);
    }
    return length;
  }

  #readEscape(byte: number, at: number): void {
    const isFirst = this.#escapeLeft === AFTER_BACKSLASH;
    if ((isFirst ? IS_ESCAPED : IS_HEX_DIGIT)[byte] === 0) throw this.#faultAt(at);
    this.#escapeLeft = isFirst && byte !== LETTER_U ? 0 : this.#escapeLeft - 1;
  }

  #endString(bytes: Buffer, start: number, at: number): number {
    const isShort = this.#written.length + at - start <= MAX_TEXT_BYTES;
    const isWanted = isShort && this.#depth < MAX_REPORTED_DEPTH;
    const text = isWanted ? decode(this.#written + bytes.toString('latin1', start, at)) : '';
    if (this.#state === 'inString') return this.#endValue('string', at + 1, text);
    this.#names[this.#depth] = text;
    return this.#begin('colon', at + 1);
  }

  #readWord(bytes: Buffer, start: number): number {
    let at = start;
    while (at < bytes.length && IS_WORD[bytes[at]!] === 1) at += 1;
    let word = this.#written + bytes.toString('latin1', start, at);
    if (word.length > MAX_TEXT_BYTES) word = word.replace(LONG_DIGITS, '$1');
    const isWhole = at < bytes.length;
    if (word.length > MAX_TEXT_BYTES || (isWhole && !WORD.test(word))) {
      throw this.#faultAt(this.#starts[this.#depth]! - this.#scannedBytes);
    }
    this.#written = word;
    if (!isWhole) return at;
    return this.#endValue(/^[tfn]/.test(word) ? (word as JsonKind) : 'number', at);
  }

  /** `end` is the offset of the byte after the value, and returned. */
  #endValue(kind: JsonKind, end: number, text = ''): number {
    const depth = this.#depth;
    this.#state = 'comma';
    if (depth <= MAX_REPORTED_DEPTH) {
      const name = this.#names[depth]!;
      const start = this.#starts[depth]!;
      this.#report({ kind, depth, name, start, end: this.#scannedBytes + end, text });
    }
    return end;
  }

  #open(closer: number, at: number): number {
    // The item of an array has been counted.
    if (this.#closers[this.#depth] !== CLOSE_BRACKET) this.#count();
    this.#depth += 1;
    if (this.#depth > MAX_JSON_DEPTH) {
      throw invalidRequest(`request body is nested deeper than ${MAX_JSON_DEPTH} levels`);
    }
    this.#closers[this.#depth] = closer;
    this.#names[this.#depth] = '';
    return this.#begin('first', at + 1);
  }

  #count(): void {
    this.#elements += 1;
    if (this.#elements > this.#maxElements) {
      throw invalidRequest(`request body has more than ${this.#maxElements} elements`);
    }
  }

  #faultAt(at: number): Error {
    return invalidRequest(`request body is not valid JSON (at byte ${this.#scannedBytes + at})`);
  }
}

/** Takes the contents of a string, its bytes read as Latin-1. */
function decode(written: string): string {
  if (PLAIN_TEXT.test(written)) return written;
  return String(JSON.parse(`"${Buffer.from(written, 'latin1').toString()}"`));
}
