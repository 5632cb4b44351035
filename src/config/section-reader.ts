/**
 * Reads one section of the settings by its rows of the table. Keys that were never read are unknown keys. Problems are
 * collected and reported together.
 */

import { didYouMean } from '../lib/did-you-mean.ts';
import { Secret } from '../lib/secrets.ts';
import { explainVariable, type Env } from './environment.ts';
import { expandReferences, hasBrokenReference } from './references.ts';
import { isTable, parseText, type Rows, type Setting, type Table } from './setting-kinds.ts';

/** What the command line may override. */
export interface Flags {
  readonly port?: string | undefined;
  readonly host?: string | undefined;
  readonly workers?: string | undefined;
}

/** What the readers of all sections share. */
export interface ReadContext {
  readonly env: Env;
  readonly flags: Flags;
  /** Precedes the names of settings in problems: the path of the file and a colon, or nothing. */
  readonly filePrefix: string;
  /** The paths of `${file:...}` are relative to it. */
  readonly directory: string;
  readonly problems: string[];
  readonly warnings: string[];
  /** The value in use of every setting that was read, by its name in the file; keys as `Secret`. */
  readonly resolved: Map<string, unknown>;
  /** The variables that are looked up, set or not. */
  readonly variables: Set<string>;
}

/** The value of each row. It is undefined if neither the row nor `D` has a default. */
type Values<R extends Rows, D> = {
  readonly [K in keyof R]: K extends keyof D
    ? Exclude<R[K]['default'], undefined> | D[K]
    : R[K]['default'];
};

export class SectionReader {
  readonly #table: Table;
  readonly #path: string;
  readonly #context: ReadContext;
  readonly #known = new Set<string>();
  readonly #wrong = new Set<string>();
  readonly #sections: SectionReader[] = [];
  /** The variable or option that the value of a key came from, if it did not come from the file. */
  readonly #origins = new Map<string, string | undefined>();
  /** Texts that references were replaced in, which may be keys, with what stands in the file instead. */
  readonly #written = new Map<string, string>();

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
    if (!isTable(value)) this.problem(key, `found ${typeOf(value)}, expected a table`);
    const table = isTable(value) ? value : {};
    const section = new SectionReader(table, this.#nameOf(key), this.#context);
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

  /**
   * Reads all keys of `rows`. `defaults` has, by key, what replaces the default of the row; `variables` the name of the
   * variable that is read if the file does not set the key.
   */
  values<const R extends Rows, D extends { readonly [K in keyof R]?: R[K]['default'] } = {}>(
    rows: R,
    defaults: D = {} as D,
    variables: Readonly<Record<string, string>> = {},
  ): Values<R, D> {
    const read = Object.entries(rows).map(([key, row]) => {
      const fallback = (defaults as Record<string, unknown>)[key] ?? row.default;
      return [key, this.value(key, { ...row, default: fallback }, variables[key])];
    });
    return Object.fromEntries(read) as Values<R, D>;
  }

  /** Reads one key: command line, then environment, then the file, then `variable`, then the default. */
  value<T>(key: string, row: Setting<T>, variable?: string): T {
    this.#known.add(key);
    const { filePrefix, problems, resolved } = this.#context;
    let result: unknown = row.default;
    for (const [origin, value] of this.#given(key, row, variable)) {
      if (row.accepts(value)) {
        result = value;
        this.#origins.set(key, origin);
        continue;
      }
      const source = origin ?? `${filePrefix}${this.#nameOf(key)}`;
      // As it stands in the file: what replaced a reference may be a key that belongs to another setting.
      const shown = origin === undefined ? this.#table[key] : value;
      const found = row.key ? typeOf(value) : describe(shown);
      const hint = origin === undefined ? '' : explainVariable(value);
      problems.push(`${source}: found ${found}, expected ${row.expected}${hint}`);
    }
    if (result !== undefined) {
      const shown = row.key ? new Secret(JSON.stringify(result)) : result;
      resolved.set(this.#nameOf(key), shown);
    }
    return result as T;
  }

  /** The values that are given for a key, lowest first: a wrong one is reported even if another overrides it. */
  #given(key: string, row: Setting, variable?: string): [origin: string | undefined, unknown][] {
    const fromVariable = (name: string | undefined): unknown => {
      const text = name === undefined ? undefined : this.variable(name);
      // An empty variable counts as unset: compose files produce them.
      if (!text) return undefined;
      if (row.type !== 'texts') return parseText(row, text);
      // An empty item stays, to be refused: "," must not mean that there are no keys.
      return text.split(',').map((item) => item.trim());
    };
    const written = this.#table[key];
    const expanded = this.#expand(key, written, row);
    // What replaced a reference is text; another value of the file has its type already.
    const isReplaced = typeof expanded === 'string' && expanded !== written;
    const option = row.flag && this.#context.flags[row.flag];
    const given: [string | undefined, unknown][] = [
      [variable, fromVariable(variable)],
      [undefined, isReplaced ? parseText(row, expanded) : expanded],
      [row.env, fromVariable(row.env)],
      [`--${row.flag}`, option === undefined ? undefined : parseText(row, option)],
    ];
    return given.filter(([, value]) => value !== undefined);
  }

  /** Looks up a variable of the environment: no warning says then that nothing reads it. */
  variable(name: string): string | undefined {
    const { env, variables } = this.#context;
    variables.add(name);
    return Object.hasOwn(env, name) ? env[name] : undefined;
  }

  /** Whether a problem with the value of `key` was reported. */
  hasProblem(key: string): boolean {
    return this.#wrong.has(key);
  }

  /** Reports a problem with the value of `key`, blamed on `variable` or on what the value came from. */
  problem(key: string, text: string, variable = this.#origins.get(key)): void {
    this.#wrong.add(key);
    const { filePrefix, problems } = this.#context;
    problems.push(`${variable ?? `${filePrefix}${this.#nameOf(key)}`}: ${text}`);
  }

  /** Like `problem`, for what does not prevent the start. */
  warning(key: string, text: string, variable = this.#origins.get(key)): void {
    this.#context.warnings.push(`${variable ?? this.#nameOf(key)}: ${text}`);
  }

  /** What a message may show of a text that was read here: `shown`, or the text in the file if it has references. */
  asWritten(text: string, shown = text): string {
    return this.#written.get(text) ?? shown;
  }

  /** Shows `value` in the resolved settings, if what was read stands for it. */
  showResolved(key: string, value: unknown): void {
    this.#context.resolved.set(this.#nameOf(key), value);
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

  /** Replaces the references in a text, or in the texts of an array or a table. */
  #expand(key: string, value: unknown, row: Setting): unknown {
    if (Array.isArray(value)) return value.map((item) => this.#expand(key, item, row));
    if (isTable(value)) {
      const entries = Object.entries(value);
      return Object.fromEntries(
        entries.map(([name, item]) => [name, this.#expand(key, item, row)]),
      );
    }
    if (typeof value !== 'string') return value;
    // The other keys must not have it at all: `checkCallerKey`, `readStore`.
    const mayStay = row.key === undefined || row.key === 'of a provider';
    if (mayStay && hasBrokenReference(value)) {
      this.warning(key, '"${" begins no reference here; the text is used as written');
    }
    const expanded = expandReferences(value, {
      directory: this.#context.directory,
      variable: (name) => this.variable(name),
      problem: (text) => this.problem(key, text),
      onUnset: (text) => {
        if (mayStay) this.warning(key, `${text}; the text is used as written`);
        else this.problem(key, text);
      },
    });
    if (expanded !== value) this.#written.set(expanded, value);
    return expanded;
  }

  #nameOf(key: string): string {
    return [this.#path, key].filter((name) => name !== '').join('.');
  }
}

/** The value that was found, for a message. */
function describe(value: unknown): string {
  if (typeof value === 'object') return typeOf(value);
  return (typeof value === 'string' ? JSON.stringify(value) : `${value as number}`).slice(0, 60);
}

function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'an array';
  return isTable(value) ? 'a table' : value instanceof Date ? 'a date' : `a ${typeof value}`;
}
