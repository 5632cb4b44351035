/** `${NAME}` and `${file:PATH}` in the texts of gateway.toml. */

import { resolve } from 'node:path';

import { ConfigError } from './setting-values.ts';
import { readValueFile } from './settings-file.ts';

interface ReferenceContext {
  /** The paths of files are relative to it. */
  readonly directory: string;
  readonly variable: (name: string) => string | undefined;
  readonly problem: (text: string) => void;
  /** A variable is not set: its reference stays as written. */
  readonly onUnset: (text: string) => void;
}

const VARIABLE = /\$\{([A-Za-z_][A-Za-z0-9_]*)\}/;
/** The path of a file may have variables in it: `${file:${CREDENTIALS_DIRECTORY}/openai}`. */
const REFERENCE = new RegExp(
  `\\$\\{file:((?:[^{}]|${VARIABLE.source})*)\\}|${VARIABLE.source}`,
  'g',
);

/** Replaces each reference by the variable's value or the file's text, neither of which is expanded again. */
export function expandReferences(
  text: string,
  { directory, variable, problem, onUnset }: ReferenceContext,
): string {
  const valueOf = (name: string, report: (text: string) => void) => {
    const value = variable(name);
    if (value === undefined) report(`environment variable ${name} is not set`);
    return value;
  };
  return text.replace(REFERENCE, (written, path: string | undefined, _, name = '') => {
    if (path === undefined) return valueOf(name, onUnset) ?? written;
    let isComplete = true;
    const expanded = path.replaceAll(new RegExp(VARIABLE, 'g'), (_written, part: string) => {
      const value = valueOf(part, problem);
      isComplete &&= value !== undefined;
      return value ?? '';
    });
    if (!isComplete) return written;
    try {
      // The value of a variable may be a key by mistake: a message shows the path as it is written.
      const shown = expanded === path ? resolve(directory, path) : path;
      return readValueFile(resolve(directory, expanded), shown);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      problem(error.message);
      return written;
    }
  });
}

/** Returns true if something in the text begins like a reference, and is none: `${NAME:-default}`, `${file:/path`. */
export function hasBrokenReference(text: string): boolean {
  return text.replace(REFERENCE, ' ').includes('${');
}
