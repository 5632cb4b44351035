/** One line per event on stdout: JSON for machines, or readable where a person is watching. */

import { escapeControlCharacters } from './secrets.ts';

export const LOG_LEVELS = ['error', 'warn', 'info', 'debug', 'trace'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** What happened, in named plain values. Bodies and keys are never among them. */
export type LogFacts = Readonly<Record<string, string | number | boolean | undefined>>;

export interface Logger {
  log(level: LogLevel, message: string, facts?: LogFacts): void;
}

interface LoggerOptions {
  readonly level: LogLevel;
  /** `text` is for terminals. */
  readonly format: 'json' | 'text';
  readonly colour: boolean;
  readonly write: (line: string) => void;
  /** Applied to every text as the last thing. */
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

/** Creates the logger. What is below `level` costs one comparison. */
export function createLogger(options: LoggerOptions): Logger {
  const limit = LOG_LEVELS.indexOf(options.level);
  const format = options.format === 'json' ? formatJson : formatText;
  return {
    log(level, message, facts = {}) {
      if (LOG_LEVELS.indexOf(level) > limit) return;
      const time = new Date(options.now()).toISOString();
      options.write(`${format({ time, level, message, facts }, options)}\n`);
    },
  };
}

interface Entry {
  readonly time: string;
  readonly level: LogLevel;
  readonly message: string;
  readonly facts: LogFacts;
}

function formatJson({ facts, ...entry }: Entry, { redact }: LoggerOptions): string {
  const line: Record<string, unknown> = entry;
  // Value by value: in the finished line a key's end could be the beginning of an escape.
  for (const name in facts) {
    const value = facts[name];
    line[name] = typeof value === 'string' ? redact(value) : value;
  }
  // JSON leaves these two unescaped, and some viewers break lines at them.
  return JSON.stringify(line).replace(/[\u2028\u2029]/g, ' ');
}

function formatText({ time, level, message, facts }: Entry, options: LoggerOptions): string {
  const { colour, redact } = options;
  const paint = (code: number, text: string) => (colour ? `\u001b[${code}m${text}\u001b[0m` : text);
  const pairs = Object.entries(facts)
    .filter(([, value]) => value !== undefined)
    .map(
      ([name, value]) => ` ${paint(90, `${name}=`)}${escapeControlCharacters(String(value), 500)}`,
    );
  const label = paint(ANSI_COLOUR[level], level.toUpperCase().padEnd(5));
  return redact(
    `${time.slice(11, 23)} ${label} ${escapeControlCharacters(message, 2000)}${pairs.join('')}`,
  );
}
