/** The log: one line for each event on stdout, as JSON, or as text for a terminal. */

import { cutText, type Redactor } from './secrets.ts';

export const LOG_LEVELS = ['error', 'warn', 'info', 'debug', 'trace'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

type LogValue = string | number | boolean | undefined;
export type FlatFacts = Readonly<Record<string, LogValue>>;

/**
 * A line's fields. They never hold a key, and hold message contents only where a provider's error
 * text quotes them.
 */
export type LogFacts = Readonly<
  Record<string, LogValue | FlatFacts | readonly FlatFacts[] | readonly string[]>
>;

export type LogEntry = LogFacts & { time: string; level: LogLevel; message: string };

export interface Logger {
  log(level: LogLevel, message: string, facts?: LogFacts): void;
  /** For callers with costly facts. */
  isEnabled(level: LogLevel): boolean;
}

export interface LogSettings {
  readonly level: LogLevel;
  readonly format: 'json' | 'text';
}

const MAX_VALUE_CHARACTERS = 10_000;
const MAX_ARRAY_ENTRIES = 50;

/**
 * `configure` changes the settings while the logger is in use. `lines` is the number of lines so
 * far.
 */
export function createLogger(
  options: LogSettings & {
    readonly toText: (entry: LogEntry) => string;
    readonly write: (line: string) => void;
    readonly redact: Redactor;
  },
) {
  const { redact, toText, write } = options;
  const timeText = createTimeText();
  let settings: LogSettings = options;
  let lines = 0;
  const isEnabled = (level: LogLevel) =>
    LOG_LEVELS.indexOf(level) <= LOG_LEVELS.indexOf(settings.level);
  return {
    isEnabled,
    get lines() {
      return lines;
    },
    configure(changed: LogSettings) {
      settings = changed;
    },
    log(level: LogLevel, message: string, facts: LogFacts = {}) {
      if (!isEnabled(level)) return;
      lines += 1;
      const head = { time: timeText(), level, message };
      if (settings.format === 'json') write(formatJson(head, facts, redact));
      else write(toText(redactFacts({ ...head, ...facts }, redact)));
    },
  };
}

/** Each millisecond is formatted once, because the format takes a fifth of a line's time. */
function createTimeText(): () => string {
  let formattedTime = NaN;
  let text = '';
  return () => {
    const time = Date.now();
    if (time !== formattedTime) {
      formattedTime = time;
      text = new Date(time).toISOString();
    }
    return text;
  };
}

/**
 * Bounds and redacts the facts. Each value is redacted by itself, because a JSON escape sequence
 * may hide a key.
 */
export function redactFacts<Facts extends LogFacts>(facts: Facts, redact: Redactor): Facts {
  if (isPlain(JSON.stringify(facts), redact)) return facts;
  const redacted = JSON.stringify(facts, (_, value: unknown) => {
    if (typeof value === 'string') return redact(cutText(value, MAX_VALUE_CHARACTERS));
    return Array.isArray(value) ? value.slice(0, MAX_ARRAY_ENTRIES) : value;
  });
  return JSON.parse(redacted) as Facts;
}

/** JSON does not escape U+2028 and U+2029, and some viewers break lines at them. */
const SEPARATORS = /[\u2028\u2029]/g;

function formatJson(head: LogFacts, facts: LogFacts, redact: Redactor): string {
  // Two texts are joined, because merging the objects would copy each request's facts.
  const [start, rest] = [JSON.stringify(head), JSON.stringify(facts)];
  if (isPlain(start, redact) && isPlain(rest, redact)) {
    return rest === '{}' ? `${start}\n` : `${start.slice(0, -1)},${rest.slice(1)}\n`;
  }
  const entry = redactFacts({ ...head, ...facts }, redact);
  return `${JSON.stringify(entry).replace(SEPARATORS, ' ')}\n`;
}

/**
 * True if nothing has to be redacted, cut or replaced, and no escape sequence can hide a key.
 * Nearly all lines are plain.
 */
function isPlain(json: string, redact: Redactor): boolean {
  if (json.length > MAX_VALUE_CHARACTERS || json.includes('\\')) return false;
  return json.search(SEPARATORS) === -1 && !redact.mayChange(json);
}
