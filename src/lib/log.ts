/** The log: one line per event on stdout, as JSON, or as text if stdout is a terminal. */

import { escapeControlCharacters } from './secrets.ts';

export const LOG_LEVELS = ['error', 'warn', 'info', 'debug', 'trace'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** The fields of one log line. Message contents and keys are never among them. */
type LogValue = string | number | boolean | undefined;
export type LogFacts = Readonly<
  Record<string, LogValue | readonly Readonly<Record<string, LogValue>>[]>
>;

export interface Logger {
  isEnabled(level: LogLevel): boolean;
  log(level: LogLevel, message: string, facts?: LogFacts): void;
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

/** Creates the logger. An entry below `level` costs one comparison. */
export function createLogger(options: LoggerOptions): Logger {
  const { redact } = options;
  const limit = LOG_LEVELS.indexOf(options.level);
  const format = options.format === 'json' ? formatJson : formatText;
  return {
    isEnabled: (level) => LOG_LEVELS.indexOf(level) <= limit,
    log(level, message, facts = {}) {
      if (LOG_LEVELS.indexOf(level) > limit) return;
      const time = new Date(options.now()).toISOString();
      const shown: Record<string, unknown> = {};
      // Value by value: in the finished line, an escape sequence may hide the end of a key.
      for (const name in facts) {
        const value = facts[name];
        shown[name] = typeof value === 'string' ? redact(value) : value;
      }
      const entry = { time, level, message: redact(message), facts: shown };
      options.write(`${format(entry, options.colour)}\n`);
    },
  };
}

interface Entry {
  readonly time: string;
  readonly level: LogLevel;
  readonly message: string;
  readonly facts: Readonly<Record<string, unknown>>;
}

function formatJson({ facts, ...entry }: Entry): string {
  // JSON does not escape these two, and some viewers break lines at them.
  return JSON.stringify({ ...entry, ...facts }).replace(/[\u2028\u2029]/g, ' ');
}

function formatText({ time, level, message, facts }: Entry, colour: boolean): string {
  const paint = (code: number, text: string) => (colour ? `\u001b[${code}m${text}\u001b[0m` : text);
  const pairs = Object.entries(facts)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => ` ${paint(90, `${name}=`)}${formatTextValue(String(value))}`);
  const label = paint(ANSI_COLOUR[level], level.toUpperCase().padEnd(5));
  const text = escapeControlCharacters(message, MAX_TEXT_MESSAGE_CHARACTERS);
  return `${time.slice(11, 23)} ${label} ${text}${pairs.join('')}`;
}

/** Quotes a value as JSON does, unless it is one word: with a space and `=` in it, it could forge a field. */
function formatTextValue(value: string): string {
  const text = value.slice(0, MAX_TEXT_VALUE_CHARACTERS);
  const isWord = /^[^\s"=\\]+$/.test(text);
  return escapeControlCharacters(isWord ? text : JSON.stringify(text), Infinity);
}
