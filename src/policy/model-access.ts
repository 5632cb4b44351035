/** Which models a client may name. */

import type { ClientSettings } from '../config/config.ts';

/**
 * Whether the client's `models` has this name: in full, or up to a `*` at the end. Everybody else may name every
 * model: clients without `models`, and requests without a client. Case and spaces count, as they do for providers.
 */
export function mayName(client: Pick<ClientSettings, 'models'> | undefined, name: string): boolean {
  if (!client?.models) return true;
  return client.models.some((pattern) =>
    pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern,
  );
}
