/** Authentication of clients: `Authorization: Bearer <token>`. */

import { hash, timingSafeEqual } from 'node:crypto';

import type { Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';

/**
 * RFC 9110 11.4: the scheme in any case, then spaces. The rest is the token, with spaces in it too: clients
 * send placeholders like "My API Key", and without configured keys any token is accepted.
 */
const BEARER = /^bearer +([^ ].*)$/i;

/**
 * Returns a function that checks the `Authorization` header values of one request. It throws
 * `authentication` unless there is exactly one value, its scheme is Bearer and, if keys are configured,
 * its token is one of them. The error does not say which condition failed.
 */
export function createAuthenticator(
  auth: Config['server']['auth'],
): (authorization: readonly string[]) => void {
  const digests = auth.keys.map((key) => digestOf(key.reveal()));

  return (authorization) => {
    if (!auth.enabled) return;
    // Of two headers Node reports the first, but a proxy in front may have checked the last.
    const token = authorization.length === 1 ? BEARER.exec(authorization[0]!)?.[1] : undefined;
    if (token !== undefined && (digests.length === 0 || isOneOf(token, digests))) return;
    throw new GatewayError('authentication', 'Invalid authentication');
  };
}

/** Constant-time: digests have the same length, and all are compared whether or not one has matched. */
function isOneOf(token: string, digests: readonly Buffer[]): boolean {
  const digest = digestOf(token);
  return digests.reduce((found, candidate) => timingSafeEqual(candidate, digest) || found, false);
}

function digestOf(text: string): Buffer {
  return hash('sha256', text, 'buffer');
}
