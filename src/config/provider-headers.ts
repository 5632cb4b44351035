/** The headers in `[providers.<id>]`: those that are sent with each request, and the names of those that are passed on. */

import { Secret } from '../lib/secret.ts';
import { MAX_KEY_CHARACTERS } from './callers-section.ts';
import type { SettingValues } from './setting-values.ts';

const NAME = /^[!#$%&'*+\-.^_`|~0-9a-z]+$/;
/** The most headers in each of the two lists of those that are passed on. */
const MAX_NAMES = 32;
const MAX_NAME_CHARACTERS = 64;

/** Hop-by-hop headers (RFC 9110 7.6.1), what frames the message, and what the gateway sets itself. */
const REFUSED = new Set(
  [
    'connection keep-alive proxy-authorization proxy-connection te trailer transfer-encoding upgrade',
    'host content-length content-encoding expect',
    'authorization content-type accept accept-encoding x-request-id traceparent tracestate',
  ].flatMap((names) => names.split(' ')),
);

/** In addition, of the headers that are passed on: credentials, and what the gateway sets itself in either direction. */
const NEVER_PASSED = new RegExp(
  '^(?:access-control|content|proxy)-|^(?:(?:set-)?cookie2?|(?:x-(?:goog-)?)?api-key|user-agent|' +
    'sec-fetch-mode|x-gateway-(?:provider|tries)|x-upstream-request-id|server-timing|retry-after(?:-ms)?|' +
    'x-should-retry|www-authenticate|allow|vary|date|cache-control|x-accel-buffering|' +
    'x-content-type-options)$',
);

/** Checks the headers, and returns them with their names in lower case. */
export function readHeaders(
  setting: string,
  headers: Readonly<Record<string, string>> = {},
  values: SettingValues,
): Readonly<Record<string, Secret>> {
  const checked = new Map<string, Secret>();
  for (const [written, value] of Object.entries(headers)) {
    const name = written.toLowerCase();
    const shown = JSON.stringify(written);
    if (!NAME.test(name)) {
      values.problem(setting, `${shown} is no name of a header`);
    } else if (REFUSED.has(name)) {
      values.problem(setting, `${shown} is set by the gateway itself`);
    } else if (checked.has(name)) {
      values.problem(setting, `${shown} is there twice; case makes no difference`);
    } else if (!/^[\t\x20-\x7e]*$/.test(value)) {
      values.problem(setting, `the value of ${shown} must be visible ASCII, spaces and tabs`);
    } else if (value.length > MAX_KEY_CHARACTERS) {
      const limit = `${MAX_KEY_CHARACTERS} characters`;
      values.problem(setting, `the value of ${shown} is longer than ${limit}`);
    }
    checked.set(name, new Secret(value));
  }
  return Object.fromEntries(checked);
}

/** Checks the names of headers that are passed on, and returns them in lower case; undefined if there are none. */
export function readNames(setting: string, texts: readonly string[] = [], values: SettingValues) {
  for (const text of texts) {
    const name = text.toLowerCase();
    const shown = JSON.stringify(values.asWritten(text));
    if (!NAME.test(name) || name.length > MAX_NAME_CHARACTERS) {
      values.problem(setting, `${shown} is no name of at most ${MAX_NAME_CHARACTERS} characters`);
    } else if (REFUSED.has(name) || NEVER_PASSED.test(name)) {
      values.problem(setting, `${shown} is a credential, or set by the gateway itself`);
    }
  }
  const names = new Set(texts.map((text) => text.toLowerCase()));
  if (names.size > MAX_NAMES) values.problem(setting, `more than ${MAX_NAMES} names`);
  return names.size > 0 ? [...names] : undefined;
}
