/**
 * Reads one section of the settings key by key. Each read says what is allowed. Keys that were never
 * read are unknown keys. Problems are collected and reported together.
 */

import { didYouMean } from '../lib/did-you-mean.ts';
import { Secret } from '../lib/secrets.ts';

/** TOML's tables, untrusted. smol-toml makes them without a prototype. */
export type Table = Record<string, unknown>;

/** The longest time of a setting: setTimeout fires at once beyond 2^31-1 milliseconds. */
export const MAX_SECONDS = 2_147_483;

/** Where a value may come from: command line, then environment, then the file, then the default. */
interface Sources<D> {
  /** The option's value on the command line, if it was given. */
  readonly flag?: string | undefined;
  /** The name of the environment variable, if the setting has one. */
  readonly env?: string | undefined;
  readonly default?: D;
}

/** What the readers of all sections share. */
export interface ReadContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Precedes the names of settings in problems: the path of the file and a colon, or nothing. */
  readonly filePrefix: string;
  readonly problems: string[];
  readonly warnings: string[];
  /** The value in use of every setting that was read, by its name in the file; keys as `Secret`. */
  readonly resolved: Map<string, unknown>;
}

/** What a setting may be, and how to read it from text. */
interface Kind<T> {
  readonly expected: string;
  readonly accept: (value: unknown) => value is T;
  readonly parse?: (text: string) => unknown;
}

export class SectionReader {
  readonly #table: Table;
  readonly #path: string;
  readonly #context: ReadContext;
  readonly #known = new Set<string>();
  readonly #sections: SectionReader[] = [];

  /** `path` is the section's name as it stands in the file, `''` for the top. */
  constructor(table: Table, path: string, context: ReadContext) {
    this.#table = table;
    this.#path = path;
    this.#context = context;
  }

  /** The section below this one, empty if the file has none. */
  section(key: string): SectionReader {
    this.#known.add(key);
    const value = this.#table[key] ?? {};
    if (!isTable(value)) this.problem(key, `found ${describe(value, key)}, expected a table`);
    const section = new SectionReader(
      isTable(value) ? value : {},
      this.#nameOf(key),
      this.#context,
    );
    this.#sections.push(section);
    return section;
  }

  /** The keys of the section that have not been read yet, in the file's order. */
  remainingKeys(): string[] {
    return Object.keys(this.#table).filter((key) => !this.#known.has(key));
  }

  /** Those of `remainingKeys` that are tables. */
  remainingSections(): string[] {
    return this.remainingKeys().filter((key) => isTable(this.#table[key]));
  }

  integer<D extends number | undefined = undefined>(
    key: string,
    { min, max, ...sources }: Sources<D> & { readonly min: number; readonly max: number },
  ): number | D {
    return this.#read(key, sources, {
      expected: `an integer from ${min} to ${max}`,
      parse: (text) => (/^-?\d{1,15}$/.test(text) ? Number(text) : text),
      accept: (value): value is number =>
        Number.isInteger(value) && (value as number) >= min && (value as number) <= max,
    });
  }

  boolean(key: string, sources: Sources<boolean> & { readonly default: boolean }): boolean {
    const words = new Map<string, boolean>([
      ['true', true],
      ['1', true],
      ['false', false],
      ['0', false],
    ]);
    return this.#read(key, sources, {
      expected: 'true or false',
      parse: (text) => words.get(text.toLowerCase()),
      accept: (value) => typeof value === 'boolean',
    });
  }

  oneOf<T extends string>(
    key: string,
    allowed: readonly T[],
    sources: Sources<T> & { readonly default: T },
  ): T {
    return this.#read(key, sources, {
      expected: `one of ${allowed.join(', ')}`,
      accept: (value): value is T => (allowed as readonly unknown[]).includes(value),
    });
  }

  string<D extends string | undefined = undefined>(
    key: string,
    { isRequired = false, ...sources }: Sources<D> & { readonly isRequired?: boolean } = {},
  ): string | D {
    return this.#read(key, sources, {
      expected: isRequired ? 'a string that is not empty' : 'a string',
      accept: (value): value is string =>
        typeof value === 'string' && !(isRequired && value === ''),
    });
  }

  strings(key: string): string[] | undefined {
    return this.#read<string[], undefined>(
      key,
      {},
      {
        expected: 'an array of strings',
        accept: (value): value is string[] =>
          Array.isArray(value) && value.every((item) => typeof item === 'string'),
      },
    );
  }

  /** One string, or several in an array. */
  stringOrStrings(key: string): readonly string[] | undefined {
    const value = this.#table[key];
    if (Array.isArray(value)) return this.strings(key);
    const text = this.string(key);
    return text === undefined ? undefined : [text];
  }

  /** A table whose values are strings; its keys are any. */
  stringTable(key: string): ReadonlyMap<string, string> {
    const section = this.section(key);
    return new Map(section.remainingKeys().map((name) => [name, section.string(name) ?? '']));
  }

  /** Reports a problem with the value of `key`, or with `variable` if the value came from there. */
  problem(key: string, text: string, variable?: string): void {
    const { filePrefix, problems } = this.#context;
    problems.push(`${variable ?? `${filePrefix}${this.#nameOf(key)}`}: ${text}`);
  }

  /** Like `problem`, for what does not prevent the start. */
  warning(key: string, text: string, variable?: string): void {
    this.#context.warnings.push(`${variable ?? this.#nameOf(key)}: ${text}`);
  }

  /** Removes what was read here from the resolved settings: nothing will use it. */
  dropFromResolved(): void {
    for (const key of this.#known) this.#context.resolved.delete(this.#nameOf(key));
  }

  /** Reports every key of this section and those below that was not read. Call it last. */
  refuseUnknownKeys(): void {
    for (const section of this.#sections) section.refuseUnknownKeys();
    for (const key of this.remainingKeys()) {
      this.problem(key, `unknown key${didYouMean(key, [...this.#known])}`);
    }
  }

  #read<T, D>(key: string, sources: Sources<D>, kind: Kind<T>): T | D {
    this.#known.add(key);
    const { env, filePrefix, problems, resolved } = this.#context;
    const { flag, env: variable, default: fallback } = sources;
    const parse = (text: string) => kind.parse?.(text) ?? text;
    const written = this.#table[key];
    const expanded = Array.isArray(written)
      ? written.map((item: unknown) => this.#expand(key, item))
      : this.#expand(key, written);
    // A variable holds text; a value of the file has its type already.
    const isExpanded = typeof expanded === 'string' && expanded !== written;
    // Lowest first, so that a wrong value in the file is reported even if a variable overrides it.
    const given: [string, unknown][] = [
      [`${filePrefix}${this.#nameOf(key)}`, isExpanded ? parse(expanded) : expanded],
    ];
    // An empty variable counts as unset: compose files produce them.
    if (variable && env[variable]) given.push([variable, parse(env[variable])]);
    if (flag !== undefined) given.push([`--${key}`, parse(flag)]);
    let result: unknown = fallback;
    for (const [source, value] of given) {
      if (value === undefined) continue;
      if (kind.accept(value)) result = value;
      else problems.push(`${source}: found ${describe(value, key)}, expected ${kind.expected}`);
    }
    if (result !== undefined) {
      const shown = MASKED.has(key) ? new Secret(JSON.stringify(result)) : result;
      resolved.set(this.#nameOf(key), shown);
    }
    return result as T | D;
  }

  /**
   * Replaces each `${NAME}` by the variable's value, which is not expanded again. Unset variables stay
   * as written, with a warning. In a list of accepted keys they are a problem: a literal `${NAME}` must
   * never become a valid key.
   */
  #expand(key: string, value: unknown): unknown {
    if (typeof value !== 'string') return value;
    const { env } = this.#context;
    return value.replace(/\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g, (written, name: string) => {
      if (Object.hasOwn(env, name) && env[name] !== undefined) return env[name];
      const text = `environment variable ${name} is not set`;
      if (key === 'keys' || key === 'key') this.problem(key, text);
      else this.warning(key, `${text}; the text is used as written`);
      return written;
    });
  }

  #nameOf(key: string): string {
    return [this.#path, key].filter((name) => name !== '').join('.');
  }
}

const MASKED = new Set(['api_key', 'api_keys', 'key', 'keys']);
/** Problems show the type of such settings and not the value: the name may be a misspelt `api_key`. */
const PERHAPS_SECRET = /key/i;

function isTable(value: unknown): value is Table {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}

/** The value that was found, for a message. */
function describe(value: unknown, key: string): string {
  const type = isTable(value) ? 'a table' : value instanceof Date ? 'a date' : `a ${typeof value}`;
  if (Array.isArray(value)) return 'an array';
  if (PERHAPS_SECRET.test(key) || typeof value === 'object') return type;
  return JSON.stringify(`${value as string | number}`).slice(0, 60);
}
