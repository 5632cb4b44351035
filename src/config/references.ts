/** References in the texts of the file: `${NAME}` is replaced by a variable, `${file:PATH}` by the text of a file. */

import { resolve } from 'node:path';

import { isTable, type Setting } from './setting-kinds.ts';
import { ConfigError, type SettingValues } from './setting-values.ts';
import { readValueFile } from './settings-file.ts';

const VARIABLE = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/;
/** The path of a file may have variables in it: `${file:${CREDENTIALS_DIRECTORY}/openai}`. */
const REFERENCE = new RegExp(
  `\\$\\{file:((?:[^{}]|${VARIABLE.source})*)\\}|${VARIABLE.source}`,
  'g',
);
/** As in a shell. */
const WITHOUT_BRACES = /^\$[A-Z][A-Z0-9_]*$/;
const AS_WRITTEN = 'the text is used as written';

export interface References {
  /** Returns the value of a variable of the environment. */
  readonly variable: (name: string) => string | undefined;
  /** The paths of files are relative to it; else to the working directory. */
  readonly directory: string | undefined;
  /** Takes problems and warnings, and what was replaced. */
  readonly values: SettingValues;
}

/**
 * Replaces each reference in a text, or in the texts of an array or a table, by the variable's value or the file's text,
 * neither of which is expanded again. A key of a provider whose variable is not set becomes '': the gateway goes on as
 * without that key.
 */
export function expand(name: string, value: unknown, row: Setting, from: References): unknown {
  if (Array.isArray(value)) return value.map((item) => expand(name, item, row, from));
  if (isTable(value)) {
    const entries = Object.entries(value).map(([key, item]) => [
      key,
      expand(name, item, row, from),
    ]);
    return Object.fromEntries(entries);
  }
  if (typeof value !== 'string') return value;
  const { values, variable } = from;
  // The other keys must not have it at all: `checkCallerKeys`, `readStore`.
  const mayStay = row.key === undefined || row.key === 'of a provider';
  let isLeftOut = false;
  // `${NAME:-default}` or `${file:/path`.
  if (mayStay && value.replace(REFERENCE, ' ').includes('${')) {
    values.warning(name, `"\${" begins no reference here; ${AS_WRITTEN}`);
  }
  if (WITHOUT_BRACES.test(value)) {
    values.warning(name, `a reference has braces: "\${NAME}"; ${AS_WRITTEN}`);
  }
  const expanded = value.replace(REFERENCE, (reference, path?: string, _?, bare = '') => {
    try {
      return path === undefined ? valueOf(bare, variable) : textOfFile(path, from);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      if (path !== undefined || !mayStay) {
        values.problem(name, error.message);
      } else {
        isLeftOut = row.key !== undefined && row.type !== 'headers';
        const outcome = isLeftOut ? 'the key is left out' : AS_WRITTEN;
        values.warning(name, `${error.message}; ${outcome}`);
      }
      return reference;
    }
  });
  const result = isLeftOut ? '' : expanded;
  if (result !== value) values.replaced(result, value);
  return result;
}

function valueOf(name: string, variable: References['variable']): string {
  const value = variable(name);
  if (value === undefined) throw new ConfigError([`environment variable ${name} is not set`]);
  return value;
}

function textOfFile(path: string, { variable, directory = '' }: References): string {
  const names = new RegExp(VARIABLE, 'g');
  const actual = path.replaceAll(names, (_, name: string) => valueOf(name, variable));
  // The value of a variable may be a key by mistake: a message shows the path as it is written.
  const shown = actual === path ? resolve(directory, path) : path;
  return readValueFile(resolve(directory, actual), shown);
}
