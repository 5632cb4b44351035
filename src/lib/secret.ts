/** Keys that cannot be printed by accident. */

import { createHash } from 'node:crypto';
import { inspect } from 'node:util';

/**
 * A key, or a text that may hold one. `reveal()` returns the text; string, JSON and inspection show
 * `[secret]`.
 */
export class Secret {
  readonly #text: string;
  /**
   * False: the text may be an ordinary one, such as a URL, whose beginning also occurs elsewhere.
   */
  readonly isKey: boolean;

  constructor(text: string, { isKey } = { isKey: true }) {
    this.#text = text;
    this.isKey = isKey;
  }

  reveal(): string {
    return this.#text;
  }

  /**
   * For texts of the settings: what a client sends is compared in constant time, in
   * authentication.ts.
   */
  is(text: string): boolean {
    return this.#text === text;
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

/**
 * Returns a digest that is the same for equal settings only: plain data, in which it does not show
 * keys.
 */
export function digestOf(setting: object): string {
  const text = JSON.stringify(setting, function (this: typeof setting, name, value: unknown) {
    // `value` is what `toJSON` has returned.
    const own: unknown = this[name as keyof typeof setting];
    return own instanceof Secret ? { secret: own.reveal() } : value;
  });
  return createHash('sha256').update(text).digest('base64');
}
