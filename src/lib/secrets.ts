/** Keeps keys out of logs and messages, and makes texts from outside safe to show. */

import type { Secret } from './secret.ts';

/** Shapes of keys from other configurations, because vendors echo such keys, masked or whole. */
const KEY_SHAPES = [
  '\\bsk-[\\w*.-]{6,}',
  '\\bBearer\\s+[\\w*.~+/=%-]+',
  '\\b(?:api_?)?key=[^\\s&"]+',
];

/**
 * Shorter keys are not hidden, because they are placeholders ("ollama", "none") and ordinary words.
 */
export const SHORTEST_SECRET_CHARACTERS = 8;
/** A setting with so many characters of a key shows no part of it. */
const WHOLE_KEY_CHARACTERS = 64;

export interface Redactor {
  /**
   * Replaces every secret, and every text shaped like a key, by `[secret]`. The time depends little
   * on the number of secrets.
   */
  (text: string): string;
  /** Returns false only if nothing in the text would be replaced, at less cost than a call. */
  mayChange(text: string): boolean;
}

const MAX_FORMER_SECRETS = 100;

/**
 * Returns the function that hides `secrets`, also in percent-encoding. At the end of a text it also
 * hides the beginning of a key, because the rest may have been cut off. A secret with `isKey` false
 * is hidden only as a whole.
 *
 * The beginning of a key stays where one of `settings`, names with values, has the same text: a
 * name such as `engineering` is no secret when a key begins with it.
 *
 * `add` replaces secrets and settings. Up to 100 former secrets stay hidden, because running
 * requests may have begun with them.
 */
export function createRedactor(secrets: readonly Secret[], settings: Iterable<unknown> = []) {
  const known = new Map<string, boolean>();
  let shown: ReadonlySet<string> = new Set();
  let search: SecretSearch;
  function add(added: readonly Secret[], latest: Iterable<unknown> = []): void {
    const texts = new Map<string, boolean>();
    for (const secret of added) {
      // A copy, because a key may be a slice of the settings file and V8 would keep the whole file
      // in memory.
      const text = Buffer.from(secret.reveal()).toString();
      texts.set(text, secret.isKey || (texts.get(text) ?? known.get(text) ?? false));
    }
    for (const text of texts.keys()) known.delete(text);
    for (const [text, isKey] of texts) known.set(text, isKey);
    const excess = known.size - texts.size - MAX_FORMER_SECRETS;
    for (const text of [...known.keys()].slice(0, Math.max(0, excess))) known.delete(text);
    const forms = formsOf(known);
    const former = shown;
    shown = shownBeginnings(latest, forms);
    // The former settings count too, because the log names settings that are gone.
    search = new SecretSearch(forms, (beginning) => shown.has(beginning) || former.has(beginning));
  }
  add(secrets, settings);
  const mayChange = (text: string) =>
    search.mayFind(text) || (text.includes('%') && search.mayFind(decode(text).decoded));
  const redact = (text: string) => {
    if (!mayChange(text)) return text;
    if (!text.includes('%')) return hide(text, search.find(text));
    const { decoded, places } = decode(text);
    const encoded = search.find(decoded).map(({ from, to }) => {
      return { from: places[from]!, to: places[to]! };
    });
    // A text shaped like a key may be longer as it stands.
    const whole = search.find(text, Infinity);
    return hide(
      text,
      [...whole, ...encoded].toSorted((a, b) => a.from - b.from),
    );
  };
  return Object.assign(redact, { mayChange, add });
}

interface Range {
  readonly from: number;
  readonly to: number;
}

/** `ranges` are in the order of `from`, and may overlap. */
function hide(text: string, ranges: readonly Range[]): string {
  let hidden = '';
  let at = 0;
  for (const { from, to } of ranges) {
    if (from >= at) hidden += `${text.slice(at, from)}[secret]`;
    at = Math.max(at, to);
  }
  return hidden + text.slice(at);
}

/** A key's rest, with a vendor's mask in place of its middle. */
const MASKED = /[\w-]{0,16}(?:\*{2,}|\.{3}|…)\S*/y;

/**
 * Many keys may share a vendor's public beginning such as `sk-proj-`, but few share so many
 * characters. Otherwise a text of such beginnings would be compared with the keys of each length.
 */
const DISTINCT_CHARACTERS = 16;
const SHORT_LENGTHS = [15, 14, 13, 12, 11, 10, 9, 8];

/** By form: whether the secret is a key. */
type Forms = ReadonlyMap<string, boolean>;

/**
 * An expression finds where a secret may begin, and sets decide. An expression of all secrets would
 * try each of them at each character.
 */
class SecretSearch {
  readonly #beginnings: RegExp;
  readonly #shapes = new RegExp(KEY_SHAPES.join('|'), 'iy');
  readonly #secrets = new Set<string>();
  readonly #shorter: ReadonlySet<string>;
  /** The lengths of long secrets with the same distinct characters, the longest first. */
  readonly #lengths = new Map<string, Set<number>>();
  /** The first characters of keys. */
  readonly #keys = new Set<string>();
  /** The beginnings of keys that are hidden in a text's last word. */
  readonly #cutOff = new Set<string>();
  #longestCutOff = 0;

  constructor(forms: Forms, isShown: (beginning: string) => boolean) {
    const beginnings = new Set<string>();
    for (const [text, isKey] of forms) {
      this.#secrets.add(fold(text));
      let length = SHORTEST_SECRET_CHARACTERS;
      const beginning = fold(text.slice(0, length));
      beginnings.add(beginning);
      const distinct = fold(text.slice(0, DISTINCT_CHARACTERS));
      const lengths = this.#lengths.get(distinct);
      if (lengths) lengths.add(text.length);
      else this.#lengths.set(distinct, new Set([text.length]));
      if (!isKey) continue;
      this.#keys.add(beginning);
      while (length < text.length && isShown(fold(text.slice(0, length)))) length += 1;
      this.#cutOff.add(fold(text.slice(0, length)));
      this.#longestCutOff = Math.max(this.#longestCutOff, length);
    }
    const sorted = [...this.#secrets].toSorted();
    this.#shorter = new Set(sorted.filter((text, at) => sorted[at + 1]?.startsWith(text)));
    const patterns = [...beginnings].map(escapePattern);
    this.#beginnings = new RegExp([...patterns, ...KEY_SHAPES].join('|'), 'gi');
  }

  mayFind(text: string): boolean {
    this.#beginnings.lastIndex = 0;
    return this.#beginnings.test(text);
  }

  /** Only behind `lastWordAt` keys may be cut off. */
  find(text: string, lastWordAt = /^[^]*\s/.exec(text)?.[0].length ?? 0): Range[] {
    const found: Range[] = [];
    this.#beginnings.lastIndex = 0;
    for (let match = this.#beginnings.exec(text); match; match = this.#beginnings.exec(text)) {
      const from = match.index;
      const to = this.#endOf(match, lastWordAt);
      if (to > from) found.push({ from, to });
      this.#beginnings.lastIndex = Math.max(to, from + 1);
    }
    return found;
  }

  /** Returns the match's start if there is no secret. */
  #endOf({ 0: matched, index, input }: RegExpExecArray, lastWordAt: number): number {
    const beginning = fold(matched);
    const textOf = (length: number) => fold(input.slice(index, index + length));
    const lengths = this.#lengths.get(textOf(DISTINCT_CHARACTERS)) ?? [];
    const length = [...lengths, ...SHORT_LENGTHS].find((one) => this.#secrets.has(textOf(one)));
    if (length !== undefined && !this.#shorter.has(textOf(length))) return index + length;
    if (this.#keys.has(beginning)) {
      const behind = index + beginning.length;
      const masked = lengthAt(MASKED, input, behind);
      if (masked > 0) return behind + masked;
      if (behind >= lastWordAt && this.#isCutOff(textOf)) return input.length;
    }
    return index + (length ?? lengthAt(this.#shapes, input, index));
  }

  #isCutOff(textOf: (length: number) => string): boolean {
    for (let length = SHORTEST_SECRET_CHARACTERS; length <= this.#longestCutOff; length += 1) {
      if (this.#cutOff.has(textOf(length))) return true;
    }
    return false;
  }
}

function lengthAt(pattern: RegExp, text: string, at: number): number {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex - at : 0;
}

/** Keeps a text whose length lower case would change, because offsets must stay the same. */
function fold(text: string): string {
  const lowerCase = text.toLowerCase();
  return lowerCase.length === text.length ? lowerCase : text;
}

function formsOf(secrets: ReadonlyMap<string, boolean>): Forms {
  const forms = new Map<string, boolean>();
  for (const [secret, isKey] of secrets) {
    // JSON may escape some characters, and texts are searched without percent-encoding.
    for (const form of [secret, JSON.stringify(secret).slice(1, -1), decode(secret).decoded]) {
      if (form.length >= SHORTEST_SECRET_CHARACTERS) {
        forms.set(form, isKey || forms.get(form) === true);
      }
    }
  }
  return new Map([...forms].toSorted(([a], [b]) => b.length - a.length));
}

/** A whole key in a setting is a mistake, and shows nothing. */
function shownBeginnings(settings: Iterable<unknown>, forms: Forms): Set<string> {
  const beginnings = new Set<string>();
  const whole = new Set<string>();
  const hashes = new Uint8Array(HASHES);
  for (const [text, isKey] of forms) {
    if (!isKey) continue;
    const key = fold(text.slice(0, WHOLE_KEY_CHARACTERS));
    whole.add(key);
    hashes[hashAt(key, 0)] = 1;
    for (let length = SHORTEST_SECRET_CHARACTERS; length <= key.length; length += 1) {
      beginnings.add(key.slice(0, length));
    }
  }
  const shown = new Set<string>();
  // Redacted texts may have JSON's backslashes or not.
  const texts = Array.from(settings, (setting) => fold(JSON.stringify(setting)));
  const plain = texts.map((json) => json.replaceAll(/\\(["\\])/g, '$1'));
  const text = [...new Set([...texts, ...plain])].join('\n');
  for (let at = 0; at <= text.length - SHORTEST_SECRET_CHARACTERS; at += 1) {
    if (hashes[hashAt(text, at)] === 0) continue;
    const found = beginningsAt(text, at, beginnings);
    if (found.some((beginning) => whole.has(beginning))) at += found.length;
    else for (const beginning of found) shown.add(beginning);
  }
  return shown;
}

function beginningsAt(text: string, at: number, beginnings: ReadonlySet<string>): string[] {
  const found: string[] = [];
  for (let end = at + SHORTEST_SECRET_CHARACTERS; end <= text.length; end += 1) {
    const beginning = text.slice(at, end);
    if (!beginnings.has(beginning)) break;
    found.push(beginning);
  }
  return found;
}

const HASHES = 65_536;

/** Hashes 8 characters, as many as the shortest secret has. */
function hashAt(text: string, at: number): number {
  const rest = (text.charCodeAt(at + 3) << 5) ^ (text.charCodeAt(at + 7) << 10);
  return (text.charCodeAt(at) ^ rest) % HASHES;
}

/** UTF-8 in percent-encoding (RFC 3986, 2.1). */
const ENCODED_CHARACTER = new RegExp(
  '%[0-7][\\da-f]|%[cd][\\da-f]%[89ab][\\da-f]|' +
    '%e[\\da-f](?:%[89ab][\\da-f]){2}|%f[0-7](?:%[89ab][\\da-f]){3}',
  'gi',
);

/** `places` has for each decoded character, and for the end, its place in `text`. */
function decode(text: string): { decoded: string; places: readonly number[] } {
  const places: number[] = [];
  let next = 0;
  const decoded = text.replace(ENCODED_CHARACTER, (encoded, at: number) => {
    const character = Buffer.from(encoded.replaceAll('%', ''), 'hex').toString();
    for (; next < at; next += 1) places.push(next);
    for (const _ of character.split('')) places.push(at);
    next += encoded.length;
    return character;
  });
  for (; next <= text.length; next += 1) places.push(next);
  return { decoded, places };
}

function escapePattern(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

/** Control characters, line separators and text direction marks could forge lines or fields. */
const CONTROL_CHARACTERS =
  // oxlint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/**
 * Returns the beginning of a text, with U+FFFD for each half of a surrogate pair, because strict
 * parsers of JSON refuse a half.
 */
export function cutText(text: string, maxCharacters: number): string {
  if (text.length <= maxCharacters) return text.toWellFormed();
  // A copy, because V8's slice would keep the whole text in memory. UTF-8 has no halves.
  return Buffer.from(text.slice(0, maxCharacters)).toString();
}

export function escapeControlCharacters(text: string, maxCharacters: number): string {
  const shown = cutText(text, maxCharacters);
  // Searches first, because `replace` with a function costs ten times as much.
  if (shown.search(CONTROL_CHARACTERS) === -1) return shown;
  return shown.replace(
    CONTROL_CHARACTERS,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

export function withoutControlCharacters(text: string): string {
  return text.replace(CONTROL_CHARACTERS, ' ');
}
