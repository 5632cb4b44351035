/**
 * The text of gateway.toml, the environment and the command line become one `Config`, or a
 * `ConfigError` that lists all problems. Other folders import the types of settings from here.
 */

import { isIP } from 'node:net';

import { didYouMean } from '../lib/did-you-mean.ts';
import { LOG_LEVELS, type LogLevel } from '../lib/log.ts';
import { Secret } from '../lib/secrets.ts';
import { readAdmin, type AdminSettings } from './admin-section.ts';
import { checkKey } from './api-keys.ts';
import { readBucket, type BucketSettings } from './bucket.ts';
import { readClients, type ClientSettings } from './clients-section.ts';
import { ConfigError } from './config-error.ts';
import { readProviders, RETRIES_RANGE, type Providers } from './providers-section.ts';
import { MAX_SECONDS, SectionReader, type ReadContext } from './section-reader.ts';
import { parseToml } from './settings-file.ts';

export { ConfigError } from './config-error.ts';
export type { ClientSettings } from './clients-section.ts';
export type { ProviderSettings } from './providers-section.ts';

export type { BucketSettings } from './bucket.ts';

export interface Config {
  readonly server: {
    readonly port: number;
    readonly host: string;
    readonly timeoutMs: number;
    /** Infinity if only `timeoutMs` applies. */
    readonly firstTokenTimeoutMs: number;
    /** 0 is off. */
    readonly streamIdleTimeoutMs: number;
    readonly shutdownTimeoutMs: number;
    /** After the signal to stop, the port stays open for so long before the drain begins. */
    readonly drainDelayMs: number;
    readonly retries: number;
    readonly maxBodyBytes: number;
    /** For all clients together. */
    readonly maxBufferedBytes: number;
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
  };
  readonly providers: Providers;
  /** The targets of each alias, to be asked in order: one at least, each `<provider_id>/<model_name>`. */
  readonly aliases: ReadonlyMap<string, readonly string[]>;
  readonly rateLimit: {
    readonly enabled: boolean;
    readonly global: BucketSettings;
    readonly providers: ReadonlyMap<string, BucketSettings>;
  };
  /** For the operator, at startup. Never contains a value of a variable or a key. */
  readonly warnings: readonly string[];
  /** All settings by their names in the file, keys as `Secret`: what `--check` prints. */
  readonly resolved: ReadonlyMap<string, unknown>;
}

/** What the command line may override. */
export interface Flags {
  readonly port?: string | undefined;
  readonly host?: string | undefined;
}

/** A body is held in memory until it has been sent. */
const MAX_BODY_BYTES = 268_435_456;
/** The default of `max_buffered_bytes` is a quarter of the memory, but not less. */
const MIN_BUFFERED_BYTES = 67_108_864;
const MAX_BUFFERED_BYTES = 1_099_511_627_776;

interface ConfigSources {
  /** Text of gateway.toml; empty if there is no file. */
  readonly toml: string;
  /** The path of the file, for messages. */
  readonly path?: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly flags?: Flags;
  /** The memory that the process may use, in bytes. */
  readonly memoryBytes?: number;
}

/** Reads and checks all settings. Throws `ConfigError` with every problem, each with where it was found. */
export function loadConfig(sources: ConfigSources): Config {
  const { toml, path, env, flags = {}, memoryBytes = 0 } = sources;
  const filePrefix = path === undefined ? '' : `${path}: `;
  const context: ReadContext = {
    env,
    filePrefix,
    problems: [],
    warnings: [],
    resolved: new Map(),
  };
  const top = new SectionReader(parseToml(toml, filePrefix), '', context);

  const callerKeys = new Set<string>();
  const server = readServer(top.section('server'), { flags, memoryBytes, callerKeys });
  const clients = readClients(top.section('clients'), server.auth.enabled, callerKeys);
  const admin = readAdmin(top.section('admin'), server.port);
  const logging = readLogging(top.section('logging'));
  const providers = readProviders(top.section('providers'), { env, server });
  const known = [...providers.registered, ...providers.skipped].map(({ id }) => id);
  const ids = new Set(providers.registered.map(({ id }) => id));
  const aliases = readAliases(top.section('aliases'), ids);
  const rateLimit = readRateLimit(top.section('rate_limit'), known);
  top.refuseUnknownKeys();

  const { problems, warnings, resolved } = context;
  if (problems.length > 0) throw new ConfigError(problems);
  return { server, clients, admin, logging, providers, aliases, rateLimit, warnings, resolved };
}

interface ServerContext {
  readonly flags: Flags;
  readonly memoryBytes: number;
  /** Gets the text of the keys of `[server.auth]`. */
  readonly callerKeys: Set<string>;
}

function readServer(
  section: SectionReader,
  { flags, memoryBytes, callerKeys }: ServerContext,
): Config['server'] {
  const milliseconds = (key: string, min: number, fallback: number, env?: string) =>
    1000 * section.integer(key, { min, max: MAX_SECONDS, default: fallback, env });
  const port = { min: 0, max: 65_535, default: 8080, env: 'GATEWAY_PORT', flag: flags.port };
  const host = { default: '0.0.0.0', env: 'GATEWAY_HOST', flag: flags.host, isRequired: true };
  const firstToken = section.integer('first_token_timeout', { min: 1, max: MAX_SECONDS });
  return {
    port: section.integer('port', port),
    host: section.string('host', host),
    timeoutMs: milliseconds('timeout', 1, 60, 'GATEWAY_TIMEOUT'),
    firstTokenTimeoutMs: firstToken === undefined ? Infinity : firstToken * 1000,
    streamIdleTimeoutMs: milliseconds('stream_idle_timeout', 0, 300),
    shutdownTimeoutMs: milliseconds('shutdown_timeout', 0, 25),
    drainDelayMs: milliseconds('drain_delay', 0, 0),
    retries: section.integer('retries', { ...RETRIES_RANGE, default: 0 }),
    maxBodyBytes: section.integer('max_body_bytes', {
      min: 1,
      max: MAX_BODY_BYTES,
      default: 33_554_432,
    }),
    maxBufferedBytes: section.integer('max_buffered_bytes', {
      min: 1_048_576,
      max: MAX_BUFFERED_BYTES,
      default: Math.max(MIN_BUFFERED_BYTES, Math.floor(memoryBytes / 4)),
    }),
    cors: section.boolean('cors', { default: false, env: 'GATEWAY_CORS' }),
    upstream: section.oneOf('upstream', ['auto', 'fetch'] as const, {
      default: 'auto',
      env: 'GATEWAY_UPSTREAM',
    }),
    trustedProxies: readTrustedProxies(section),
    auth: readAuth(section.section('auth'), callerKeys),
  };
}

function readAuth(section: SectionReader, callerKeys: Set<string>): Config['server']['auth'] {
  const enabled = section.boolean('enabled', { default: true });
  const keys = section.strings('keys') ?? [];
  for (const key of keys) {
    checkKey(key, { section, setting: 'keys' });
    callerKeys.add(key);
  }
  return { enabled, keys: keys.map((key) => new Secret(key)) };
}

/** Each an address, or a range as `<address>/<prefix length>`. */
function readTrustedProxies(section: SectionReader): readonly string[] {
  const proxies = section.strings('trusted_proxies') ?? [];
  for (const proxy of proxies) {
    const [address = '', prefix = '0', ...rest] = proxy.split('/');
    const maxPrefix = isIP(address) === 6 ? 128 : 32;
    const isRange = /^\d{1,3}$/.test(prefix) && Number(prefix) <= maxPrefix && rest.length === 0;
    if (isIP(address) === 0 || !isRange) {
      section.problem(
        'trusted_proxies',
        `"${proxy}" is neither an address nor a range like 10.0.0.0/8`,
      );
    }
  }
  return proxies;
}

function readLogging(section: SectionReader): Config['logging'] {
  return {
    level: section.oneOf('level', LOG_LEVELS, { default: 'info', env: 'GATEWAY_LOG_LEVEL' }),
    format: section.oneOf('format', ['auto', 'json', 'text'] as const, { default: 'auto' }),
    verbose: section.boolean('verbose', { default: false }),
  };
}

function readAliases(section: SectionReader, registered: ReadonlySet<string>): Config['aliases'] {
  const aliases = new Map<string, readonly string[]>();
  for (const alias of section.remainingKeys()) {
    const targets = section.stringOrStrings(alias);
    if (targets === undefined) continue;
    if (targets.length === 0) section.problem(alias, 'name one model at least');
    for (const target of targets) {
      const slash = target.indexOf('/');
      if (slash < 1 || slash === target.length - 1) {
        section.problem(alias, 'expected "<provider_id>/<model_name>"');
      } else if (!registered.has(target.slice(0, slash))) {
        section.warning(alias, `provider "${target.slice(0, slash)}" is not registered`);
      }
    }
    aliases.set(alias, targets);
  }
  return aliases;
}

function readRateLimit(section: SectionReader, known: readonly string[]): Config['rateLimit'] {
  const enabled = section.boolean('enabled', { default: false, env: 'GATEWAY_RATE_LIMIT_ENABLED' });
  const global = readBucket(section, 'GATEWAY_RATE_LIMIT_RPS', 'GATEWAY_RATE_LIMIT_BURST');
  const byProvider = section.section('providers');
  const providers = new Map<string, BucketSettings>();
  for (const id of byProvider.remainingKeys()) {
    providers.set(id, readBucket(byProvider.section(id)));
    if (!known.includes(id)) byProvider.problem(id, `no such provider${didYouMean(id, known)}`);
  }
  const isLimited = [global, ...providers.values()].some((bucket) => bucket.requestsPerSecond > 0);
  if (!enabled && isLimited) {
    const why = 'rate_limit.enabled (GATEWAY_RATE_LIMIT_ENABLED) is false';
    section.warning('requests_per_second', `has no effect: ${why}`);
  }
  return { enabled, global, providers };
}
