/** Lets pages from other origins read answers, with `[server] cors` (WHATWG Fetch, 3.3). */

import type { Call } from '../downstream/call.ts';
import type { ResponseHeaders } from '../downstream/client-reply.ts';

/** Adds the headers to an answer, errors included. Cookies are not allowed. */
export function addCorsHeaders(status: number, headers: ResponseHeaders): void {
  const names = ['x-request-id', ...Object.keys(headers)];
  headers['access-control-allow-origin'] = '*';
  if (status !== 204) headers['access-control-expose-headers'] = names.join(', ');
}

export function isPreflight(headers: Call['headers']): boolean {
  return headers['access-control-request-method'] !== undefined;
}

/** Returns the headers that allow the announced request. */
export function preflightHeaders(headers: Call['headers']): ResponseHeaders {
  const requested = headers['access-control-request-headers'];
  return {
    'access-control-allow-methods': 'GET, HEAD, POST, OPTIONS',
    // `*` does not cover Authorization.
    ...(typeof requested === 'string' ? { 'access-control-allow-headers': requested } : {}),
    'access-control-max-age': '86400',
    vary: 'access-control-request-headers',
  };
}
