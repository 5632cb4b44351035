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
/** As in a shell. */
const WITHOUT_BRACES = /^\$([A-Z][A-Z0-9_]*)$/;

interface Sources {
  readonly variable: (name: string) => string | undefined;
  /** The paths of files are relative to it. */
  readonly directory: string | undefined;
  readonly problem: (text: string) => void;
  readonly warning: (text: string) => void;
}

const AS_WRITTEN = 'the text is used as written';

/**
 * Replaces each reference by the variable's value or the file's text, neither of which is expanded again. Returns '' for
 * a key of a provider whose variable is not set: the gateway goes on as without that key.
 */
export function expandReferences(text: string, { key, type }: Setting, sources: Sources): string {
  const { variable, problem, warning } = sources;
  // The other keys must not have it at all: `checkCallerKeys`, `readStore`.
  const mayStay = key === undefined || key === 'of a provider';
  const mayBeLeftOut = key === 'of a provider' && type !== 'headers';
  let isLeftOut = false;
  // `${NAME:-default}` or `${file:/path`.
  if (mayStay && text.replace(REFERENCE, ' ').includes('${')) {
    warning(`"\${" begins no reference here; ${AS_WRITTEN}`);
  }
  const [, bare] = WITHOUT_BRACES.exec(text) ?? [];
  if (bare !== undefined) {
    // It may be a key of callers that only looks like this.
    const shown = key === 'of callers' && variable(bare) === undefined ? 'NAME' : bare;
    warning(`a reference has braces: "\${${shown}}"; ${AS_WRITTEN}`);
  }
  const expanded = text.replace(REFERENCE, (reference, path?: string, _?, name = '') => {
    try {
      return path === undefined ? valueOf(name, sources) : textOfFile(path, sources);
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      if (path !== undefined || !mayStay) {
        problem(error.message);
      } else {
        isLeftOut = mayBeLeftOut;
        warning(`${error.message}; ${isLeftOut ? 'the key is left out' : AS_WRITTEN}`);
      }
      return reference;
    }
  });
  return isLeftOut ? '' : expanded;
}

function valueOf(name: string, { variable }: Sources): string {
  const value = variable(name);
  if (value === undefined) throw new ConfigError([`environment variable ${name} is not set`]);
  return value;
}

function textOfFile(path: string, sources: Sources): string {
  const { directory = '' } = sources;
  const actual = path.replaceAll(new RegExp(VARIABLE, 'g'), (_, name: string) =>
    valueOf(name, sources),
  );
  // The value of a variable may be a key by mistake: a message shows the path as it is written.
  const shown = actual === path ? resolve(directory, path) : path;
  return readValueFile(resolve(directory, actual), shown);
}
