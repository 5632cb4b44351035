/** Authentication of clients (`Authorization: Bearer <token>`), and which models they may name. */

// Whole: on an old Node an import by name fails before any code can say which one is needed.
import crypto, { timingSafeEqual } from 'node:crypto';

import type { Tenant, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Secret } from '../lib/secret.ts';

/**
 * RFC 9110 11.4: the scheme in any case, then spaces. The rest is the token, with spaces in it too:
 * clients send placeholders like "My API Key", and without configured keys any token is accepted.
 */
const BEARER = /^bearer +([^ ].*)$/i;

/**
 * Returns a function that checks the sole `Authorization` header of one request, unless `auth` is
 * disabled. It returns the tenant whose key was sent; undefined for a token without a tenant, as
 * all keys of `auth` are. It throws `authentication` unless the scheme is Bearer and, if keys are
 * configured, the token is one of them. The error does not say which condition failed.
 */
export function createAuthenticator(auth: Config['server']['auth'], clients: readonly Tenant[]) {
  const digests = (keys: readonly Secret[], tenant?: Tenant) =>
    keys.map((key) => ({ digest: sha256(key.reveal()), tenant }));
  const known = [...digests(auth.keys), ...clients.flatMap((one) => digests(one.keys, one))];
  return (authorization: string | undefined): Tenant | undefined => {
    if (!auth.enabled) return undefined;
    const token = BEARER.exec(authorization ?? '')?.[1];
    if (token !== undefined && known.length === 0) return undefined;
    const digest = token === undefined ? undefined : sha256(token);
    // Constant-time: digests have the same length, and all are compared even if one has matched.
    const [key] = known.filter((one) => digest && timingSafeEqual(one.digest, digest));
    if (key) return key.tenant;
    const check = token === undefined ? 'no_token' : 'unknown_token';
    throw new GatewayError('authentication', 'Invalid authentication', { check });
  };
}

function sha256(text: string): Buffer {
  return crypto.hash('sha256', text, 'buffer');
}

/**
 * Returns true if the tenant's `models` has this name: in full, or up to a `*` at the end. Tenants
 * without `models`, and requests without a tenant, may name every model. Case and spaces count, as
 * they do for providers.
 */
export function mayName(tenant: Pick<Tenant, 'models'> | undefined, name: string): boolean {
  if (!tenant?.models) return true;
  return tenant.models.some((pattern) =>
    pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern,
  );
}
