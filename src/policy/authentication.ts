/** Layer 1 of the interface's Authentication: client to gateway. */

import { hash, timingSafeEqual } from 'node:crypto';

import type { Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';

/** RFC 9110 11.4: the scheme in any case, spaces, one token. */
const BEARER = /^bearer +([\x21-\x7e]+)$/i;

/**
 * Returns the check of one request's `Authorization` header values.
 * It throws `authentication` unless there is exactly one, it is Bearer and, where keys are
 * configured, its token is one of them. The answer does not say which of these it was.
 */
export function createAuthenticator(
  auth: Config['server']['auth'],
): (authorization: readonly string[]) => void {
  const digests = auth.keys.map((key) => digestOf(key.reveal()));

  return (authorization) => {
    if (!auth.enabled) return;
    // Node hands out the first of two; a proxy in front may have looked at the last.
    const token = authorization.length === 1 ? BEARER.exec(authorization[0]!)?.[1] : undefined;
    if (token !== undefined && (digests.length === 0 || isOneOf(token, digests))) return;
    throw new GatewayError('authentication', 'Invalid authentication');
  };
}

/** Takes the same time whichever key matches, or none: digests have one length, and all are compared. */
function isOneOf(token: string, digests: readonly Buffer[]): boolean {
  const digest = digestOf(token);
  return digests.reduce((found, candidate) => timingSafeEqual(candidate, digest) || found, false);
}

function digestOf(text: string): Buffer {
  return hash('sha256', text, 'buffer');
}
