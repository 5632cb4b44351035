/** What the command line says, and the texts that a person at a terminal reads. */

import { parseArgs } from 'node:util';

import type { Config } from './config.ts';
import { didYouMean } from './settings-reader.ts';
import { VERSION } from './version.ts';

export const HELP = `inference-gateway ${VERSION}
One OpenAI-compatible endpoint in front of your model providers.

Usage: node dist/server.js [options]

  --config FILE   settings file (else GATEWAY_CONFIG, else ./gateway.toml if it exists)
  --port PORT     listen port, over GATEWAY_PORT and the file (default 8080)
  --host HOST     bind address, over GATEWAY_HOST and the file (default 0.0.0.0)
  --check         load and check everything, print the resolved settings, exit 0 or 1
  --demo          serve one built-in provider, "demo", that needs no key and no network
  --healthcheck   ask the running gateway's /health, exit 0 or 1
  --version       print the version
  --help          print this text
`;

const OPTIONS = {
  config: { type: 'string' },
  port: { type: 'string' },
  host: { type: 'string' },
  check: { type: 'boolean' },
  demo: { type: 'boolean' },
  healthcheck: { type: 'boolean' },
  version: { type: 'boolean' },
  help: { type: 'boolean' },
} as const;

export interface CommandLine {
  readonly config?: string;
  readonly port?: string;
  readonly host?: string;
  readonly check?: boolean;
  readonly demo?: boolean;
  readonly healthcheck?: boolean;
  readonly version?: boolean;
  readonly help?: boolean;
}

/** Thrown for a command line that makes no sense; `message` is for the person who typed it. */
export class UsageError extends Error {}

/** Reads the arguments after the script's name. Throws `UsageError`. */
export function parseCommandLine(args: readonly string[]): CommandLine {
  const { tokens } = parseArgs({ args: [...args], options: OPTIONS, strict: false, tokens: true });
  for (const token of tokens) {
    if (token.kind === 'positional') throw new UsageError(`unexpected argument "${token.value}"`);
    if (token.kind === 'option' && !Object.hasOwn(OPTIONS, token.name)) {
      const known = Object.keys(OPTIONS).map((name) => `--${name}`);
      throw new UsageError(`unknown option ${token.rawName}${didYouMean(token.rawName, known)}`);
    }
  }
  try {
    return parseArgs({ args: [...args], options: OPTIONS }).values;
  } catch (error) {
    // "Option '--port <value>' argument missing", and more lines of advice.
    throw new UsageError((error as Error).message.split('\n')[0]);
  }
}

interface StartupFacts {
  readonly config: Config;
  readonly configPath: string | undefined;
  readonly port: number;
  readonly canWaitLong: boolean;
}

/** The lines printed once the gateway listens. */
export function describeStartup({ config, configPath, port, canWaitLong }: StartupFacts): string {
  const { server, aliases } = config;
  const isEverywhere = server.host === '0.0.0.0' || server.host === '::';
  const host = isEverywhere
    ? 'localhost'
    : server.host.includes(':')
      ? `[${server.host}]`
      : server.host;
  const lines = [
    `inference-gateway ${VERSION} on Node ${process.version}`,
    `listening  http://${host}:${port}/v1${isEverywhere ? ` (all interfaces, ${server.host})` : ''}`,
    `settings   ${configPath ?? 'defaults and environment (no gateway.toml)'}`,
    `providers  ${config.providers.map(({ id }) => id).join(', ') || 'none: set a key, for example OPENAI_API_KEY'}`,
  ];
  const skipped = describeSkipped(config);
  if (skipped) lines.push(`skipped    ${skipped}`);
  if (aliases.size > 0) {
    lines.push(`aliases    ${[...aliases].map((pair) => pair.join(' -> ')).join(', ')}`);
  }
  return [...lines, ...describeWarnings(config, canWaitLong)].map((line) => `${line}\n`).join('');
}

/** One reason each, unless nobody asked for the provider: then they are only counted. */
function describeSkipped({ skipped }: Config): string {
  const withReason = skipped.map(({ id, reason }) => `${id} (${reason})`);
  return withReason.length > 6
    ? `${withReason.slice(0, 3).join(', ')} and ${withReason.length - 3} more (--check lists them)`
    : withReason.join(', ');
}

function describeWarnings(config: Config, canWaitLong: boolean): string[] {
  const { host, auth } = config.server;
  const isLoopback = /^(?:127\.|::1$|localhost$)/.test(host);
  const warnings = [...config.warnings];
  if (!isLoopback && (!auth.enabled || auth.keys.length === 0)) {
    const who = auth.enabled ? 'any Bearer token is accepted' : 'no token is asked for';
    warnings.push(
      `${who} from everyone who reaches ${host}; set [server.auth] keys, or host = "127.0.0.1"`,
    );
  }
  if (!canWaitLong)
    warnings.push('providers that stay silent for 300 s are given up, whatever timeout says');
  return warnings.map((warning) => `warning    ${warning}`);
}

/** What `--check` prints: every setting as it will be used, keys masked. */
export function describeConfig(config: Config, configPath: string | undefined): string {
  const { server, logging, rateLimit } = config;
  const lines = [
    `settings: ${configPath ?? 'defaults and environment (no gateway.toml)'}`,
    '',
    ...describeValues('server', {
      host: server.host,
      port: server.port,
      first_token_timeout: server.firstTokenTimeoutMs && server.firstTokenTimeoutMs / 1000,
      stream_idle_timeout: server.streamIdleTimeoutMs / 1000,
      shutdown_timeout: server.shutdownTimeoutMs / 1000,
      max_body_bytes: server.maxBodyBytes,
      cors: server.cors,
    }),
    ...describeValues('server.auth', { enabled: server.auth.enabled, keys: server.auth.keys }),
    ...describeValues('logging', { ...logging }),
    ...describeValues('rate_limit', {
      enabled: rateLimit.enabled,
      requests_per_second: rateLimit.global.requestsPerSecond,
      burst_capacity: rateLimit.global.burstCapacity,
    }),
    ...[...rateLimit.providers].flatMap(([id, bucket]) =>
      describeValues(`rate_limit.providers.${id}`, {
        requests_per_second: bucket.requestsPerSecond,
        burst_capacity: bucket.burstCapacity,
      }),
    ),
    ...describeValues('providers', { primary: config.primary, fallback: config.fallback }),
    ...config.providers.flatMap((provider) =>
      describeValues(`providers.${provider.id}`, {
        base_url: provider.baseUrl,
        api_key: provider.apiKey,
        default_model: provider.defaultModel,
        models: provider.models,
        timeout: provider.timeoutMs / 1000,
        retries: provider.retries,
      }),
    ),
    ...describeValues('aliases', Object.fromEntries(config.aliases)),
    '',
    ...config.providers.map(({ id }) => `registered  ${id}`),
    ...config.skipped.map(({ id, reason }) => `skipped     ${id}: ${reason}`),
    ...describeWarnings(config, true),
  ];
  return lines.map((line) => `${line}\n`).join('');
}

function describeValues(section: string, values: Readonly<Record<string, unknown>>): string[] {
  return Object.entries(values)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => `${section}.${key} = ${JSON.stringify(value)}`);
}
