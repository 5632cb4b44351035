/** Keys that cannot be printed by accident, and the filter that keeps them out of logs and messages. */

import { inspect } from 'node:util';

/** A key. `reveal()` is the only way to its text; string, JSON and inspection show `[secret]`. */
export class Secret {
  readonly #text: string;

  constructor(text: string) {
    this.#text = text;
  }

  reveal(): string {
    return this.#text;
  }

  toString(): string {
    return '[secret]';
  }

  toJSON(): string {
    return '[secret]';
  }

  [inspect.custom](): string {
    return '[secret]';
  }
}

/** Whether two settings are equal: plain data in which keys may occur. */
export function isSameSetting(a: unknown, b: unknown): boolean {
  return textOf(a) === textOf(b);
}

function textOf(setting: unknown): string | undefined {
  return JSON.stringify(
    { setting },
    function (this: Record<string, unknown>, name, value: unknown) {
      // `value` is what `toJSON` has returned.
      const own = this[name];
      return own instanceof Secret ? { secret: own.reveal() } : value;
    },
  );
}

/** The shapes of keys that are not configured here: vendors echo them in error texts, masked or whole. */
const KEY_SHAPES = [
  '\\bsk-[\\w*.-]{6,}',
  '\\bBearer\\s+[\\w*.~+/=-]+',
  '\\b(?:api_?)?key=[^\\s&"]+',
];

/** Shorter keys are placeholders for local servers ("ollama", "none"): to hide them would hide words. */
const SHORTEST_SECRET_CHARACTERS = 8;

export interface Redactor {
  /** Replaces every secret, and everything shaped like a key, by `[secret]`. */
  (text: string): string;
  /**
   * Returns false only if nothing would be replaced in any line of the text. Cheaper than a replacement: it looks for
   * the beginnings of secrets.
   */
  mayChange(text: string): boolean;
}

export interface GrowingRedactor extends Redactor {
  /**
   * Hides these secrets too. The former ones stay hidden, because requests and streams that began with them may still
   * be under way; only the oldest are given up, if there are more than 100.
   */
  add(secrets: readonly Secret[]): void;
}

/** Each makes the regular expressions longer. */
const MAX_FORMER_SECRETS = 100;

/**
 * Returns the function that hides the given secrets. The end of a text may have cut a secret off: its beginning is
 * replaced too. The caller bounds the text: a match of megabytes overflows the stack of the regular expression.
 */
export function createRedactor(secrets: readonly Secret[]): GrowingRedactor {
  /** The latest to be added last. */
  const known = new Set<string>();
  let patterns = createPatterns(known);
  function add(added: readonly Secret[]): void {
    // Copies: a key may be a slice of the settings file's text, which V8 would keep in memory as a whole.
    const texts = new Set(added.map((secret) => Buffer.from(secret.reveal()).toString()));
    for (const text of texts) known.delete(text);
    for (const text of texts) known.add(text);
    const excess = known.size - texts.size - MAX_FORMER_SECRETS;
    for (const text of [...known].slice(0, Math.max(0, excess))) known.delete(text);
    patterns = createPatterns(known);
  }
  add(secrets);
  const mayChange = (text: string) => patterns.suspicion.test(text);
  // With hundreds of keys the replacement is slow, even of a short header.
  const redact = (text: string) =>
    mayChange(text) ? text.replace(patterns.all, '[secret]') : text;
  return Object.assign(redact, { mayChange, add });
}

function createPatterns(secrets: ReadonlySet<string>) {
  const parts = [...secrets]
    // As it is, and as it stands in JSON.
    .flatMap((text) => [...new Set([text, JSON.stringify(text).slice(1, -1)])])
    .filter((text) => text.length >= SHORTEST_SECRET_CHARACTERS)
    // Longest first: one key may be the beginning of another.
    .toSorted((a, b) => b.length - a.length)
    .map((text) => ({
      beginning: escapePattern(text.slice(0, SHORTEST_SECRET_CHARACTERS)),
      rest: escapePattern(text.slice(SHORTEST_SECRET_CHARACTERS)),
    }));
  const literals = parts.map(({ beginning, rest }) => `${beginning}(?:${rest}|\\S*$)`);
  const beginnings = new Set(parts.map(({ beginning }) => beginning));
  return {
    all: new RegExp([...literals, ...KEY_SHAPES].join('|'), 'gi'),
    suspicion: new RegExp([...beginnings, ...KEY_SHAPES].join('|'), 'i'),
  };
}

function escapePattern(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

/** Control characters, line separators, and what turns the direction of text: they could forge lines or fields. */
const CONTROL_CHARACTERS =
  // oxlint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

/** Cuts untrusted text to `maxCharacters`, and then writes control characters as `\uXXXX`. */
export function escapeControlCharacters(text: string, maxCharacters: number): string {
  // V8's slice of a string keeps the whole string in memory.
  const shown =
    text.length > maxCharacters ? Buffer.from(text.slice(0, maxCharacters)).toString() : text;
  return shown.replace(
    CONTROL_CHARACTERS,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}

/** Replaces the same characters by spaces, for text that people read. */
export function withoutControlCharacters(text: string): string {
  return text.replace(CONTROL_CHARACTERS, ' ');
}
