/** The settings by their names in gateway.toml, such as `server.port`. A reload compares them. */

import { digestOf, Secret } from '../lib/secret.ts';
import type { Setting } from './setting-kinds.ts';
import { SETTINGS } from './settings-table.ts';

/**
 * Thrown for settings that are wrong. Each problem is a line or more for the operator, without a
 * key's value.
 */
export class ConfigError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

export interface SettingValue {
  readonly value: unknown;
  readonly row: Setting;
  /** The variable or option that the value comes from, if not from the file. */
  readonly origin: string | undefined;
}

const VARIABLE_ALONE = /^\$\{\w+\}$/;

type Table = typeof SETTINGS;
type CamelCase<K extends string> = K extends `${infer A}_${infer B}`
  ? `${A}${Capitalize<CamelCase<B>>}`
  : K;
type Suffix<R> = R extends { type: 'seconds' } ? 'Ms' : '';

/**
 * A section under the names of the code: `max_body_bytes` is `maxBodyBytes`, and `timeout`, in
 * seconds, `timeoutMs`.
 */
export type Section<P extends keyof Table> = {
  readonly [
    K in keyof Table[P] & string as `${CamelCase<K>}${Suffix<Table[P][K]>}`
  ]: Table[P][K] extends Setting<infer T> ? T : never;
};

/** The settings in which replicas on one machine differ. */
const LISTENER = /^(?:server|admin)\.(?:host|port)$/;
const DIGEST_CHARACTERS = 8;

/**
 * Values with their problems and warnings. Printed as text, JSON or by inspection, it shows no key.
 */
export class SettingValues {
  readonly problems: string[] = [];
  readonly warnings: string[] = [];
  /** By the name of a setting, the message about its variable that is not set. */
  readonly #unset = new Map<string, string>();
  /** The names of settings with a problem. */
  readonly wrong = new Set<string>();
  readonly #filePrefix: string;
  readonly #values: Map<string, SettingValue>;
  /** Texts in which references were replaced, which may be keys, with the text in the file. */
  readonly #written = new Map<string, string>();

  /**
   * `filePrefix` precedes the names of settings in problems: the path of the file and a colon, or
   * nothing.
   */
  constructor(values: Iterable<[string, SettingValue]> = [], filePrefix = '') {
    this.#values = new Map(values);
    this.#filePrefix = filePrefix;
  }

  /** The values as plain data. Keys are in it: not for output. */
  plain(): ReadonlyMap<string, SettingValue> {
    return this.#values;
  }

  /** The values for output: each key is `[secret]`. */
  masked(): ReadonlyMap<string, unknown> {
    return new Map(
      [...this.#values].map(([name, { value, row }]) => [name, row.key ? '[secret]' : value]),
    );
  }

  /**
   * Returns eight characters that are the same for equal settings, keys included, on whatever
   * address the listeners are. They are too few to tell a key that was guessed.
   */
  digest(): string {
    const entries = [...this.#values].filter(([name]) => !LISTENER.test(name));
    const values = entries.map(([name, { value }]) => [name, value ?? null] as const);
    const digest = digestOf(values.toSorted(([a], [b]) => (a < b ? -1 : 1)));
    return Buffer.from(digest, 'base64').toString('hex').slice(0, DIGEST_CHARACTERS);
  }

  /**
   * All keys, for what must not be printed. A URL and a header's value are hidden in texts only as
   * a whole.
   */
  secrets(): Secret[] {
    // An id in place of a key is a placeholder for a local server: to hide it would hide the name
    // in the log.
    const ids = new Set(this.sectionsBelow('providers').map((id) => id.toLowerCase()));
    return [...this.#values].flatMap(([name, { value, row }]) => {
      if (!row.key) return [];
      const isKey = row.key !== 'of the store' && !name.endsWith('.headers');
      const texts: string[] = typeof value === 'string' ? [value] : Object.values(value!);
      return (
        texts
          .filter((text) => row.key === 'of callers' || !ids.has(text.trim().toLowerCase()))
          // The name of a variable that is not set is no secret, and warnings have it.
          .filter((text) => !VARIABLE_ALONE.test(text))
          .map((text) => new Secret(isKey ? text.trim() : text, { isKey }))
      );
    });
  }

  set(name: string, value: SettingValue): void {
    this.#values.set(name, value);
  }

  /** The values of one section. `path` is its name if that of the table has a placeholder. */
  section<P extends keyof Table>(pattern: P, path: string = pattern): Section<P> {
    const entries = Object.entries<Setting>(SETTINGS[pattern]).map(([key, { type }]) => {
      const name = key.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
      const value = this.#values.get(`${path}.${key}`)?.value;
      if (type !== 'seconds') return [name, value];
      return [`${name}Ms`, typeof value === 'number' ? value * 1000 : undefined];
    });
    return Object.fromEntries(entries) as Section<P>;
  }

  /** The names of the sections below this one that have a value. */
  sectionsBelow(path: string): string[] {
    const below = [...this.#values.keys()].filter((name) => name.startsWith(`${path}.`));
    // An id may have dots, the key behind it has none.
    const ids = below.flatMap((name) => /^(.*)\./s.exec(name.slice(path.length + 1))?.[1] ?? []);
    return [...new Set(ids)];
  }

  problem(name: string, text: string, origin = this.#values.get(name)?.origin): undefined {
    this.wrong.add(name);
    const place = origin ?? `${this.#filePrefix}${name}`;
    const unset = origin === undefined ? this.#unset.get(name) : undefined;
    this.problems.push(`${place}: ${text}${unset ? `; ${unset}` : ''}`);
  }

  /** Like `problem`, for what does not prevent the start. */
  warning(name: string, text: string): void {
    this.warnings.push(`${this.#values.get(name)?.origin ?? name}: ${text}`);
  }

  /**
   * Warns of a variable that is not set. Whatever is wrong with the setting then has that in its
   * message.
   */
  unset(name: string, message: string, consequence: string): void {
    this.#unset.set(name, message);
    this.warning(name, `${message}; ${consequence}`);
  }

  /** Remembers what stands in the file for a text with a replaced reference. */
  replaced(text: string, written: string): void {
    this.#written.set(text, written);
  }

  /**
   * The part of a text that a message may show: `shown`, or the text in the file if it has
   * references.
   */
  asWritten(text: string, shown = text): string {
    return this.#written.get(text) ?? shown;
  }
}
