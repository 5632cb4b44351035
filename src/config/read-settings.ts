/** Finds the settings that a command line and an environment name: at start, and again for a reload. */

import { totalmem } from 'node:os';
import { dirname, resolve } from 'node:path';

import { ConfigError, loadConfig, type Config, type Env, type Flags } from './config.ts';
import { readSettingsFile } from './settings-file.ts';

const DEFAULT_CONFIG_PATH = 'gateway.toml';

/** The source of the settings. */
export interface SettingsSource {
  readonly text: string;
  /** The file that was looked for, absolute. */
  readonly path?: string;
  readonly isFound: boolean;
  /** There is no text in it. */
  readonly isEmpty: boolean;
}

export interface Settings {
  readonly config: Config;
  readonly source: SettingsSource;
}

/**
 * Reads and checks all settings, anew with each call. `demo` is the text of a settings file that is used instead of
 * the operator's; of the environment only `GATEWAY_*` applies then, so that "demo" is the only provider.
 * Throws `ConfigError` with every problem.
 */
export function readSettings(
  commandLine: Flags & { readonly config?: string | undefined },
  env: Env,
  demo?: string,
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
  const path = resolve(named ?? DEFAULT_CONFIG_PATH);
  const toml = readSettingsFile(path, named === undefined);
  const config = loadConfig({ ...shared, toml: toml ?? '', path, directory: dirname(path), env });
  const isFound = toml !== undefined;
  const text = isFound ? path : `no ${path}; defaults and environment`;
  return { config, source: { text, path, isFound, isEmpty: toml?.trim() === '' } };
}

/** The cgroup's limit if there is one; Node reports a huge number or 0 if there is none. */
function usableMemoryBytes(): number {
  const constrained = process.constrainedMemory();
  return constrained > 0 ? Math.min(constrained, totalmem()) : totalmem();
}
