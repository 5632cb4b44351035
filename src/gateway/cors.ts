/** Cross-origin requests of browsers (WHATWG Fetch, 3.3), for `[server] cors`. */

import type { Call } from '../downstream/call.ts';
import type { Answer } from '../lib/messages.ts';

const MAX_AGE_SECONDS = 86_400;

/** Whether the browser asks what it may send. Preflights carry no Authorization. */
export function isPreflight(call: Call): boolean {
  return call.method === 'OPTIONS' && call.headers['access-control-request-method'] !== undefined;
}

/** The answer to a preflight. */
export function answerPreflight(call: Call): Answer {
  const requested = call.headers['access-control-request-headers'];
  return {
    status: 204,
    headers: {
      'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
      // `*` does not cover Authorization.
      ...(typeof requested === 'string' ? { 'access-control-allow-headers': requested } : {}),
      'access-control-max-age': String(MAX_AGE_SECONDS),
      vary: 'access-control-request-headers',
    },
    body: '',
  };
}

/** Lets pages of any origin read an answer, errors included. Credentials (cookies) are not allowed. */
export function addCorsHeaders({ status, headers }: Answer): void {
  headers['access-control-allow-origin'] = '*';
  if (status === 204) return;
  headers['access-control-expose-headers'] = ['x-request-id', ...Object.keys(headers)].join(', ');
}
