/** Reads `[logging]`. */

import { isHeaderName, MAX_NAME_CHARACTERS } from './providers-section.ts';
import type { SettingValues } from './setting-values.ts';

/** The most names in `headers`. */
const MAX_NAMES = 16;

/**
 * Headers with credentials: `authorization`, `set-cookie`, `x-api-key`, `x-amz-security-token`,
 * `cf-access-jwt-assertion`, `x-master-key`. `max-tokens` and `idempotency-key` are none.
 */
const CREDENTIAL = new RegExp(
  'authori[sz]ation|authentication|cookie|token(?!s|i)|secret|passw|credential|assertion|jwt|' +
    'oidc|saml|signature|(?:api|access|auth|functions|private|subscription)[-_]?key|' +
    '(?<!idempotency[-_]?)key$|(?:^|[-_])(?:auth|pass|pat)$',
);

/** Returns the settings, with the names in `headers` in lower case, or undefined without any. */
export function readLogging(values: SettingValues) {
  const setting = 'logging.headers';
  const { headers: texts = [], ...section } = values.section('logging');
  const names = texts.map((text) => text.toLowerCase());
  for (const [index, name] of names.entries()) {
    const shown = JSON.stringify(values.asWritten(texts[index]!));
    if (!isHeaderName(name)) {
      values.problem(
        setting,
        `${shown} is not a valid header name of at most ${MAX_NAME_CHARACTERS} characters`,
      );
    } else if (CREDENTIAL.test(name)) {
      values.problem(setting, `${shown} cannot be logged: it may be a credential`);
    } else if (names.indexOf(name) < index) {
      values.problem(setting, `${shown} appears twice; header names ignore case`);
    }
  }
  if (names.length > MAX_NAMES) values.problem(setting, `there are more than ${MAX_NAMES} names`);
  return { ...section, headers: names.length > 0 ? names : undefined };
}
