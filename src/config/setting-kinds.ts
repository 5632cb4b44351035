/** The types of settings: which values they accept, and how text is parsed. */

import { isIP } from 'node:net';

import { MAX_TIMER_MS } from '../lib/cancellation.ts';
import { LEAST_COST } from '../lib/limits.ts';
import { MODEL_LIMITS } from '../protocol/model-list.ts';
import type { Suggestions } from './did-you-mean.ts';
import { withoutBrackets } from '../lib/loopback.ts';

/** A TOML table with unchecked values. smol-toml creates tables without a prototype. */
export type Table = Record<string, unknown>;

type Scalar = 'integer' | 'number' | 'seconds' | 'boolean' | 'text';

/** `T` is the value's type, with undefined if the setting has no default. */
export interface Setting<T = unknown> {
  readonly type: Scalar | 'date' | 'integers' | 'texts' | 'headers' | 'targets' | 'table';
  readonly default: T;
  readonly accepts: (value: unknown) => boolean;
  /** Describes the accepted values in messages. */
  readonly expected: string;
  /** The setting whose value is this setting's default. */
  readonly inherits?: string;
  /** In an array `min` and `max` bound each item. */
  readonly min?: number;
  readonly max?: number;
  readonly choices?: readonly string[];
  /** The keys accepted in a table; `<model>` stands for any key. */
  readonly rows?: Rows;
  /** The environment variable above the file. */
  readonly env?: string;
  /** An environment variable below the file; `<ID>` stands for the provider's id in capitals. */
  readonly providerEnv?: string;
  /** The command line option, above the variable and the file. */
  readonly flag?: 'port' | 'host';
  /**
   * Whose secret the value is; it is never printed. In the secrets of callers and of the store, a
   * reference to an unset variable is a problem.
   */
  readonly secret?: 'of callers' | 'of a provider' | 'of the store';
  /** The text is the path of a file. The value has the file's text too. */
  readonly isFile?: true;
  /** A change takes effect only after a restart. */
  readonly needsRestart?: true;
}

export type Rows = Readonly<Record<string, Setting>>;

/** `T`, with undefined if the default `D` is undefined. */
type Or<T, D> = D extends undefined ? T | undefined : T;
type Maybe<T> = T | undefined;
type Accepts = Setting['accepts'];

function kind<const K, T>(type: K, expected: string, accepts: Accepts, fallback: T) {
  return { type, expected, accepts, default: fallback };
}

const isText = (value: unknown) => typeof value === 'string';
const arrayOf =
  (acceptsItem: Accepts): Accepts =>
  (value) =>
    Array.isArray(value) && value.every(acceptsItem);
const areTexts = arrayOf(isText);

const NOUNS = { integer: 'an integer', integers: 'an array of integers', number: 'a number' };

/** A number, or each item of an array. */
function range<const K extends keyof typeof NOUNS, T>(
  type: K,
  min: number,
  max: number,
  fallback: T,
) {
  const accepts: Accepts = (value) =>
    typeof value === 'number' &&
    value >= min &&
    value <= max &&
    (type === 'number' || Number.isInteger(value));
  return { ...kind(type, `${NOUNS[type]} from ${min} to ${max}`, accepts, fallback), min, max };
}

export function integer<D extends Maybe<number>>(min: number, max: number, fallback?: D) {
  return range('integer', min, max, fallback as Or<number, D>);
}

function number<D extends Maybe<number>>(min: number, max: number, fallback?: D) {
  return range('number', min, max, fallback as Or<number, D>);
}

/** A limit on cost; 0 is no limit. A window rounds a smaller limit than `LEAST_COST` to 0. */
export function cost(max: number) {
  const { accepts: isInRange, ...row } = number(0, max, 0);
  const accepts: Accepts = (value) =>
    isInRange(value) && (value === 0 || Number(value) >= LEAST_COST);
  return { ...row, accepts, expected: `0 or a number from ${LEAST_COST} to ${max}` };
}

/** Whole seconds, as long as a timer can run. The code gets milliseconds. */
export function seconds<D extends Maybe<number>>(min: number, fallback?: D) {
  const max = Math.floor(MAX_TIMER_MS / 1000);
  return { ...integer(min, max, fallback), type: 'seconds' } as const;
}

export function integers(min: number, max: number) {
  const none = undefined as Maybe<readonly number[]>;
  const row = range('integers', min, max, none);
  return { ...row, accepts: arrayOf(row.accepts) };
}

export function boolean(fallback: boolean) {
  return kind('boolean', 'true or false', (value) => typeof value === 'boolean', fallback);
}

export function oneOf<const T extends string, D extends Maybe<NoInfer<T>>>(
  choices: readonly T[],
  fallback?: D,
) {
  const accepts: Accepts = (value) => choices.includes(value as T);
  const expected = `one of ${choices.join(', ')}`;
  return { ...kind('text', expected, accepts, fallback as Or<T, D>), choices };
}

/** A text. If it has a default, it must not be blank. */
export function text<D extends Maybe<string>>(fallback?: D) {
  const mayBeBlank = fallback === undefined;
  const accepts: Accepts = (value) => isText(value) && (mayBeBlank || value.trim() !== '');
  const expected = mayBeBlank ? 'a string' : 'a string that is not empty';
  return kind('text', expected, accepts, fallback as Or<string, D>);
}

/** A host name: labels with letters, digits, hyphens and underscores, as resolvers accept them. */
const HOST_NAME = /^(?=.{1,253}$)[\w-]+(?:\.[\w-]+)*\.?$/;

/** A listener's address or name. An IPv6 address may be in brackets. */
export function host(fallback: string) {
  const accepts: Accepts = (value) => {
    if (typeof value !== 'string') return false;
    const bare = withoutBrackets(value);
    return bare === value ? isIP(bare) > 0 || HOST_NAME.test(bare) : isIP(bare) === 6;
  };
  return kind('text', 'an address or a host name, without a port', accepts, fallback);
}

/** A date, with or without a time, and this with or without an offset. */
const DATE_TIME = /^(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:\d\d)?)?$/;
export const DAY_MS = 86_400_000;

/**
 * Returns the moment that a TOML date, or the same as text, stands for: of a date without a time
 * the end of the day. Without an offset the time is in UTC. Undefined for any other value.
 */
export function momentOf(value: unknown): Date | undefined {
  // The parser's dates become text with the parts that the file has.
  const written = value instanceof Date ? value.toISOString() : value;
  const found = typeof written === 'string' && DATE_TIME.exec(written.toUpperCase());
  if (!found) return undefined;
  const [, day = '', time, offset = 'Z'] = found;
  const dayMs = Date.parse(day);
  // V8 takes 30 February for 2 March.
  if (Number.isNaN(dayMs) || !new Date(dayMs).toISOString().startsWith(day)) return undefined;
  const ms = time === undefined ? dayMs + DAY_MS : Date.parse(`${day}T${time}${offset}`);
  return Number.isNaN(ms) ? undefined : new Date(ms);
}

export const DATE = kind(
  'date',
  'a date such as 2027-01-31, or with a time 2027-01-31T18:00:00Z',
  (value) => momentOf(value) !== undefined,
  undefined as Maybe<Date>,
);

export interface NamedFile {
  /** As in the settings. */
  readonly path: string;
  readonly text: string;
}

/** A text with line ends is refused, because it may be a key by mistake. */
export const FILE = {
  ...kind(
    'text',
    'the path of a file',
    (value) => isText(value) && !/[\0\r\n]/.test(value),
    undefined as Maybe<NamedFile>,
  ),
  isFile: true,
} as const;

const noTexts = undefined as Maybe<readonly string[]>;
export const TEXTS = kind('texts', 'an array of strings', areTexts, noTexts);

export function textsOf(choices: readonly string[]) {
  const accepts = arrayOf((item) => choices.includes(item as string));
  return { ...kind('texts', `an array of ${choices.join(', ')}`, accepts, noTexts), choices };
}

const areHeaders: Accepts = (value) => isTable(value) && areTexts(Object.values(value));
const noHeaders = undefined as Maybe<Readonly<Record<string, string>>>;
export const HEADERS = kind('headers', 'a table of strings', areHeaders, noHeaders);

export const BALANCES = ['order', 'least_busy', 'weighted', 'fastest'] as const;
export const WEIGHTS = integers(0, 10_000);

/**
 * Depending on `balance` the targets are asked in this order, or the target with the fewest
 * requests comes first, or a target drawn by weight, or the fastest target.
 */
export interface BalancedTargets {
  readonly targets: readonly string[];
  readonly balance?: (typeof BALANCES)[number];
  readonly weights?: typeof WEIGHTS.default;
}

export const TARGETS = {
  ...kind(
    'targets',
    `a string, an array of strings, or { targets = […], balance = "${BALANCES.join('" or "')}" }`,
    (value) => isText(value) || areTexts(value),
    undefined as Maybe<string | readonly string[] | BalancedTargets>,
  ),
  rows: { targets: TEXTS, balance: oneOf(BALANCES, 'order'), weights: WEIGHTS },
};

function table<T>(rows: Rows, fallback: T) {
  const expected = `a table with ${Object.keys(rows).join(', ')}`;
  return { ...kind('table', expected, () => false, fallback), rows };
}

const MAX_DETAIL = 1_000_000_000;
const MODEL_LIMIT = integer(1, MAX_DETAIL);
/** In units of any currency per million tokens. */
const PRICE = number(0, MAX_DETAIL);
type Details = Readonly<Record<string, number>>;
const MODEL_DETAILS = table(
  {
    ...Object.fromEntries(MODEL_LIMITS.map((name) => [name, MODEL_LIMIT])),
    input_price_per_million: PRICE,
    cached_input_price_per_million: PRICE,
    output_price_per_million: PRICE,
  },
  {},
);

const noDetails = undefined as Maybe<Readonly<Record<string, Details>>>;
export const DETAILS = table({ '<model>': MODEL_DETAILS }, noDetails);

const MAX_SHOWN_CHARACTERS = 60;

/**
 * Each problem has its path below the setting. Messages show `written`, the value as in the file,
 * or only the type for a key.
 */
export function problemsOf(
  row: Setting,
  value: unknown,
  written: unknown,
  suggestions: Suggestions,
): [path: string, problem: string][] {
  const { rows, type } = row;
  if (!rows || !isTable(value)) {
    if (row.accepts(value)) return [];
    return [['', `found ${foundIn(row, value, written)}, expected ${row.expected}`]];
  }
  const keys = Object.keys(value);
  // Without quotes, a name such as `gpt-4.1` is a table `gpt-4` with the key `1`.
  const isDotted = keys.some((key) => /^\d/.test(key));
  const needed = type === 'targets' && !isDotted ? ['targets'] : [];
  return [...new Set([...needed, ...keys])].flatMap((key) => {
    const memberRow = Object.hasOwn(rows, key) ? rows[key] : rows['<model>'];
    if (!memberRow) {
      const remedy = isDotted ? '; a name with a dot needs quotes' : '';
      const hint = suggestions.didYouMean(key, Object.keys(rows), remedy);
      return [[`.${key}`, `unknown key${hint}`]];
    }
    const problems = problemsOf(memberRow, value[key], (written as Table)[key], suggestions);
    return problems.map(([path, problem]) => [`.${key}${path}`, problem]);
  });
}

/** Returns the first wrong item of an array or value of a table, else the whole value, in words. */
function foundIn({ accepts, choices, secret, isFile }: Setting, value: unknown, written: unknown) {
  const show = secret || isFile ? typeOf : describe;
  const source = secret || isFile ? value : written;
  if (Array.isArray(value) && Array.isArray(source) && accepts([])) {
    const at = value.findIndex((item) => !accepts([item]));
    return choices ? show(source[at]) : `${show(source[at])} as item ${at + 1} of an array`;
  }
  if (isTable(value) && isTable(source) && accepts({})) {
    const name = Object.keys(value).find((member) => !isText(value[member]))!;
    return `${show(source[name])} as the value of ${JSON.stringify(name)}`;
  }
  return show(source);
}

const BYTES: Readonly<Record<string, number>> = { k: 1024, m: 1024 ** 2, g: 1024 ** 3 };
const SECONDS: Readonly<Record<string, number>> = { ms: 0.001, s: 1, m: 60, min: 60, h: 3600 };

/** Returns `; write 30` for the text `30s` or `30`, and nothing if the meaning is unclear. */
export function remedyFor(name: string, row: Setting, found: unknown): string {
  if (typeof found !== 'string') return '';
  const [, digits = '', unit = ''] = /^(\d{1,9}) ?([a-z]*)$/i.exec(found) ?? [];
  const [small, isOfBytes] = [unit.toLowerCase(), name.endsWith('_bytes')];
  const factor = isOfBytes
    ? BYTES[small.replace(/i?b$/, '')]
    : row.type === 'seconds' && SECONDS[small];
  const meant = parseText(row, factor ? String(Number(digits) * factor) : found);
  return meant !== found && row.accepts(meant) ? `; write ${JSON.stringify(meant)}` : '';
}

/** Returns the text itself if it does not fit the setting's type. */
export function parseText({ type, choices }: Setting, value: string): unknown {
  if (choices) return choices.find((choice) => choice === value.toLowerCase()) ?? value;
  if (type === 'boolean' && /^(?:true|1)$/i.test(value)) return true;
  if (type === 'boolean' && /^(?:false|0)$/i.test(value)) return false;
  const isInteger = type === 'integer' || type === 'seconds';
  if (isInteger && /^-?\d{1,15}$/.test(value)) return Number(value);
  return type === 'number' && /^\d{1,15}(?:\.\d{1,15})?$/.test(value) ? Number(value) : value;
}

export function isTable(value: unknown): value is Table {
  return typeOf(value) === 'a table';
}

/** A long text is not cut, because it may be a key by mistake. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (typeOf(value) === 'a date') return (value as Date).toISOString();
  if (typeof value === 'object') return typeOf(value);
  if (typeof value !== 'string') return `${value as number}`;
  const { length } = value;
  return length > MAX_SHOWN_CHARACTERS ? `a string of ${length} characters` : JSON.stringify(value);
}

export function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'an array';
  if (value instanceof Date) return value.toISOString().includes('-') ? 'a date' : 'a time';
  return typeof value === 'object' && value !== null ? 'a table' : `a ${typeof value}`;
}
