/** Requests from pages in browsers: CORS (WHATWG Fetch, 3.3), and pages that must not use a gateway without keys. */

import type { Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { invalidRequest } from '../lib/errors.ts';
import { isLoopback, isOwnHost } from '../lib/loopback.ts';
import type { Answer } from '../lib/attempt.ts';

/** Returns true for a preflight, which carries no Authorization. */
export function isPreflight(call: Call): boolean {
  return call.method === 'OPTIONS' && call.headers['access-control-request-method'] !== undefined;
}

/** Allows what the preflight asks for. */
export function answerPreflight(call: Call): Answer {
  const requested = call.headers['access-control-request-headers'];
  return {
    status: 204,
    headers: {
      'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
      // `*` does not cover Authorization.
      ...(typeof requested === 'string' ? { 'access-control-allow-headers': requested } : {}),
      'access-control-max-age': '86400',
      vary: 'access-control-request-headers',
    },
    body: '',
  };
}

/** Lets pages of any origin read an answer, errors included. Credentials (cookies) are not allowed. */
export function addCorsHeaders<A extends Answer>(answer: A): A {
  const { status, headers } = answer;
  const names = ['x-request-id', ...Object.keys(headers)];
  headers['access-control-allow-origin'] = '*';
  if (status !== 204) headers['access-control-expose-headers'] = names.join(', ');
  return answer;
}

const WEB_ORIGIN = /^https?:/i;
const WEB_ORIGIN_HOST = /^https?:\/\/(.*?)(?::\d+)?$/i;

/**
 * Returns a function that throws `invalidRequest` for a page of another host: without keys, by DNS rebinding, such a page
 * is same-origin, and would spend the operator's provider keys. Editors (`vscode-webview:`), extensions and opaque
 * origins (`null`) pass: no name can be rebound to become one of them. A GET of a same-origin page has no `Origin`; its
 * `Host` tells, if no proxy sets it and the gateway is not known by other names.
 */
export function createOriginCheck({
  host,
  trustedProxies,
}: Config['server']): (call: Call) => void {
  const isLocal = isLoopback(host) && trustedProxies.length === 0;
  return ({ headers }) => {
    const { origin = '' } = headers;
    const originHost = WEB_ORIGIN_HOST.exec(origin)?.[1] ?? '';
    if (WEB_ORIGIN.test(origin) && !isLoopback(originHost)) {
      throw invalidRequest(
        'Origin must be a page on this machine, unless [server.auth] keys or [server] cors is set',
      );
    }
    if (isLocal && !isOwnHost(headers.host, host)) {
      throw invalidRequest(
        'Host must be an address, localhost or [server] host, unless [server.auth] keys is set',
      );
    }
  };
}
