/** The types of settings: which values they accept, and how text becomes one. */

import { MAX_TIMER_MS } from '../lib/cancellation.ts';
import { didYouMean } from '../lib/did-you-mean.ts';

/** TOML's tables, untrusted. smol-toml makes them without a prototype. */
export type Table = Record<string, unknown>;

type Scalar = 'integer' | 'seconds' | 'boolean' | 'text';

/** A row of the table of settings, plain data. `T` is the type of the value in use: undefined if it has no default. */
export interface Setting<T = unknown> {
  readonly type: Scalar | 'texts' | 'integers' | 'headers' | 'targets' | 'table';
  readonly default: T;
  /** The setting whose value is the default. */
  readonly inherits?: string;
  /** Bounds of integers, also those in arrays, and of seconds. */
  readonly min?: number;
  readonly max?: number;
  /** A text may only be one of these. */
  readonly choices?: readonly string[];
  readonly isNotEmpty?: boolean;
  /** The keys of a table that may be its value; `<model>` stands for any. */
  readonly rows?: ReadonlyMap<string, Setting>;
  /** The variable that wins over the file. */
  readonly env?: string;
  /** A variable that the file wins over; `<ID>` stands for the provider's id in capitals. */
  readonly providerEnv?: string;
  /** The option of the command line, which wins over both. */
  readonly flag?: 'port' | 'host';
  /**
   * A key is never printed. A text with an unset variable must never become a key that callers are accepted with, nor
   * a password of the store.
   */
  readonly key?: 'of callers' | 'of a provider' | 'of the store';
  /** A reload cannot change it. */
  readonly needsRestart?: true;
}

/** The settings of a section by their keys. */
export type Rows = Readonly<Record<string, Setting>>;

const MAX_SECONDS = Math.floor(MAX_TIMER_MS / 1000);

type Or<T, D> = D extends undefined ? T | undefined : T;

export function integer<D extends number | undefined = undefined>(
  min: number,
  max: number,
  fallback?: D,
) {
  return { type: 'integer', min, max, default: fallback as Or<number, D> } as const;
}

export function seconds<D extends number | undefined = undefined>(min: number, fallback?: D) {
  return { ...integer(min, MAX_SECONDS, fallback), type: 'seconds' } as const;
}

export function boolean(fallback: boolean) {
  return { type: 'boolean', default: fallback } as const;
}

export function oneOf<const T extends string>(choices: readonly T[], fallback: NoInfer<T>) {
  return { type: 'text', choices, default: fallback } as const;
}

/** With a default it may not be empty. */
export function text<D extends string | undefined = undefined>(fallback?: D) {
  const isNotEmpty = fallback !== undefined;
  return { type: 'text', isNotEmpty, default: fallback as Or<string, D> } as const;
}

export const TEXTS = {
  type: 'texts',
  default: undefined as readonly string[] | undefined,
} as const;

export function integers(min: number, max: number) {
  const none = undefined as readonly number[] | undefined;
  return { type: 'integers', min, max, default: none } as const;
}

export const BALANCES = ['order', 'least_busy', 'weighted'] as const;
export const WEIGHTS = integers(0, 10_000);

/** The targets of an alias, to be asked in this order; or first the one with the fewest requests, or one drawn by weight. */
export interface BalancedTargets {
  readonly targets: readonly string[];
  readonly balance?: (typeof BALANCES)[number];
  readonly weights?: typeof WEIGHTS.default;
}

export const TARGETS = {
  type: 'targets',
  default: undefined as string | readonly string[] | BalancedTargets | undefined,
  rows: new Map<string, Setting>([
    ['targets', TEXTS],
    ['balance', oneOf(BALANCES, 'order')],
    ['weights', WEIGHTS],
  ]),
} as const;

/** The members of a list of models that tell a model's limits, in tokens. */
export const MODEL_LIMITS = (
  'context_length max_model_len context_window max_input_tokens max_output_tokens ' +
  'max_completion_tokens'
).split(' ');
export const MODEL_LIMIT = integer(1, 1_000_000_000);
const LIMIT_ROWS = new Map(MODEL_LIMITS.map((name) => [name, MODEL_LIMIT]));
const LIMITS: Setting = { type: 'table', default: undefined, rows: LIMIT_ROWS };

/** The limits of models by their names. */
export const DETAILS = {
  type: 'table',
  default: undefined as Readonly<Record<string, Readonly<Record<string, number>>>> | undefined,
  rows: new Map([['<model>', LIMITS]]),
} as const;

export const HEADERS = {
  type: 'headers',
  default: undefined as Readonly<Record<string, string>> | undefined,
} as const;

/** The accepted values, for a message. */
export function expectedOf({ type, min, max, choices, isNotEmpty, rows }: Setting): string {
  const range = `from ${min} to ${max}`;
  if (choices) return `one of ${choices.join(', ')}`;
  return {
    integer: `an integer ${range}`,
    integers: `an array of integers ${range}`,
    seconds: `an integer ${range}`,
    boolean: 'true or false',
    text: isNotEmpty ? 'a string that is not empty' : 'a string',
    texts: 'an array of strings',
    targets: `a string, an array of strings, or { targets = […], balance = "${BALANCES.join('" or "')}" }`,
    headers: 'a table of strings',
    table: `a table with ${[...(rows?.keys() ?? [])].join(', ')}`,
  }[type];
}

export function accepts(row: Setting, value: unknown): boolean {
  const { type, min = 0, max = 0, choices, isNotEmpty } = row;
  const isText = typeof value === 'string';
  if (type === 'boolean') return typeof value === 'boolean';
  if (choices) return isText && choices.includes(value);
  if (type === 'text') return isText && !(isNotEmpty && value === '');
  if (type === 'texts') return areTexts(value);
  if (row.rows && isTable(value)) return problemsOfTable(row, value).size === 0;
  if (type === 'targets') return isText || areTexts(value);
  if (type === 'headers') return isTable(value) && areTexts(Object.values(value));
  if (type === 'integers') {
    return (
      Array.isArray(value) && value.every((item) => accepts({ ...row, type: 'integer' }, item))
    );
  }
  return Number.isInteger(value) && Number(value) >= min && Number(value) <= max;
}

function areTexts(value: unknown): boolean {
  return Array.isArray(value) && value.every((item) => typeof item === 'string');
}

/**
 * Returns the keys of a table which are unknown, or have a wrong value, or none and need one: each with the problem, which
 * shows what is `written` in the file.
 */
export function problemsOfTable(
  { type, rows = new Map() }: Setting,
  table: Table,
  written = table,
): ReadonlyMap<string, string> {
  const problems = new Map<string, string>();
  const needed = type === 'targets' ? ['targets'] : [];
  for (const key of new Set([...needed, ...Object.keys(table)])) {
    const row = rows.get(key) ?? rows.get('<model>');
    const value = table[key];
    if (!row) problems.set(key, `unknown key${didYouMean(key, [...rows.keys()])}`);
    else if (row.rows && isTable(value)) {
      const own = problemsOfTable(row, value, written[key] as Table);
      for (const [inner, problem] of own) problems.set(`${key}.${inner}`, problem);
    } else if (!accepts(row, value)) {
      problems.set(key, `found ${describe(written[key])}, expected ${expectedOf(row)}`);
    }
  }
  return problems;
}

/** The value that text from a variable, a file or the command line stands for; the text itself if it is none. */
export function parseText({ type, choices }: Setting, value: string): unknown {
  if (choices) return choices.find((choice) => choice === value.toLowerCase()) ?? value;
  if (type === 'boolean' && /^(?:true|1)$/i.test(value)) return true;
  if (type === 'boolean' && /^(?:false|0)$/i.test(value)) return false;
  const isNumber = type === 'integer' || type === 'seconds';
  return isNumber && /^-?\d{1,15}$/.test(value) ? Number(value) : value;
}

export function isTable(value: unknown): value is Table {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}

/** The value that was found, for a message. */
export function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeof value === 'object') return typeOf(value);
  return (typeof value === 'string' ? JSON.stringify(value) : `${value as number}`).slice(0, 60);
}

/** The type of the value, for a message. */
export function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'an array';
  return isTable(value) ? 'a table' : value instanceof Date ? 'a date' : `a ${typeof value}`;
}
