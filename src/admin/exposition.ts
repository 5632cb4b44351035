/** `GET /metrics` in Prometheus' text format 0.0.4: series of finished requests, and figures of the moment. */

import type { Config } from '../config/config.ts';
import type { LoopDelay } from '../lib/shared-memory.ts';
import { VERSION } from '../lib/version.ts';
import { readDescriptors, readProcess, STARTED_AT_MS, type Figures } from './figures.ts';
import { NO_LABELS, type LabelSet } from './labels.ts';
import type { RequestMetrics } from './metrics.ts';
import { renderHead, renderSample } from './series.ts';

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Other connections are served after each chunk: the text can take megabytes. */
const CHUNK_CHARACTERS = 65_536;

/** Yields the text in chunks. Each is made when the one before was taken. */
export async function* renderMetrics(
  config: Config,
  metrics: RequestMetrics,
  figures: Figures,
  readLoopDelay: () => LoopDelay,
): AsyncGenerator<Buffer> {
  let text = '';
  for (const part of metrics.render()) {
    text += part;
    if (text.length < CHUNK_CHARACTERS) continue;
    yield Buffer.from(text);
    text = '';
  }
  const build = NO_LABELS.with('version', VERSION).with('node', process.versions.node);
  text += renderFigure('gateway_build_info', 'Always 1.', [[build, 1]]);
  for (const [name, [value, help]] of Object.entries(readFigures(figures, readLoopDelay()))) {
    if (value !== undefined) text += renderFigure(name, help, [[NO_LABELS, value]]);
  }
  for (const [name, help, samples] of readSamples(config, figures)) {
    text += renderFigure(name, help, samples);
  }
  yield Buffer.from(text);
}

type Samples = readonly (readonly [labels: LabelSet, value: number])[];

function renderFigure(name: string, help: string, samples: Samples): string {
  // Prometheus' convention for names of counters.
  const head = renderHead(name, name.endsWith('_total') ? 'counter' : 'gauge', help);
  return head + samples.map(([{ text }, value]) => renderSample(name, text, value)).join('');
}

/** Returns the metrics without labels, each with its help; an undefined value leaves one out. */
function readFigures(
  figures: Figures,
  loopDelayMs: LoopDelay,
): Record<string, readonly [value: number | undefined, help: string]> {
  const connections = figures.connections();
  const { isSuccessful, succeededAtMs } = figures.lastReload();
  const store = figures.store();
  const { cpuSeconds, rssBytes } = readProcess();
  const descriptors = readDescriptors();
  return {
    gateway_requests_in_flight: [figures.inFlight(), 'Requests begun and not over.'],
    gateway_open_streams: [figures.openStreams(), 'Streamed answers being sent.'],
    gateway_buffered_bytes: [figures.bufferedBytes(), 'Bytes held for all clients together.'],
    gateway_workers_serving: [figures.serving(), 'Threads that accept connections.'],
    gateway_log_lines_dropped_total: [figures.droppedLogLines(), 'Log lines that were lost.'],
    gateway_requests_uncounted_total: [
      figures.uncountedRequests(),
      'Finished requests that the other metrics miss because the main thread did not run.',
    ],
    gateway_descriptors_exhausted_total: [
      figures.exhaustions(),
      'Connections to providers that failed for want of descriptors or ports.',
    ],
    gateway_config_last_reload_successful: [Number(isSuccessful), '1 if the latest succeeded.'],
    gateway_config_last_reload_success_timestamp_seconds: [
      succeededAtMs / 1000,
      'When the settings in use were read, in seconds since the epoch.',
    ],
    gateway_upstream_connections_open: [connections?.open, 'Connections to providers.'],
    gateway_upstream_connections_made_total: [connections?.made, 'Connections made to providers.'],
    gateway_upstream_connections_reused_total: [connections?.reused, 'Connections used again.'],
    gateway_rate_limit_store_up: [store && Number(!store.isAway), '1 if the store answers.'],
    gateway_rate_limit_store_fallbacks_total: [store?.fallbacks, 'Decisions without a store.'],
    // The names of Prometheus' client libraries.
    process_cpu_seconds_total: [cpuSeconds, 'CPU time of the process.'],
    process_resident_memory_bytes: [rssBytes, 'Resident memory of the process.'],
    process_open_fds: [descriptors.open, 'Open file descriptors.'],
    process_max_fds: [descriptors.max, 'Limit of open file descriptors.'],
    process_start_time_seconds: [STARTED_AT_MS / 1000, 'Start, in seconds since the epoch.'],
    nodejs_eventloop_lag_mean_seconds: [loopDelayMs.mean / 1000, 'Mean delay of the event loop.'],
    nodejs_eventloop_lag_p99_seconds: [loopDelayMs.p99 / 1000, '99th percentile of the delay.'],
    nodejs_eventloop_lag_max_seconds: [loopDelayMs.max / 1000, 'Longest delay.'],
  };
}

/** Yields the metrics with labels: a series for each client and provider of the settings, because alerts need those that are 0. */
function* readSamples(
  config: Config,
  figures: Figures,
): Generator<[name: string, help: string, samples: Samples]> {
  const { clients, providers } = config;
  const ids = providers.registered.map(({ id }) => id);
  const ofProvider = (id: string) => NO_LABELS.with('provider', id);
  const circuits = figures.circuits();
  yield [
    'gateway_breaker_circuits',
    "Circuits that are not closed: the provider's own, and one for each of its models.",
    ids.flatMap((id) =>
      (['open', 'half-open'] as const).map((state) => {
        const tripped = circuits.filter((one) => one.provider === id && one.state === state);
        return [ofProvider(id).with('state', state), tripped.length] as const;
      }),
    ),
  ];
  yield [
    'gateway_client_requests_in_flight',
    'Requests of each named client that are not over.',
    clients.map(({ name }) => [
      NO_LABELS.with('client', name),
      figures.inFlightOf(`clients.${name}`),
    ]),
  ];
  yield [
    'gateway_provider_requests_in_flight',
    'Requests at each provider that are not over.',
    ids.map((id) => [ofProvider(id), figures.inFlightOf(`providers.${id}`)]),
  ];
  yield ['gateway_limit', 'Limits of the settings, by their unit.', limitsOf(config)];
  yield [
    'gateway_keys_in_cooldown',
    'Keys of providers with several that are not used for a while.',
    figures.keysInCooldown().map(([id, count]) => [ofProvider(id), count]),
  ];
  yield [
    'gateway_model_list_up',
    '1 if the latest fetch of the list of models succeeded.',
    ids.flatMap((id) => {
      const isUp = figures.isModelListUp(id);
      return isUp === undefined ? [] : [[ofProvider(id), Number(isUp)] as const];
    }),
  ];
}

/** Those that are set, by the `reason` of a refusal. */
function limitsOf({ clients, providers, rateLimit, server }: Config): Samples {
  const limit = (name: string) => NO_LABELS.with('limit', name);
  const { enabled, global } = rateLimit;
  return [
    [limit('server_concurrency'), server.maxConcurrentRequests] as const,
    [limit('memory'), server.maxBufferedBytes] as const,
    [limit('global'), enabled ? global.requestsPerSecond : 0] as const,
    ...clients.flatMap(({ name, maxConcurrentRequests, limit: { requestsPerSecond } }) => [
      [limit('client_concurrency').with('client', name), maxConcurrentRequests] as const,
      [limit('client').with('client', name), requestsPerSecond] as const,
    ]),
    ...providers.registered.map(
      ({ id, maxConcurrentRequests }) =>
        [limit('provider_concurrency').with('provider', id), maxConcurrentRequests] as const,
    ),
    ...[...(enabled ? rateLimit.providers : [])].map(
      ([id, { requestsPerSecond }]) =>
        [limit('provider').with('provider', id), requestsPerSecond] as const,
    ),
  ].filter(([, value]) => value > 0 && value < Infinity);
}
