/** `[providers.<id>] headers`: request headers that a provider gets with each request. */

import { Secret } from '../lib/secrets.ts';
import { MAX_KEY_CHARACTERS } from './api-keys.ts';
import type { SectionReader } from './section-reader.ts';

/** Hop-by-hop headers (RFC 9110 7.6.1), what frames the message, and what the gateway sets itself. */
const REFUSED = new Set(
  [
    'connection keep-alive proxy-authorization proxy-connection te trailer transfer-encoding upgrade',
    'host content-length content-encoding expect',
    'authorization content-type accept accept-encoding x-request-id traceparent tracestate',
  ].flatMap((names) => names.split(' ')),
);

/** Checks the headers, and returns them with their names in lower case. */
export function toHeaders(
  headers: Readonly<Record<string, string>>,
  section: SectionReader,
): Readonly<Record<string, Secret>> {
  const checked = new Map<string, Secret>();
  for (const [written, value] of Object.entries(headers)) {
    const name = written.toLowerCase();
    const shown = JSON.stringify(written);
    if (!/^[!#$%&'*+\-.^_`|~0-9a-z]+$/.test(name)) {
      section.problem('headers', `${shown} is no name of a header`);
    } else if (REFUSED.has(name)) {
      section.problem('headers', `${shown} is set by the gateway itself`);
    } else if (checked.has(name)) {
      section.problem('headers', `${shown} is there twice; case makes no difference`);
    } else if (!/^[\t\x20-\x7e]*$/.test(value)) {
      section.problem('headers', `the value of ${shown} must be visible ASCII, spaces and tabs`);
    } else if (value.length > MAX_KEY_CHARACTERS) {
      const limit = `${MAX_KEY_CHARACTERS} characters`;
      section.problem('headers', `the value of ${shown} is longer than ${limit}`);
    }
    checked.set(name, new Secret(value, { isKey: false }));
  }
  return Object.fromEntries(checked);
}
