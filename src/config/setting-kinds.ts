/** The types that a setting may have: what they accept, and how they are read from text. */

import { MAX_TIMER_MS } from '../lib/cancellation.ts';

/** TOML's tables, untrusted. smol-toml makes them without a prototype. */
export type Table = Record<string, unknown>;

/**
 * A row of the table of settings: what the value may be, and where it may come from. `T` is the type of the value in
 * use: undefined if it has no default.
 */
export interface Setting<T = unknown> {
  readonly type:
    | 'integer'
    | 'integer or auto'
    | 'seconds'
    | 'boolean'
    | 'text'
    | 'texts'
    | 'text or texts'
    | 'headers';
  readonly default: T;
  /** What is accepted, for a message. */
  readonly expected: string;
  readonly accepts: (value: unknown) => boolean;
  /** Of integers and seconds. */
  readonly min?: number;
  readonly max?: number;
  /** Of a text, if it may only be one of these. */
  readonly choices?: readonly string[];
  readonly isNotEmpty?: boolean;
  /** In one sentence or less. */
  readonly meaning: string;
  /** What the documentation says instead of `default`, if that depends on something. */
  readonly defaultText?: string;
  /** The variable that wins over the file. */
  readonly env?: string;
  /** A variable that the file wins over; `<ID>` stands for the provider's id in capitals. */
  readonly providerEnv?: string;
  /** The option of the command line, which wins over both. */
  readonly flag?: 'port' | 'host' | 'workers';
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

const isText = (value: unknown): value is string => typeof value === 'string';
const areTexts = (value: unknown) => Array.isArray(value) && value.every(isText);

export function integer<D extends number | undefined = undefined>(
  min: number,
  max: number,
  fallback?: D,
) {
  return {
    type: 'integer',
    min,
    max,
    default: fallback as Or<number, D>,
    expected: `an integer from ${min} to ${max}`,
    accepts: (value: unknown) =>
      Number.isInteger(value) && Number(value) >= min && Number(value) <= max,
  } as const;
}

export function integerOrAuto(min: number, max: number, fallback: number | 'auto') {
  const whole = integer(min, max);
  return {
    ...whole,
    type: 'integer or auto',
    default: fallback,
    expected: `${whole.expected}, or "auto"`,
    accepts: (value: unknown) => value === 'auto' || whole.accepts(value),
  } as const;
}

/** Whole seconds. */
export function seconds<D extends number | undefined = undefined>(min: number, fallback?: D) {
  return { ...integer(min, MAX_SECONDS, fallback), type: 'seconds' } as const;
}

export function boolean(fallback: boolean) {
  return {
    type: 'boolean',
    default: fallback,
    expected: 'true or false',
    accepts: (value: unknown) => typeof value === 'boolean',
  } as const;
}

export function oneOf<T extends string>(choices: readonly T[], fallback: NoInfer<T>) {
  return {
    type: 'text',
    choices,
    default: fallback,
    expected: `one of ${choices.join(', ')}`,
    accepts: (value: unknown) => choices.some((choice) => choice === value),
  } as const;
}

/** With a default it may not be empty. */
export function text<D extends string | undefined = undefined>(fallback?: D) {
  const isNotEmpty = fallback !== undefined;
  return {
    type: 'text',
    isNotEmpty,
    default: fallback as Or<string, D>,
    expected: isNotEmpty ? 'a string that is not empty' : 'a string',
    accepts: (value: unknown) => isText(value) && !(isNotEmpty && value === ''),
  } as const;
}

export const TEXTS = {
  type: 'texts',
  default: undefined as readonly string[] | undefined,
  expected: 'an array of strings',
  accepts: areTexts,
} as const;

export const TEXT_OR_TEXTS = {
  type: 'text or texts',
  default: undefined as string | readonly string[] | undefined,
  expected: 'a string or an array of strings',
  accepts: (value: unknown) => isText(value) || areTexts(value),
} as const;

export const HEADERS = {
  type: 'headers',
  default: undefined as Readonly<Record<string, string>> | undefined,
  expected: 'a table of strings',
  accepts: (value: unknown) => isTable(value) && Object.values(value).every(isText),
} as const;

/** The value that text from a variable, a file or the command line stands for; the text itself if it is none. */
export function parseText({ type, choices }: Setting, value: string): unknown {
  if (choices) return choices.find((choice) => choice === value.toLowerCase()) ?? value;
  if (type === 'boolean' && /^(?:true|1)$/i.test(value)) return true;
  if (type === 'boolean' && /^(?:false|0)$/i.test(value)) return false;
  const isNumber = type === 'integer' || type === 'integer or auto' || type === 'seconds';
  return isNumber && /^-?\d{1,15}$/.test(value) ? Number(value) : value;
}

export function isTable(value: unknown): value is Table {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}

/** The value that was found, for a message. */
export function describe(value: unknown): string {
  if (typeof value === 'object') return typeOf(value);
  return (typeof value === 'string' ? JSON.stringify(value) : `${value as number}`).slice(0, 60);
}

/** The type of the value, for a message. */
export function typeOf(value: unknown): string {
  if (Array.isArray(value)) return 'an array';
  return isTable(value) ? 'a table' : value instanceof Date ? 'a date' : `a ${typeof value}`;
}
