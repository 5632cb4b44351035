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

/** What keys look like when they are not ours: vendors echo them in error texts, masked or whole. */
const KEY_SHAPES = [
  '\\bsk-[\\w*.-]{6,}',
  '\\bBearer\\s+[\\w*.~+/=-]+',
  '\\b(?:api_?)?key=[^\\s&"]+',
];

/** Shorter ones are placeholders for local servers ("ollama", "none"): hiding them would only eat words. */
const SHORTEST_SECRET_CHARACTERS = 8;

/** Returns a function that replaces every given secret, and everything shaped like a key, by `[secret]`. */
export function createRedactor(secrets: readonly Secret[]): (text: string) => string {
  const literals = secrets
    .map((secret) => secret.reveal())
    // As it is, and as it stands in JSON.
    .flatMap((text) => [text, JSON.stringify(text).slice(1, -1)])
    .filter((text) => text.length >= SHORTEST_SECRET_CHARACTERS)
    // Longest first: one key may be the beginning of another.
    .toSorted((a, b) => b.length - a.length)
    .map((text) => text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'));
  const pattern = new RegExp([...literals, ...KEY_SHAPES].join('|'), 'gi');
  return (text) => text.replace(pattern, '[secret]');
}

/** Control characters and line separators, which could forge log lines or terminal sequences. */
// oxlint-disable-next-line no-control-regex
const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g;

/** Untrusted text made printable: control characters as `\uXXXX`, at most `maxCharacters` long. */
export function escapeControlCharacters(text: string, maxCharacters: number): string {
  return text
    .slice(0, maxCharacters)
    .replace(CONTROL_CHARACTERS, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** The same characters as spaces, for text that people read. */
export function withoutControlCharacters(text: string): string {
  return text.replace(CONTROL_CHARACTERS, ' ');
}
