/**
 * One linear pass over the bytes of a JSON text (RFC 8259), without building what it says: a prompt is
 * forwarded as it came, so only its shape is looked at. What that costs is bounded by MAX_JSON_ELEMENTS.
 */

import { invalidRequest } from './errors.ts';

/** Measured: 3 million `{}` in 8.6 MiB block `JSON.parse` for 2 s; a byte limit alone bounds nothing. */
export const MAX_JSON_ELEMENTS = 500_000;
export const MAX_JSON_DEPTH = 256;
/** Words of the protocol are short: `assistant` with every letter escaped is shorter. */
const MAX_WORD_BYTES = 64;
/** What has other escapes is no word of the protocol: decoding it would cost more than all the rest. */
const ESCAPED_WORD = /^(?:[a-z]|\\u00[4-7][0-9a-f])+$/i;

export const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
export const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const SPACE = 0x20;
const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;
const TAB = 0x09;
const PLUS = 0x2b;
const MINUS = 0x2d;
const POINT = 0x2e;
const ZERO = 0x30;
const NINE = 0x39;
const CAPITAL_E = 0x45;
const LETTER_E = 0x65;
const LETTER_U = 0x75;
const LITERALS = {
  true: Buffer.from('true'),
  false: Buffer.from('false'),
  null: Buffer.from('null'),
};
const HEX_DIGITS = new Set(Buffer.from('0123456789abcdefABCDEF'));
/** What may come behind a backslash, besides `u`. */
const ESCAPED = new Set(Buffer.from('"\\/bfnrt'));

type JsonKind = 'object' | 'array' | 'string' | 'number' | 'true' | 'false' | 'null';

/**
 * Goes through a JSON text value by value. Every method that takes a value throws `invalidRequest` for
 * what is not JSON, with the offset of the first byte that no JSON text could have there, and for more than
 * MAX_JSON_DEPTH levels or MAX_JSON_ELEMENTS objects, arrays, members and plain array items.
 */
export class JsonScanner {
  readonly #bytes: Buffer;
  readonly #maxElements: number;
  #at = 0;
  #depth = 0;
  #elements = 0;

  /** `bytes` are UTF-8. */
  constructor(bytes: Buffer, maxElements = MAX_JSON_ELEMENTS) {
    this.#bytes = bytes;
    this.#maxElements = maxElements;
  }

  /** Where it is: after `kind` the first byte of a value, after a value was taken the one behind it. */
  get offset(): number {
    return this.#at;
  }

  /** What comes next; where that is not a value at all, taking it throws. */
  kind(): JsonKind {
    switch (this.#next()) {
      case OPEN_BRACE:
        return 'object';
      case OPEN_BRACKET:
        return 'array';
      case QUOTE:
        return 'string';
      case LITERALS.true[0]:
        return 'true';
      case LITERALS.false[0]:
        return 'false';
      case LITERALS.null[0]:
        return 'null';
      default:
        return 'number';
    }
  }

  /** Takes any value. */
  skip(): void {
    const kind = this.kind();
    if (kind === 'string') this.#takeString();
    else if (kind === 'object') this.#takeMembers();
    else if (kind === 'array') this.#takeItems();
    else if (kind === 'number') this.#takeNumber();
    else this.#takeLiteral(LITERALS[kind]);
  }

  /**
   * `onMember` takes each value of an object; a name that is no word of the protocol may be '' to it.
   * Returns false where it is another value, which is skipped.
   */
  takeObject(onMember: (name: string) => void): boolean {
    const isObject = this.kind() === 'object';
    if (isObject) this.#takeMembers(onMember);
    else this.skip();
    return isObject;
  }

  /** `onItem` takes each item of an array. Another value is skipped. */
  takeArray(onItem: () => void): void {
    if (this.kind() === 'array') this.#takeItems(onItem);
    else this.skip();
  }

  /** Takes a string and returns it; one that is no word of the protocol may be ''. */
  takeShortString(): string {
    const start = this.#at;
    this.#takeString();
    if (this.#at - start > MAX_WORD_BYTES) return '';
    const text = this.#bytes.toString('latin1', start + 1, this.#at - 1);
    if (!text.includes('\\')) return text;
    return ESCAPED_WORD.test(text) ? String(JSON.parse(`"${text}"`)) : '';
  }

  /** Nothing may come any more. */
  end(): void {
    if (this.#next() !== undefined) this.#fail();
  }

  #takeMembers(onMember?: (name: string) => void): void {
    this.#open();
    if (this.#next() === CLOSE_BRACE) return this.#close();
    for (;;) {
      this.#count();
      if (this.#next() !== QUOTE) this.#fail();
      if (onMember) {
        const name = this.takeShortString();
        this.#expect(COLON);
        onMember(name);
      } else {
        this.#takeString();
        this.#expect(COLON);
        this.skip();
      }
      if (this.#next() === CLOSE_BRACE) return this.#close();
      this.#expect(COMMA);
    }
  }

  #takeItems(onItem?: () => void): void {
    this.#open();
    if (this.#next() === CLOSE_BRACKET) return this.#close();
    for (;;) {
      const byte = this.#next();
      if (byte !== OPEN_BRACE && byte !== OPEN_BRACKET) this.#count();
      if (onItem) onItem();
      else this.skip();
      if (this.#next() === CLOSE_BRACKET) return this.#close();
      this.#expect(COMMA);
    }
  }

  /** The byte after white space. */
  #next(): number | undefined {
    const bytes = this.#bytes;
    let at = this.#at;
    let byte = bytes[at];
    while (byte === SPACE || byte === LINE_FEED || byte === CARRIAGE_RETURN || byte === TAB) {
      at += 1;
      byte = bytes[at];
    }
    this.#at = at;
    return byte;
  }

  #expect(byte: number): void {
    if (this.#next() !== byte) this.#fail();
    this.#at += 1;
  }

  #open(): void {
    this.#at += 1;
    this.#depth += 1;
    this.#count();
    if (this.#depth > MAX_JSON_DEPTH) {
      throw invalidRequest(`request body is nested deeper than ${MAX_JSON_DEPTH} levels`);
    }
  }

  #close(): void {
    this.#at += 1;
    this.#depth -= 1;
  }

  #count(): void {
    this.#elements += 1;
    if (this.#elements > this.#maxElements) {
      throw invalidRequest(`request body has more than ${this.#maxElements} elements`);
    }
  }

  #takeString(): void {
    const bytes = this.#bytes;
    let at = this.#at + 1;
    for (;;) {
      let byte = bytes[at]!;
      // A loop of its own: a third faster.
      while (byte >= SPACE && byte !== QUOTE && byte !== BACKSLASH) {
        at += 1;
        byte = bytes[at]!;
      }
      if (byte === QUOTE) break;
      // Else a control character, or the end of the text.
      at = byte === BACKSLASH ? this.#endOfEscape(at) : this.#fail(at);
    }
    this.#at = at + 1;
  }

  #endOfEscape(start: number): number {
    const bytes = this.#bytes;
    const letter = bytes[start + 1]!;
    if (letter !== LETTER_U) return ESCAPED.has(letter) ? start + 2 : this.#fail(start + 1);
    const end = start + 6;
    for (let at = start + 2; at < end; at += 1) if (!HEX_DIGITS.has(bytes[at]!)) this.#fail(at);
    return end;
  }

  #takeNumber(): void {
    this.#takeIf(MINUS);
    if (!this.#takeIf(ZERO)) this.#takeDigits();
    if (this.#takeIf(POINT)) this.#takeDigits();
    if (!this.#takeIf(LETTER_E) && !this.#takeIf(CAPITAL_E)) return;
    if (!this.#takeIf(PLUS)) this.#takeIf(MINUS);
    this.#takeDigits();
  }

  #takeDigits(): void {
    const start = this.#at;
    let byte = this.#bytes[start]!;
    while (byte >= ZERO && byte <= NINE) {
      this.#at += 1;
      byte = this.#bytes[this.#at]!;
    }
    if (this.#at === start) this.#fail();
  }

  #takeLiteral(letters: Buffer): void {
    for (const letter of letters) if (!this.#takeIf(letter)) this.#fail();
  }

  #takeIf(byte: number): boolean {
    const isNext = this.#bytes[this.#at] === byte;
    if (isNext) this.#at += 1;
    return isNext;
  }

  #fail(at = this.#at): never {
    throw invalidRequest(`request body is not valid JSON (at byte ${at})`);
  }
}

/**
 * Whether it is a JSON object with a member of this name that is not null, however many others: nothing is
 * built, and the log probabilities of an answer alone can be a million elements.
 */
export function hasMember(bytes: Buffer, wanted: string): boolean {
  const json = new JsonScanner(bytes, Infinity);
  let isFound = false;
  try {
    json.takeObject((name) => {
      isFound ||= name === wanted && json.kind() !== 'null';
      json.skip();
    });
    json.end();
    return isFound;
  } catch {
    return false;
  }
}

/**
 * What a provider's text says, or `undefined` where it is no JSON: V8's own message would quote it. The same
 * where it is long and breaks the bounds of a request.
 */
export function parseUntrustedJson(text: string): unknown {
  try {
    // An element takes two characters at least: a comma, or a bracket more.
    if (text.length > 2 * MAX_JSON_ELEMENTS) new JsonScanner(Buffer.from(text)).skip();
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
