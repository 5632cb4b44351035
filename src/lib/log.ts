/** The log: one line per event on stdout, as JSON, or as text if stdout is a terminal. */

import { escapeControlCharacters } from './secrets.ts';

export const LOG_LEVELS = ['error', 'warn', 'info', 'debug', 'trace'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

type LogValue = string | number | boolean | undefined;
type FlatFacts = Readonly<Record<string, LogValue>>;

/** The fields of one log line. Message contents and keys are never among them. */
export type LogFacts = Readonly<Record<string, LogValue | readonly FlatFacts[]>>;

export interface Logger {
  log(level: LogLevel, message: string, facts?: LogFacts): void;
  /** Lines of this level are written. For callers whose facts cost something to collect. */
  isEnabled(level: LogLevel): boolean;
}

interface LoggerOptions {
  readonly level: LogLevel;
  /** `text` is for terminals. */
  readonly format: 'json' | 'text';
  readonly colour: boolean;
  readonly write: (line: string) => void;
  /** Applied to every message and every text value. */
  readonly redact: (text: string) => string;
  /** Wall clock, milliseconds since the epoch. */
  readonly now: () => number;
}

const ANSI_COLOUR: Record<LogLevel, number> = {
  error: 31,
  warn: 33,
  info: 32,
  debug: 36,
  trace: 90,
};

const MAX_TEXT_MESSAGE_CHARACTERS = 2000;
const MAX_TEXT_VALUE_CHARACTERS = 500;
const MAX_VALUE_CHARACTERS = 10_000;
/** Values that need no quotes. */
const WORD = /^[^\s"=\\]+$/;
const ARRAY_WORD = /^[^\s"=\\,[\]]+$/;
const MAX_ARRAY_ENTRIES = 50;

/** Creates the logger. An entry below `level` costs one comparison. */
export function createLogger(options: LoggerOptions): Logger {
  const { redact } = options;
  const limit = LOG_LEVELS.indexOf(options.level);
  const format = options.format === 'json' ? formatJson : formatText;
  const isEnabled = (level: LogLevel) => LOG_LEVELS.indexOf(level) <= limit;
  return {
    isEnabled,
    log(level, message, facts = {}) {
      if (!isEnabled(level)) return;
      const time = new Date(options.now()).toISOString();
      const entry = { time, level, message: redact(message), facts: redactFacts(facts, redact) };
      options.write(`${format(entry, options.colour)}\n`);
    },
  };
}

interface Entry {
  readonly time: string;
  readonly level: LogLevel;
  readonly message: string;
  readonly facts: LogFacts;
}

/** Value by value: in the finished line, an escape sequence may hide the end of a key. */
function redactFacts(facts: LogFacts, redact: (text: string) => string): LogFacts {
  const shown: Record<string, LogFacts[string]> = {};
  for (const name in facts) {
    const value = facts[name];
    if (typeof value === 'string') shown[name] = redact(value.slice(0, MAX_VALUE_CHARACTERS));
    else if (typeof value !== 'object') shown[name] = value;
    else {
      const entries = value.slice(0, MAX_ARRAY_ENTRIES);
      shown[name] = entries.map((entry) => redactFacts(entry, redact) as FlatFacts);
    }
  }
  return shown;
}

function formatJson({ facts, ...entry }: Entry): string {
  // JSON does not escape these two, and some viewers break lines at them.
  return JSON.stringify({ ...entry, ...facts }).replace(/[\u2028\u2029]/g, ' ');
}

function formatText({ time, level, message, facts }: Entry, colour: boolean): string {
  const paint = (code: number, text: string) => (colour ? `\u001b[${code}m${text}\u001b[0m` : text);
  const pairs = Object.entries(facts)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => {
      const text = Array.isArray(value) ? formatTextArray(value) : formatTextValue(value);
      return ` ${paint(90, `${name}=`)}${text}`;
    });
  const label = paint(ANSI_COLOUR[level], level.toUpperCase().padEnd(5));
  const text = escapeControlCharacters(message, MAX_TEXT_MESSAGE_CHARACTERS);
  return `${time.slice(11, 23)} ${label} ${text}${pairs.join('')}`;
}

function formatTextArray(entries: readonly FlatFacts[]): string {
  const texts = entries.map((entry) =>
    Object.entries(entry)
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => `${name}=${formatTextValue(value, ARRAY_WORD)}`)
      .join(' '),
  );
  return `[${texts.join(', ')}]`;
}

/** Quotes a value as JSON does, unless it is one word: with a space and `=` in it, it could forge a field. */
function formatTextValue(value: unknown, word = WORD): string {
  const text = String(value).slice(0, MAX_TEXT_VALUE_CHARACTERS);
  return escapeControlCharacters(word.test(text) ? text : JSON.stringify(text), Infinity);
}
