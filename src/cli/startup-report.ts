/** The gateway's report when it has started. */

import { allAliases } from '../config/aliases-section.ts';
import { needsKey, type Config, type Tenant } from '../config/config.ts';
import type { SettingsSource } from '../config/read-settings.ts';
import { DAY_MS } from '../config/setting-kinds.ts';
import { isLoopback, withoutBrackets } from '../lib/loopback.ts';
import { VERSION } from '../lib/version.ts';

/** The addresses for all interfaces, each with a loopback address that reaches such a listener. */
const LOOPBACK_OF = new Map([
  ['0.0.0.0', '127.0.0.1'],
  ['::', '::1'],
]);

/** How long before a client's key expires the warning begins. */
const EXPIRES_SOON_MS = 7 * DAY_MS;

export const NO_PROVIDERS = 'none: set a key, for example OPENAI_API_KEY';

interface Started {
  readonly config: Config;
  readonly source: SettingsSource;
  readonly port: number;
  /** Undefined without `[admin] port`. */
  readonly adminPort: number | undefined;
  readonly transport: { readonly description: string; readonly limitations: readonly string[] };
}

/** For standard error. The caller redacts the text. */
export function describeStartup(started: Started): string {
  const { config, source, transport } = started;
  const { providers } = config;
  const { node, url, host, admin_url: adminUrl, providers: ids } = startedLine(started);
  // Each alias has its own line, because its targets are a list.
  const aliasLines = allAliases(config).map(({ name, targets, balance, weights }) => {
    const how = [balance.replace('_', ' '), ...(weights?.values() ?? [])].join(' ');
    const list = targets.map((target) => target.name).join(', ');
    return `aliases    ${name} -> ${list}${balance === 'order' ? '' : ` (${how})`}`;
  });
  const configured = providers.skipped.filter(({ isConfigured }) => isConfigured);
  const skipped = configured.map(({ id, reason }) => `${id} (${reason})`);
  const rest = providers.skipped.length - configured.length;
  if (rest > 0) skipped.push(`${rest} built-in providers without a key (--check lists them)`);
  return toLines([
    `inference-gateway ${VERSION} on Node ${node}`,
    `listening  ${url}${LOOPBACK_OF.has(host) ? ` (all interfaces, ${host})` : ''}`,
    ...(adminUrl ? [`admin      ${adminUrl}`] : []),
    `settings   ${source.text}`,
    `providers  ${ids.join(', ') || NO_PROVIDERS}`,
    `skipped    ${skipped.join(', ') || 'none'}`,
    ...(aliasLines.length > 0 ? aliasLines : ['aliases    none']),
    `upstream   ${transport.description}`,
    // A query may hold a key.
    ...(config.telemetry ? [`traces     ${config.telemetry.endpoint.split('?')[0]}`] : []),
    ...[...warningsOf(config), ...transport.limitations].map(describeWarning),
  ]);
}

export function toLines(lines: readonly string[]): string {
  return lines.map((line) => `${line}\n`).join('');
}

/** Returns the attributes for the log line `started`. */
export function startedLine({ config, source, port, adminPort, transport }: Started) {
  const { server, admin, providers } = config;
  return {
    version: VERSION,
    node: process.version,
    url: `${localUrl(server.host, port)}/v1`,
    host: server.host,
    admin_url: admin && adminPort !== undefined ? `${localUrl(admin.host, adminPort)}/` : undefined,
    providers: providers.registered.map(({ id }) => id),
    settings: source.path,
    settings_found: source.isFound,
    transport: transport.description,
  };
}

/**
 * Returns the gateway's URL for a client on the same machine, with brackets around an IPv6 address
 * (RFC 3986 3.2.2).
 */
export function localUrl(host: string, port: number): string {
  const address = withoutBrackets(host);
  const target = LOOPBACK_OF.get(address) ?? address;
  return `http://${target.includes(':') ? `[${target}]` : target}:${port}`;
}

export function describeWarning(text: string): string {
  return `warning    ${text}`;
}

/**
 * Returns the warnings about the settings: mistakes that do not prevent the start, clients whose
 * keys have expired or will within a week, and access without a key from other machines.
 */
export function warningsOf(config: Config): string[] {
  const { host, auth, trustedProxies } = config.server;
  const warnings = [...config.warnings, ...config.clients.flatMap(expiryOf)];
  if (needsKey(config)) return warnings;
  const served = `is served, with ${auth.enabled ? 'any' : 'no'} token; set [server.auth] keys`;
  if (!isLoopback(host)) {
    warnings.push(`any client that can reach ${host} ${served}, or host = "127.0.0.1"`);
  }
  if (trustedProxies.length > 0) {
    warnings.push(`any client behind trusted_proxies ${served}`);
  }
  return warnings;
}

function expiryOf({ name, expiryTime = Infinity }: Tenant): string[] {
  const leftMs = expiryTime - Date.now();
  if (leftMs > EXPIRES_SOON_MS) return [];
  const at = new Date(expiryTime).toISOString();
  const text =
    leftMs > 0 ? `the client's key expires at ${at}` : `the client's key expired at ${at}`;
  return [`clients.${name}.expires: ${text}`];
}

/** Returns two curl commands to copy, which `--demo` prints. */
export function demoInstructions(host: string, port: number): string {
  const url = `${localUrl(host, port)}/v1/chat/completions`;
  const curl = (flags: string, more: object) => {
    const messages = [{ role: 'user', content: 'Hello, gateway!' }];
    const body = JSON.stringify({ model: 'demo/echo', ...more, messages });
    const headers = "-H 'Authorization: Bearer any-token' -H 'Content-Type: application/json'";
    return `  curl ${flags} ${url} ${headers} -d '${body}'\n\n`;
  };
  return `\nTry it:\n\n${curl('-s', {})}${curl('-sN', { stream: true })}`;
}
