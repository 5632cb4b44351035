/** Who may use the admin listener. */

import { isIP } from 'node:net';

import type { AdminSettings } from '../config/admin-section.ts';
import type { Call } from '../downstream/call.ts';
import { invalidRequest } from '../lib/errors.ts';
import { createAuthenticator } from '../policy/authentication.ts';

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

/** Returns a function that throws `authentication` for a request without one of the keys, if there are any. */
export function createKeyCheck({ keys }: AdminSettings): (call: Call) => void {
  const authenticate = createAuthenticator({ enabled: keys.length > 0, keys });
  return (call) => authenticate(call.headerValues('authorization').map(toBearer));
}

/** Browsers ask for a name and a password (RFC 7617): any name, and the key as the password. */
function toBearer(authorization: string): string {
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return authorization;
  const [, password = ''] = /^[^:]*:(.*)$/s.exec(Buffer.from(encoded, 'base64').toString()) ?? [];
  return `Bearer ${password}`;
}
