/** Checks the text of a key, whether it is a provider's or a caller's. */

import type { SectionReader } from './section-reader.ts';

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
  } else if (/^(["']).*\1$/.test(key)) {
    // `docker --env-file` and some shells keep the quotes of KEY="value".
    section.warning(
      setting,
      'the key begins and ends with a quotation mark; remove both',
      variable,
    );
  }
}
