/** Finds and reads the settings, at the start and for each reload. */

import { totalmem } from 'node:os';
import { dirname, resolve } from 'node:path';

import { ConfigError, loadConfig, type Config, type Env, type Flags } from './config.ts';
import { readSettingsFile } from './settings-file.ts';

export interface SettingsSource {
  /** The place in words, for the operator. */
  readonly text: string;
  /** The settings file's absolute path, even if it does not exist. */
  readonly path?: string;
  readonly isFound: boolean;
}

export interface Settings {
  readonly config: Config;
  readonly source: SettingsSource;
}

interface Reading {
  /**
   * The demo's settings as text, read instead of the operator's file. Then only `GATEWAY_*`
   * environment variables apply.
   */
  readonly demo?: string | undefined;
  /** True if the file was found before, so this is a reload. */
  readonly wasFound?: boolean;
  /** Called with the path of each file, just before it is read. */
  readonly onFile?: (path: string) => void;
}

/**
 * Reads and checks all settings. Throws `ConfigError` with every problem, or with the reason for an
 * unreadable file.
 */
export function readSettings(
  commandLine: Flags & { readonly config?: string | undefined },
  env: Env,
  { demo, wasFound = false, onFile }: Reading = {},
): Settings {
  // Node reports the cgroup's limit, or a huge number or 0 if there is none.
  const memoryBytes = Math.min(process.constrainedMemory() || Infinity, totalmem());
  const shared = { flags: commandLine, memoryBytes, onFile, env };
  if (demo !== undefined) {
    const gatewayVariables = Object.entries(env).filter(([name]) => name.startsWith('GATEWAY_'));
    const text = '--demo, no file; GATEWAY_* variables apply';
    const config = loadConfig({ ...shared, toml: demo, env: Object.fromEntries(gatewayVariables) });
    return { config, source: { text, isFound: false } };
  }
  const named = commandLine.config ?? (env['GATEWAY_CONFIG'] || undefined);
  const inVariable = env['GATEWAY_CONFIG_TOML'];
  if (named === undefined && inVariable) {
    const text = 'GATEWAY_CONFIG_TOML';
    const config = loadConfig({ ...shared, toml: inVariable, path: text });
    return { config, source: { text, isFound: true } };
  }
  const path = resolve(named ?? 'gateway.toml');
  onFile?.(path);
  const toml = readSettingsFile(path, named === undefined, wasFound);
  // An empty file means all defaults, but editors empty a file before they write it.
  if (wasFound && !toml?.trim()) {
    const why = toml === undefined ? 'no longer exists' : 'is empty now';
    throw new ConfigError([`${path}: ${why}`]);
  }
  const config = loadConfig({ ...shared, toml: toml ?? '', path, directory: dirname(path) });
  const isFound = toml !== undefined;
  const text = isFound ? path : `no ${path}; defaults and environment`;
  return { config, source: { text, path, isFound } };
}
