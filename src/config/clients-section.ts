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

interface Auth {
  readonly enabled: boolean;
  readonly keys: readonly Secret[];
}

/** Reads all clients. `auth` is that of `[server.auth]`. */
export function readClients(section: SectionReader, auth: Auth): ClientSettings[] {
  const seen = new Set(auth.keys.map((key) => key.reveal()));
  const clients = section.remainingSections().map((name) => {
    const own = section.section(name);
    if (!/^[A-Za-z0-9._@-]{1,64}$/.test(name)) {
      section.problem(
        name,
        'the name of a client is 1 to 64 letters, digits, ".", "_", "@" or "-"',
      );
    }
    return readClient(name, own, seen);
  });
  if (clients.length > 0 && !auth.enabled) {
    section.problem('', 'clients have no effect while server.auth.enabled is false');
  }
  return clients;
}

function readClient(name: string, section: SectionReader, seen: Set<string>): ClientSettings {
  const key = section.string('key');
  const keys = [...(key === undefined ? [] : [key]), ...(section.strings('keys') ?? [])];
  if (keys.length === 0) section.problem('key', 'key or keys is required');
  for (const text of keys) {
    checkKey(text, { section, setting: 'key' });
    if (seen.has(text)) section.problem('key', 'the same key is configured twice');
    seen.add(text);
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
