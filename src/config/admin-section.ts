/** `[admin]`: the operator's listener. */

import { Secret } from '../lib/secrets.ts';
import { isLoopback } from '../lib/loopback.ts';
import { checkKey } from './api-keys.ts';
import type { SectionReader } from './section-reader.ts';

export interface AdminSettings {
  readonly port: number;
  readonly host: string;
  /** Without keys everybody who can connect is served; only on loopback. */
  readonly keys: readonly Secret[];
}

/** Reads the section. Returns undefined if it has no `port`: nothing listens then. */
export function readAdmin(section: SectionReader): AdminSettings | undefined {
  const port = section.integer('port', { min: 0, max: 65_535 });
  const host = section.string('host', { default: '127.0.0.1', isRequired: true });
  const keys = section.strings('keys') ?? [];
  for (const key of keys) checkKey(key, { section, setting: 'keys' });
  if (port === undefined) return undefined;
  if (!isLoopback(host) && keys.length === 0) {
    section.problem(
      'keys',
      `required if host is "${host}": others could read the log of all requests`,
    );
  }
  return { port, host, keys: keys.map((key) => new Secret(key)) };
}
