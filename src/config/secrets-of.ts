/** What must not be printed. */

import type { Secret } from '../lib/secrets.ts';
import type { Config } from './config.ts';

/** Returns all keys of the settings, and all that may hold one. */
export function secretsOf({ server, admin, clients, providers }: Config): Secret[] {
  return [
    ...server.auth.keys,
    ...(admin?.keys ?? []),
    ...clients.flatMap(({ keys }) => keys),
    ...providers.registered.flatMap(({ apiKeys, headers }) => [
      ...apiKeys,
      ...Object.values(headers),
    ]),
  ];
}
