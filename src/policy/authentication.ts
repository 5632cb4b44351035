/**
 * Authenticates clients (`Authorization: Bearer <token>`), and checks which models they may name.
 */

import { timingSafeEqual } from 'node:crypto';

import type { Tenant, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import { matches } from '../lib/pattern.ts';
import { Secret } from '../lib/secret.ts';
import { createRedactor, type Redactor } from '../lib/secrets.ts';
import { sha256 } from '../lib/sha256.ts';
import type { RequestHistory } from '../request/history.ts';

/**
 * RFC 9110 11.4. A token may contain spaces, because clients send placeholders like "My API Key",
 * and any token is accepted while no keys are configured.
 */
const BEARER = /^bearer +([^ ].*)$/i;

interface KnownKey {
  readonly digest: Buffer;
  readonly tenant: Tenant | undefined;
  /** Hides the key, whose text comes with its first request. */
  redact?: Redactor;
}

/**
 * Returns a function that authenticates a request by its sole `Authorization` header. The function
 * returns the key's tenant, and undefined for a key from `[server.auth]`. It throws
 * `authentication` with the same message for every reason. It notes in the `history` how to hide a
 * key whose text the settings lack. `names` are shown although a key may begin with them.
 */
export function createAuthenticator(
  auth: Config['server']['auth'],
  clients: readonly Tenant[],
  names: readonly string[] = [],
) {
  const known: KnownKey[] = [
    ...auth.keys.map((key) => ({ digest: sha256(key.reveal()), tenant: undefined })),
    ...clients.flatMap((tenant) =>
      tenant.keyDigests.map((digits) => ({ digest: Buffer.from(digits.reveal(), 'hex'), tenant })),
    ),
  ];
  return (
    authorization: string | undefined,
    history?: Pick<RequestHistory, 'redactKey'>,
  ): Tenant | undefined => {
    if (!auth.enabled) return undefined;
    const token = BEARER.exec(authorization ?? '')?.[1];
    if (token !== undefined && known.length === 0) return undefined;
    const digest = token === undefined ? undefined : sha256(token);
    // Takes constant time: all digests have the same length, and none is skipped after a match.
    const [match] = known.filter((key) => digest && timingSafeEqual(key.digest, digest));
    const { expiryTime, name: client } = match?.tenant ?? {};
    if (history && match?.tenant?.hasHashedKey) {
      match.redact ??= createRedactor([new Secret(token!)], [...names, client]);
      history.redactKey = match.redact;
    }
    const isExpired = expiryTime !== undefined && Date.now() >= expiryTime;
    if (match && !isExpired) return match.tenant;
    const other = token === undefined ? 'no_token' : 'unknown_token';
    const check = isExpired ? 'expired_token' : other;
    throw new GatewayError('authentication', 'Invalid authentication', { check, client });
  };
}

/**
 * Returns whether the tenant may name this model. A tenant without `models`, and a request without
 * a tenant, may name every model.
 */
export function mayName(tenant: Pick<Tenant, 'models'> | undefined, name: string): boolean {
  if (!tenant?.models) return true;
  return tenant.models.some((pattern) => matches(pattern, name));
}
