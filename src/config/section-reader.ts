/**
 * Reads one section of the configuration key by key. Each read names what is allowed, so that what
 * was never asked for is an unknown key, and all problems come out together.
 */

/** TOML's tables, untrusted. smol-toml makes them without a prototype. */
export type Table = Record<string, unknown>;

/** Where a value may come from: command line, then environment, then the file, then the default. */
interface Sources<D> {
  /** What was given on the command line, if anything. */
  readonly flag?: string | undefined;
  /** The name of the environment variable, if there is one. */
  readonly env?: string | undefined;
  readonly default?: D;
}

/** What the readers of all sections share. */
export interface ReadContext {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly problems: string[];
  readonly warnings: string[];
  /** Every setting that was read, by its name in the file, as it will be used; keys masked. */
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

  /** The section below this one, empty where the file has none. */
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

  /** The keys of the section that nobody has read yet, in the file's order. */
  remainingKeys(): string[] {
    return Object.keys(this.#table).filter((key) => !this.#known.has(key));
  }

  /** Those of them that hold tables. */
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
    sources: Sources<D> = {},
  ): string | D {
    return this.#read(key, sources, {
      expected: 'a string',
      accept: (value) => typeof value === 'string',
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

  /** Reports something wrong with `key` in words of the caller's. */
  problem(key: string, text: string): void {
    this.#context.problems.push(`${this.#nameOf(key)}: ${text}`);
  }

  warning(key: string, text: string): void {
    this.#context.warnings.push(`${this.#nameOf(key)}: ${text}`);
  }

  /** Takes what was read here out of the resolved settings: nothing will use it. */
  dropFromResolved(): void {
    for (const key of this.#known) this.#context.resolved.delete(this.#nameOf(key));
  }

  /** Reports every key of this section and those below that nobody read. Call it last. */
  refuseUnknownKeys(): void {
    for (const section of this.#sections) section.refuseUnknownKeys();
    for (const key of this.remainingKeys()) {
      this.problem(key, `unknown key${didYouMean(key, [...this.#known])}`);
    }
  }

  #read<T, D>(key: string, sources: Sources<D>, kind: Kind<T>): T | D {
    this.#known.add(key);
    const { env, problems, resolved } = this.#context;
    const { flag, env: variable, default: fallback } = sources;
    const parse = (text: string) => kind.parse?.(text) ?? text;
    const written = this.#table[key];
    const expanded = Array.isArray(written)
      ? written.map((item: unknown) => this.#expand(key, item))
      : this.#expand(key, written);
    // What a variable holds is text; what the file holds has its type already.
    const isExpanded = typeof expanded === 'string' && expanded !== written;
    // Lowest first, so that a broken file is reported even where a variable overrides it.
    const given: [string, unknown][] = [
      [this.#nameOf(key), isExpanded ? parse(expanded) : expanded],
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
    if (result !== undefined)
      resolved.set(this.#nameOf(key), MASKED.has(key) ? '[secret]' : result);
    return result as T | D;
  }

  /**
   * Text with each `${NAME}` replaced by the variable's value, once: what a value contains is not
   * expanded again. Unset variables stay as written, with a warning; in a list of accepted keys they
   * are a problem: a literal `${NAME}` must never become a valid key.
   */
  #expand(key: string, value: unknown): unknown {
    if (typeof value !== 'string') return value;
    const { env } = this.#context;
    return value.replace(/\$\{([A-Za-z_][A-Za-z0-9_]*)\}/g, (written, name: string) => {
      if (Object.hasOwn(env, name) && env[name] !== undefined) return env[name];
      const text = `environment variable ${name} is not set`;
      if (key === 'keys') this.problem(key, text);
      else this.warning(key, `${text}; the text is used as written`);
      return written;
    });
  }

  #nameOf(key: string): string {
    return [this.#path, key].filter((name) => name !== '').join('.');
  }
}

const MASKED = new Set(['api_key', 'keys']);
/** Of a value that is wrong only the type is told where the name looks like one of those: it may be misspelt. */
const PERHAPS_SECRET = /key/i;

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

/** What was found, for a message. */
function describe(value: unknown, key: string): string {
  const type = isTable(value) ? 'a table' : value instanceof Date ? 'a date' : `a ${typeof value}`;
  if (Array.isArray(value)) return 'an array';
  if (PERHAPS_SECRET.test(key) || typeof value === 'object') return type;
  return JSON.stringify(`${value as string | number}`).slice(0, 60);
}
