/** Checks keys: the callers' keys, and the keys for providers. */

import { Secret } from '../lib/secret.ts';
import { SHORTEST_SECRET_CHARACTERS } from '../lib/secrets.ts';
import { sha256 } from '../lib/sha256.ts';
import { foreignReference, isLikePlaceholder, probableReference } from './foreign-references.ts';
import type { SettingValues } from './setting-values.ts';

/** The longest key and the longest value in `headers`, because servers refuse longer headers. */
export const MAX_KEY_CHARACTERS = 4096;

/**
 * Reports a key that no header can carry, and a caller's key that is a placeholder. Warns about a
 * key in quotation marks, or that is probably no key. No message contains the key.
 */
export function checkKey(
  values: SettingValues,
  name: string,
  key: string,
  isOfCaller = false,
): void {
  // All visible ASCII characters are allowed, because vendors use more than RFC 6750's tokens
  // allow.
  if (!/^[\x21-\x7e]+$/.test(key)) {
    values.problem(name, 'a key must be visible ASCII characters without spaces');
  } else if (key.length > MAX_KEY_CHARACTERS) {
    values.problem(name, `a key cannot be longer than ${MAX_KEY_CHARACTERS} characters`);
  } else if (/^(["']).*\1$/.test(key)) {
    // `docker --env-file` and some shells pass on the quotation marks in KEY="value".
    values.warning(name, 'the key begins and ends with a quotation mark; remove both');
  }
  const reference = probableReference(key);
  if (reference) values.warning(name, reference);
  if (!isLikePlaceholder(key)) return;
  if (isOfCaller) values.problem(name, 'this is a placeholder; write a key, or "${NAME}"');
  else values.warning(name, 'this looks like a placeholder, and is used as a key');
}

function checkDigest(values: SettingValues, name: string, digest: string): void {
  // The reference to an unset variable is reported already.
  if (values.wrong.has(name)) return;
  const command = 'printf %s "$KEY" | sha256sum';
  if (!/^[\da-f]{64}$/i.test(digest)) {
    const found = `found ${digest.length} characters`;
    const text = `${found}, expected the 64 hexadecimal digits that ${command} prints before "-"`;
    values.problem(name, text);
  } else if (digest.toLowerCase() === sha256('').toString('hex')) {
    values.problem(name, 'this is the digest of an empty text, as of a variable that is not set');
  }
}

/**
 * Checks the keys of callers. An unreplaced reference or a placeholder is refused, because whoever
 * guesses its text would be let in.
 */
export function checkCallerKeys(values: SettingValues): void {
  for (const [name, { value, row }] of values.plain()) {
    if (row.secret !== 'of callers') continue;
    if (name.endsWith('.key_sha256')) {
      checkDigest(values, name, value as string);
      continue;
    }
    for (const key of new Set([value as string | string[]].flat())) {
      const foreign = foreignReference(key);
      // A variable or a file may have the text. In the settings file it is reported already.
      if (foreign && !values.wrong.has(name)) values.problem(name, foreign);
      if (foreign) continue;
      checkKey(values, name, key, true);
      if (key.includes('${') && !values.wrong.has(name)) {
        const text =
          'a reference is written "${NAME}" or "${file:PATH}", and only in the settings file';
        values.problem(name, `a key cannot contain "\${"; ${text}`);
      }
      if (key.length < SHORTEST_SECRET_CHARACTERS) {
        const limit = `${SHORTEST_SECRET_CHARACTERS} characters`;
        const text = `a key shorter than ${limit} is not hidden in logs and error texts`;
        values.warning(name, text);
      }
    }
  }
}

export function toSecrets(keys: Iterable<string> = []): readonly Secret[] {
  return [...keys].map((key) => new Secret(key));
}
