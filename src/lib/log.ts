/** The log: one line per event on stdout, as JSON, or as text if stdout is a terminal. */

import { formatText } from './log-text.ts';
import type { Redactor } from './secrets.ts';

export const LOG_LEVELS = ['error', 'warn', 'info', 'debug', 'trace'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

type LogValue = string | number | boolean | undefined;
type FlatFacts = Readonly<Record<string, LogValue>>;

/** The fields of one log line. Keys are never among them, and message contents only where a provider's error text quotes them. */
export type LogFacts = Readonly<
  Record<string, LogValue | readonly FlatFacts[] | readonly string[]>
>;

export interface Logger {
  log(level: LogLevel, message: string, facts?: LogFacts): void;
  /** Lines of this level are written. For callers whose facts cost something to collect. */
  isEnabled(level: LogLevel): boolean;
}

export interface LogSettings {
  readonly level: LogLevel;
  readonly format: 'json' | 'text';
}

const MAX_VALUE_CHARACTERS = 10_000;
const MAX_ARRAY_ENTRIES = 50;

/** Creates the logger, whose settings can change while it is used. */
export function createLogger(
  options: LogSettings & {
    readonly colour: boolean;
    readonly write: (line: string) => void;
    /** Applied to every message and every text value. */
    readonly redact: Redactor;
  },
) {
  const { redact, colour, write } = options;
  let { format } = options;
  let limit = LOG_LEVELS.indexOf(options.level);
  const formatTime = createTimeFormatter();
  const isEnabled = (level: LogLevel) => LOG_LEVELS.indexOf(level) <= limit;
  return {
    isEnabled,
    configure(settings: LogSettings) {
      format = settings.format;
      limit = LOG_LEVELS.indexOf(settings.level);
    },
    log(level: LogLevel, message: string, facts: LogFacts = {}) {
      if (!isEnabled(level)) return;
      const entry = { time: formatTime(Date.now()), level, message, facts };
      if (format === 'json') write(formatJson(entry, redact));
      else write(formatText(redactEntry(entry, redact), colour));
    },
  };
}

interface Entry {
  readonly time: string;
  readonly level: LogLevel;
  readonly message: string;
  readonly facts: LogFacts;
}

/** Returns a function like `Date.toISOString`, which is slow: most of its result is kept for a second. */
function createTimeFormatter(): (ms: number) => string {
  let second = NaN;
  let text = '';
  return (ms) => {
    const own = Math.floor(ms / 1000);
    if (own !== second) {
      second = own;
      text = new Date(ms).toISOString().slice(0, 20);
    }
    return `${text}${String(ms % 1000).padStart(3, '0')}Z`;
  };
}

function redactEntry(entry: Entry, redact: Redactor): Entry {
  return { ...entry, message: redact(entry.message), facts: redactFacts(entry.facts, redact) };
}

/** Returns the facts as the log shows them: bounded, and redacted value by value, because an escape sequence may hide a key. */
export function redactFacts(facts: LogFacts, redact: Redactor): LogFacts {
  if (isPlain(JSON.stringify(facts), redact)) return facts;
  const redacted = JSON.stringify(facts, (_, value: unknown) => {
    if (typeof value === 'string') return redact(value.slice(0, MAX_VALUE_CHARACTERS));
    return Array.isArray(value) ? value.slice(0, MAX_ARRAY_ENTRIES) : value;
  });
  return JSON.parse(redacted) as LogFacts;
}

/** JSON does not escape these two, and some viewers break lines at them. */
const SEPARATORS = /[\u2028\u2029]/g;

function formatJson(entry: Entry, redact: Redactor): string {
  const line = stringify(entry);
  if (isPlain(line, redact)) return line;
  return stringify(redactEntry(entry, redact)).replace(SEPARATORS, ' ');
}

function stringify({ time, level, message, facts }: Entry): string {
  const head = `{"time":"${time}","level":"${level}","message":${JSON.stringify(message)}`;
  const rest = JSON.stringify(facts).slice(1);
  return `${head}${rest === '}' ? '' : ','}${rest}\n`;
}

/** Nothing has to be redacted, cut or replaced, and no escape sequence can hide a key: true of nearly all lines. */
function isPlain(json: string, redact: Redactor): boolean {
  if (json.length > MAX_VALUE_CHARACTERS || json.includes('\\')) return false;
  return json.search(SEPARATORS) === -1 && !redact.mayChange(json);
}
