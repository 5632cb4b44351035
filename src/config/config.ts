/**
 * Makes the `Config` from the values read, and compares two of them for a reload. Other folders
 * import the types of settings from here.
 */

import { BlockList } from 'node:net';
import { isDeepStrictEqual } from 'node:util';

import { addNetwork, withoutBrackets } from '../lib/loopback.ts';
import { isNodeSince } from '../lib/version.ts';
import { createRedactor } from '../lib/secrets.ts';
import { readAliases } from './aliases-section.ts';
import { readAdmin, readClients } from './callers-section.ts';
import { checkCallerKeys, toSecrets } from './keys.ts';
import { readLogging } from './logging-section.ts';
import { readProviders } from './providers-section.ts';
import { readRateLimit } from './rate-limit-section.ts';
import { readValues, type ValueSources } from './read-values.ts';
import { ConfigError, SettingValues } from './setting-values.ts';
import { readTelemetry, type TraceSettings } from './telemetry-section.ts';

export type { AliasSettings } from './aliases-section.ts';
export type { AdminSettings, Tenant } from './callers-section.ts';
export type { ProviderSettings } from './providers-section.ts';
export type { BucketSettings, StoreSettings } from './rate-limit-section.ts';
export type { TraceSettings } from './telemetry-section.ts';
export type { TlsSettings } from './tls-files.ts';
export type { Env, Flags } from './read-values.ts';
export { ConfigError } from './setting-values.ts';

/** All settings, checked, under their names in the code. */
export type Config = Readonly<ReturnType<typeof configOf>>;

/** Returns true if a request needs a configured key, from `[server.auth]` or `[clients]`. */
export function needsKey({ server, clients }: Pick<Config, 'server' | 'clients'>): boolean {
  return server.auth.enabled && (server.auth.keys.length > 0 || clients.length > 0);
}

/** Throws `ConfigError` with every problem and its place. */
export function loadConfig(sources: ValueSources): Config {
  const values = readValues(sources);
  const telemetry = readTelemetry(values, sources.env);
  return configOf(values, sources.memoryBytes ?? Infinity, telemetry);
}

function configOf(
  values: SettingValues,
  memoryBytes: number,
  telemetry: TraceSettings | undefined,
) {
  checkCallerKeys(values);
  const { firstTokenTimeoutMs = Infinity, host, ...server } = values.section('server');
  const trustedProxies = server.trustedProxies ?? [];
  checkProxies(trustedProxies, values);
  checkReusePort(server.reusePort, values);
  const { enabled, keys } = values.section('server.auth');
  const auth = { enabled, keys: toSecrets(keys) };
  const admin = readAdmin(values);
  const providers = readProviders(values);
  const { aliases, wildcards } = readAliases(values, providers);
  const clients = readClients(values, { aliases, wildcards, providers });
  const rateLimit = readRateLimit(values, providers.known);
  const logging = readLogging(values);
  if (values.problems.length > 0) throw new ConfigError(hideKeys(values.problems, values));
  const password = rateLimit.store?.password;
  return {
    /** `memoryBytes` is how much the process may use: the machine's memory or its cgroup's. */
    server: {
      ...server,
      host: withoutBrackets(host),
      firstTokenTimeoutMs,
      memoryBytes,
      trustedProxies,
      auth,
    },
    clients,
    admin,
    logging,
    providers,
    aliases,
    wildcards,
    rateLimit,
    telemetry,
    warnings: values.warnings as readonly string[],
    /** All settings by their names in the file, with `[secret]` for keys. `--check` prints them. */
    resolved: values.masked(),
    digest: values.digest(),
    /**
     * Texts to keep out of all output. The store's password is added, because its URL may have it
     * percent-encoded.
     */
    secrets: [
      ...values.secrets(),
      ...(password ? [password] : []),
      ...(telemetry?.headers ?? []).map(([, value]) => value),
    ],
    values,
  };
}

/** Returns the problems without keys, because a key may also be the value of a wrong setting. */
function hideKeys(problems: readonly string[], values: SettingValues): readonly string[] {
  // Messages themselves contain `redis://`, which may be all that the store's URL has.
  const { store = '' } = values.section('rate_limit');
  const secrets = values.secrets().filter((secret) => !secret.is(store));
  const redact = createRedactor(secrets, values.masked());
  return problems.map((problem) => redact(problem));
}

function checkReusePort(isShared: boolean, values: SettingValues): void {
  const { platform, versions } = process;
  const isNew = isNodeSince(versions.node, { major: 22, minor: 12 });
  if (!isShared || (isNew && platform === 'linux')) return;
  const text = `needs Linux and Node 22.12 or newer; this is Node ${versions.node} on ${platform}`;
  values.problem('server.reuse_port', text);
}

function checkProxies(proxies: readonly string[], values: SettingValues): void {
  for (const proxy of proxies) {
    if (addNetwork(new BlockList(), proxy)) continue;
    const text = `"${values.asWritten(proxy)}" is neither an address nor a range like 10.0.0.0/8`;
    values.problem('server.trusted_proxies', text);
  }
}

/**
 * Returns the settings after a reload, and the names of the settings that differ from the running
 * ones. Throws `ConfigError` if a reload would let callers in without a key, unless `[server.auth]
 * enabled` is false.
 */
export function nextSettings(running: Config, next: Config) {
  // A file cut off at the end of a line is still valid TOML, but may have lost its keys.
  if (needsKey(running) && !needsKey(next) && next.server.auth.enabled) {
    const text = 'no key is left, so anyone could call; if you intend this, set enabled = false';
    throw new ConfigError([`server.auth: ${text}, or restart`]);
  }
  const [former, latest] = [running.values.plain(), next.values.plain()];
  // A reload cannot change these settings, because listeners start, the store connects and the
  // transport is chosen only once.
  const isFixed = (name: string) => (former.get(name) ?? latest.get(name))!.row.needsRestart;
  const different = [...new Set([...former.keys(), ...latest.keys()])].filter(
    (name) => !isDeepStrictEqual(former.get(name)?.value, latest.get(name)?.value),
  );
  const values = new SettingValues([
    ...[...former].filter(([name]) => isFixed(name)),
    ...[...latest].filter(([name]) => !isFixed(name)),
  ]);
  const { memoryBytes } = next.server;
  return {
    /** `next`, with the running values where a change needs a restart. */
    config: { ...configOf(values, memoryBytes, running.telemetry), warnings: next.warnings },
    changed: different.filter((name) => !isFixed(name)),
    needRestart: different.filter(isFixed),
  };
}
