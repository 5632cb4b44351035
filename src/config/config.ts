/**
 * The text of gateway.toml, the environment and the command line become one `Config`, or a
 * `ConfigError` that lists all problems. Other folders import the types of settings from here.
 */

import { isIP } from 'node:net';
// Whole: on an old Node an import by name fails before any code can say which one is needed.
import os from 'node:os';

import type { LogLevel } from '../lib/log.ts';
import { Secret } from '../lib/secrets.ts';
import { readAdmin, type AdminSettings } from './admin-section.ts';
import { checkCallerKey } from './api-keys.ts';
import { readClients, type ClientSettings } from './clients-section.ts';
import { ConfigError } from './config-error.ts';
import { warnOfUnknownVariables, type Env } from './environment.ts';
import { readProviders, type Providers } from './providers-section.ts';
import { readRateLimit, type RateLimitSettings } from './rate-limit-section.ts';
import { SectionReader, type Flags, type ReadContext } from './section-reader.ts';
import { parseToml } from './settings-file.ts';
import { SETTINGS } from './settings-table.ts';
import { countWorkers, type Machine } from './workers.ts';

export { ConfigError } from './config-error.ts';
export type { Env } from './environment.ts';
export type { BucketSettings, ClientSettings } from './clients-section.ts';
export type { ProviderSettings } from './providers-section.ts';
export type { Flags } from './section-reader.ts';
export type { StoreSettings } from './store-section.ts';

export interface Config {
  readonly server: {
    readonly port: number;
    readonly host: string;
    /** Threads that serve requests. */
    readonly workers: number;
    readonly timeoutMs: number;
    /** Infinity if only `timeoutMs` applies. */
    readonly firstTokenTimeoutMs: number;
    /** 0 is off. */
    readonly streamIdleTimeoutMs: number;
    readonly shutdownTimeoutMs: number;
    /** After the signal to stop, the port stays open for so long before the drain begins. */
    readonly drainDelayMs: number;
    readonly retries: number;
    /** 0 is unlimited. */
    readonly maxConcurrentRequests: number;
    readonly maxBodyBytes: number;
    /** For all clients together. */
    readonly maxBufferedBytes: number;
    /** What the process may take: the machine's, or that of its cgroup. */
    readonly memoryBytes: number;
    readonly cors: boolean;
    readonly upstream: 'auto' | 'fetch';
    /** Addresses and CIDR ranges of proxies whose `X-Forwarded-For` is believed. */
    readonly trustedProxies: readonly string[];
    /** Without keys any Bearer token is accepted. */
    readonly auth: { readonly enabled: boolean; readonly keys: readonly Secret[] };
  };
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
  /** All settings by their names in the file, keys as `Secret`: what `--check` prints. */
  readonly resolved: ReadonlyMap<string, unknown>;
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

const THIS_MACHINE: Machine = {
  // Not when the module is loaded: Node 16 has no such function.
  get processors() {
    return os.availableParallelism();
  },
  version: process.versions.node,
  platform: process.platform,
};

/** Reads and checks all settings. Throws `ConfigError` with every problem, each with where it was found. */
export function loadConfig(sources: ConfigSources): Config {
  const { toml, path, directory = '', env, flags = {} } = sources;
  const filePrefix = path === undefined ? '' : `${path}: `;
  const context: ReadContext = {
    env,
    flags,
    filePrefix,
    directory,
    problems: [],
    warnings: [],
    resolved: new Map(),
    variables: new Set(['GATEWAY_CONFIG', 'GATEWAY_CONFIG_TOML']),
  };
  const { problems, warnings, resolved, variables } = context;
  const top = new SectionReader(parseToml(toml, filePrefix), '', context);

  const callerKeys = new Set<string>();
  const server = readServer(top.section('server'), sources, callerKeys);
  const clients = readClients(top.section('clients'), server.auth.enabled, callerKeys);
  const admin = readAdmin(top.section('admin'), server.port);
  const { provider_messages: providerMessages, ...logged } = top
    .section('logging')
    .values(SETTINGS.logging);
  const logging = { ...logged, providerMessages };
  const providers = readProviders(top.section('providers'), server);
  const known = [...providers.registered, ...providers.skipped].map(({ id }) => id);
  const ids = new Set(providers.registered.map(({ id }) => id));
  const aliases = readAliases(top.section('aliases'), ids);
  const rateLimit = readRateLimit(top.section('rate_limit'), known, clients);
  top.refuseUnknownKeys();
  warnings.push(...warnOfUnknownVariables(env, variables));

  if (problems.length > 0) throw new ConfigError(problems);
  return { server, clients, admin, logging, providers, aliases, rateLimit, warnings, resolved };
}

function readServer(
  section: SectionReader,
  { memoryBytes = Infinity, machine = THIS_MACHINE }: ConfigSources,
  callerKeys: Set<string>,
): Config['server'] {
  const quarter = memoryBytes === Infinity ? 0 : Math.floor(memoryBytes / 4);
  const maxBufferedBytes = Math.max(MIN_BUFFERED_BYTES, quarter);
  const values = section.values(SETTINGS.server, { max_buffered_bytes: maxBufferedBytes });
  const auth = section.section('auth');
  const { enabled, keys = [] } = auth.values(SETTINGS['server.auth']);
  for (const key of keys) {
    checkCallerKey(key, { section: auth, setting: 'keys' });
    callerKeys.add(key);
  }
  const { max_body_bytes: maxBodyBytes, max_buffered_bytes: maxHeldBytes } = values;
  if (maxBodyBytes > maxHeldBytes) {
    const text = `requests of more than max_buffered_bytes, ${maxHeldBytes}, are refused all the same`;
    section.warning('max_body_bytes', text);
  }
  return {
    port: values.port,
    host: values.host,
    workers: countWorkers(values.workers, machine, section),
    timeoutMs: values.timeout * 1000,
    firstTokenTimeoutMs: (values.first_token_timeout ?? Infinity) * 1000,
    streamIdleTimeoutMs: values.stream_idle_timeout * 1000,
    shutdownTimeoutMs: values.shutdown_timeout * 1000,
    drainDelayMs: values.drain_delay * 1000,
    retries: values.retries,
    maxConcurrentRequests: values.max_concurrent_requests,
    maxBodyBytes,
    maxBufferedBytes: maxHeldBytes,
    memoryBytes,
    cors: values.cors,
    upstream: values.upstream,
    trustedProxies: checkProxies(values.trusted_proxies ?? [], section),
    auth: { enabled, keys: keys.map((key) => new Secret(key)) },
  };
}

/** Each is an address, or a range as `<address>/<prefix length>`. */
function checkProxies(proxies: readonly string[], section: SectionReader): readonly string[] {
  for (const proxy of proxies) {
    const [address = '', prefix = '0', ...rest] = proxy.split('/');
    const maxPrefix = isIP(address) === 6 ? 128 : 32;
    const isRange = /^\d{1,3}$/.test(prefix) && Number(prefix) <= maxPrefix && rest.length === 0;
    if (isIP(address) === 0 || !isRange) {
      section.problem(
        'trusted_proxies',
        `"${section.asWritten(proxy)}" is neither an address nor a range like 10.0.0.0/8`,
      );
    }
  }
  return proxies;
}

function readAliases(section: SectionReader, registered: ReadonlySet<string>): Config['aliases'] {
  const aliases = new Map<string, readonly string[]>();
  for (const alias of section.remainingKeys()) {
    const value = section.value(alias, SETTINGS.aliases['<alias>']);
    if (value === undefined) continue;
    const targets = typeof value === 'string' ? [value] : value;
    if (targets.length === 0) section.problem(alias, 'name one model at least');
    for (const target of targets) {
      const slash = target.indexOf('/');
      if (slash < 1 || slash === target.length - 1) {
        section.problem(alias, 'expected "<provider_id>/<model_name>"');
      } else if (!registered.has(target.slice(0, slash))) {
        const shown = section.asWritten(target, target.slice(0, slash));
        section.warning(alias, `provider "${shown}" is not registered`);
      }
    }
    aliases.set(alias, targets);
  }
  return aliases;
}
