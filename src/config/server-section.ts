/** `[server]` and `[server.auth]`: the gateway itself, its workers, and the proxies before it. */

import { isIP } from 'node:net';
// Whole: on an old Node an import by name fails before any code can say which one is needed.
import os from 'node:os';

import { Secret } from '../lib/secrets.ts';
import { isNodeSince } from '../lib/version.ts';
import { MAX_WORKERS } from './server-rows.ts';
import type { SettingValues } from './setting-values.ts';

export interface ServerSettings {
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
}

/** What the number of workers depends on. */
export interface Machine {
  /** What `auto` stands for. */
  readonly processors: number;
  /** Node's version, such as `22.12.0`. */
  readonly version: string;
  readonly platform: string;
}

export const THIS_MACHINE: Machine = {
  // Not when the module is loaded: Node 16 has no such function.
  get processors() {
    return os.availableParallelism();
  },
  version: process.versions.node,
  platform: process.platform,
};

/** The first version of Node in which several threads can listen on one port (`reusePort`). */
const NEEDED = { major: 22, minor: 12 };

export function readServer(values: SettingValues, memoryBytes: number): ServerSettings {
  const section = values.section('server');
  const { enabled, keys = [] } = values.section('server.auth');
  return {
    port: section.port,
    host: section.host,
    workers: Number(section.workers),
    timeoutMs: section.timeout * 1000,
    firstTokenTimeoutMs: (section.first_token_timeout ?? Infinity) * 1000,
    streamIdleTimeoutMs: section.stream_idle_timeout * 1000,
    shutdownTimeoutMs: section.shutdown_timeout * 1000,
    drainDelayMs: section.drain_delay * 1000,
    retries: section.retries,
    maxConcurrentRequests: section.max_concurrent_requests,
    maxBodyBytes: section.max_body_bytes,
    maxBufferedBytes: section.max_buffered_bytes ?? 0,
    memoryBytes,
    cors: section.cors,
    upstream: section.upstream,
    trustedProxies: checkProxies(section.trusted_proxies ?? [], values),
    auth: { enabled, keys: keys.map((key) => new Secret(key)) },
  };
}

/**
 * Replaces `auto` by the number that it stands for. If there can be only one worker, `auto` is one, with a warning, and a
 * greater number is a problem.
 */
export function resolveWorkers(
  { processors, version, platform }: Machine,
  values: SettingValues,
): void {
  const written = values.section('server').workers;
  const wanted = written === 'auto' ? Math.min(processors, MAX_WORKERS) : written;
  const obstacle = wanted > 1 ? whyOnlyOneWorker(version, platform) : undefined;
  const name = 'server.workers';
  if (obstacle && written === 'auto') values.warning(name, `one worker: more need ${obstacle}`);
  else if (obstacle) values.problem(name, `${wanted} workers need ${obstacle}`);
  values.resolve(name, obstacle ? 1 : wanted);
}

/** Returns what several workers need and what there is instead, or undefined if there can be several. */
export function whyOnlyOneWorker(version: string, platform: string): string | undefined {
  if (isNodeSince(version, NEEDED) && platform === 'linux') return undefined;
  const needed = `Node ${NEEDED.major}.${NEEDED.minor} or newer on Linux`;
  return `${needed}; this is Node ${version} on ${platform}`;
}

/** Each is an address, or a range as `<address>/<prefix length>`. */
function checkProxies(proxies: readonly string[], values: SettingValues): readonly string[] {
  for (const proxy of proxies) {
    const [address = '', prefix = '0', ...rest] = proxy.split('/');
    const maxPrefix = isIP(address) === 6 ? 128 : 32;
    const isRange = /^\d{1,3}$/.test(prefix) && Number(prefix) <= maxPrefix && rest.length === 0;
    if (isIP(address) === 0 || !isRange) {
      values.problem(
        'server.trusted_proxies',
        `"${values.asWritten(proxy)}" is neither an address nor a range like 10.0.0.0/8`,
      );
    }
  }
  return proxies;
}
