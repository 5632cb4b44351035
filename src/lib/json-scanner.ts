/**
 * An incremental JSON scanner (RFC 8259). It is fed a text in chunks, checks the syntax and reports values to
 * visitors, but builds nothing: the work for each byte is bounded, and so is the memory for a text of any size.
 */

import {
  CARRIAGE_RETURN,
  CLOSE_BRACE,
  CLOSE_BRACKET,
  COLON,
  COMMA,
  LINE_FEED,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  SPACE,
  TAB,
} from './ascii.ts';
import { invalidRequest } from './errors.ts';
import { LiteralReader, NumberReader, StringReader, type ScalarReader } from './json-scalars.ts';

export const MAX_JSON_ELEMENTS = 500_000;
export const MAX_JSON_DEPTH = 256;
const ONE_SPACE = Buffer.from(' ');

export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'true' | 'false' | 'null';

/** Is told of the values directly inside one object or array. Offsets are in bytes from the start of the text. */
export interface JsonVisitor {
  /** The name of the members whose text is wanted if they are strings. Others are not decoded, which costs time. */
  readonly textName?: string;
  /**
   * A value begins at `offset`. `name` is its name in an object ('' if that is no short word), and '' in an array.
   * Returns the visitor of the values inside it, if there is one.
   */
  onValue(kind: JsonKind, name: string, offset: number): JsonVisitor | undefined;
  /** That value ends before `offset`. `text` of a string: what it says if that is wanted and a short word, or ''. */
  onEnd?(offset: number, text: string | undefined): void;
}

/**
 * What must come next, apart from white space: `firstItem` and `firstName` are an item or a name, or the end of the
 * container; `comma` is a comma, or that end; `end` is nothing; `scalar` is the rest of a string, number or literal.
 */
type State =
  | ('value' | 'firstItem' | 'item' | 'firstName' | 'name' | 'colon')
  | ('scalar' | 'comma' | 'end');

/**
 * Scans one JSON text. `push` and `end` throw `invalidRequest` if it is not JSON, with the offset of the first byte
 * that no JSON text could have there; and if it has more than MAX_JSON_DEPTH levels, or more than `maxElements`
 * objects, arrays, members and plain array items.
 */
export class JsonScanner {
  readonly #maxElements: number;
  #state: State = 'value';
  /** Bytes of the chunks before this one. */
  #scannedBytes = 0;
  #elements = 0;
  #depth = 0;
  /** The open containers, outermost first: whether each is an object, and its visitor. [0] is the text itself. */
  readonly #areObjects: boolean[] = [false];
  readonly #visitors: (JsonVisitor | undefined)[];
  readonly #string = new StringReader();
  readonly #number = new NumberReader();
  readonly #literal = new LiteralReader();
  /** The one of the three that is at work in the state `scalar`. */
  #scalar: ScalarReader = this.#string;
  /** It reads a member's name. */
  #isName = false;
  /** The name that was read last. */
  #name = '';

  /** `visitor` is told of the text's one value. */
  constructor(visitor?: JsonVisitor, maxElements = MAX_JSON_ELEMENTS) {
    this.#visitors = [visitor];
    this.#maxElements = maxElements;
  }

  /** Scans the next chunk of the text, which is UTF-8. */
  push(bytes: Buffer): void {
    let at = 0;
    while (at < bytes.length) {
      at = this.#state === 'scalar' ? this.#readScalar(bytes, at) : this.#readStructure(bytes, at);
    }
    this.#scannedBytes += bytes.length;
  }

  /** The text is complete. */
  end(): void {
    // White space ends a number, and changes nothing else that is complete.
    this.push(ONE_SPACE);
    if (this.#state !== 'end') this.#fail(-1);
  }

  #readScalar(bytes: Buffer, start: number): number {
    const at = this.#scalar.read(bytes, start);
    if (this.#scalar.isWhole) {
      const text = this.#scalar === this.#string ? this.#string.word : undefined;
      if (this.#isName) {
        this.#name = text ?? '';
        this.#state = 'colon';
      } else {
        this.#endValue(at, text);
      }
    } else if (at < bytes.length) {
      this.#fail(at);
    }
    return at;
  }

  /** Reads white space and then one of `{ } [ ] , :`, or the beginning of a name or a scalar. */
  #readStructure(bytes: Buffer, start: number): number {
    let at = start;
    let byte = bytes[at]!;
    while (byte === SPACE || byte === LINE_FEED || byte === CARRIAGE_RETURN || byte === TAB) {
      at += 1;
      if (at === bytes.length) return at;
      byte = bytes[at]!;
    }
    switch (this.#state) {
      case 'value':
        return this.#beginValue(byte, at);
      case 'firstItem':
        if (byte === CLOSE_BRACKET) return this.#close(at);
        return this.#beginItem(byte, at);
      case 'item':
        return this.#beginItem(byte, at);
      case 'firstName':
        if (byte === CLOSE_BRACE) return this.#close(at);
        return this.#beginName(byte, at);
      case 'name':
        return this.#beginName(byte, at);
      case 'colon':
        if (byte !== COLON) this.#fail(at);
        this.#state = 'value';
        return at + 1;
      case 'comma':
        return this.#readComma(byte, at);
      default:
        return this.#fail(at);
    }
  }

  #readComma(byte: number, at: number): number {
    const isObject = this.#areObjects[this.#depth]!;
    if (byte === (isObject ? CLOSE_BRACE : CLOSE_BRACKET)) return this.#close(at);
    if (byte !== COMMA) this.#fail(at);
    this.#state = isObject ? 'name' : 'item';
    return at + 1;
  }

  #beginName(byte: number, at: number): number {
    this.#count();
    if (byte !== QUOTE) this.#fail(at);
    this.#beginString(true, this.#visitors[this.#depth] !== undefined);
    return at + 1;
  }

  #beginItem(byte: number, at: number): number {
    if (byte !== OPEN_BRACE && byte !== OPEN_BRACKET) this.#count();
    return this.#beginValue(byte, at);
  }

  #beginValue(byte: number, at: number): number {
    // Any other byte can only begin a number; if it does not, NumberReader refuses it.
    const kind = KINDS[byte] ?? 'number';
    const name = this.#areObjects[this.#depth] ? this.#name : '';
    const visitor = this.#visitors[this.#depth];
    const inside = visitor?.onValue(kind, name, this.#scannedBytes + at);
    if (kind === 'object' || kind === 'array') {
      this.#open(kind === 'object', inside);
      return at + 1;
    }
    if (kind === 'string') {
      this.#beginString(false, visitor?.textName === name);
      return at + 1;
    }
    this.#state = 'scalar';
    this.#isName = false;
    if (kind === 'number') {
      this.#scalar = this.#number;
      this.#number.begin();
    } else {
      this.#scalar = this.#literal;
      this.#literal.begin(kind);
    }
    return at;
  }

  #beginString(isName: boolean, isTextWanted: boolean): void {
    this.#state = 'scalar';
    this.#isName = isName;
    this.#scalar = this.#string;
    this.#string.begin(isTextWanted);
  }

  #endValue(end: number, text?: string): void {
    this.#state = this.#depth === 0 ? 'end' : 'comma';
    this.#visitors[this.#depth]?.onEnd?.(this.#scannedBytes + end, text);
  }

  #open(isObject: boolean, visitor: JsonVisitor | undefined): void {
    this.#count();
    this.#depth += 1;
    if (this.#depth > MAX_JSON_DEPTH) {
      throw invalidRequest(`request body is nested deeper than ${MAX_JSON_DEPTH} levels`);
    }
    this.#areObjects[this.#depth] = isObject;
    this.#visitors[this.#depth] = visitor;
    this.#state = isObject ? 'firstName' : 'firstItem';
  }

  #close(at: number): number {
    this.#depth -= 1;
    this.#endValue(at + 1);
    return at + 1;
  }

  #count(): void {
    this.#elements += 1;
    if (this.#elements > this.#maxElements) {
      throw invalidRequest(`request body has more than ${this.#maxElements} elements`);
    }
  }

  #fail(at: number): never {
    throw invalidRequest(`request body is not valid JSON (at byte ${this.#scannedBytes + at})`);
  }
}

/** Returns whether it is JSON, of any number of elements. */
export function isJson(bytes: Buffer): boolean {
  const json = new JsonScanner(undefined, Infinity);
  try {
    json.push(bytes);
    json.end();
    return true;
  } catch {
    return false;
  }
}

const KINDS: (JsonKind | undefined)[] = [];
KINDS[OPEN_BRACE] = 'object';
KINDS[OPEN_BRACKET] = 'array';
KINDS[QUOTE] = 'string';
KINDS[0x74] = 'true';
KINDS[0x66] = 'false';
KINDS[0x6e] = 'null';
