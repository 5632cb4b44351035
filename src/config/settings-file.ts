/**
 * Reads gateway.toml and files with values, and parses TOML. No message shows a key. `node:buffer`
 * is imported whole: see `assertNodeVersion` of lib/version.ts.
 */

import nodeBuffer from 'node:buffer';
import { closeSync, constants, fstatSync, openSync, readSync, statSync } from 'node:fs';

import { parse, TomlError } from 'smol-toml';

import { ConfigError } from './setting-values.ts';
import { DAY_MS, type Table } from './setting-kinds.ts';

const READ_FAILURES: Readonly<Record<string, string>> = {
  ENOENT: 'no such file',
  EACCES: 'permission denied',
  EISDIR: 'is a directory, not a file',
};
const MAX_SETTINGS_BYTES = 1_048_576;
/** The largest file with a single value. */
const MAX_VALUE_BYTES = 65_536;
/** The first byte of each certificate and key in DER. */
const DER_SEQUENCE = 0x30;
const IS_DER =
  'is in DER, and not in PEM; convert it with openssl x509 -inform DER, or a key with openssl pkey';

/**
 * Returns the settings file's text, or undefined if it is optional and does not exist. Throws
 * `ConfigError` if it cannot be read. `wasFound`: it was read before.
 */
export function readSettingsFile(path: string, isOptional: boolean, wasFound: boolean) {
  // Reading a pipe again would wait for another writer.
  const unlessFile = wasFound ? 'is not a regular file, and cannot be read again' : undefined;
  try {
    return readText(path, path, MAX_SETTINGS_BYTES, unlessFile);
  } catch (error) {
    if (isOptional && (error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    // Node's permission model hides whether the file exists, and an existing file must not be
    // skipped.
    throw toConfigError(error, path, isOptional ? ', even if there is no such file' : '');
  }
}

/**
 * Returns the text of a file with a single value, without the line end after it. Throws
 * `ConfigError` with `shown` as the path.
 */
export function readValueFile(path: string, shown: string, maxBytes = MAX_VALUE_BYTES): string {
  try {
    const text = readText(path, shown, maxBytes, 'is not a file').replace(/\r?\n$/, '');
    if (text.trim() === '') throw new ConfigError([`${shown}: is empty`]);
    return text;
  } catch (error) {
    throw toConfigError(error, shown);
  }
}

/**
 * Throws the error of a system call, or `ConfigError`: also with `unlessFile`, if that is given and
 * the path is a pipe or a directory.
 */
function readText(path: string, shown: string, maxBytes: number, unlessFile?: string): string {
  const fail = (reason: string) => new ConfigError([`${shown}: ${reason}`]);
  // Before the file is opened, because a writer that waits at a pipe would be let in.
  if (unlessFile && !statSync(path).isFile()) throw fail(unlessFile);
  // Without O_NONBLOCK, opening a pipe that has just come waits for a writer.
  const { O_NONBLOCK, O_RDONLY } = constants;
  const descriptor = openSync(path, unlessFile ? O_RDONLY | O_NONBLOCK : O_RDONLY);
  try {
    if (unlessFile && !fstatSync(descriptor).isFile()) throw fail(unlessFile);
    const bytes = readAtMost(descriptor, maxBytes + 1);
    if (bytes.length > maxBytes) throw fail(`is larger than ${maxBytes / 1024} KiB`);
    if (nodeBuffer.isUtf8(bytes)) return bytes.toString();
    throw fail(bytes[0] === DER_SEQUENCE ? IS_DER : 'is not UTF-8 text');
  } finally {
    closeSync(descriptor);
  }
}

/** stat() gives no bound, because files in /proc have size 0, and files grow. */
function readAtMost(descriptor: number, maxBytes: number): Buffer {
  const buffer = Buffer.alloc(maxBytes);
  let length = 0;
  while (length < maxBytes) {
    const read = readSync(descriptor, buffer, length, maxBytes - length, null);
    if (read === 0) break;
    length += read;
  }
  return buffer.subarray(0, length);
}

function toConfigError(error: unknown, path: string, permissionHint = ''): ConfigError {
  if (error instanceof ConfigError) return error;
  const { code = 'unknown error' } = error as NodeJS.ErrnoException;
  const reason =
    code === 'ERR_ACCESS_DENIED'
      ? `node --permission needs --allow-fs-read=${path}${permissionHint}`
      : (READ_FAILURES[code] ?? `cannot be read (${code})`);
  return new ConfigError([`${path}: ${reason}`]);
}

/** Ends a hint for settings in another format. */
const SETTINGS_ARE_TOML = 'but the settings are TOML: a line [server], then a line port = 8080';
/** Matches the beginning of JSON. No TOML text begins like this. */
const JSON_TEXT = /^\s*(?:\{|\[\s*\{)/;
const YAML_LINE = /^\s*(?:---\s*$|- |[\w."'-]+:(?:\s|$))/;
/** Ends a number, a boolean or an unquoted text. */
const WORD_LIMIT = /[\s=[\]{},"'#]/;

/** Throws `ConfigError` with `prefix`, the line and the column. */
export function parseToml(text: string, prefix: string): Table {
  try {
    const table = parse(text);
    restoreDays(table, text);
    return table;
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const line = text.split(/\r?\n/)[error.line - 1] ?? '';
    const reason = error.message.split('\n')[0]!.replace('Invalid TOML document: ', '');
    const place = `${prefix}line ${error.line}, column ${error.column}`;
    const pointer = `${' '.repeat(error.column - 1)}^`;
    const hint = hintFor(text, line, error.column - 1, reason);
    throw new ConfigError([`${place}: ${reason}${hint}\n  ${hideSecrets(line)}\n  ${pointer}`]);
  }
}

/** A value that is a date with a day that some months lack. A name may have such a date too. */
const LATE_DATE = /([=[,]\s*\d{4}-\d\d)-(?:29|3[01])(?!\d)/g;
const LAST_COMMON_DAY = 28;

/** The parser takes 30 February for 2 March. */
class WrittenDate extends Date {
  readonly #written: string;

  constructor(date: Date, written: string) {
    super(date);
    this.#written = written;
  }

  override toISOString(): string {
    return this.#written;
  }
}

/**
 * The parser does not tell how a date was written, so the text is parsed again with another day.
 */
function restoreDays(table: Table, text: string): void {
  const changed = text.replace(LATE_DATE, `$1-${LAST_COMMON_DAY}`);
  if (changed !== text) replaceDates(table, parse(changed));
}

function replaceDates(table: Table | unknown[], changed: Table | unknown[]): void {
  const others = new Map(Object.entries(changed));
  for (const [name, value] of Object.entries(table)) {
    const other = others.get(name);
    if (value instanceof Date && other instanceof Date) {
      const day = LAST_COMMON_DAY + (value.getTime() - other.getTime()) / DAY_MS;
      const written = other.toISOString().replace(/\d\d(?=T|$)/, String(day));
      if (day > LAST_COMMON_DAY) Object.assign(table, { [name]: new WrittenDate(value, written) });
    } else if (isNested(value) && isNested(other)) replaceDates(value, other);
  }
}

function isNested(value: unknown): value is Table | unknown[] {
  return typeof value === 'object' && value !== null && !(value instanceof Date);
}

/** The hint shows nothing from the file. */
function hintFor(text: string, line: string, at: number, reason: string): string {
  if (JSON_TEXT.test(text)) return `; this looks like JSON, ${SETTINGS_ARE_TOML}`;
  if (YAML_LINE.test(line)) return `; this looks like YAML, ${SETTINGS_ARE_TOML}`;
  // A space in a key is more often a missing "=".
  if (reason === 'illegal character in key' && !/\s$/.test(line.slice(0, at))) {
    return '; a name with other characters than letters, digits, "-" and "_" needs quotes';
  }
  if (reason === 'unfinished string' || (reason.endsWith('in strings') && at >= line.length)) {
    return '; a string ends on its line, with the quote at its beginning';
  }
  // The parser stops at the beginning of a word, or inside the word if it begins like a number.
  const [before = ''] = line.slice(0, at).split(WORD_LIMIT).slice(-1);
  const [behind = ''] = line.slice(at).split(WORD_LIMIT, 1);
  const word = before + behind;
  const preceding = line.slice(0, at - before.length).trimEnd();
  const isInArray = /[[,]$/.test(preceding) && preceding.includes('=');
  if (word === '' || !(isInArray || preceding.endsWith('='))) return '';
  if (/^(?:true|false)$/i.test(word)) return '; true and false are written in lower case';
  if (/^\d+[a-z]{1,3}$/i.test(word)) {
    return '; a number has no unit, because sizes are in bytes and times in seconds';
  }
  if (/^[“”„‘’‚«»]/.test(word)) return '; quotes are straight: " or \'';
  return '; a string needs quotes';
}

/**
 * Dots replace everything but section headers and key names, because any other text may be a
 * secret.
 */
function hideSecrets(line: string): string {
  const shown = line.slice(0, 160);
  const named = /^\s*(?:\[+[a-z_.]*\]*\s*$|[a-z_.]+\s*=)/.exec(shown)?.[0] ?? '';
  return named + shown.slice(named.length).replace(/\S/g, '.');
}
