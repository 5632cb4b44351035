/** The types that a setting may have: what they accept, and how they are read from text. */

/** TOML's tables, untrusted. smol-toml makes them without a prototype. */
export type Table = Record<string, unknown>;

/** What the value of a setting may be. `T` is the type of the value in use: undefined if it has no default. */
export interface Kind<T> {
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
  /** Of integers and seconds. */
  readonly min?: number;
  readonly max?: number;
  /** Of a text, if it may only be one of these. */
  readonly choices?: readonly string[];
  readonly isNotEmpty?: boolean;
}

/** A row of the table of settings. */
export interface Setting<T = unknown> extends Kind<T> {
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

/** setTimeout fires at once beyond 2^31-1 milliseconds. */
const MAX_SECONDS = 2_147_483;

type Or<T, D> = D extends undefined ? T | undefined : T;

export function integer<D extends number | undefined = undefined>(
  min: number,
  max: number,
  fallback?: D,
) {
  return { type: 'integer', min, max, default: fallback as Or<number, D> } as const;
}

export function integerOrAuto(min: number, max: number, fallback: number | 'auto') {
  return { type: 'integer or auto', min, max, default: fallback } as const;
}

/** Whole seconds. */
export function seconds<D extends number | undefined = undefined>(min: number, fallback?: D) {
  return { ...integer(min, MAX_SECONDS, fallback), type: 'seconds' } as const;
}

export function boolean(fallback: boolean) {
  return { type: 'boolean', default: fallback } as const;
}

export function oneOf<T extends string>(choices: readonly T[], fallback: NoInfer<T>) {
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

export const TEXT_OR_TEXTS = {
  type: 'text or texts',
  default: undefined as string | readonly string[] | undefined,
} as const;

export const HEADERS = {
  type: 'headers',
  default: undefined as Readonly<Record<string, string>> | undefined,
} as const;

interface Rule {
  /** For a message. */
  readonly expected: string;
  readonly accepts: (value: unknown) => boolean;
}

const isText = (value: unknown): value is string => typeof value === 'string';
const areTexts = (value: unknown) => Array.isArray(value) && value.every(isText);

/** What the value of a setting may be. */
export function ruleOf({ type, min = 0, max = 0, choices, isNotEmpty }: Setting): Rule {
  if (choices) {
    const accepts = (value: unknown) => isText(value) && choices.includes(value);
    return { expected: `one of ${choices.join(', ')}`, accepts };
  }
  const whole: Rule = {
    expected: `an integer from ${min} to ${max}`,
    accepts: (value) => Number.isInteger(value) && Number(value) >= min && Number(value) <= max,
  };
  const rules: Record<Setting['type'], Rule> = {
    integer: whole,
    'integer or auto': {
      expected: `${whole.expected}, or "auto"`,
      accepts: (value) => value === 'auto' || whole.accepts(value),
    },
    seconds: whole,
    boolean: { expected: 'true or false', accepts: (value) => typeof value === 'boolean' },
    text: isNotEmpty
      ? {
          expected: 'a string that is not empty',
          accepts: (value) => isText(value) && value !== '',
        }
      : { expected: 'a string', accepts: isText },
    texts: { expected: 'an array of strings', accepts: areTexts },
    'text or texts': {
      expected: 'a string or an array of strings',
      accepts: (value) => isText(value) || areTexts(value),
    },
    headers: {
      expected: 'a table of strings',
      accepts: (value) => isTable(value) && Object.values(value).every(isText),
    },
  };
  return rules[type];
}

const WORDS = new Map([
  ['true', true],
  ['1', true],
  ['false', false],
  ['0', false],
]);

/** The value that text from a variable, a file or the command line stands for; the text itself if it is none. */
export function parseText({ type }: Setting, value: string): unknown {
  if (type === 'boolean') return WORDS.get(value.toLowerCase()) ?? value;
  if (type === 'integer' || type === 'integer or auto' || type === 'seconds') {
    return /^-?\d{1,15}$/.test(value) ? Number(value) : value;
  }
  return value;
}

export function isTable(value: unknown): value is Table {
  return (
    typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}
