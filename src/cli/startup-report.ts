/** What is printed at start and by `--check`. */

import type { Config } from '../config/config.ts';
import { VERSION } from '../lib/version.ts';

const NO_CONFIG_FILE = 'defaults and environment (no gateway.toml)';

interface StartupFacts {
  readonly config: Config;
  readonly configPath: string | undefined;
  readonly port: number;
  readonly transport: { readonly description: string; readonly canWaitLong: boolean };
}

/** The lines printed once the gateway listens. */
export function describeStartup({ config, configPath, port, transport }: StartupFacts): string {
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
    `upstream   ${transport.description}`,
    ...describeWarnings(config, transport.canWaitLong),
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

/** The lines that `--demo` prints: requests to copy. */
export function demoInstructions(port: number): string {
  const url = `http://localhost:${port}/v1/chat/completions`;
  const body = (stream: boolean) =>
    JSON.stringify({
      model: 'demo/echo',
      ...(stream ? { stream } : {}),
      messages: [{ role: 'user', content: 'Hello, gateway!' }],
    });
  const curl = (flags: string, stream: boolean) =>
    `curl ${flags} ${url} -H 'Authorization: Bearer any-token' -H 'Content-Type: application/json' -d '${body(stream)}'`;
  return `\nTry it:\n\n  ${curl('-s', false)}\n\n  ${curl('-sN', true)}\n\n`;
}
