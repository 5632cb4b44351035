/** Checks the text of a key, whether it is a provider's or a caller's. */

import { SHORTEST_SECRET_CHARACTERS } from '../lib/secrets.ts';
import type { SectionReader } from './section-reader.ts';

/** Of a key, and of a fixed header's value: servers refuse longer headers. */
export const MAX_KEY_CHARACTERS = 4096;

interface KeyOrigin {
  readonly section: SectionReader;
  /** The setting that holds the key. */
  readonly setting: string;
  /** The environment variable that the key was taken from instead, if the section does not know. */
  readonly variable?: string | undefined;
}

/** Reports a key that no header can carry, and warns of one in quotes. No message contains the key. */
export function checkKey(key: string, { section, setting, variable }: KeyOrigin): void {
  // RFC 6750's token characters are a subset: vendors use more of the visible ASCII characters.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    section.problem(setting, 'a key must be visible ASCII characters without spaces', variable);
  } else if (key.length > MAX_KEY_CHARACTERS) {
    const limit = `${MAX_KEY_CHARACTERS} characters`;
    section.problem(setting, `a key cannot be longer than ${limit}`, variable);
  } else if (/^(["']).*\1$/.test(key)) {
    // `docker --env-file` and some shells keep the quotes of KEY="value".
    section.warning(
      setting,
      'the key begins and ends with a quotation mark; remove both',
      variable,
    );
  }
}

/**
 * Like `checkKey`, for a key that callers send. Also reports what looks like a reference that was not replaced: whoever
 * can guess it would be let in. Warns of a key that is too short to be hidden in texts.
 */
export function checkCallerKey(key: string, origin: KeyOrigin): void {
  checkKey(key, origin);
  if (key.includes('${') && !origin.section.hasProblem(origin.setting)) {
    const text = '"${" in a key: expected "${NAME}" or "${file:PATH}", and in the file';
    origin.section.problem(origin.setting, text, origin.variable);
  }
  if (key.length > 0 && key.length < SHORTEST_SECRET_CHARACTERS) {
    const limit = `${SHORTEST_SECRET_CHARACTERS} characters`;
    const text = `a key of fewer than ${limit} is not hidden in log lines and error texts`;
    origin.section.warning(origin.setting, text, origin.variable);
  }
}
