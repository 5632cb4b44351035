/** The values of settings by their names in gateway.toml, such as `server.port`. */

import { digestOf, Secret } from '../lib/secret.ts';
import { Suggestions } from './did-you-mean.ts';
import type { NamedFile, Setting } from './setting-kinds.ts';
import { SETTINGS } from './settings-table.ts';

/** Each problem is a text for the operator, with one or more lines and without keys. */
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
  /** The variable or option that sets the value; undefined for the file and the default. */
  readonly origin: string | undefined;
}

const VARIABLE_ALONE = /^\$\{\w+\}$/;

type Sections = typeof SETTINGS;
type CamelCase<K extends string> = K extends `${infer A}_${infer B}`
  ? `${A}${Capitalize<CamelCase<B>>}`
  : K;
type Suffix<R> = R extends { type: 'seconds' } ? 'Ms' : '';

/**
 * A section under its names in the code: `max_body_bytes` is `maxBodyBytes`. `timeout`, in seconds,
 * is `timeoutMs`, in milliseconds.
 */
export type Section<P extends keyof Sections> = {
  readonly [
    K in keyof Sections[P] & string as `${CamelCase<K>}${Suffix<Sections[P][K]>}`
  ]: Sections[P][K] extends Setting<infer T> ? T : never;
};

const LISTENER = /^(?:server|admin)\.(?:host|port)$/;
const DIGEST_CHARACTERS = 8;

/** Setting values with their problems and warnings. Text, JSON and `inspect` show no keys. */
export class SettingValues {
  readonly problems: string[] = [];
  readonly warnings: string[] = [];
  /** Messages about references that stay as written. */
  readonly #unreplaced = new Map<string, string>();
  readonly suggestions = new Suggestions();
  /** The names of settings with a problem. */
  readonly wrong = new Set<string>();
  readonly #filePrefix: string;
  readonly #values: Map<string, SettingValue>;
  /** Texts with replaced references, which may be keys, with their form in the file. */
  readonly #written = new Map<string, string>();

  /** `filePrefix` is the file's path and a colon, or nothing. */
  constructor(values: Iterable<[string, SettingValue]> = [], filePrefix = '') {
    this.#values = new Map(values);
    this.#filePrefix = filePrefix;
  }

  /** The values contain keys and must not be printed. */
  plain(): ReadonlyMap<string, SettingValue> {
    return this.#values;
  }

  /** Returns `[secret]` for each key and the path for each file. */
  masked(): ReadonlyMap<string, unknown> {
    const mask = ({ value, row }: SettingValue) => {
      if (row.isFile) return (value as NamedFile).path;
      return row.secret ? '[secret]' : value;
    };
    return new Map([...this.#values].map(([name, value]) => [name, mask(value)]));
  }

  /**
   * Returns eight characters, equal for equal settings, keys included. The listeners' addresses and
   * ports are left out, because replicas on the same machine differ in them. Eight characters are
   * too few to confirm a guessed key.
   */
  digest(): string {
    const entries = [...this.#values].filter(([name]) => !LISTENER.test(name));
    const values = entries.map(([name, { value }]) => [name, value ?? null] as const);
    const digest = digestOf(values.toSorted(([a], [b]) => (a < b ? -1 : 1)));
    return Buffer.from(digest, 'base64').toString('hex').slice(0, DIGEST_CHARACTERS);
  }

  /** The store's URL and header values are redacted only where they occur as a whole. */
  secrets(): Secret[] {
    // A key equal to a provider's id is a placeholder for a local server. Redacting it would hide
    // the provider's name in the log.
    const ids = new Set(this.sectionsBelow('providers').map((id) => id.toLowerCase()));
    return [...this.#values].flatMap(([name, { value, row }]) => {
      if (!row.secret) return [];
      const isKey = row.secret !== 'of the store' && !name.endsWith('.headers');
      const texts: string[] = typeof value === 'string' ? [value] : Object.values(value!);
      return (
        texts
          .filter((text) => row.secret === 'of callers' || !ids.has(text.trim().toLowerCase()))
          // A reference to an unset variable is no secret, and warnings show it.
          .filter((text) => !VARIABLE_ALONE.test(text))
          .map((text) => new Secret(isKey ? text.trim() : text, { isKey }))
      );
    });
  }

  set(name: string, value: SettingValue): void {
    this.#values.set(name, value);
  }

  /** `path` is the section's name in the file, if `pattern` has a placeholder. */
  section<P extends keyof Sections>(pattern: P, path: string = pattern): Section<P> {
    const entries = Object.entries<Setting>(SETTINGS[pattern]).map(([key, { type }]) => {
      const name = key.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
      const value = this.#values.get(`${path}.${key}`)?.value;
      if (type !== 'seconds') return [name, value];
      return [`${name}Ms`, typeof value === 'number' ? value * 1000 : undefined];
    });
    return Object.fromEntries(entries) as Section<P>;
  }

  sectionsBelow(path: string): string[] {
    const below = [...this.#values.keys()].filter((name) => name.startsWith(`${path}.`));
    // An id may contain dots, but the key after it contains none.
    const ids = below.flatMap((name) => /^(.*)\./s.exec(name.slice(path.length + 1))?.[1] ?? []);
    return [...new Set(ids)];
  }

  /**
   * A problem prevents the start. `origin` is the place named in the message. Returns undefined, so
   * that a reader can return the call in place of a value.
   */
  problem(name: string, text: string, origin = this.#values.get(name)?.origin): undefined {
    this.wrong.add(name);
    const place = origin ?? `${this.#filePrefix}${name}`;
    const cause = origin === undefined ? this.#unreplaced.get(name) : undefined;
    this.problems.push(`${place}: ${text}${cause ? `; ${cause}` : ''}`);
  }

  /** A warning does not prevent the start. */
  warning(name: string, text: string): void {
    this.warnings.push(`${this.#values.get(name)?.origin ?? name}: ${text}`);
  }

  /**
   * Later problems with the same setting repeat the message, because the reference may be their
   * cause.
   */
  unreplaced(name: string, message: string): void {
    this.#unreplaced.set(name, message);
    this.warning(name, `${message}; the text is used as written`);
  }

  replaced(text: string, written: string): void {
    this.#written.set(text, written);
  }

  /** Returns the form in the file if `text` had references, else `shown`. */
  asWritten(text: string, shown = text): string {
    return this.#written.get(text) ?? shown;
  }
}
