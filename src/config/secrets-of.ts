/** What must not be printed. */

import type { Secret } from '../lib/secrets.ts';
import type { Config } from './config.ts';

/**
 * Returns all keys of the settings, and all that may hold one. A provider's id in place of a key is none, but a
 * placeholder for a local server: to hide it would hide the name in the log.
 */
export function secretsOf({ server, admin, clients, providers, rateLimit }: Config): Secret[] {
  const { registered } = providers;
  const ids = new Set(registered.map(({ id }) => id.toLowerCase()));
  const providerKeys = registered.flatMap(({ apiKeys }) => apiKeys);
  return [
    ...server.auth.keys,
    ...(admin?.keys ?? []),
    ...clients.flatMap(({ keys }) => keys),
    ...providerKeys.filter((key) => !ids.has(key.reveal().toLowerCase())),
    ...registered.flatMap(({ headers }) => Object.values(headers)),
    ...[rateLimit.store?.password, rateLimit.storeUrl].filter((secret) => secret !== undefined),
  ];
}
