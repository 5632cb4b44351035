/** Keys that cannot be printed by accident. */

import { inspect } from 'node:util';

import { sha256 } from './sha256.ts';

/**
 * A key, or a text that may hold a key. Strings, JSON and `inspect` show `[secret]` in its place.
 */
export class Secret {
  readonly #text: string;
  /**
   * False if the text may be ordinary, such as a URL, because its beginning then occurs elsewhere
   * too.
   */
  readonly isKey: boolean;

  constructor(text: string, { isKey } = { isKey: true }) {
    this.#text = text;
    this.isKey = isKey;
  }

  /** Few files may call it: see ARCHITECTURE.md. */
  reveal(): string {
    return this.#text;
  }

  /** Clients' keys are compared in constant time instead, in authentication.ts. */
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

/** Only equal settings have equal SHA-256 digests, and a digest reveals no key. */
export function digestOf(setting: object): string {
  const text = JSON.stringify(setting, function (this: typeof setting, name, value: unknown) {
    // `value` is the result of `toJSON`, so the secret is read from its object.
    const member: unknown = this[name as keyof typeof setting];
    return member instanceof Secret ? { secret: member.reveal() } : value;
  });
  return sha256(text).toString('base64');
}
