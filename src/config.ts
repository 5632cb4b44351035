/**
 * The text of gateway.toml, the environment and the command line become one frozen `Config`, or a
 * `ConfigError` that lists everything wrong at once. The only file that reads TOML.
 */

import { parse, TomlError } from 'smol-toml';

import { LOG_LEVELS, type LogLevel } from './log.ts';
import { BUILT_IN_PROVIDERS, keyVariableOf } from './providers/built-in.ts';
import { Secret } from './secrets.ts';
import { didYouMean, SettingsReader, type ReadContext, type Table } from './settings-reader.ts';

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
  readonly defaultModel?: string;
  readonly timeoutMs: number;
  readonly retries: number;
  /** Listed by hand: the list is not fetched from the provider. */
  readonly models?: readonly string[];
}

export interface Config {
  readonly server: {
    readonly port: number;
    readonly host: string;
    readonly firstTokenTimeoutMs?: number;
    /** 0 is off. */
    readonly streamIdleTimeoutMs: number;
    readonly shutdownTimeoutMs: number;
    readonly maxBodyBytes: number;
    readonly cors: boolean;
    readonly auth: {
      readonly enabled: boolean;
      /** Empty: any Bearer token is accepted. */
      readonly keys: readonly Secret[];
    };
  };
  readonly logging: { readonly level: LogLevel; readonly verbose: boolean };
  readonly providers: readonly ProviderSettings[];
  /** Providers that were named or known but are not registered, and why. */
  readonly skipped: readonly { readonly id: string; readonly reason: string }[];
  readonly primary?: string;
  readonly fallback: readonly string[];
  readonly aliases: ReadonlyMap<string, string>;
  readonly rateLimit: {
    readonly enabled: boolean;
    readonly global: BucketSettings;
    readonly providers: ReadonlyMap<string, BucketSettings>;
  };
  /** For the operator, at startup. Never contains a value of a variable or a key. */
  readonly warnings: readonly string[];
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
/** Bodies are held in memory and parsed as one string. */
const MAX_BODY_BYTES = 268_435_456;

interface ConfigSources {
  /** Text of gateway.toml; empty where there is no file. */
  readonly toml: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly flags?: Flags;
}

/**
 * Reads and checks all settings (interface, Configuration records, Limits, Authentication).
 * Throws `ConfigError` with every problem found, each with its key path.
 */
export function loadConfig({ toml, env, flags = {} }: ConfigSources): Config {
  const context: ReadContext = { env, problems: [], warnings: [] };
  const top = new SettingsReader(parseToml(toml), '', context);

  const server = top.section('server');
  const seconds = { min: 1, max: MAX_SECONDS };
  const timeoutSeconds = server.integer('timeout', { ...seconds, env: 'GATEWAY_TIMEOUT' }) ?? 60;
  const firstTokenTimeoutSeconds = server.integer('first_token_timeout', seconds);
  const retries = server.integer('retries', { min: 0, max: MAX_RETRIES }) ?? 0;

  const providersSection = top.section('providers');
  const primary = providersSection.string('primary');
  const fallback = providersSection.strings('fallback') ?? [];
  const providers: ProviderSettings[] = [];
  const skipped: { id: string; reason: string }[] = [];
  const configured = providersSection.remainingSections();
  for (const id of new Set([...configured, ...BUILT_IN_PROVIDERS.keys()])) {
    const result = readProvider(id, {
      section: providersSection.section(id),
      env,
      timeoutSeconds,
      retries,
    });
    if ('reason' in result) skipped.push(result);
    else providers.push(result);
  }
  providersSection.refuseUnknownKeys();

  const known = new Set([...configured, ...BUILT_IN_PROVIDERS.keys()]);
  const registered = new Set(providers.map(({ id }) => id));
  const references = [
    ['primary', primary],
    ...fallback.map((id) => ['fallback', id] as const),
  ] as const;
  for (const [key, id] of references) {
    if (id === undefined || registered.has(id)) continue;
    if (known.has(id)) providersSection.warning(key, `provider "${id}" is not registered`);
    else providersSection.problem(key, `no such provider "${id}"${didYouMean(id, [...known])}`);
  }

  const config: Config = {
    server: {
      port:
        server.integer('port', {
          min: 0,
          max: 65_535,
          env: 'GATEWAY_PORT',
          flag: flags.port,
        }) ?? 8080,
      host: server.string('host', { env: 'GATEWAY_HOST', flag: flags.host }) || '0.0.0.0',
      ...(firstTokenTimeoutSeconds === undefined
        ? {}
        : { firstTokenTimeoutMs: firstTokenTimeoutSeconds * 1000 }),
      streamIdleTimeoutMs:
        1000 * (server.integer('stream_idle_timeout', { min: 0, max: MAX_SECONDS }) ?? 300),
      shutdownTimeoutMs:
        1000 * (server.integer('shutdown_timeout', { min: 0, max: MAX_SECONDS }) ?? 25),
      maxBodyBytes: server.integer('max_body_bytes', { min: 1, max: MAX_BODY_BYTES }) ?? 33_554_432,
      cors: server.boolean('cors', { env: 'GATEWAY_CORS' }) ?? false,
      auth: readAuth(server.section('auth')),
    },
    logging: readLogging(top.section('logging')),
    providers,
    skipped,
    ...(primary === undefined ? {} : { primary }),
    fallback: [...new Set(fallback)],
    aliases: readAliases(top.section('aliases'), registered),
    rateLimit: readRateLimit(top.section('rate_limit'), known),
    warnings: context.warnings,
  };
  server.refuseUnknownKeys();
  top.refuseUnknownKeys();
  if (context.problems.length > 0) throw new ConfigError(context.problems);
  return config;
}

function parseToml(text: string): Table {
  try {
    return parse(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const reason = error.message.split('\n')[0]!.replace('Invalid TOML document: ', '');
    const line = hideValues(text.split(/\r?\n/)[error.line - 1] ?? '');
    const place = `line ${error.line}, column ${error.column}`;
    throw new ConfigError([`${place}: ${reason}\n  ${line}\n  ${' '.repeat(error.column - 1)}^`]);
  }
}

/** The offending line is shown, but it may hold a key: long words become as many dots. */
function hideValues(line: string): string {
  return line.slice(0, 160).replace(/[\w.*~+/-]{12,}/g, (word) => '.'.repeat(word.length));
}

function readAuth(section: SettingsReader): Config['server']['auth'] {
  const enabled = section.boolean('enabled') ?? true;
  const keys = section.keys('keys') ?? [];
  for (const key of keys) {
    if (!isKey(key))
      section.problem('keys', 'a key must be visible ASCII characters without spaces');
  }
  section.refuseUnknownKeys();
  return { enabled, keys: keys.map((key) => new Secret(key)) };
}

function readLogging(section: SettingsReader): Config['logging'] {
  const level = section.oneOf('level', LOG_LEVELS, { env: 'GATEWAY_LOG_LEVEL' }) ?? 'info';
  const verbose = section.boolean('verbose') ?? false;
  section.refuseUnknownKeys();
  return { level, verbose };
}

interface ProviderContext {
  readonly section: SettingsReader;
  readonly env: ConfigSources['env'];
  readonly timeoutSeconds: number;
  readonly retries: number;
}

/** One provider, or why it is not registered (interface, Authentication, layer 2). */
function readProvider(
  id: string,
  { section, env, timeoutSeconds, retries }: ProviderContext,
): ProviderSettings | { id: string; reason: string } {
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(id)) {
    section.problem('', 'a provider id is 1 to 64 letters, digits, ".", "_" or "-"');
  }
  const enabled = section.boolean('enabled') ?? true;
  const apiKeySetting = section.string('api_key')?.trim();
  const keyVariable = keyVariableOf(id);
  // An empty api_key counts as not set, like an empty variable.
  const apiKey = apiKeySetting || (env[keyVariable] ?? '').trim();
  const defaultModel = section.string('default_model');
  const models = section.strings('models');
  const timeout = section.integer('timeout', { min: 1, max: MAX_SECONDS }) ?? timeoutSeconds;
  const ownRetries = section.integer('retries', { min: 0, max: MAX_RETRIES }) ?? retries;
  const baseUrl = readBaseUrl(id, section);
  section.refuseUnknownKeys();

  if (!enabled) return { id, reason: 'enabled = false' };
  if (apiKey === '') return { id, reason: `no api_key and no ${keyVariable}` };
  if (!isKey(apiKey)) {
    const source = apiKeySetting ? 'the key' : `the key in ${keyVariable}`;
    section.problem('api_key', `${source} must be visible ASCII characters without spaces`);
  }
  return {
    id,
    baseUrl,
    apiKey: new Secret(apiKey),
    ...(defaultModel ? { defaultModel } : {}),
    timeoutMs: timeout * 1000,
    retries: ownRetries,
    ...(models ? { models } : {}),
  };
}

function readBaseUrl(id: string, section: SettingsReader): string {
  const text = section.string('base_url') ?? BUILT_IN_PROVIDERS.get(id)?.baseUrl;
  if (text === undefined) {
    const hint = didYouMean(id, [...BUILT_IN_PROVIDERS.keys()]);
    section.problem('base_url', `required: "${id}" is not a built-in provider${hint}`);
    return '';
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const isPlain = url && !url.username && !url.password && !/[?#]/.test(text);
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    section.problem('base_url', 'expected an http or https URL without user, query or fragment');
  }
  return text.replace(/\/+$/, '');
}

function readAliases(
  section: SettingsReader,
  registered: ReadonlySet<string>,
): Map<string, string> {
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

function readRateLimit(section: SettingsReader, known: ReadonlySet<string>): Config['rateLimit'] {
  const enabled = section.boolean('enabled', { env: 'GATEWAY_RATE_LIMIT_ENABLED' }) ?? false;
  const global = readBucket(section, {
    rps: 'GATEWAY_RATE_LIMIT_RPS',
    burst: 'GATEWAY_RATE_LIMIT_BURST',
  });
  const byProvider = section.section('providers');
  const providers = new Map<string, BucketSettings>();
  for (const id of byProvider.remainingSections()) {
    const bucket = byProvider.section(id);
    providers.set(id, readBucket(bucket, {}));
    bucket.refuseUnknownKeys();
    if (!known.has(id)) byProvider.problem(id, `no such provider${didYouMean(id, [...known])}`);
  }
  byProvider.refuseUnknownKeys();
  section.refuseUnknownKeys();
  return { enabled, global, providers };
}

function readBucket(
  section: SettingsReader,
  env: { readonly rps?: string; readonly burst?: string },
): BucketSettings {
  const max = 1_000_000;
  const rps = { min: 0, max, ...(env.rps ? { env: env.rps } : {}) };
  const burst = { min: 1, max, ...(env.burst ? { env: env.burst } : {}) };
  return {
    requestsPerSecond: section.integer('requests_per_second', rps) ?? 0,
    burstCapacity: section.integer('burst_capacity', burst) ?? 100,
  };
}

/** RFC 6750's token characters are a subset; vendors use more, but none that a header could not carry. */
function isKey(text: string): boolean {
  return /^[\x21-\x7e]+$/.test(text);
}
