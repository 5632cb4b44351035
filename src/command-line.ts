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

export type CommandLine = ReturnType<typeof parseArgs<{ options: typeof OPTIONS }>>['values'];

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

const NO_CONFIG_FILE = 'defaults and environment (no gateway.toml)';

interface StartupFacts {
  readonly config: Config;
  readonly configPath: string | undefined;
  readonly port: number;
  readonly upstream: { readonly lane: string; readonly canWaitLong: boolean };
}

/** The lines printed once the gateway listens. */
export function describeStartup({ config, configPath, port, upstream }: StartupFacts): string {
  const { server, aliases, providers } = config;
  const isEverywhere = server.host === '0.0.0.0' || server.host === '::';
  const host = isEverywhere ? 'localhost' : urlHost(server.host);
  const ids = providers.registered.map(({ id }) => id).join(', ');
  const aliasPairs = [...aliases].map((pair) => pair.join(' -> ')).join(', ');
  const lines = [
    `inference-gateway ${VERSION} on Node ${process.version}`,
    `listening  http://${host}:${port}/v1${isEverywhere ? ` (all interfaces, ${server.host})` : ''}`,
    `settings   ${configPath ?? NO_CONFIG_FILE}`,
    `providers  ${ids || 'none: set a key, for example OPENAI_API_KEY'}`,
    `skipped    ${describeSkipped(providers.skipped) || 'none'}`,
    `aliases    ${aliasPairs || 'none'}`,
    `upstream   ${upstream.lane}`,
    ...describeWarnings(config, upstream.canWaitLong),
  ];
  return lines.map((line) => `${line}\n`).join('');
}

/** An address as it stands in a URL (RFC 3986 3.2.2). */
export function urlHost(host: string): string {
  return host.includes(':') ? `[${host}]` : host;
}

/** Built-in providers that nobody configured are only counted; `--check` lists them. */
function describeSkipped(skipped: Config['providers']['skipped']): string {
  const configured = skipped.filter(({ isConfigured }) => isConfigured);
  const rest = skipped.length - configured.length;
  return [
    ...configured.map(({ id, reason }) => `${id} (${reason})`),
    ...(rest > 0 ? [`${rest} built-in without a key (--check lists them)`] : []),
  ].join(', ');
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
  const { registered, skipped } = config.providers;
  const lines = [
    `settings: ${configPath ?? NO_CONFIG_FILE}`,
    ...[...config.resolved].map(([name, value]) => `${name} = ${JSON.stringify(value)}`).toSorted(),
    ...registered.map(({ id }) => `registered  ${id}`),
    ...skipped.map(({ id, reason }) => `skipped     ${id}: ${reason}`),
    ...describeWarnings(config, true),
  ];
  return lines.map((line) => `${line}\n`).join('');
}
