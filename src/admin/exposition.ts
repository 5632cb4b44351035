/** `GET /metrics`: what is counted, and what is read at the moment, in Prometheus' text format 0.0.4. */

import type { Config } from '../config/config.ts';
import type { ConnectionFigures } from '../lib/thread-figures.ts';
import { VERSION } from '../lib/version.ts';
import { renderFigure } from './families.ts';
import { STARTED_AT_MS, type Figures, type ProcessFigures, type StoreFigures } from './figures.ts';
import { NO_LABELS } from './labels.ts';
import type { RequestMetrics } from './metrics.ts';

export const METRICS_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

interface ExpositionSources {
  readonly config: () => Config;
  readonly metrics: RequestMetrics;
  readonly figures: Figures;
  readonly processFigures: () => ProcessFigures;
}

/** Other connections are served after each chunk: the text can take megabytes. */
const CHUNK_CHARACTERS = 65_536;

/** Yields the text in chunks. Each is made when the one before was taken. */
export async function* renderMetrics(sources: ExpositionSources): AsyncGenerator<Buffer> {
  const { figures, metrics, processFigures } = sources;
  let text = '';
  for (const part of metrics.render()) {
    text += part;
    if (text.length < CHUNK_CHARACTERS) continue;
    yield Buffer.from(text);
    text = '';
  }
  text += renderGateway(figures) + renderCircuits(sources) + renderProcess(processFigures());
  yield Buffer.from(text);
}

function gauge(name: string, help: string, value: number): string {
  return renderFigure({ name, type: 'gauge', help }, [[NO_LABELS, value]]);
}

function counter(name: string, help: string, value: number): string {
  return renderFigure({ name, type: 'counter', help }, [[NO_LABELS, value]]);
}

function renderGateway(figures: Figures): string {
  const connections = figures.connections();
  const lastReload = figures.lastReload();
  const store = figures.store();
  const build = NO_LABELS.with('version', VERSION).with('node', process.versions.node);
  return [
    gauge('gateway_requests_in_flight', 'Requests begun and not over.', figures.inFlight()),
    gauge('gateway_open_streams', 'Streamed answers being sent.', figures.openStreams()),
    gauge(
      'gateway_buffered_bytes',
      'Bytes of requests and answers held for all clients together.',
      figures.bufferedBytes(),
    ),
    counter(
      'gateway_log_lines_dropped_total',
      'Log lines lost because standard output did not take them.',
      figures.droppedLogLines(),
    ),
    counter(
      'gateway_requests_uncounted_total',
      'Finished requests that the other metrics miss because the main thread did not run.',
      figures.uncountedRequests(),
    ),
    counter(
      'gateway_descriptors_exhausted_total',
      'Connections to providers that failed for want of descriptors or ports.',
      figures.exhaustions(),
    ),
    gauge(
      'gateway_config_last_reload_successful',
      'Whether the settings that were read last are in use.',
      lastReload.isSuccessful ? 1 : 0,
    ),
    gauge(
      'gateway_config_last_reload_success_timestamp_seconds',
      'When the settings in use were read, in seconds since the epoch.',
      lastReload.succeededAtMs / 1000,
    ),
    ...(connections ? renderConnections(connections) : []),
    ...(store ? renderStore(store) : []),
    renderFigure({ name: 'gateway_build_info', type: 'gauge', help: 'Always 1.' }, [[build, 1]]),
  ].join('');
}

function renderConnections({ open, made, reused }: ConnectionFigures): string[] {
  return [
    gauge('gateway_upstream_connections_open', 'Connections to providers.', open),
    counter('gateway_upstream_connections_made_total', 'Connections made to providers.', made),
    counter(
      'gateway_upstream_connections_reused_total',
      'Requests sent to providers on a connection that had carried one before.',
      reused,
    ),
  ];
}

function renderStore({ isAway, fallbacks }: StoreFigures): string[] {
  return [
    gauge(
      'gateway_rate_limit_store_up',
      'Whether the store of rate limits answers.',
      isAway ? 0 : 1,
    ),
    counter(
      'gateway_rate_limit_store_fallbacks_total',
      'Decisions about rate limits that were made without the store.',
      fallbacks,
    ),
  ];
}

/** A series for each registered provider and state: alerts need those that are 0. */
function renderCircuits({ config, figures }: ExpositionSources): string {
  const circuits = figures.circuits();
  const samples = config().providers.registered.flatMap(({ id }) =>
    (['open', 'half-open'] as const).map((state) => {
      const labels = NO_LABELS.with('provider', id).with('state', state);
      const tripped = circuits.filter((one) => one.provider === id && one.state === state);
      return [labels, tripped.length] as const;
    }),
  );
  const help = "Circuits that are not closed: the provider's own, and one for each of its models.";
  return renderFigure({ name: 'gateway_breaker_circuits', type: 'gauge', help }, samples);
}

/** Under the names that Prometheus' client libraries use. */
function renderProcess({ cpuSeconds, rssBytes, loopDelayMs }: ProcessFigures): string {
  const { mean, p99, max } = loopDelayMs;
  return [
    counter('process_cpu_seconds_total', 'CPU time of the process.', cpuSeconds),
    gauge('process_resident_memory_bytes', 'Resident memory of the process.', rssBytes),
    gauge(
      'process_start_time_seconds',
      'When the process started, in seconds since the epoch.',
      STARTED_AT_MS / 1000,
    ),
    gauge('nodejs_eventloop_lag_mean_seconds', 'Mean delay of the event loop.', mean / 1000),
    gauge('nodejs_eventloop_lag_p99_seconds', '99th percentile of the delay.', p99 / 1000),
    gauge('nodejs_eventloop_lag_max_seconds', 'Longest delay of the event loop.', max / 1000),
  ].join('');
}
