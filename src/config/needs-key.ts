/** Whether requests need a key. */

import type { Config } from './config.ts';

/** Whether only requests with a configured key are served: one of `[server.auth]`, or one of a client. */
export function needsKey({ server, clients }: Pick<Config, 'server' | 'clients'>): boolean {
  return server.auth.enabled && (server.auth.keys.length > 0 || clients.length > 0);
}
