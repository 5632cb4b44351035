/** Reads `[logging]`. */

import { readHeaderNames } from './header-names.ts';
import type { SettingValues } from './setting-values.ts';

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

export function readLogging(values: SettingValues) {
  const { headers: texts, ...section } = values.section('logging');
  const headers = readHeaderNames(values, 'logging.headers', texts, {
    max: MAX_NAMES,
    refuse: (name) =>
      CREDENTIAL.test(name) ? 'cannot be logged: it may be a credential' : undefined,
  });
  return { ...section, headers };
}
