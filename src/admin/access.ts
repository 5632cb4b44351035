/** The checks of access to the admin listener. */

import type { AdminSettings, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { soleHeader } from '../downstream/request-head.ts';
import { createRemoteAddress } from '../downstream/trusted-proxies.ts';
import { invalidRequest } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { isOwnHost } from '../lib/loopback.ts';
import { createAuthenticator } from '../policy/authentication.ts';

/** A client that guesses keys must not fill the log. */
const FAILURES_LOGGED_EVERY_MS = 60_000;
const BASIC = /^basic +([\w+/-]+={0,2})$/i;

export const READY_PATH = '/ready';

/**
 * Returns a function that throws the error for a call that may not be served: `authentication` for
 * one without a key, if there are any. Wrong keys are logged, once in a minute at most.
 */
export function createAccessCheck(
  config: () => Config,
  { host, keys }: AdminSettings,
  logger: Logger,
): (call: Call) => void {
  const auth = { enabled: keys.length > 0, keys };
  const authenticate = createAuthenticator(auth, []);
  let failures = 0;
  let loggedAtMs = -Infinity;
  return (call) => {
    // A page of another host could read everything by DNS rebinding, but it has no key. Scrapers
    // use names of services.
    const isOwn = isOwnHost(call.headers.host, host);
    if (!isOwn && keys.length === 0) {
      throw invalidRequest('Host must be an address, localhost or the host of [admin]');
    }
    checkOrigin(call);
    // Probes cannot read secrets: as /health on the public port, it says nothing else.
    if (call.path === READY_PATH && isOwn) return;
    const sent = soleHeader(call, 'authorization');
    try {
      authenticate(sent && toBearer(sent));
    } catch (error) {
      // Browsers send nothing before they are asked for it.
      if (call.headers.authorization !== undefined) failures += 1;
      if (failures > 0 && performance.now() - loggedAtMs >= FAILURES_LOGGED_EVERY_MS) {
        const remote = createRemoteAddress(config().server.trustedProxies)(call);
        logger.log('warn', 'wrong admin key', { failures, remote });
        loggedAtMs = performance.now();
        failures = 0;
      }
      throw error;
    }
  };
}

/**
 * Throws `invalidRequest` for a request that a page of another origin makes: it could not read the
 * answer, but take all feeds. Links to the page are followed, but not into a frame, and not to
 * other paths. An address that the user types is no exception: speculation rules of another
 * origin's page ask with `Sec-Fetch-Site: none` too. Older browsers send no `sec-fetch-` headers,
 * but `Origin`, and none with a GET to the page's own server.
 */
function checkOrigin({ headers, path }: Call): void {
  const { host, origin, 'sec-fetch-site': site, 'sec-fetch-dest': destination } = headers;
  const isDocument = site !== undefined && destination === 'document';
  if (isDocument && path !== '/') {
    throw invalidRequest('browsers may open only the page at /, /metrics is for scrapers');
  }
  const isOwn = origin === undefined || origin.replace(/^https?:\/\//, '') === host;
  const isAllowed = isDocument || (site === undefined ? isOwn : site === 'same-origin');
  const isPrefetch = String(headers['sec-purpose']).includes('prefetch');
  if (isAllowed && !isPrefetch) return;
  throw invalidRequest('the request is a prefetch, or comes from a page of another origin');
}

/** Browsers ask for a name and a password (RFC 7617): any name, and the key as the password. */
function toBearer(authorization: string): string {
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return authorization;
  const [, password = ''] = /^[^:]*:(.*)$/s.exec(Buffer.from(encoded, 'base64').toString()) ?? [];
  return `Bearer ${password}`;
}
