/** Access checks of the admin listener. */

import type { AdminSettings, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { soleHeader } from '../downstream/request-head.ts';
import { createRemoteAddress } from '../downstream/trusted-proxies.ts';
import { invalidRequest } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { isOwnHost } from '../lib/loopback.ts';
import { createAuthenticator } from '../policy/authentication.ts';

/** The least time between two lines about wrong keys, because a guesser must not fill the log. */
const FAILURES_LOGGED_EVERY_MS = 60_000;
const BASIC = /^basic +([\w+/-]+={0,2})$/i;

export const READY_PATH = '/ready';

/**
 * Returns a function that throws if a call may not be served: `authentication` if the admin
 * listener has keys and the call has none of them. Logs wrong keys once a minute at most.
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
    // By DNS rebinding a web page could read everything. With keys any host is allowed, because
    // scrapers use service names.
    const isOwn = isOwnHost(call.headers.host, host);
    if (!isOwn && keys.length === 0) {
      throw invalidRequest('Host must be an address, localhost or the host of [admin]');
    }
    checkOrigin(call);
    // Probes cannot read secrets, and readiness is no secret, as /health on the public port.
    if (call.path === READY_PATH && isOwn) return;
    const sent = soleHeader(call, 'authorization');
    try {
      authenticate(sent && toBearer(sent));
    } catch (error) {
      // A browser's first request has no key, because the answer asks for it.
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
 * Throws `invalidRequest` for requests by pages of other origins. Such a page cannot read answers,
 * but could take all feeds. Links to the page work, but not into a frame and not to other paths.
 * Typed addresses are no exception, because speculation rules of other pages send
 * `Sec-Fetch-Site: none` too. Older browsers have no `sec-fetch-` headers, but send `Origin` except
 * with a GET to their own server.
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

/** Converts Basic authentication (RFC 7617), whose password is the key. Any name is allowed. */
function toBearer(authorization: string): string {
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return authorization;
  const [, password = ''] = /^[^:]*:(.*)$/s.exec(Buffer.from(encoded, 'base64').toString()) ?? [];
  return `Bearer ${password}`;
}
