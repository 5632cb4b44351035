/**
 * Reads one section of the configuration key by key. Each read names what is allowed, so that what
 * was never asked for is an unknown key, and all problems come out together.
 */

/** TOML's tables, untrusted. smol-toml makes them without a prototype. */
export type Table = Record<string, unknown>;

/** Command line first, then environment, then the file, then the default. */
interface Sources {
  /** The value given on the command line, if any. */
  readonly flag?: string | undefined;
  /** The name of the environment variable, if there is one. */
  readonly env?: string;
}

interface IntegerSetting extends Sources {
  readonly min: number;
  readonly max: number;
}

/** What the readers of all sections share. */
export interface ReadContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly problems: string[];
  readonly warnings: string[];
}

export class SettingsReader {
  readonly #table: Table;
  readonly #path: string;
  readonly #context: ReadContext;
  readonly #known = new Set<string>();

  /** `path` is the section's name as it stands in the file, `''` for the top. */
  constructor(table: Table, path: string, context: ReadContext) {
    this.#table = table;
    this.#path = path;
    this.#context = context;
  }

  /** The section below this one, empty where the file has none. */
  section(key: string): SettingsReader {
    this.#known.add(key);
    const value = this.#table[key];
    if (value !== undefined && !isTable(value)) this.#refuse(key, value, 'a table');
    return new SettingsReader(isTable(value) ? value : {}, this.#nameOf(key), this.#context);
  }

  /** The keys of the section, in the file's order, that hold tables and were not read yet. */
  remainingSections(): string[] {
    return this.remainingKeys().filter((key) => isTable(this.#table[key]));
  }

  remainingKeys(): string[] {
    return Object.keys(this.#table).filter((key) => !this.#known.has(key));
  }

  integer(key: string, setting: IntegerSetting): number | undefined {
    const { min, max } = setting;
    return this.#read(key, setting, {
      expected: `an integer from ${min} to ${max}`,
      parse: (text) => (/^-?\d{1,15}$/.test(text) ? Number(text) : text),
      accept: (value): value is number =>
        typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max,
    });
  }

  boolean(key: string, sources: Sources = {}): boolean | undefined {
    return this.#read(key, sources, {
      expected: 'true or false',
      parse: (text) => ({ true: true, '1': true, false: false, '0': false })[text.toLowerCase()],
      accept: (value): value is boolean => typeof value === 'boolean',
    });
  }

  oneOf<T extends string>(key: string, allowed: readonly T[], sources: Sources): T | undefined {
    return this.#read(key, sources, {
      expected: `one of ${allowed.join(', ')}`,
      parse: (text) => text,
      accept: (value): value is T => (allowed as readonly unknown[]).includes(value),
    });
  }

  /** Text with `${ENV_VAR}` expanded; unset variables stay as written and are warned of. */
  string(key: string, sources: Sources = {}): string | undefined {
    const text = this.#read(key, sources, {
      expected: 'a string',
      parse: (given) => given,
      accept: (value): value is string => typeof value === 'string',
    });
    return text === undefined ? undefined : this.#expandOrWarn(key, text);
  }

  strings(key: string): string[] | undefined {
    const texts = this.#read(key, {}, ARRAY_OF_STRINGS);
    return texts?.map((text) => this.#expandOrWarn(key, text));
  }

  /** Like `strings`, but an unset variable is a problem: a literal `${VAR}` must never become a valid key. */
  keys(key: string): string[] | undefined {
    const texts = this.#read(key, {}, ARRAY_OF_STRINGS);
    return texts?.map((text) => {
      const { expanded, unset } = expandVariables(text, this.#context.env);
      for (const name of unset) this.problem(key, `environment variable ${name} is not set`);
      return expanded;
    });
  }

  /** Reports something wrong with `key` in words of the caller's. */
  problem(key: string, text: string): void {
    this.#context.problems.push(`${this.#nameOf(key)}: ${text}`);
  }

  warning(key: string, text: string): void {
    this.#context.warnings.push(`${this.#nameOf(key)}: ${text}`);
  }

  /** Reports every key that nobody read. Call it last. */
  refuseUnknownKeys(): void {
    for (const key of this.remainingKeys()) {
      this.problem(key, `unknown key${didYouMean(key, [...this.#known])}`);
    }
  }

  #read<T>(
    key: string,
    { flag, env }: Sources,
    kind: {
      expected: string;
      parse?: (text: string) => unknown;
      accept: (value: unknown) => value is T;
    },
  ): T | undefined {
    this.#known.add(key);
    const fromEnv = env === undefined ? undefined : this.#context.env[env];
    let result: T | undefined;
    // Lowest first, so that a broken file is reported even where a variable overrides it.
    const given: [string, unknown][] = [
      [this.#nameOf(key), this.#table[key]],
      // An empty variable counts as unset: compose files produce them.
      [`${env}`, fromEnv ? (kind.parse?.(fromEnv) ?? fromEnv) : undefined],
      [`--${key}`, flag === undefined ? undefined : (kind.parse?.(flag) ?? flag)],
    ];
    for (const [name, value] of given) {
      if (value === undefined) continue;
      if (kind.accept(value)) result = value;
      else
        this.#context.problems.push(
          `${name}: found ${describe(value, key)}, expected ${kind.expected}`,
        );
    }
    return result;
  }

  #refuse(key: string, value: unknown, expected: string): void {
    this.problem(key, `found ${describe(value, key)}, expected ${expected}`);
  }

  #expandOrWarn(key: string, text: string): string {
    const { expanded, unset } = expandVariables(text, this.#context.env);
    for (const name of unset) {
      this.warning(key, `environment variable ${name} is not set; the text is used as written`);
    }
    return expanded;
  }

  #nameOf(key: string): string {
    return [this.#path, key].filter((name) => name !== '').join('.');
  }
}

const ARRAY_OF_STRINGS = {
  expected: 'an array of strings',
  accept: (value: unknown): value is string[] =>
    Array.isArray(value) && value.every((item) => typeof item === 'string'),
};

/** Replaces `${NAME}` by the variable's value, once: what a value contains is not expanded again. */
function expandVariables(
  text: string,
  env: ReadContext['env'],
): { expanded: string; unset: string[] } {
  const unset: string[] = [];
  const expanded = text.replace(/\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g, (written, name: string) => {
    const value = Object.hasOwn(env, name) ? env[name] : undefined;
    if (value === undefined) unset.push(name);
    return value ?? written;
  });
  return { expanded, unset };
}

/** `; did you mean "port"?` where a known name is close, else what there is to choose from. */
export function didYouMean(name: string, known: readonly string[]): string {
  const distances = known.map((candidate) => ({
    candidate,
    distance: editDistance(name, candidate),
  }));
  const nearest = distances.toSorted((a, b) => a.distance - b.distance)[0];
  if (nearest && nearest.distance <= Math.max(2, name.length / 3)) {
    return `; did you mean "${nearest.candidate}"?`;
  }
  return known.length === 0 ? '' : `; known: ${known.join(', ')}`;
}

/** Levenshtein distance, one row at a time. */
function editDistance(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (const [i, character] of Array.from(a.slice(0, 64)).entries()) {
    const next = [i + 1];
    for (let column = 1; column <= b.length; column += 1) {
      const substitution = row[column - 1]! + (b[column - 1] === character ? 0 : 1);
      next.push(Math.min(substitution, row[column]! + 1, next[column - 1]! + 1));
    }
    row = next;
  }
  return row[b.length]!;
}

function isTable(value: unknown): value is Table {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}

/** What was found, for a message. Values of keys are secrets: only their type is told. */
function describe(value: unknown, key: string): string {
  const type = Array.isArray(value) ? 'an array' : isTable(value) ? 'a table' : `a ${typeof value}`;
  const isSecret = /key/i.test(key);
  return isSecret || typeof value === 'object'
    ? type
    : JSON.stringify(`${value as string | number}`).slice(0, 60);
}
