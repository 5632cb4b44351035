/** Reads JSON from outside (RFC 8259) in bounded time and memory. */

import { ChunkBuffer } from './chunk-buffer.ts';
import { invalidRequest } from './errors.ts';

const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON = 0x3a;
export const OPEN_BRACKET = 0x5b;
const BACKSLASH = 0x5c;
const CLOSE_BRACKET = 0x5d;
const LETTER_U = 0x75;
export const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

/** Counts objects, arrays, members and plain array items together. */
export const MAX_JSON_ELEMENTS = 500_000;
export const MAX_JSON_DEPTH = 256;
/**
 * Deeper values are not reported by default. The parts in a message's `content` have this depth.
 */
const REPORTED_DEPTH = 4;
/**
 * The longest decoded string, in bytes as written: `assistant` with every letter escaped has 54.
 */
const MAX_TEXT_BYTES = 64;
/** The shortest slice that V8 does not copy: such a slice would keep the whole text in memory. */
const MIN_SLICE_CHARACTERS = 13;
/** The longest number that JavaScript writes, `-1.2345678901234567e-300`. */
const MAX_NUMBER_CHARACTERS = 24;
const MAX_WORD_BYTES = 1024;
/** Bounds a single parse, because 3 million `{}` in 9 MB block `JSON.parse` for seconds. */
export const MAX_PARSED_CHARACTERS = 262_144;

const IS_BLANK = byteSet(/[ \t\r\n]/);
/** String bytes without a special meaning. */
const IS_PLAIN = byteSet(/[ !#-[\]-\xff]/);
/** ASCII bytes that stand for themselves in a string. */
const IS_TEXT = byteSet(/[ !#-[\]-~]/);
const IS_ESCAPED = byteSet(/["\\/bfnrt]/);
const IS_HEX_DIGIT = byteSet(/[\da-fA-F]/);
const IS_WORD = byteSet(/[-+.\dEaeflnrstu]/);
/** Matches the beginning of a string as written, without an escape sequence that is cut off. */
const WHOLE_CHARACTERS = /^(?:[^\\]|\\(?:u[\da-f]{4}|[^u]))*/i;
const WORD = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/;
/** White space ends a number, and changes no other complete value. */
const END = Buffer.from(' ');

function byteSet(characters: RegExp): Uint8Array {
  return Uint8Array.from({ length: 256 }, (_, byte) =>
    Number(characters.test(String.fromCharCode(byte))),
  );
}

export interface JsonValue {
  readonly kind: 'object' | 'array' | 'string' | 'number' | 'true' | 'false' | 'null';
  readonly depth: number;
  /**
   * The member's name; '' in an array, at the reported depth, and if the name is longer than
   * MAX_TEXT_BYTES.
   */
  readonly name: string;
  readonly start: number;
  /** The offset behind the last byte. */
  readonly end: number;
  /**
   * The decoded string. If it is longer than MAX_TEXT_BYTES, its decoded beginning if the scan
   * keeps beginnings, else ''.
   */
  readonly text: string;
}

interface ScanBounds {
  readonly elements?: number;
  /** How many objects and arrays may enclose a reported value. */
  readonly depth?: number | undefined;
  /** From this depth on the `text` of a value is ''. */
  readonly textDepth?: number;
  /** How many bytes of a string longer than MAX_TEXT_BYTES are decoded. */
  readonly beginningBytes?: number;
}

/**
 * The next token. `first` is an item or the end, `comma` is a comma or the end. An object's item is
 * a `name`, a `colon` and a `value`.
 */
type State = 'value' | 'first' | 'item' | 'name' | 'colon' | 'comma';
interface Frame {
  readonly outer: Frame | undefined;
  readonly closer: number;
  name: string;
  start: number;
}

/**
 * Checks the syntax of one JSON text in chunks and reports its outer values. It builds no objects.
 * The messages of its errors say `request body`, because no client is shown the errors of answers.
 */
export class JsonScanner {
  readonly #report: (value: JsonValue) => void;
  readonly #maxElements: number;
  readonly #reportedDepth: number;
  readonly #textDepth: number;
  readonly #beginningBytes: number;
  error: Error | undefined;
  /** The last reported number as written; '' if it is longer than MAX_NUMBER_CHARACTERS. */
  number = '';
  #state: State = 'value';
  #readBytes = 0;
  #unread: Buffer | undefined;
  /** The chunk as Latin-1, because converting each name by itself takes longer than the scan. */
  #text: string | undefined;
  #isInString = false;
  #beginning: ChunkBuffer | undefined;
  #elements = 0;
  #frame: Frame = { outer: undefined, closer: -1, name: '', start: 0 };
  #depth = 0;

  /**
   * @param report - called with each value down to the reported depth when it ends, so a container
   * comes after its items
   */
  constructor(report: (value: JsonValue) => void, bounds: ScanBounds = {}) {
    this.#report = report;
    this.#maxElements = bounds.elements ?? MAX_JSON_ELEMENTS;
    this.#reportedDepth = bounds.depth ?? REPORTED_DEPTH;
    this.#textDepth = bounds.textDepth ?? REPORTED_DEPTH;
    this.#beginningBytes = bounds.beginningBytes ?? 0;
  }

  push(chunk: Buffer): void {
    if (this.error) return;
    const bytes = this.#unread ? Buffer.concat([this.#unread, chunk]) : chunk;
    let at = 0;
    try {
      for (let next = 0; at < bytes.length; at = next) {
        next = this.#readToken(bytes, at);
        if (next === at) break;
      }
    } catch (thrown) {
      this.error = thrown as Error;
    }
    this.#readBytes += at;
    this.#text = undefined;
    // A copy, because a slice would keep the whole chunk in memory.
    this.#unread = at < bytes.length ? Buffer.from(bytes.subarray(at)) : undefined;
  }

  /** @returns the first error, `invalidRequest`, which names the offset of a wrong byte or word */
  finish(): Error | undefined {
    this.push(END);
    const isWhole = this.#depth === 0 && this.#state === 'comma';
    return this.error ?? (isWhole ? undefined : this.#errorAt((this.#unread?.length ?? 0) - 1));
  }

  /** Returns `at` if the token is incomplete. */
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
    else throw this.#errorAt(at);
    return at + 1;
  }

  /**
   * A short string is read once it is whole, because it is decoded: before, `start` is returned,
   * and `push` keeps the bytes. The bytes of a longer string are passed over as they arrive.
   */
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
    const isName = this.#state === 'name';
    const isWanted = this.#depth < (isName ? this.#reportedDepth : this.#textDepth);
    let text = '';
    if (isShort && isWhole && isWanted) text = this.#readText(bytes, start, at);
    if (!isShort && isWanted && !isName && this.#beginningBytes > 0) {
      this.#keepBeginning(bytes, isRest ? start : start + 1, at);
      if (isWhole) text = this.#takeBeginning();
    }
    if (!isWhole) return isShort ? start : at;
    if (!isName) return this.#endValue('string', at + 1, text);
    this.#frame.name = text;
    this.#state = 'colon';
    return at + 1;
  }

  /**
   * The text does not keep the chunk in memory, because an open stream keeps the names of its model
   * and session.
   */
  #readText(bytes: Buffer, open: number, close: number): string {
    const start = open + 1;
    if (skip(IS_TEXT, bytes, start) < close) {
      return String(JSON.parse(bytes.toString('utf8', open, close + 1)));
    }
    if (close - start >= MIN_SLICE_CHARACTERS) return bytes.toString('latin1', start, close);
    return (this.#text ??= bytes.toString('latin1')).slice(start, close);
  }

  #keepBeginning(bytes: Buffer, start: number, end: number): void {
    this.#beginning ??= new ChunkBuffer();
    const missing = this.#beginningBytes - this.#beginning.size;
    if (missing <= 0) return;
    this.#beginning.push(Buffer.from(bytes.subarray(start, Math.min(end, start + missing))));
  }

  #takeBeginning(): string {
    const [written] = WHOLE_CHARACTERS.exec(this.#beginning!.take().toString('utf8'))!;
    return String(JSON.parse(`"${written}"`));
  }

  /** Returns 0 if the escape sequence is incomplete or if the string ends here. */
  #escapeLength(bytes: Buffer, at: number): number {
    if (bytes[at] === QUOTE) return 0;
    if (bytes[at] !== BACKSLASH) throw this.#errorAt(at);
    if (at + 1 === bytes.length) return 0;
    if (IS_ESCAPED[bytes[at + 1]!] === 1) return 2;
    if (bytes[at + 1] !== LETTER_U) throw this.#errorAt(at + 1);
    const end = Math.min(at + 6, bytes.length);
    const wrong = skip(IS_HEX_DIGIT, bytes, at + 2);
    if (wrong < end) throw this.#errorAt(wrong);
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
    if (!WORD.test(word)) throw this.#errorAt(start);
    const isLiteral = word === 'true' || word === 'false' || word === 'null';
    if (!isLiteral) this.number = word.length <= MAX_NUMBER_CHARACTERS ? word : '';
    return this.#endValue(isLiteral ? word : 'number', at);
  }

  #endValue(kind: JsonValue['kind'], end: number, text = ''): number {
    this.#state = 'comma';
    if (this.#depth <= this.#reportedDepth) {
      const { name, start } = this.#frame;
      this.#report({ kind, depth: this.#depth, name, start, end: this.#readBytes + end, text });
    }
    return end;
  }

  #open(closer: number, at: number): number {
    // Array items are counted before they open.
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

  #errorAt(at: number): Error {
    return invalidRequest(`request body is not valid JSON (at byte ${this.#readBytes + at})`);
  }
}

/**
 * Returns the offset of the first byte outside the set. Nearly all of a prompt's bytes pass here.
 */
function skip(set: Uint8Array, bytes: Buffer, start: number): number {
  const { length } = bytes;
  let at = start;
  while (at < length && set[bytes[at]!] === 1) at += 1;
  return at;
}

/**
 * Parses a provider's JSON, which may begin with a byte order mark.
 *
 * @returns `undefined` if the text is too long or is not JSON, because V8's error would quote it
 */
export function parseUntrustedJson(text: string, maxCharacters = MAX_PARSED_CHARACTERS): unknown {
  if (text.length > maxCharacters) return undefined;
  try {
    return JSON.parse(text.startsWith('\ufeff') ? text.slice(1) : text);
  } catch {
    return undefined;
  }
}

/** Returns `undefined` if the value is no object or lacks the member. */
export function memberOf(value: unknown, name: string): unknown {
  if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
  return (value as Record<string, unknown>)[name];
}
