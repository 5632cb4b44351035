/** Reads gateway.toml: the file, TOML's syntax, and messages for both that show no key. */

import { readFileSync } from 'node:fs';

import { parse, TomlError } from 'smol-toml';

import { ConfigError } from './config-error.ts';
import type { Table } from './section-reader.ts';

const READ_FAILURES: Readonly<Record<string, string>> = {
  ENOENT: 'no such file',
  EACCES: 'permission denied',
  EISDIR: 'is a directory, not a file',
};

/**
 * Returns the file's text, or undefined if the file is optional and does not exist.
 * `path` is absolute. Throws `ConfigError` if the file cannot be read.
 */
export function readSettingsFile(path: string, isOptional: boolean): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException;
    if (isOptional && code === 'ENOENT') return undefined;
    // Node's permission model hides whether the file exists: an existing one must not be skipped.
    const reason =
      code === 'ERR_ACCESS_DENIED'
        ? `node --permission needs --allow-fs-read=${path}${isOptional ? ', even if there is no such file' : ''}`
        : (READ_FAILURES[code] ?? `cannot be read (${code})`);
    throw new ConfigError([`${path}: ${reason}`]);
  }
}

/** Parses the file's text. `prefix` precedes the message. Throws `ConfigError` with line and column. */
export function parseToml(text: string, prefix: string): Table {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const line = text.split(/\r?\n/)[error.line - 1] ?? '';
    const reason = error.message.split('\n')[0]!.replace('Invalid TOML document: ', '');
    const place = `line ${error.line}, column ${error.column}`;
    const pointer = `${' '.repeat(error.column - 1)}^`;
    throw new ConfigError([
      `${prefix}${place}: ${reason}${hintFor(reason, line)}\n  ${hideSecrets(line)}\n  ${pointer}`,
    ]);
  }
}

/** What the writer of the line probably has to change. */
function hintFor(reason: string, line: string): string {
  if (/invalid value|numeric literal/.test(reason)) return '; text needs quotes: key = "text"';
  const isOtherFormat = /^\s*(?:[{-]|"?[\w.-]+"?\s*:)/.test(line);
  if (!isOtherFormat || !reason.includes('in key')) return '';
  return '; this is not TOML, but looks like YAML or JSON. TOML is: key = "text"';
}

/** The line with everything but section headers and the names of keys replaced by dots: it may be a secret. */
function hideSecrets(line: string): string {
  const shown = line.slice(0, 160);
  const named = /^\s*(?:\[+[a-z_.]*\]*\s*$|[a-z_.]+\s*=)/.exec(shown)?.[0] ?? '';
  return named + shown.slice(named.length).replace(/\S/g, '.');
}
