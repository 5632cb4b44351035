/** `[clients.<name>]`: callers with a name, keys, models and limits of their own. */

import { Secret } from '../lib/secrets.ts';
import { checkKey } from './api-keys.ts';
import { readBucket, type BucketSettings } from './bucket.ts';
import type { SectionReader } from './section-reader.ts';

export interface ClientSettings {
  readonly name: string;
  /** One at least. */
  readonly keys: readonly Secret[];
  /** The aliases and models that it may name, each perhaps with a `*` at the end. Absent: all. */
  readonly models: readonly string[] | undefined;
  readonly limit: BucketSettings;
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
  const clients = section.remainingSections().map((name) => {
    const own = section.section(name);
    if (!/^[A-Za-z0-9._@-]{1,64}$/.test(name)) {
      section.problem(
        name,
        'the name of a client is 1 to 64 letters, digits, ".", "_", "@" or "-"',
      );
    }
    return readClient(name, own, takenKeys);
  });
  if (clients.length > 0 && !isAuthEnabled) {
    section.problem('', 'clients have no effect while server.auth.enabled is false');
  }
  return clients;
}

function readClient(name: string, section: SectionReader, takenKeys: Set<string>): ClientSettings {
  const key = section.string('key');
  const keys = [...(key === undefined ? [] : [key]), ...(section.strings('keys') ?? [])];
  if (keys.length === 0) section.problem('key', 'key or keys is required');
  for (const text of new Set(keys)) {
    checkKey(text, { section, setting: 'key' });
    if (takenKeys.has(text)) section.problem('key', 'another client or [server.auth] has this key');
    takenKeys.add(text);
  }
  const models = section.strings('models');
  for (const model of models ?? []) {
    if (/^$|\*./.test(model)) section.problem('models', `"${model}": "*" may only be its end`);
  }
  return {
    name,
    keys: keys.map((text) => new Secret(text)),
    models,
    limit: readBucket(section),
  };
}
