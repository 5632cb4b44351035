/** Settings that are read again while the gateway runs: what has changed, and what cannot change without a restart. */

import { isDeepStrictEqual } from 'node:util';

import { ConfigError, configOf, needsKey, type Config } from './config.ts';
import { SettingValues } from './setting-values.ts';

export type Changes = ReturnType<typeof compareSettings>;

/**
 * Compares the settings in use with those that were read. Throws `ConfigError` if callers would no longer need a key,
 * unless the settings say so: a file that is cut off at the end of a line is valid, and may have lost its keys.
 */
export function compareSettings(running: Config, next: Config) {
  if (needsKey(running) && !needsKey(next) && next.server.auth.enabled) {
    const text =
      'no key is left, and everybody could call; if that is intended, set enabled = false';
    throw new ConfigError([`server.auth: ${text}, or restart`]);
  }
  const [former, latest] = [running.values.plain(), next.values.plain()];
  const isFixed = (name: string) =>
    (former.get(name) ?? latest.get(name))?.row.needsRestart === true;
  const different = [...new Set([...former.keys(), ...latest.keys()])].filter(
    (name) => !isDeepStrictEqual(former.get(name)?.value, latest.get(name)?.value),
  );
  // Listeners are started, the store is connected, and the transport is chosen and checked, once.
  const values = new SettingValues([
    ...[...former].filter(([name]) => isFixed(name)),
    ...[...latest].filter(([name]) => !isFixed(name)),
  ]);
  return {
    /** The settings that were read, but those that need a restart as they were. */
    config: { ...configOf(values, next.server.memoryBytes), warnings: next.warnings },
    /** The names of the settings that are in use now and differ, as they stand in the file. */
    changed: different.filter((name) => !isFixed(name)),
    /** The names of those that differ and have no effect before a restart. */
    needRestart: different.filter(isFixed),
  };
}
