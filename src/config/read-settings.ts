/** Finds the settings that a command line and an environment name: at start, and again for a reload. */

import { statSync } from 'node:fs';
import { totalmem } from 'node:os';
import { dirname, resolve } from 'node:path';

import { ConfigError, loadConfig, type Config, type Env, type Flags } from './config.ts';
import { readSettingsFile } from './settings-file.ts';

export interface SettingsSource {
  readonly text: string;
  /** The file that was looked for, absolute. */
  readonly path?: string;
  readonly isFound: boolean;
  readonly isEmpty: boolean;
}

export interface Settings {
  readonly config: Config;
  readonly source: SettingsSource;
}

interface Reading {
  /** The text of a settings file in the place of the operator's; of the environment only `GATEWAY_*` applies then. */
  readonly demo?: string | undefined;
  /** The source of the settings in use, for a reload. */
  readonly former?: SettingsSource | undefined;
}

/**
 * Reads and checks all settings. Throws `ConfigError` with every problem; also if a file that was found before no longer
 * exists, is empty now, or is not a regular file. An empty file means the default of every setting: a pipe is empty the
 * second time, and editors empty a file before they write it.
 */
export function readSettings(
  commandLine: Flags & { readonly config?: string | undefined },
  env: Env,
  { demo, former }: Reading = {},
): Settings {
  const shared = { flags: commandLine, memoryBytes: usableMemoryBytes() };
  if (demo !== undefined) {
    const own = Object.entries(env).filter(([name]) => name.startsWith('GATEWAY_'));
    const config = loadConfig({ ...shared, toml: demo, env: Object.fromEntries(own) });
    const text = '--demo, no file; GATEWAY_* variables apply';
    return { config, source: { text, isFound: false, isEmpty: false } };
  }
  const inVariable = env['GATEWAY_CONFIG_TOML'];
  if (inVariable && commandLine.config === undefined) {
    const name = 'GATEWAY_CONFIG_TOML';
    if (env['GATEWAY_CONFIG']) {
      throw new ConfigError([`${name}: GATEWAY_CONFIG is set too; unset one of them`]);
    }
    const config = loadConfig({ ...shared, toml: inVariable, path: name, env });
    return { config, source: { text: name, isFound: true, isEmpty: false } };
  }
  const named = commandLine.config ?? (env['GATEWAY_CONFIG'] || undefined);
  const path = resolve(named ?? 'gateway.toml');
  const refuse = (isRefused: boolean | undefined, why: string) => {
    if (former?.isFound && isRefused) throw new ConfigError([`${path}: ${why}`]);
  };
  refuse(former && isNoFile(path), 'is not a regular file, and cannot be read again');
  const toml = readSettingsFile(path, named === undefined);
  const isFound = toml !== undefined;
  const isEmpty = toml?.trim() === '';
  refuse(!isFound, 'does not exist any more');
  refuse(isEmpty && !former?.isEmpty, 'is empty now');
  const config = loadConfig({ ...shared, toml: toml ?? '', path, directory: dirname(path), env });
  const text = isFound ? path : `no ${path}; defaults and environment`;
  return { config, source: { text, path, isFound, isEmpty } };
}

/** Returns false if that cannot be found out: the reading then says why. */
function isNoFile(path: string): boolean {
  try {
    return !statSync(path).isFile();
  } catch {
    return false;
  }
}

/** The cgroup's limit if there is one; Node reports a huge number or 0 if there is none. */
function usableMemoryBytes(): number {
  return Math.min(process.constrainedMemory() || Infinity, totalmem());
}
