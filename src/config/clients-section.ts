/** `[clients.<name>]`: callers with a name, keys, models and limits of their own. */

import { Secret } from '../lib/secrets.ts';
import { checkCallerKey } from './api-keys.ts';
import type { SectionReader } from './section-reader.ts';
import { SETTINGS } from './settings-table.ts';

export interface BucketSettings {
  /** 0 is unlimited. */
  readonly requestsPerSecond: number;
  readonly burstCapacity: number;
}

export interface ClientSettings {
  readonly name: string;
  /** One at least. */
  readonly keys: readonly Secret[];
  /** The aliases and models that it may name, each perhaps with a `*` at the end. Absent: all. */
  readonly models: readonly string[] | undefined;
  readonly limit: BucketSettings;
  /** 0 is unlimited. */
  readonly maxConcurrentRequests: number;
}

/**
 * Reads all clients. `isAuthEnabled` is that of `[server.auth]`; `takenKeys` has the text of its keys, and gets those
 * of the clients: a key tells who calls.
 */
export function readClients(
  section: SectionReader,
  isAuthEnabled: boolean,
  takenKeys: Set<string>,
): ClientSettings[] {
  const clients = section.remainingKeys().map((name) => {
    if (!/^[A-Za-z0-9._@-]{1,64}$/.test(name)) {
      section.problem(
        name,
        'the name of a client is 1 to 64 letters, digits, ".", "_", "@" or "-"',
      );
    }
    return readClient(name, section.section(name), takenKeys);
  });
  if (clients.length > 0 && !isAuthEnabled) {
    section.problem('', 'clients have no effect while server.auth.enabled is false');
  }
  return clients;
}

function readClient(name: string, section: SectionReader, takenKeys: Set<string>): ClientSettings {
  const values = section.values(SETTINGS['clients.<name>']);
  const { key, keys = [], models } = values;
  const all = [...(key === undefined ? [] : [key]), ...keys];
  if (all.length === 0) section.problem('key', 'key or keys is required');
  for (const text of new Set(all)) {
    const setting = text === key ? 'key' : 'keys';
    checkCallerKey(text, { section, setting });
    if (takenKeys.has(text)) section.problem(setting, 'another client or [server.auth] has it too');
    takenKeys.add(text);
  }
  for (const model of models ?? []) {
    if (!/^[^*]+\*?$|^\*$/.test(model)) {
      const shown = section.asWritten(model);
      section.problem('models', `"${shown}": expected a name, in which "*" may only be the end`);
    }
  }
  return {
    name,
    keys: all.map((text) => new Secret(text)),
    models,
    limit: toBucket(values),
    maxConcurrentRequests: values.max_concurrent_requests,
  };
}

/** The settings of a bucket under the names of the code. */
export function toBucket(values: {
  readonly requests_per_second: number;
  readonly burst_capacity: number;
}): BucketSettings {
  return { requestsPerSecond: values.requests_per_second, burstCapacity: values.burst_capacity };
}
