/**
 * Finds the settings that a command line and an environment name: at start, and again for a reload.
 */

import { totalmem } from 'node:os';
import { dirname, resolve } from 'node:path';

import { ConfigError, loadConfig, type Config, type Env, type Flags } from './config.ts';
import { readSettingsFile } from './settings-file.ts';

export interface SettingsSource {
  /** For the operator. */
  readonly text: string;
  /** The file that was looked for, absolute. */
  readonly path?: string;
  readonly isFound: boolean;
}

export interface Settings {
  readonly config: Config;
  readonly source: SettingsSource;
}

interface Reading {
  /**
   * Is read in the place of the operator's file; of the environment only `GATEWAY_*` applies then.
   */
  readonly demo?: string | undefined;
  /** The file was read before: this is a reload. */
  readonly wasFound?: boolean;
}

/**
 * Reads and checks all settings. Throws `ConfigError` with every problem, or with what is wrong
 * with the file.
 */
export function readSettings(
  commandLine: Flags & { readonly config?: string | undefined },
  env: Env,
  { demo, wasFound = false }: Reading = {},
): Settings {
  // The cgroup's limit if there is one; Node reports a huge number or 0 if there is none.
  const memoryBytes = Math.min(process.constrainedMemory() || Infinity, totalmem());
  const shared = { flags: commandLine, memoryBytes };
  if (demo !== undefined) {
    const gatewayVariables = Object.entries(env).filter(([name]) => name.startsWith('GATEWAY_'));
    const config = loadConfig({ ...shared, toml: demo, env: Object.fromEntries(gatewayVariables) });
    return {
      config,
      source: { text: '--demo, no file; GATEWAY_* variables apply', isFound: false },
    };
  }
  const named = commandLine.config ?? (env['GATEWAY_CONFIG'] || undefined);
  const inVariable = env['GATEWAY_CONFIG_TOML'];
  if (named === undefined && inVariable) {
    const text = 'GATEWAY_CONFIG_TOML';
    const config = loadConfig({ ...shared, toml: inVariable, path: text, env });
    return { config, source: { text, isFound: true } };
  }
  const path = resolve(named ?? 'gateway.toml');
  const toml = readSettingsFile(path, named === undefined, wasFound);
  // Editors empty a file before they write it, and an empty one means the default of every setting.
  if (wasFound && !toml?.trim()) {
    const why = toml === undefined ? 'no longer exists' : 'is empty now';
    throw new ConfigError([`${path}: ${why}`]);
  }
  const config = loadConfig({ ...shared, toml: toml ?? '', path, directory: dirname(path), env });
  const isFound = toml !== undefined;
  const text = isFound ? path : `no ${path}; defaults and environment`;
  return { config, source: { text, path, isFound } };
}
