/**
 * The text of gateway.toml, the environment and the command line become one `Config`, or a
 * `ConfigError` that lists all problems. Other folders import the types of settings from here.
 */

import { isIP } from 'node:net';

import { isNodeSince } from '../lib/version.ts';
import { checkCallerKeys, readAdmin, readClients, toSecrets } from './callers-section.ts';
import { readProviders } from './providers-section.ts';
import { readRateLimit } from './rate-limit-section.ts';
import { readValues, type ValueSources } from './read-values.ts';
import type { BalancedTargets, TARGETS } from './setting-kinds.ts';
import { ConfigError, type SettingValues } from './setting-values.ts';

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

/** It decides whether processes can share a port. */
export interface Machine {
  /** Node's version, such as `22.12.0`. */
  readonly version: string;
  readonly platform: string;
}

/** Reads and checks all settings. Throws `ConfigError` with every problem, each with where it was found. */
export function loadConfig(
  sources: ValueSources & { readonly machine?: Partial<Machine> },
): Config {
  const values = readValues(sources);
  const isShared = values.plain().get('server.reuse_port')?.value === true;
  const obstacle = isShared ? whyNoReusePort(sources.machine ?? {}) : undefined;
  if (obstacle) values.problem('server.reuse_port', obstacle);
  return configOf(values, sources.memoryBytes ?? Infinity);
}

/** Checks the values together, and makes the settings of them. Throws `ConfigError` with every problem. */
export function configOf(values: SettingValues, memoryBytes: number) {
  checkCallerKeys(values);
  const { firstTokenTimeoutMs = Infinity, ...server } = values.section('server');
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
  const clients = readClients(values, aliases, providers.registered);
  const rateLimit = readRateLimit(values, known);
  if (values.problems.length > 0) throw new ConfigError(values.problems);
  const password = rateLimit.store?.password;
  return {
    /** Its `memoryBytes` are those that the process may take: the machine's, or its cgroup's. */
    server: { ...server, firstTokenTimeoutMs, memoryBytes, trustedProxies, auth },
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

/** Returns the obstacle to several processes at one port (SO_REUSEPORT), or undefined. */
function whyNoReusePort({ platform = process.platform, version }: Partial<Machine>) {
  const { node } = process.versions;
  const isNew = isNodeSince(version ?? node, { major: 22, minor: 12 });
  if (isNew && platform === 'linux') return undefined;
  return `needs Linux and Node 22.12 or newer; this is Node ${version ?? node} on ${platform}`;
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

export interface AliasSettings {
  /** One at least, each `<provider_id>/<model_name>`. */
  readonly targets: readonly string[];
  readonly balance: NonNullable<BalancedTargets['balance']>;
  /** By target; only if it is weighted. */
  readonly weights?: ReadonlyMap<string, number>;
}

function readAliases(values: SettingValues, registered: readonly string[]) {
  const aliases = new Map<string, AliasSettings>();
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
    const table = typeof written === 'object' && 'targets' in written ? written : undefined;
    const targets = table?.targets ?? [written as string | string[]].flat();
    const { balance = 'order', weights } = table ?? {};
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
    const isWeighted = balance === 'weighted';
    const isWhole = weights?.length === targets.length && weights.some((weight) => weight > 0);
    if (isWeighted ? !isWhole : weights) {
      const text = 'balance = "weighted" needs one for each target, not all 0; others have none';
      values.problem(`${name}.weights`, text);
    }
    const byTarget = weights && new Map(targets.map((target, index) => [target, weights[index]!]));
    aliases.set(alias, { targets, balance, ...(byTarget && { weights: byTarget }) });
  }
  return aliases;
}
