/** References in the texts of the file: `${NAME}` is replaced by a variable, `${file:PATH}` by the text of a file. */

import { resolve } from 'node:path';

import type { Setting } from './setting-kinds.ts';
import { ConfigError } from './setting-values.ts';
import { readValueFile } from './settings-file.ts';

const VARIABLE = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/;
/** The path of a file may have variables in it: `${file:${CREDENTIALS_DIRECTORY}/openai}`. */
const REFERENCE = new RegExp(
  `\\$\\{file:((?:[^{}]|${VARIABLE.source})*)\\}|${VARIABLE.source}`,
  'g',
);
/** A variable in a shell. */
const WITHOUT_BRACES = /^\$([A-Z][A-Z0-9_]*)$/;

interface Sources {
  readonly variable: (name: string) => string | undefined;
  /** The paths of files are relative to it. */
  readonly directory: string | undefined;
  readonly problem: (text: string) => void;
  readonly warning: (text: string) => void;
}

/**
 * Replaces each reference by the variable's value or the file's text, neither of which is expanded again. Returns '' for
 * a key of a provider whose variable is not set: the gateway goes on as without that key.
 */
export function expandReferences(
  text: string,
  { key, type }: Setting,
  { variable, directory = '', problem, warning }: Sources,
): string {
  // The other keys must not have it at all: `checkCallerKeys`, `readStore`.
  const mayStay = key === undefined || key === 'of a provider';
  let isLeftOut = false;
  const warn = (why: string, then = 'text is used as written') => warning(`${why}; the ${then}`);
  // `${NAME:-default}` or `${file:/path`.
  if (mayStay && text.replace(REFERENCE, ' ').includes('${')) warn('"${" begins no reference here');
  const [, name] = WITHOUT_BRACES.exec(text) ?? [];
  if (name !== undefined) {
    // It may be a key of callers that only looks like this.
    const shown = key === 'of callers' && variable(name) === undefined ? 'NAME' : name;
    warn(`a reference has braces: "\${${shown}}"`);
  }
  const reportUnset = (why: string) => {
    isLeftOut = key === 'of a provider' && type !== 'headers';
    if (mayStay) warn(why, isLeftOut ? 'key is left out' : undefined);
    else problem(why);
  };
  const valueOf = (reference: string, unset = problem) => {
    const value = variable(reference);
    if (value === undefined) unset(`environment variable ${reference} is not set`);
    return value;
  };
  const expanded = text.replace(REFERENCE, (reference, path?: string, _?, inText = '') => {
    if (path === undefined) return valueOf(inText, reportUnset) ?? reference;
    let isComplete = true;
    const actual = path.replaceAll(new RegExp(VARIABLE, 'g'), (_reference, inPath: string) => {
      const value = valueOf(inPath);
      isComplete &&= value !== undefined;
      return value ?? '';
    });
    if (!isComplete) return reference;
    try {
      // The value of a variable may be a key by mistake: a message shows the path as it is written.
      const shown = actual === path ? resolve(directory, path) : path;
      return readValueFile(resolve(directory, actual), shown);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      problem(error.message);
      return reference;
    }
  });
  return isLeftOut ? '' : expanded;
}
