/** Checks the names and values of headers in settings. */

import type { SettingValues } from './setting-values.ts';

/** A header's name in lower case (RFC 9110 5.6.2). */
export const HEADER_NAME = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/;
/** A header's value: visible ASCII, spaces and tabs. */
export const HEADER_VALUE = /^[\t\x20-\x7e]*$/;
const MAX_CHARACTERS = 64;

/**
 * Returns each name once in lower case, or undefined without any. `refuse` returns why a name is
 * not allowed.
 */
export function readHeaderNames(
  values: SettingValues,
  setting: string,
  texts: readonly string[] = [],
  { max, refuse }: { readonly max: number; readonly refuse: (name: string) => string | undefined },
): readonly string[] | undefined {
  const names = new Set<string>();
  for (const text of texts) {
    const name = text.toLowerCase();
    const isName = HEADER_NAME.test(name) && name.length <= MAX_CHARACTERS;
    const valid = `is not a valid header name of at most ${MAX_CHARACTERS} characters`;
    // RFC 9110 allows a "*" in a name, but no header has one.
    const isPattern = name.includes('*');
    const pattern = 'is no pattern here; write the whole name of each header';
    const problem = isPattern ? pattern : isName ? refuse(name) : valid;
    if (problem) values.problem(setting, `${JSON.stringify(values.asWritten(text))} ${problem}`);
    names.add(name);
  }
  if (names.size > max) values.problem(setting, `there are more than ${max} names`);
  return names.size > 0 ? [...names] : undefined;
}
