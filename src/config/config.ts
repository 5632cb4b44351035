/**
 * The text of gateway.toml, the environment and the command line become one `Config`, or a
 * `ConfigError` that lists all problems. Other folders import the types of settings from here.
 */

import type { LogLevel } from '../lib/log.ts';
import type { Secret } from '../lib/secrets.ts';
import {
  checkCallerKeys,
  readAdmin,
  readClients,
  type AdminSettings,
  type ClientSettings,
} from './callers-section.ts';
import { readProviders, type Providers } from './providers-section.ts';
import { readRateLimit, type RateLimitSettings } from './rate-limit-section.ts';
import { readValues, type Env, type Flags } from './read-values.ts';
import {
  readServer,
  resolveWorkers,
  THIS_MACHINE,
  type Machine,
  type ServerSettings,
} from './server-section.ts';
import { ConfigError, SettingValues, type SettingValue } from './setting-values.ts';
import { parseToml } from './settings-file.ts';

export type { AdminSettings, BucketSettings, ClientSettings } from './callers-section.ts';
export type { ProviderSettings } from './providers-section.ts';
export type { StoreSettings } from './rate-limit-section.ts';
export type { Env, Flags } from './read-values.ts';
export { ConfigError } from './setting-values.ts';

export interface Config {
  readonly server: ServerSettings;
  /** Callers with a name of their own. */
  readonly clients: readonly ClientSettings[];
  /** Absent: no such listener. */
  readonly admin: AdminSettings | undefined;
  readonly logging: {
    readonly level: LogLevel;
    readonly format: 'auto' | 'json' | 'text';
    readonly verbose: boolean;
    /** The log and the page have what providers say of their errors. */
    readonly providerMessages: boolean;
  };
  readonly providers: Providers;
  /** The targets of each alias, to be asked in order: one at least, each `<provider_id>/<model_name>`. */
  readonly aliases: ReadonlyMap<string, readonly string[]>;
  readonly rateLimit: RateLimitSettings;
  /** For the operator, at startup. Never contains a value of a variable or a key. */
  readonly warnings: readonly string[];
  /** All settings by their names in the file, with `[secret]` for keys: what `--check` prints. */
  readonly resolved: ReadonlyMap<string, unknown>;
  /** All keys, and all texts that may hold one: what must not be printed. */
  readonly secrets: readonly Secret[];
  /** What all of this was made of. */
  readonly values: SettingValues;
}

/** Whether only requests with a configured key are served: one of `[server.auth]`, or one of a client. */
export function needsKey({ server, clients }: Pick<Config, 'server' | 'clients'>): boolean {
  return server.auth.enabled && (server.auth.keys.length > 0 || clients.length > 0);
}

/** The default of `max_buffered_bytes` is a quarter of the memory, but not less. */
const MIN_BUFFERED_BYTES = 67_108_864;

interface ConfigSources {
  /** Text of gateway.toml; empty if there is no file. */
  readonly toml: string;
  /** The path of the file, or the variable that holds its text, for messages. */
  readonly path?: string;
  /** The paths of `${file:...}` are relative to it; else to the working directory. */
  readonly directory?: string;
  readonly env: Env;
  readonly flags?: Flags;
  /** The memory that the process may use, in bytes. */
  readonly memoryBytes?: number;
  readonly machine?: Machine;
}

/** Reads and checks all settings. Throws `ConfigError` with every problem, each with where it was found. */
export function loadConfig(sources: ConfigSources): Config {
  const { toml, path, directory = '', env, flags = {}, memoryBytes = Infinity } = sources;
  const { machine = THIS_MACHINE } = sources;
  const filePrefix = path === undefined ? '' : `${path}: `;
  const table = parseToml(toml, filePrefix);
  const quarter = memoryBytes === Infinity ? 0 : Math.floor(memoryBytes / 4);
  const maxBufferedBytes = Math.max(MIN_BUFFERED_BYTES, quarter);
  const values = readValues({ table, filePrefix, directory, env, flags, maxBufferedBytes });
  resolveWorkers(machine, values);
  return configOf(values, memoryBytes);
}

/** Checks the values together, and makes the settings of them. Throws `ConfigError` with every problem. */
export function configOf(values: SettingValues, memoryBytes: number): Config {
  checkCallerKeys(values);
  const server = readServer(values, memoryBytes);
  const clients = readClients(values);
  const admin = readAdmin(values);
  const { provider_messages: providerMessages, ...logged } = values.section('logging');
  const logging = { ...logged, providerMessages };
  const providers = readProviders(values);
  const known = [...providers.registered, ...providers.skipped].map(({ id }) => id);
  const ids = new Set(providers.registered.map(({ id }) => id));
  const aliases = readAliases(values, ids);
  const rateLimit = readRateLimit(values, known);
  const { problems, warnings } = values;
  const password = rateLimit.store?.password;
  if (problems.length > 0) throw new ConfigError(problems);
  return {
    server,
    clients,
    admin,
    logging,
    providers,
    aliases,
    rateLimit,
    warnings,
    values,
    resolved: values.masked(),
    // In the URL of the store, the password may be percent-encoded.
    secrets: [...values.secrets(), ...(password ? [password] : [])],
  };
}

/** Settings on their way to another thread: a message has no classes, and would lose the text of a `Secret`. */
export interface PackedConfig {
  readonly values: ReadonlyMap<string, SettingValue>;
  readonly memoryBytes: number;
}

export function packConfig({ server, values }: Config): PackedConfig {
  return { values: values.plain(), memoryBytes: server.memoryBytes };
}

export function unpackConfig({ values, memoryBytes }: PackedConfig): Config {
  return configOf(new SettingValues(values), memoryBytes);
}

function readAliases(values: SettingValues, registered: ReadonlySet<string>): Config['aliases'] {
  const aliases = new Map<string, readonly string[]>();
  for (const [name, { value }] of values.plain()) {
    if (!name.startsWith('aliases.')) continue;
    const targets = [value as string | string[]].flat();
    if (targets.length === 0) values.problem(name, 'name one model at least');
    for (const target of targets) {
      const slash = target.indexOf('/');
      if (slash < 1 || slash === target.length - 1) {
        values.problem(name, 'expected "<provider_id>/<model_name>"');
      } else if (!registered.has(target.slice(0, slash))) {
        const shown = values.asWritten(target, target.slice(0, slash));
        values.warning(name, `provider "${shown}" is not registered`);
      }
    }
    aliases.set(name.slice('aliases.'.length), targets);
  }
  return aliases;
}
