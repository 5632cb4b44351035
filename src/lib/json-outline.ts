/** Reads JSON that is too long to parse as an outline, which the same rules read as parsed JSON. */

import { JsonScanner, type JsonValue, MAX_PARSED_CHARACTERS, parseUntrustedJson } from './json.ts';

/** Deeper values are left out. `response.output[0].content[0].text` has this depth. */
const MAX_DEPTH = 6;
/** OpenAI returns 128 choices at most. */
export const MAX_ITEMS = 1000;
/** The most values of the same depth, so that deep values leave room for `usage` behind them. */
const MAX_VALUES = 4000;
/**
 * Enough for the part of an error's message that is shown, and for a key that begins in this part.
 */
const MAX_TEXT_BYTES = 8192;
/** No model, code or finish reason is longer. */
const MAX_WORD_CHARACTERS = 64;
const MAX_TEXTS_CHARACTERS = 65_536;
/** No rule takes it for a word or for an empty text. */
export const LEFT_OUT = '\u2026';

const EMPTY_TEXT_BYTES = 2;

type Item = readonly [name: string, value: unknown];

/**
 * Builds the outline of one JSON text: the same objects and arrays, without deep values, the rest
 * of long texts, and in an array all texts and numbers but the first. An outline is bounded,
 * because an answer's log probabilities may have a million elements.
 */
export class JsonOutline {
  readonly #json = new JsonScanner((value) => this.#note(value), {
    elements: Infinity,
    depth: MAX_DEPTH + 1,
    textDepth: MAX_DEPTH + 1,
    beginningBytes: MAX_TEXT_BYTES,
  });
  /** By depth: the items so far of the unfinished value around them. */
  readonly #items: Item[][] = Array.from({ length: MAX_DEPTH + 2 }, () => []);
  readonly #values: number[] = Array.from({ length: MAX_DEPTH + 2 }, () => 0);
  #textCharacters = 0;

  /** `bytes` must not begin with a byte order mark. */
  push(bytes: Buffer): void {
    this.#json.push(bytes);
  }

  get hasError(): boolean {
    return this.#json.error !== undefined;
  }

  /** Returns undefined if the text is not JSON. */
  finish(): unknown {
    return this.#json.finish() ? undefined : this.#items[0]![0]?.[1];
  }

  /** The scanner reports a value after the values inside it. */
  #note(value: JsonValue): void {
    const { kind, depth, name } = value;
    const isOuter = kind === 'object' || kind === 'array';
    const inner = isOuter ? this.#items[depth + 1] : undefined;
    if (inner && inner.length > 0) this.#items[depth + 1] = [];
    if (!this.#hasRoom(depth, isOuter || name !== '')) return;
    this.#values[depth]! += 1;
    this.#items[depth]!.push([name, isOuter ? toOuter(kind, inner) : this.#toPlain(value)]);
  }

  #hasRoom(depth: number, isWanted: boolean): boolean {
    // The items of a value that will be left out would use up the room of others.
    for (let outer = 1; outer < depth; outer += 1) {
      if (this.#items[outer]!.length >= MAX_ITEMS) return false;
    }
    const { length } = this.#items[depth]!;
    // The first item shows that the value around it is not empty.
    if (length === 0) return true;
    const isBounded = length < MAX_ITEMS && this.#values[depth]! < MAX_VALUES;
    return isWanted && isBounded && depth <= MAX_DEPTH;
  }

  #toPlain({ kind, start, end, text }: JsonValue): unknown {
    if (kind === 'null') return null;
    if (kind === 'true' || kind === 'false') return kind === 'true';
    // A number that is too long for the scanner is neither zero nor a count.
    if (kind === 'number') return Number(this.#json.number || Infinity);
    if (text === '' && end - start > EMPTY_TEXT_BYTES) return LEFT_OUT;
    if (text.length <= MAX_WORD_CHARACTERS) return text;
    this.#textCharacters += text.length;
    return this.#textCharacters > MAX_TEXTS_CHARACTERS ? LEFT_OUT : text;
  }
}

function toOuter(kind: 'object' | 'array', items: readonly Item[] = []): unknown {
  if (kind === 'array') return items.map(([, value]) => value);
  // Without a prototype, a member `__proto__` is a member like any other.
  const outer = Object.create(null) as Record<string, unknown>;
  for (const [name, value] of items) outer[name] = value;
  return outer;
}

/**
 * Reads a provider's JSON. A byte order mark may precede it. Returns undefined if it is not JSON.
 */
export function readJson(text: string): unknown {
  if (text.length <= MAX_PARSED_CHARACTERS) return parseUntrustedJson(text);
  const outline = new JsonOutline();
  outline.push(Buffer.from(text.startsWith('\ufeff') ? text.slice(1) : text));
  return outline.finish();
}
