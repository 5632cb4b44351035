/** `[admin]`: the operator's listener. */

import { Secret } from '../lib/secrets.ts';
import { isLoopback } from '../lib/loopback.ts';
import { checkCallerKey } from './api-keys.ts';
import type { SectionReader } from './section-reader.ts';
import { SETTINGS } from './settings-table.ts';

export interface AdminSettings {
  readonly port: number;
  readonly host: string;
  /** Without keys every client that can connect is served; only on loopback. */
  readonly keys: readonly Secret[];
}

/** Reads the section. Returns undefined if it has no `port`: nothing listens then. `publicPort` is that of `[server]`. */
export function readAdmin(section: SectionReader, publicPort: number): AdminSettings | undefined {
  const { port, host, keys = [] } = section.values(SETTINGS.admin);
  for (const key of keys) checkCallerKey(key, { section, setting: 'keys' });
  if (port === undefined) {
    if (keys.length > 0) section.warning('port', 'not set: there is no admin listener');
    section.dropFromResolved();
    return undefined;
  }
  if (port === publicPort && port !== 0) {
    section.problem('port', `${port} is the port of [server] too; choose another`);
  }
  if (!isLoopback(host) && keys.length === 0) {
    const who = `every client that can connect to ${section.asWritten(host)} could read what others ask for`;
    section.problem('keys', `at least one is required: ${who}; or set host = "127.0.0.1"`);
  }
  return { port, host, keys: keys.map((key) => new Secret(key)) };
}
