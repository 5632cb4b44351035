/** Who may use the admin listener. */

import { isIP } from 'node:net';

import type { AdminSettings } from '../config/admin-section.ts';
import type { Call } from '../downstream/call.ts';
import { invalidRequest } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { createAuthenticator } from '../policy/authentication.ts';

/** A client that guesses keys must not fill the log. */
const FAILURES_LOGGED_EVERY_MS = 60_000;
const BASIC = /^basic +([\w+/-]+={0,2})$/i;

/**
 * Throws `invalidRequest` unless `Host` is an address, `localhost` or the configured host: by DNS rebinding, the page
 * of another host would be same-origin, and could read everything.
 */
export function checkHost(call: Call, { host }: AdminSettings): void {
  const { host: sent } = call.headers;
  // HTTP/1.0, which no browser speaks.
  if (sent === undefined) return;
  const name = sent.replace(/:\d*$/, '').toLowerCase();
  const isAddress = isIP(name) === 4 || (/^\[.*\]$/.test(name) && isIP(name.slice(1, -1)) === 6);
  if (isAddress || name === 'localhost' || name === host.toLowerCase()) return;
  throw invalidRequest('Host must be an address, localhost or the host of [admin]');
}

/**
 * Throws `invalidRequest` for a request that a page of another origin makes: it could not read the answer, but take all
 * feeds. Links are followed, but not into a frame. Older browsers send no `sec-fetch-` headers, but `Origin`, and none
 * with a GET to the page's own server.
 */
export function checkOrigin({ headers }: Call): void {
  const { host, origin, 'sec-fetch-site': site, 'sec-fetch-dest': destination } = headers;
  const isOwn = origin === undefined || origin.replace(/^https?:\/\//, '') === host;
  const isAllowed = site === 'same-origin' || site === 'none' || destination === 'document';
  if (site === undefined ? isOwn : isAllowed) return;
  throw invalidRequest('The request comes from a page of another origin');
}

/**
 * Returns a function that throws `authentication` for a request without one of the keys, if there are any. Wrong keys
 * are logged, once in a minute at most.
 */
export function createKeyCheck(
  keys: AdminSettings['keys'],
  logger: Logger,
  remoteAddressOf: (call: Call) => string | undefined,
): (call: Call) => void {
  const authenticate = createAuthenticator({
    auth: { enabled: keys.length > 0, keys },
    clients: [],
  });
  let failures = 0;
  let loggedAtMs = -Infinity;
  return (call) => {
    const values = call.headerValues('authorization');
    try {
      authenticate(values.map(toBearer));
    } catch (error) {
      // Browsers send nothing before they are asked for it.
      if (values.length > 0) failures += 1;
      if (failures > 0 && performance.now() - loggedAtMs >= FAILURES_LOGGED_EVERY_MS) {
        logger.log('warn', 'wrong admin key', { failures, remote: remoteAddressOf(call) });
        loggedAtMs = performance.now();
        failures = 0;
      }
      throw error;
    }
  };
}

/** Browsers ask for a name and a password (RFC 7617): any name, and the key as the password. */
function toBearer(authorization: string): string {
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return authorization;
  const [, password = ''] = /^[^:]*:(.*)$/s.exec(Buffer.from(encoded, 'base64').toString()) ?? [];
  return `Bearer ${password}`;
}
