/** Settings that are read again while the gateway runs: what has changed, and what cannot change without a restart. */

import { statSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';

import type { Logger } from '../lib/log.ts';
import { ConfigError, configOf, needsKey, type Config } from './config.ts';
import type { Settings, SettingsSource } from './read-settings.ts';
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

/**
 * Returns a function that calls `read` again. It throws what `read` throws, and `ConfigError` if the file of `source`
 * was found before and no longer exists, is empty now, or is not a regular file. An empty file means the default of
 * every setting: a pipe is empty the second time, and editors empty a file before they write it.
 */
export function createRereader(source: SettingsSource, read: () => Settings): () => Config {
  let former = source;
  return () => {
    const { path } = former;
    if (former.isFound && path !== undefined && isNoFile(path)) {
      throw new ConfigError([`${path}: is not a regular file, and cannot be read again`]);
    }
    const next = read();
    if (former.isFound && !next.source.isFound) {
      throw new ConfigError([`${path}: does not exist any more`]);
    }
    if (former.isFound && !former.isEmpty && next.source.isEmpty) {
      throw new ConfigError([`${path}: is empty now`]);
    }
    former = next.source;
    return next.config;
  };
}

/** Returns false if that cannot be found out: `read` then says why. */
function isNoFile(path: string): boolean {
  try {
    return !statSync(path).isFile();
  } catch {
    return false;
  }
}

/** Logs a reload that has taken effect. `warnings` are those that the settings before did not have. */
export function logChanges(logger: Logger, changes: Changes, warnings: readonly string[]): void {
  const { changed, needRestart } = changes;
  logger.log('info', 'reloaded', changed.length > 0 ? { changed } : {});
  if (needRestart.length > 0) {
    logger.log('warn', 'restart needed', { settings: needRestart });
  }
  for (const cause of warnings) logger.log('warn', 'settings warning', { cause });
}

/** Logs why a reload has no effect: a line for each problem, as `--check` prints it. */
export function logFailure(logger: Logger, failure: unknown): void {
  const problems =
    failure instanceof ConfigError ? failure.problems : [(failure as Error).stack ?? ''];
  for (const cause of problems) logger.log('error', 'reload failed', { cause });
}
