/** The gateway's and the process's figures, read for each scrape and each view. */

import { readdirSync, readFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';

import type { Config } from '../config/config.ts';
import type { RequestHistory } from '../request/history.ts';
import { VERSION } from '../lib/version.ts';
import type { CircuitBreaker } from '../policy/circuit-breaker.ts';
import type { Incidents, Subject } from '../incidents/incidents.ts';
import { formatCount, formatDuration } from '../incidents/notice.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import type { Limit } from '../lib/limits.ts';
import { LabelSet } from './labels.ts';
import { renderHead, renderSample } from './series.ts';

/** The resolution of the event loop's delays. */
const RESOLUTION_MS = 20;

/** A provider's figures. */
interface ProviderFigures {
  readonly breaker: Pick<CircuitBreaker, 'report'>;
  readonly subject: Subject;
  /** Undefined for a provider with a single key. */
  readonly keyPool: Pick<KeyPool, 'inCooldown' | 'accepted'> | undefined;
  /** `isUp`: whether its latest fetch succeeded; undefined before the first. */
  readonly modelList: { readonly isUp?: boolean };
}

/** The gateway's figures. Each is cheap to read. */
export interface Figures {
  isDraining(): boolean;
  isListening(): boolean;
  inFlight(): number;
  /** Requests in flight of `clients.<name>` or `providers.<id>`. */
  inFlightOf(section: string): number;
  /** Requests that wait for a slot of the provider; undefined if none may. */
  waitingFor(provider: string): number | undefined;
  /** How much is used in a client's buckets per minute, and in its windows. */
  usedOf(client: string): readonly { limit: Limit; unit: string; capacity: number; used: number }[];
  /** How old each provider's oldest request in flight is, in milliseconds. */
  oldestAgesMs(): ReadonlyMap<string, number>;
  openStreams(): number;
  bufferedBytes(): number;
  /** Held bytes by the client's name. All clients without a name share the key undefined. */
  bufferedBytesByClient(): ReadonlyMap<string | undefined, number>;
  droppedLogLines(): number;
  /** Undefined without `[telemetry] traces`. */
  droppedSpans(): number | undefined;
  incidents(): Incidents;
  /** Warnings about the settings in use. */
  warnings(): readonly string[];
  /**
   * Connections to providers: now `open`, and since the start `made` and `reused` for a request.
   * Undefined if the transport does not know them.
   */
  connections(): Readonly<Record<'open' | 'made' | 'reused', number>> | undefined;
  /** The rate limits' store, if there is one. `fallbacks` counts decisions without it. */
  store(): { readonly isAway: boolean; readonly fallbacks: number } | undefined;
  /** The providers in the settings, by their ids. */
  providers(): ReadonlyMap<string, ProviderFigures>;
  /**
   * Whether the latest reload succeeded, and when the settings in use were read, in milliseconds
   * since the epoch.
   */
  lastReload(): { readonly isGood: boolean; readonly successTime: number };
}

type Value = number | boolean | undefined;
type Samples = readonly (readonly [labels: LabelSet, value: Value])[];
/** A figure is a value, or values with labels. Undefined values are left out. */
export type FigureRow = readonly [name: string, figure: Value | Samples, help: string];

/** Returns the process's CPU time in seconds, user and system. */
function cpuSeconds(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/** Returns the resident memory in bytes. */
const residentBytes = () => orUndefined(() => process.memoryUsage.rss());

/**
 * Returns a function that reads the page's figures. The CPU's use is that since its last call.
 * Listing descriptors would take too long for each second.
 */
export function createPageFigures(figures: Figures) {
  let latest = { cpu: 0, at: 0 };
  return ({ server }: Config) => {
    const now = { cpu: cpuSeconds(), at: performance.now() / 1000 };
    const seconds = Math.max(0.001, now.at - latest.at);
    const percent = Math.round((100 * (now.cpu - latest.cpu)) / seconds);
    latest = now;
    const limit = megabytes(server.maxBufferedBytes);
    const about = [
      `Node ${process.versions.node}`,
      // Not from the time of day, because the system's clock may be set.
      `up ${formatDuration(Math.floor(now.at), true)}`,
      `CPU ${percent} %`,
      `${megabytes(residentBytes())} MB`,
      `bodies hold ${megabytes(figures.bufferedBytes())} of ${limit} MB`,
    ];
    return { in_flight: figures.inFlight(), about: about.join(' · ') };
  };
}

const megabytes = (bytes = 0) => formatCount(Math.round(bytes / 1e6));

/** Returns who holds most of the memory for bodies; undefined if half of it is free. */
export function describeHeld({ server }: Config, figures: Figures): string | undefined {
  const [bytes, all] = [figures.bufferedBytes(), server.maxBufferedBytes];
  if (bytes < all / 2) return undefined;
  const held = [...figures.bufferedBytesByClient()];
  const [most] = held.toSorted((one, other) => other[1] - one[1]);
  const holder = most && `, most ${most[0] ?? 'clients without a name'}: ${megabytes(most[1])} MB`;
  return `Bodies hold ${megabytes(bytes)} of ${megabytes(all)} MB${holder ?? ''}.`;
}

/** Returns all figures of /metrics with their names in the exposition format. */
export function readFigures(config: Config, figures: Figures): FigureRow[] {
  // The sets of a scrape are garbage behind it, because names change with the settings.
  const root = new LabelSet();
  const build = root.with('version', VERSION).with('node', process.versions.node);
  const connections = figures.connections();
  const { isGood, successTime } = figures.lastReload();
  const store = figures.store();
  const startSeconds = performance.timeOrigin / 1000;
  return [
    ['gateway_build_info', [[build, 1]], 'Always 1.'],
    [
      'gateway_settings_info',
      [[root.with('digest', config.digest), 1]],
      'Always 1: a digest of the settings in use.',
    ],
    ['gateway_requests_in_flight', figures.inFlight(), 'Requests begun and not over.'],
    ['gateway_open_streams', figures.openStreams(), 'Streamed answers being sent.'],
    ['gateway_buffered_bytes', figures.bufferedBytes(), 'Bytes held for all clients together.'],
    ['gateway_log_lines_dropped_total', figures.droppedLogLines(), 'Log lines that were lost.'],
    ['gateway_spans_dropped_total', figures.droppedSpans(), 'Spans that were lost.'],
    ['gateway_config_last_reload_successful', isGood, '1 if the latest succeeded.'],
    [
      'gateway_config_last_reload_success_timestamp_seconds',
      successTime / 1000,
      'When the settings in use were read, in seconds since the epoch.',
    ],
    ['gateway_upstream_connections_open', connections?.open, 'Connections to providers.'],
    ['gateway_upstream_connections_made_total', connections?.made, 'Connections made.'],
    ['gateway_upstream_connections_reused_total', connections?.reused, 'Connections used again.'],
    ['gateway_rate_limit_store_up', store && !store.isAway, '1 if the store answers.'],
    ['gateway_rate_limit_store_fallbacks_total', store?.fallbacks, 'Decisions without a store.'],
    ...readParts(config, figures, root),
    // Prometheus' client libraries use these names.
    ['process_cpu_seconds_total', cpuSeconds(), 'CPU time of the process.'],
    ['process_resident_memory_bytes', residentBytes(), 'Resident memory of the process.'],
    ['process_open_fds', countDescriptors(), 'Open file descriptors.'],
    ['process_max_fds', MAX_DESCRIPTORS, 'Limit of open file descriptors.'],
    ['process_start_time_seconds', startSeconds, 'Start, in seconds since the epoch.'],
  ];
}

/** Returns figures for all clients and providers in the settings, because alerts need zeros. */
function readParts(config: Config, figures: Figures, root: LabelSet): FigureRow[] {
  const clientsOf = (read: (name: string) => Value): Samples =>
    config.clients.map(({ name }) => [root.with('client', name), read(name)]);
  const providers = [...figures.providers()];
  const providersOf = (read: (provider: ProviderFigures, id: string) => Value): Samples =>
    providers.map(([id, provider]) => [root.with('provider', id), read(provider, id)]);
  const heldBytes = figures.bufferedBytesByClient();
  const agesMs = figures.oldestAgesMs();
  const circuits = (['open', 'half-open'] as const).flatMap((state) =>
    providers.map(([id, { breaker }]) => {
      const own = breaker.report().filter((one) => one.state === state);
      return [root.with('provider', id).with('state', state), own.length] as const;
    }),
  );
  return [
    ['gateway_breaker_circuits', circuits, 'Circuits of providers and models that are not closed.'],
    [
      'gateway_client_requests_in_flight',
      clientsOf((name) => figures.inFlightOf(`clients.${name}`)),
      'Requests of each client that are not over.',
    ],
    [
      'gateway_client_buffered_bytes',
      [...clientsOf((name) => heldBytes.get(name) ?? 0), [root, heldBytes.get(undefined) ?? 0]],
      'Bytes held for each client.',
    ],
    [
      'gateway_provider_requests_in_flight',
      providersOf((_, id) => figures.inFlightOf(`providers.${id}`)),
      'Requests at each provider.',
    ],
    [
      'gateway_provider_requests_waiting',
      providersOf((_, id) => figures.waitingFor(id)),
      'Requests that wait for a slot of each.',
    ],
    [
      'gateway_provider_oldest_request_seconds',
      providersOf((_, id) => (agesMs.get(id) ?? 0) / 1000),
      'Age of the oldest one, 0 without one.',
    ],
    ...readLimits(config, figures, root),
    [
      'gateway_keys_in_cooldown',
      providersOf(({ keyPool }) => keyPool?.inCooldown),
      'Keys that are not used for a while, of several.',
    ],
    [
      'gateway_keys_accepted',
      providersOf(({ keyPool }) => keyPool?.accepted),
      'Keys not refused since they last worked, of several.',
    ],
    [
      'gateway_model_list_up',
      providersOf(({ modelList }) => modelList.isUp),
      '1 if the latest fetch succeeded.',
    ],
  ];
}

function readLimits(config: Config, figures: Figures, root: LabelSet): FigureRow[] {
  const labelsOf = (limit: Limit, client?: string) =>
    root.with('limit', limit).with('client', client);
  const buckets = config.clients.flatMap(({ name }) =>
    figures.usedOf(name).map((use) => ({ ...use, labels: labelsOf(use.limit, name) })),
  );
  const limits = [
    ...limitsIn(config).map(([limit, value, client, provider]) => {
      return [labelsOf(limit, client).with('provider', provider), value] as const;
    }),
    ...buckets.map(({ labels, capacity }) => [labels, capacity] as const),
  ];
  return [
    ['gateway_limit', limits, 'Limits of the settings, by their unit.'],
    [
      'gateway_limit_used',
      buckets.map(({ labels, used }) => [labels, used] as const),
      'What is used of the limits by the minute, day and month.',
    ],
  ];
}

/** A limit in the settings; of a client or a provider with its name. */
type SetLimit = readonly [limit: Limit, value: number, client?: string, provider?: string];

/** Returns the limits in the settings, without those of clients by the minute, day and month. */
export function limitsIn({ clients, providers, rateLimit, server }: Config): SetLimit[] {
  const { enabled, global } = rateLimit;
  const all: SetLimit[] = [
    ['server_concurrency', server.maxConcurrentRequests],
    ['memory', server.maxBufferedBytes],
    ['global', enabled ? global.requestsPerSecond : 0],
    ...clients.flatMap(({ name, maxConcurrentRequests, limit }): SetLimit[] => [
      ['client_concurrency', maxConcurrentRequests, name],
      ['client', limit.requestsPerSecond, name],
    ]),
    ...providers.registered.flatMap(({ id, maxConcurrentRequests }): SetLimit[] => {
      const bucket = enabled ? rateLimit.providers.get(id) : undefined;
      return [
        ['provider_concurrency', maxConcurrentRequests, undefined, id],
        ['provider', bucket?.requestsPerSecond ?? 0, undefined, id],
        ['provider_requests_per_minute', bucket?.requestsPerMinute ?? 0, undefined, id],
      ];
    }),
  ];
  return all.filter(([, value]) => value > 0 && value < Infinity);
}

/** Returns a figure in the exposition format. */
export function renderFigure([name, figure, help]: FigureRow): string {
  if (figure === undefined) return '';
  const samples = typeof figure === 'object' ? figure : ([[new LabelSet(), figure]] as const);
  // By Prometheus' convention the names of counters end with `_total`.
  const head = renderHead(name, name.endsWith('_total') ? 'counter' : 'gauge', help);
  const known = samples.filter(([, value]) => value !== undefined);
  return head + known.map(([{ text }, value]) => renderSample(name, text, Number(value))).join('');
}

/**
 * Returns how old each provider's oldest request in flight is, since its first try there. A request
 * whose client still reads the end of its answer is at no provider.
 */
export function oldestAgesMs(calls: Iterable<{ readonly history: RequestHistory }>) {
  const ages = new Map<string, number>();
  const nowMs = performance.now();
  for (const { history } of calls) {
    if (!history.holdsSlot) continue;
    const provider = history.attempt?.provider;
    const first = history.attempts.find((one) => one.provider === provider && one.wasAsked);
    if (!first) continue;
    ages.set(first.provider, Math.max(ages.get(first.provider) ?? 0, nowMs - first.beganAtMs));
  }
  return ages;
}

/**
 * Returns a value that Linux has in a file; undefined on other systems, and while no descriptor is
 * left for reading.
 */
function orUndefined<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}

const MAX_DESCRIPTORS = orUndefined(() => {
  const limits = readFileSync('/proc/self/limits', 'utf8');
  return Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1]) || undefined;
});

/**
 * Returns the number of open descriptors. Listing them takes a descriptor itself, so if that fails,
 * all are open.
 */
function countDescriptors(): number | undefined {
  return orUndefined(() => readdirSync('/proc/self/fd').length - 1) ?? MAX_DESCRIPTORS;
}

/**
 * Begins to measure the event loop. Returns a function that returns its delays since the last call.
 */
export function createLagFigures(): () => FigureRow[] {
  const delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  delays.enable();
  // Node measures the time between two ticks in nanoseconds. Before the first it is NaN.
  const secondsOf = (nanoseconds: number) =>
    Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS) / 1000 || 0;
  return () => {
    const rows: FigureRow[] = [
      ['nodejs_eventloop_lag_mean_seconds', secondsOf(delays.mean), 'Mean delay of event loop.'],
      ['nodejs_eventloop_lag_p99_seconds', secondsOf(delays.percentile(99)), '99th percentile.'],
      ['nodejs_eventloop_lag_max_seconds', secondsOf(delays.max), 'Longest delay.'],
    ];
    delays.reset();
    return rows;
  };
}

/** Returns `ready` if the public port takes requests for any provider, else the reason why not. */
export function readinessOf(figures: Figures): string {
  if (figures.isDraining()) return 'draining';
  if (!figures.isListening()) return 'not listening';
  const providers = [...figures.providers().values()];
  if (providers.length === 0) return 'no provider';
  const areAllOpen = providers.every(({ breaker }) =>
    breaker.report().some(({ model, state }) => model === undefined && state === 'open'),
  );
  return areAllOpen ? 'all circuits open' : 'ready';
}
