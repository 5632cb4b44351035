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

/**
 * Returns the function that hides the given secrets. The end of a text may have cut a secret off: its beginning is
 * replaced too. The caller bounds the text: a match of megabytes overflows the stack of the regular expression.
 */
export function createRedactor(secrets: readonly Secret[]): Redactor {
  const parts = secrets
    .map((secret) => secret.reveal())
    // As it is, and as it stands in JSON.
    .flatMap((text) => [text, JSON.stringify(text).slice(1, -1)])
    .filter((text) => text.length >= SHORTEST_SECRET_CHARACTERS)
    // Longest first: one key may be the beginning of another.
    .toSorted((a, b) => b.length - a.length)
    .map((text) => ({
      beginning: escapePattern(text.slice(0, SHORTEST_SECRET_CHARACTERS)),
      rest: escapePattern(text.slice(SHORTEST_SECRET_CHARACTERS)),
    }));
  const literals = parts.map(({ beginning, rest }) => `${beginning}(?:${rest}|\\S*$)`);
  const pattern = new RegExp([...literals, ...KEY_SHAPES].join('|'), 'gi');
  const beginnings = new Set(parts.map(({ beginning }) => beginning));
  const suspicion = new RegExp([...beginnings, ...KEY_SHAPES].join('|'), 'i');
  const mayChange = (text: string) => suspicion.test(text);
  // With hundreds of keys the replacement is slow, even of a short header.
  const redact = (text: string) => (mayChange(text) ? text.replace(pattern, '[secret]') : text);
  return Object.assign(redact, { mayChange });
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
