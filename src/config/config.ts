/**
 * The text of gateway.toml, the environment and the command line become one frozen `Config`, or a
 * `ConfigError` that lists everything wrong at once. The only file that reads TOML.
 */

import { parse, TomlError } from 'smol-toml';

import { LOG_LEVELS, type LogLevel } from '../lib/log.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from './built-in-providers.ts';
import { Secret } from '../lib/secrets.ts';
import { didYouMean, SectionReader, type ReadContext, type Table } from './section-reader.ts';

export interface BucketSettings {
  /** 0 is unlimited. */
  readonly requestsPerSecond: number;
  readonly burstCapacity: number;
}

/** A provider that is enabled and has a key. */
export interface ProviderSettings {
  readonly id: string;
  /** Without a trailing slash. */
  readonly baseUrl: string;
  readonly apiKey: Secret;
  readonly defaultModel: string | undefined;
  readonly timeoutMs: number;
  readonly retries: number;
  /** Listed by hand: the list is not fetched from the provider. */
  readonly models: readonly string[] | undefined;
}

interface SkippedProvider {
  readonly id: string;
  readonly reason: string;
  /** It has a section in the file: somebody wants it. */
  readonly isConfigured: boolean;
}

export interface Config {
  readonly server: {
    readonly port: number;
    readonly host: string;
    readonly timeoutMs: number;
    /** Infinity where only `timeoutMs` applies. */
    readonly firstTokenTimeoutMs: number;
    /** 0 is off. */
    readonly streamIdleTimeoutMs: number;
    readonly shutdownTimeoutMs: number;
    readonly retries: number;
    readonly maxBodyBytes: number;
    /** For all clients together. */
    readonly maxBufferedBytes: number;
    readonly cors: boolean;
    readonly upstream: 'auto' | 'fetch';
    /** Without keys any Bearer token is accepted. */
    readonly auth: { readonly enabled: boolean; readonly keys: readonly Secret[] };
  };
  readonly logging: { readonly level: LogLevel; readonly verbose: boolean };
  readonly providers: {
    readonly registered: readonly ProviderSettings[];
    /** Known, but without a key or switched off. */
    readonly skipped: readonly SkippedProvider[];
    readonly primary: string | undefined;
    readonly fallback: readonly string[];
  };
  readonly aliases: ReadonlyMap<string, string>;
  readonly rateLimit: {
    readonly enabled: boolean;
    readonly global: BucketSettings;
    readonly providers: ReadonlyMap<string, BucketSettings>;
  };
  /** For the operator, at startup. Never contains a value of a variable or a key. */
  readonly warnings: readonly string[];
  /** All settings by their names in the file, keys masked: what `--check` prints. */
  readonly resolved: ReadonlyMap<string, unknown>;
}

/** What the command line may override. */
export interface Flags {
  readonly port?: string | undefined;
  readonly host?: string | undefined;
}

export class ConfigError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('\n'));
    this.name = 'ConfigError';
    this.problems = problems;
  }
}

/** setTimeout fires at once beyond 2^31-1 milliseconds. */
const MAX_SECONDS = 2_147_483;
const MAX_RETRIES = 10;
/** Bodies are held in memory. */
const MAX_BODY_BYTES = 268_435_456;
/** The default of `max_buffered_bytes` is a quarter of the memory, but not less. */
const MIN_BUFFERED_BYTES = 67_108_864;

interface ConfigSources {
  /** Text of gateway.toml; empty where there is no file. */
  readonly toml: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly flags?: Flags;
  /** The memory that the process may use, in bytes. */
  readonly memoryBytes?: number;
}

/**
 * Reads and checks all settings (interface, Configuration records, Limits, Authentication).
 * Throws `ConfigError` with every problem found, each with its key path.
 */
export function loadConfig({ toml, env, flags = {}, memoryBytes = 0 }: ConfigSources): Config {
  const context: ReadContext = { env, problems: [], warnings: [], resolved: new Map() };
  const top = new SectionReader(parseToml(toml), '', context);

  const server = readServer(top.section('server'), { flags, memoryBytes });
  const logging = readLogging(top.section('logging'));
  const providers = readProviders(top.section('providers'), { env, server });
  const known = [...providers.registered, ...providers.skipped].map(({ id }) => id);
  const ids = new Set(providers.registered.map(({ id }) => id));
  const aliases = readAliases(top.section('aliases'), ids);
  const rateLimit = readRateLimit(top.section('rate_limit'), known);
  top.refuseUnknownKeys();

  const { problems, warnings, resolved } = context;
  if (problems.length > 0) throw new ConfigError(problems);
  return { server, logging, providers, aliases, rateLimit, warnings, resolved };
}

function parseToml(text: string): Table {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const reason = error.message.split('\n')[0]!.replace('Invalid TOML document: ', '');
    const line = hideSecrets(text.split(/\r?\n/)[error.line - 1] ?? '');
    const place = `line ${error.line}, column ${error.column}`;
    throw new ConfigError([`${place}: ${reason}\n  ${line}\n  ${' '.repeat(error.column - 1)}^`]);
  }
}

/** The offending line, as far as it cannot be part of a key: those are hidden, also in the middle of a list. */
function hideSecrets(line: string): string {
  const shown = line.slice(0, 160);
  const isHeader = /^\s*\[+[a-z_.]*\]*\s*$/.test(shown);
  const name = /^\s*[a-z_.]+\s*=/.exec(shown)?.[0];
  if (isHeader || (name && !/key/i.test(shown))) return shown;
  return (name ?? '') + shown.slice(name?.length ?? 0).replace(/\S/g, '.');
}

function readServer(
  section: SectionReader,
  { flags, memoryBytes }: { readonly flags: Flags; readonly memoryBytes: number },
): Config['server'] {
  const milliseconds = (key: string, min: number, fallback: number, env?: string) =>
    1000 * section.integer(key, { min, max: MAX_SECONDS, default: fallback, env });
  const port = { min: 0, max: 65_535, default: 8080, env: 'GATEWAY_PORT', flag: flags.port };
  const host = { default: '0.0.0.0', env: 'GATEWAY_HOST', flag: flags.host };
  const firstToken = section.integer('first_token_timeout', { min: 1, max: MAX_SECONDS });
  const server = {
    port: section.integer('port', port),
    host: section.string('host', host),
    timeoutMs: milliseconds('timeout', 1, 60, 'GATEWAY_TIMEOUT'),
    firstTokenTimeoutMs: firstToken === undefined ? Infinity : firstToken * 1000,
    streamIdleTimeoutMs: milliseconds('stream_idle_timeout', 0, 300),
    shutdownTimeoutMs: milliseconds('shutdown_timeout', 0, 25),
    retries: section.integer('retries', { min: 0, max: MAX_RETRIES, default: 0 }),
    maxBodyBytes: section.integer('max_body_bytes', {
      min: 1,
      max: MAX_BODY_BYTES,
      default: 33_554_432,
    }),
    maxBufferedBytes: section.integer('max_buffered_bytes', {
      min: 1_048_576,
      max: Number.MAX_SAFE_INTEGER,
      default: Math.max(MIN_BUFFERED_BYTES, Math.floor(memoryBytes / 4)),
    }),
    cors: section.boolean('cors', { default: false, env: 'GATEWAY_CORS' }),
    upstream: section.oneOf('upstream', ['auto', 'fetch'] as const, {
      default: 'auto',
      env: 'GATEWAY_UPSTREAM',
    }),
    auth: readAuth(section.section('auth')),
  };
  if (server.host === '') section.problem('host', 'expected an address or a host name');
  return server;
}

function readAuth(section: SectionReader): Config['server']['auth'] {
  const enabled = section.boolean('enabled', { default: true });
  const keys = section.strings('keys') ?? [];
  if (!keys.every(isKey)) {
    section.problem('keys', 'a key must be visible ASCII characters without spaces');
  }
  return { enabled, keys: keys.map((key) => new Secret(key)) };
}

function readLogging(section: SectionReader): Config['logging'] {
  return {
    level: section.oneOf('level', LOG_LEVELS, { default: 'info', env: 'GATEWAY_LOG_LEVEL' }),
    verbose: section.boolean('verbose', { default: false }),
  };
}

interface ProviderContext {
  readonly env: ConfigSources['env'];
  readonly server: Config['server'];
}

function readProviders(section: SectionReader, context: ProviderContext): Config['providers'] {
  const primary = section.string('primary');
  const fallback = section.strings('fallback') ?? [];
  const registered: ProviderSettings[] = [];
  const skipped: SkippedProvider[] = [];
  const configured = section.remainingSections();
  for (const id of new Set([...configured, ...BUILT_IN_PROVIDERS.keys()])) {
    const own = section.section(id);
    const result = readProvider(id, own, context);
    if (typeof result === 'string') {
      skipped.push({ id, reason: result, isConfigured: configured.includes(id) });
      own.dropFromResolved();
    } else {
      registered.push(result);
    }
  }

  const known = [...registered, ...skipped].map(({ id }) => id);
  const named = fallback.map((id) => ['fallback', id]);
  if (primary !== undefined) named.push(['primary', primary]);
  for (const [key = '', id = ''] of named) {
    if (!known.includes(id))
      section.problem(key, `no such provider "${id}"${didYouMean(id, known)}`);
    else if (skipped.some((provider) => provider.id === id)) {
      section.warning(key, `provider "${id}" is not registered`);
    }
  }
  return { registered, skipped, primary, fallback: [...new Set(fallback)] };
}

/** One provider, or why it is not registered (interface, Authentication, layer 2). */
function readProvider(
  id: string,
  section: SectionReader,
  { env, server }: ProviderContext,
): ProviderSettings | string {
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) {
    section.problem('', 'a provider id is 1 to 64 letters, digits, ".", "_" or "-"');
  }
  const enabled = section.boolean('enabled', { default: true });
  const keyVariable = keyVariableOf(id);
  // An empty api_key counts as not set, like an empty variable.
  const apiKey = section.string('api_key')?.trim() || (env[keyVariable] ?? '').trim();
  const timeout = { min: 1, max: MAX_SECONDS, default: server.timeoutMs / 1000 };
  const settings = {
    id,
    baseUrl: readBaseUrl(id, section),
    apiKey: new Secret(apiKey),
    defaultModel: section.string('default_model') || undefined,
    timeoutMs: 1000 * section.integer('timeout', timeout),
    retries: section.integer('retries', { min: 0, max: MAX_RETRIES, default: server.retries }),
    models: section.strings('models'),
  };

  if (!enabled) return 'enabled = false';
  if (apiKey === '') return `no api_key and no ${keyVariable}`;
  if (!isKey(apiKey)) {
    section.problem('api_key', 'a key must be visible ASCII characters without spaces');
  }
  return settings;
}

function readBaseUrl(id: string, section: SectionReader): string {
  const text = section.string('base_url', { default: BUILT_IN_PROVIDERS.get(id)?.baseUrl });
  if (text === undefined) {
    const hint = didYouMean(id, [...BUILT_IN_PROVIDERS.keys()]);
    section.problem('base_url', `required: "${id}" is not a built-in provider${hint}`);
    return '';
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url && !url.username && !url.password && !/[?#\s]/.test(text);
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    section.problem('base_url', 'expected an http or https URL without user, query or fragment');
  }
  return text.replace(/\/+$/, '');
}

function readAliases(section: SectionReader, registered: ReadonlySet<string>): Map<string, string> {
  const aliases = new Map<string, string>();
  for (const alias of section.remainingKeys()) {
    const target = section.string(alias);
    if (target === undefined) continue;
    const slash = target.indexOf('/');
    if (slash < 1 || slash === target.length - 1) {
      section.problem(alias, 'expected "<provider_id>/<model_name>"');
    } else if (!registered.has(target.slice(0, slash))) {
      section.warning(alias, `provider "${target.slice(0, slash)}" is not registered`);
    }
    aliases.set(alias, target);
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
  return { enabled, global, providers };
}

function readBucket(section: SectionReader, rps?: string, burst?: string): BucketSettings {
  const max = 1_000_000;
  return {
    requestsPerSecond: section.integer('requests_per_second', {
      min: 0,
      max,
      default: 0,
      env: rps,
    }),
    burstCapacity: section.integer('burst_capacity', { min: 1, max, default: 100, env: burst }),
  };
}

/** RFC 6750's token characters are a subset; vendors use more, but none that a header could not carry. */
function isKey(text: string): boolean {
  return /^[\x21-\x7e]+$/.test(text);
}
