/**
 * The text of gateway.toml, the environment and the command line become one `Config`, or a
 * `ConfigError` that lists all problems. Other folders import the types of settings from here.
 */

import { isIP } from 'node:net';
// Whole: on an old Node an import by name fails before any code can say which one is needed.
import os from 'node:os';

import { isNodeSince } from '../lib/version.ts';
import { checkCallerKeys, readAdmin, readClients, toSecrets } from './callers-section.ts';
import { readProviders } from './providers-section.ts';
import { readRateLimit } from './rate-limit-section.ts';
import { readValues, type ValueSources } from './read-values.ts';
import type { TARGETS } from './setting-kinds.ts';
import { MAX_WORKERS } from './settings-table.ts';
import { ConfigError, SettingValues } from './setting-values.ts';

export type { AdminSettings, BucketSettings, ClientSettings } from './callers-section.ts';
export type { ProviderSettings } from './providers-section.ts';
export type { StoreSettings } from './rate-limit-section.ts';
export type { Env, Flags } from './read-values.ts';
export { ConfigError } from './setting-values.ts';

export type Config = Readonly<ReturnType<typeof configOf>>;

/** Returns true if only requests with a configured key are served: one of `[server.auth]`, or one of a client. */
export function needsKey({ server, clients }: Pick<Config, 'server' | 'clients'>): boolean {
  return server.auth.enabled && (server.auth.keys.length > 0 || clients.length > 0);
}

/** It decides the number of workers. */
export interface Machine {
  /** The number of workers for `auto`. */
  readonly processors: number;
  /** Node's version, such as `22.12.0`. */
  readonly version: string;
  readonly platform: string;
}

/** Reads and checks all settings. Throws `ConfigError` with every problem, each with where it was found. */
export function loadConfig(
  sources: ValueSources & { readonly machine?: Partial<Machine> },
): Config {
  const values = readValues(sources);
  resolveWorkers(values, sources.machine);
  return configOf(values, sources.memoryBytes ?? Infinity);
}

/** Checks the values together, and makes the settings of them. Throws `ConfigError` with every problem. */
export function configOf(values: SettingValues, memoryBytes: number) {
  checkCallerKeys(values);
  const { workers, firstTokenTimeoutMs = Infinity, ...server } = values.section('server');
  const trustedProxies = server.trustedProxies ?? [];
  checkProxies(trustedProxies, values);
  if (server.maxBodyBytes > server.maxBufferedBytes) {
    const text = `requests of more than max_buffered_bytes, ${server.maxBufferedBytes}, are refused all the same`;
    values.warning('server.max_body_bytes', text);
  }
  const { enabled, keys } = values.section('server.auth');
  const auth = { enabled, keys: toSecrets(keys) };
  const admin = readAdmin(values);
  const providers = readProviders(values);
  const registered = providers.registered.map(({ id }) => id);
  const known = [...registered, ...providers.skipped.map(({ id }) => id)];
  const aliases = readAliases(values, registered);
  const clients = readClients(values, [...aliases.keys()], registered);
  const rateLimit = readRateLimit(values, known);
  if (values.problems.length > 0) throw new ConfigError(values.problems);
  const password = rateLimit.store?.password;
  return {
    /** Its `memoryBytes` are those that the process may take: the machine's, or its cgroup's. */
    server: { ...server, workers, firstTokenTimeoutMs, memoryBytes, trustedProxies, auth },
    /** Callers with a name of their own. */
    clients,
    /** Undefined: there is no such listener. */
    admin,
    logging: values.section('logging'),
    providers,
    aliases,
    rateLimit,
    /** For the operator, at startup. Without any value of a variable or a key. */
    warnings: values.warnings as readonly string[],
    /** All settings by their names in the file, with `[secret]` for keys: what `--check` prints. */
    resolved: values.masked(),
    /** All texts that must not be printed; in the URL of the store, the password may be percent-encoded. */
    secrets: [...values.secrets(), ...(password ? [password] : [])],
    /** The source of all of this. */
    values,
  };
}

export type PackedConfig = ReturnType<typeof packConfig>;

/** Settings on their way to another thread: a message has no classes, and would lose the text of a `Secret`. */
export function packConfig({ server, values }: Config) {
  return { values: values.plain(), memoryBytes: server.memoryBytes };
}

export function unpackConfig({ values, memoryBytes }: PackedConfig): Config {
  return configOf(new SettingValues(values), memoryBytes);
}

/**
 * Replaces `auto` by the number that it stands for. If there can be only one worker, `auto` is one, with a warning, and a
 * greater number is a problem.
 */
function resolveWorkers(values: SettingValues, machine: Partial<Machine> = {}): void {
  const { platform = process.platform, version = process.versions.node } = machine;
  // Not when the module is loaded: Node 16 has no such function.
  const { processors = os.availableParallelism() } = machine;
  const name = 'server.workers';
  const setting = values.plain().get(name)!;
  const isAuto = setting.value === 'auto';
  const wanted = isAuto ? Math.min(processors, MAX_WORKERS) : Number(setting.value);
  const obstacle = wanted > 1 ? whyOnlyOneWorker(version, platform) : undefined;
  if (obstacle && isAuto) values.warning(name, `one worker: more need ${obstacle}`);
  else if (obstacle) values.problem(name, `${wanted} workers need ${obstacle}`);
  values.set(name, { ...setting, value: obstacle ? 1 : wanted });
}

/** Returns the obstacle to several workers, which share a port by `reusePort`, or undefined. */
export function whyOnlyOneWorker(version: string, platform: string): string | undefined {
  if (isNodeSince(version, { major: 22, minor: 12 }) && platform === 'linux') return undefined;
  return `Node 22.12 or newer on Linux; this is Node ${version} on ${platform}`;
}

/** Each must be an address, or a range as `<address>/<prefix length>`. */
function checkProxies(proxies: readonly string[], values: SettingValues): void {
  for (const proxy of proxies) {
    const [address = '', prefix = '0', ...rest] = proxy.split('/');
    const maxPrefix = isIP(address) === 6 ? 128 : 32;
    const isRange = /^\d{1,3}$/.test(prefix) && Number(prefix) <= maxPrefix && rest.length === 0;
    if (isIP(address) === 0 || !isRange) {
      const text = `"${values.asWritten(proxy)}" is neither an address nor a range like 10.0.0.0/8`;
      values.problem('server.trusted_proxies', text);
    }
  }
}

/**
 * Returns the targets of each alias, one at least, each `<provider_id>/<model_name>`. `isBalanced`, by `least_busy`: the
 * order in which they are asked depends on the requests in flight.
 */
function readAliases(values: SettingValues, registered: readonly string[]) {
  const aliases = new Map<string, { targets: readonly string[]; isBalanced: boolean }>();
  const hidden = values.hiddenKeys();
  for (const [name, { value }] of values.plain()) {
    if (!name.startsWith('aliases.')) continue;
    const alias = name.slice('aliases.'.length);
    // Names are printed.
    if (hidden.has(alias)) {
      values.problem('aliases', 'a configured key is the name of an alias; choose another name');
      continue;
    }
    const written = value as NonNullable<typeof TARGETS.default>;
    const isTable = typeof written === 'object' && 'targets' in written;
    const targets = isTable ? written.targets : [written].flat();
    if (targets.length === 0) values.problem(name, 'name one model at least');
    for (const target of targets) {
      const slash = target.indexOf('/');
      if (slash < 1 || slash === target.length - 1) {
        values.problem(name, 'expected "<provider_id>/<model_name>"');
      } else if (!registered.includes(target.slice(0, slash))) {
        const shown = values.asWritten(target, target.slice(0, slash));
        values.warning(name, `provider "${shown}" is not registered`);
      }
    }
    const isBalanced = isTable && written.balance === 'least_busy';
    aliases.set(alias, { targets, isBalanced });
  }
  return aliases;
}
