/** JSON from outside (RFC 8259), in bounded time and memory. */

import { invalidRequest } from './errors.ts';

export const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON = 0x3a;
export const OPEN_BRACKET = 0x5b;
const BACKSLASH = 0x5c;
const CLOSE_BRACKET = 0x5d;
const LETTER_U = 0x75;
export const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

/** Objects, arrays, members and plain array items. */
export const MAX_JSON_ELEMENTS = 500_000;
export const MAX_JSON_DEPTH = 256;
/** Deeper values are checked, but not reported: the parts of a message's content are at depth 4. */
const MAX_REPORTED_DEPTH = 4;
/**
 * The longest string that is decoded, in bytes as written: `assistant` with every letter escaped
 * has 54.
 */
const MAX_TEXT_BYTES = 64;
/** V8 copies a shorter slice of a text; a longer one would keep the whole text in memory. */
const MIN_SLICE_CHARACTERS = 13;
/** Of a number or literal. */
const MAX_WORD_BYTES = 1024;
/** Bounds the time of one parse: 3 million `{}`, in 9 MB, block `JSON.parse` for seconds. */
export const MAX_PARSED_CHARACTERS = 262_144;

const IS_BLANK = byteSet(/[ \t\r\n]/);
/** The bytes of a string that stand for themselves. */
const IS_PLAIN = byteSet(/[ !#-[\]-\xff]/);
const IS_ESCAPED = byteSet(/["\\/bfnrt]/);
const IS_HEX_DIGIT = byteSet(/[\da-fA-F]/);
const IS_WORD = byteSet(/[-+.\dEaeflnrstu]/);
const WORD = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/;
/** White space ends a number, and changes nothing else that is complete. */
const END = Buffer.from(' ');
const PLAIN_TEXT = /^[ -[\]-~]*$/;

function byteSet(characters: RegExp): Uint8Array {
  return Uint8Array.from({ length: 256 }, (_, byte) =>
    Number(characters.test(String.fromCharCode(byte))),
  );
}

export interface JsonValue {
  readonly kind: 'object' | 'array' | 'string' | 'number' | 'true' | 'false' | 'null';
  /** The number of objects and arrays that it is in. */
  readonly depth: number;
  /**
   * Its name in an object; '' if that is longer than MAX_TEXT_BYTES, on the deepest level, and in
   * an array.
   */
  readonly name: string;
  /** Offsets in bytes from the start of the text. */
  readonly start: number;
  readonly end: number;
  /**
   * The text of a string; '' if that is longer than MAX_TEXT_BYTES, on the deepest level, and of
   * another value.
   */
  readonly text: string;
}

/**
 * What comes next: `first` is an item or the end, `comma` a comma or the end; an item of an object
 * is a `name`, a `colon` and a `value`.
 */
type State = 'value' | 'first' | 'item' | 'name' | 'colon' | 'comma';
/**
 * The container of the current value: the byte that ends it, and the name and the start of the
 * value.
 */
interface Frame {
  readonly outer: Frame | undefined;
  readonly closer: number;
  name: string;
  start: number;
}

/**
 * Takes one JSON text in chunks, checks its syntax and reports its outer values; builds nothing.
 */
export class JsonScanner {
  readonly #report: (value: JsonValue) => void;
  readonly #maxElements: number;
  /** Why what has come cannot become JSON within the bounds. */
  fault: Error | undefined;
  /** The number that was reported last, as written; '' for a long one. */
  number = '';
  #state: State = 'value';
  /** The bytes that have been read, and the beginning of a token whose rest has not come. */
  #readBytes = 0;
  #unread: Buffer | undefined;
  /** The chunk as Latin-1: to convert each name by itself takes longer than the scan. */
  #text: string | undefined;
  /** The beginning of the current string has been read: it is too long to be decoded. */
  #isInString = false;
  #elements = 0;
  #frame: Frame = { outer: undefined, closer: -1, name: '', start: 0 };
  #depth = 0;

  /**
   * `report` is called with each value down to MAX_REPORTED_DEPTH when it ends: a container after
   * its items.
   */
  constructor(report: (value: JsonValue) => void, maxElements = MAX_JSON_ELEMENTS) {
    this.#report = report;
    this.#maxElements = maxElements;
  }

  /** Scans the next chunk of the text, which is UTF-8, up to the first fault. */
  push(chunk: Buffer): void {
    if (this.fault) return;
    const bytes = this.#unread ? Buffer.concat([this.#unread, chunk]) : chunk;
    let at = 0;
    try {
      for (let next = 0; at < bytes.length; at = next) {
        next = this.#readToken(bytes, at);
        if (next === at) break;
      }
    } catch (error) {
      this.fault = error as Error;
    }
    this.#readBytes += at;
    // A copy: a slice would keep the whole chunk.
    this.#text = undefined;
    this.#unread = at < bytes.length ? Buffer.from(bytes.subarray(at)) : undefined;
  }

  /**
   * Counts bytes between two lines of the text that are not of it: offsets include them. No token
   * goes on behind a line.
   */
  skip(bytes: number): void {
    this.#readBytes += bytes;
  }

  /**
   * Returns `invalidRequest` if the text is not JSON, with the offset of the wrong byte or word, or
   * exceeds a bound.
   */
  finish(): Error | undefined {
    this.push(END);
    const isWhole = this.#depth === 0 && this.#state === 'comma';
    return this.fault ?? (isWhole ? undefined : this.#faultAt((this.#unread?.length ?? 0) - 1));
  }

  /** Reads one token; returns where to read on, or `at` again if it is not whole. */
  #readToken(bytes: Buffer, at: number): number {
    if (this.#isInString) return this.#readString(bytes, at);
    const byte = bytes[at]!;
    if (IS_BLANK[byte] === 1) return skip(IS_BLANK, bytes, at);
    const { closer } = this.#frame;
    if (byte === closer && (this.#state === 'first' || this.#state === 'comma')) {
      this.#frame = this.#frame.outer!;
      this.#depth -= 1;
      return this.#endValue(closer === CLOSE_BRACE ? 'object' : 'array', at + 1);
    }
    if (this.#state === 'first' || this.#state === 'item') {
      this.#count();
      this.#state = closer === CLOSE_BRACKET ? 'value' : 'name';
    }
    if (this.#state === 'value') {
      this.#frame.start = this.#readBytes + at;
      if (byte === OPEN_BRACE) return this.#open(CLOSE_BRACE, at);
      if (byte === OPEN_BRACKET) return this.#open(CLOSE_BRACKET, at);
      return byte === QUOTE ? this.#readString(bytes, at) : this.#readWord(bytes, at);
    }
    if (this.#state === 'name' && byte === QUOTE) return this.#readString(bytes, at);
    if (this.#state === 'colon' && byte === COLON) this.#state = 'value';
    else if (this.#state === 'comma' && byte === COMMA && closer !== -1) this.#state = 'item';
    else throw this.#faultAt(at);
    return at + 1;
  }

  #readString(bytes: Buffer, start: number): number {
    const isRest = this.#isInString;
    let at = isRest ? start : start + 1;
    for (;;) {
      at = skip(IS_PLAIN, bytes, at);
      const length = at === bytes.length ? 0 : this.#escapeLength(bytes, at);
      if (length === 0) break;
      at += length;
    }
    const isShort = !isRest && at - start <= MAX_TEXT_BYTES + 1;
    const isWhole = at < bytes.length && bytes[at] === QUOTE;
    this.#isInString = !isWhole && !isShort;
    if (!isWhole) return isShort ? start : at;
    const isWanted = isShort && this.#depth < MAX_REPORTED_DEPTH;
    let text = isWanted ? this.#readText(bytes, start + 1, at) : '';
    if (!PLAIN_TEXT.test(text)) text = String(JSON.parse(bytes.toString('utf8', start, at + 1)));
    if (this.#state === 'value') return this.#endValue('string', at + 1, text);
    this.#frame.name = text;
    this.#state = 'colon';
    return at + 1;
  }

  /**
   * Returns a text that does not keep the chunk in memory: an open stream has the names of its
   * model and its session.
   */
  #readText(bytes: Buffer, start: number, end: number): string {
    if (end - start >= MIN_SLICE_CHARACTERS) return bytes.toString('latin1', start, end);
    return (this.#text ??= bytes.toString('latin1')).slice(start, end);
  }

  /**
   * Returns the length of the escape sequence; 0 if it is not whole, or is the end of the string.
   */
  #escapeLength(bytes: Buffer, at: number): number {
    if (bytes[at] === QUOTE) return 0;
    if (bytes[at] !== BACKSLASH) throw this.#faultAt(at);
    if (at + 1 === bytes.length) return 0;
    if (IS_ESCAPED[bytes[at + 1]!] === 1) return 2;
    if (bytes[at + 1] !== LETTER_U) throw this.#faultAt(at + 1);
    const end = Math.min(at + 6, bytes.length);
    const wrong = skip(IS_HEX_DIGIT, bytes, at + 2);
    if (wrong < end) throw this.#faultAt(wrong);
    return end === at + 6 ? 6 : 0;
  }

  #readWord(bytes: Buffer, start: number): number {
    const at = skip(IS_WORD, bytes, start);
    const word = (this.#text ??= bytes.toString('latin1')).slice(start, at);
    if (word.length > MAX_WORD_BYTES) {
      const text = `request body has a number or literal longer than ${MAX_WORD_BYTES} bytes`;
      throw invalidRequest(text);
    }
    if (at === bytes.length) return start;
    if (!WORD.test(word)) throw this.#faultAt(start);
    const isLiteral = word === 'true' || word === 'false' || word === 'null';
    if (!isLiteral) this.number = word.length < MIN_SLICE_CHARACTERS ? word : '';
    return this.#endValue(isLiteral ? word : 'number', at);
  }

  /** `end` is the offset of the byte after the value, and returned. */
  #endValue(kind: JsonValue['kind'], end: number, text = ''): number {
    this.#state = 'comma';
    if (this.#depth <= MAX_REPORTED_DEPTH) {
      const { name, start } = this.#frame;
      this.#report({ kind, depth: this.#depth, name, start, end: this.#readBytes + end, text });
    }
    return end;
  }

  #open(closer: number, at: number): number {
    // The item of an array has been counted.
    if (this.#frame.closer !== CLOSE_BRACKET) this.#count();
    this.#depth += 1;
    if (this.#depth > MAX_JSON_DEPTH) {
      throw invalidRequest(`request body is nested deeper than ${MAX_JSON_DEPTH} levels`);
    }
    this.#frame = { outer: this.#frame, closer, name: '', start: 0 };
    this.#state = 'first';
    return at + 1;
  }

  #count(): void {
    this.#elements += 1;
    if (this.#elements > this.#maxElements) {
      throw invalidRequest(`request body has more than ${this.#maxElements} elements`);
    }
  }

  #faultAt(at: number): Error {
    return invalidRequest(`request body is not valid JSON (at byte ${this.#readBytes + at})`);
  }
}

/**
 * Returns the offset of the first byte from `start` that is not in the set. It reads nearly all
 * bytes of a prompt.
 */
function skip(set: Uint8Array, bytes: Buffer, start: number): number {
  const { length } = bytes;
  let at = start;
  while (at < length && set[bytes[at]!] === 1) at += 1;
  return at;
}

/**
 * Parses a provider's JSON, before which a byte order mark may stand. Returns `undefined` if it is
 * not JSON (V8's own error would quote it), or too long.
 */
export function parseUntrustedJson(text: string, maxCharacters = MAX_PARSED_CHARACTERS): unknown {
  if (text.length > maxCharacters) return undefined;
  try {
    return JSON.parse(text.startsWith('\ufeff') ? text.slice(1) : text);
  } catch {
    return undefined;
  }
}

/** A member of a parsed value; `undefined` if that is no object, or does not have it. */
export function memberOf(value: unknown, name: string): unknown {
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
  return (value as Record<string, unknown>)[name];
}
