/** `GET /metrics` in Prometheus' text format 0.0.4: series of finished requests, and figures of the moment. */

import type { Config } from '../config/config.ts';
import { VERSION } from '../lib/version.ts';
import { STARTED_AT_MS, type Figures, type ProcessFigures } from './figures.ts';
import { NO_LABELS } from './labels.ts';
import type { RequestMetrics } from './metrics.ts';
import { renderFigure } from './series.ts';

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
  let text = '';
  for (const part of sources.metrics.render()) {
    text += part;
    if (text.length < CHUNK_CHARACTERS) continue;
    yield Buffer.from(text);
    text = '';
  }
  yield Buffer.from(text + renderFigures(sources) + renderCircuits(sources));
}

/** Metrics without labels: name and help. Names of counters end with `_total`, as is Prometheus' convention. */
const HELP = {
  gateway_requests_in_flight: 'Requests begun and not over.',
  gateway_open_streams: 'Streamed answers being sent.',
  gateway_buffered_bytes: 'Bytes of requests and answers held for all clients together.',
  gateway_log_lines_dropped_total: 'Log lines lost because standard output did not take them.',
  gateway_requests_uncounted_total:
    'Finished requests that the other metrics miss because the main thread did not run.',
  gateway_descriptors_exhausted_total:
    'Connections to providers that failed for want of descriptors or ports.',
  gateway_config_last_reload_successful: 'Whether the settings that were read last are in use.',
  gateway_config_last_reload_success_timestamp_seconds:
    'When the settings in use were read, in seconds since the epoch.',
  gateway_upstream_connections_open: 'Connections to providers.',
  gateway_upstream_connections_made_total: 'Connections made to providers.',
  gateway_upstream_connections_reused_total:
    'Requests sent to providers on a connection that had carried one before.',
  gateway_rate_limit_store_up: 'Whether the store of rate limits answers.',
  gateway_rate_limit_store_fallbacks_total:
    'Decisions about rate limits that were made without the store.',
  // The names of Prometheus' client libraries.
  process_cpu_seconds_total: 'CPU time of the process.',
  process_resident_memory_bytes: 'Resident memory of the process.',
  process_start_time_seconds: 'When the process started, in seconds since the epoch.',
  nodejs_eventloop_lag_mean_seconds: 'Mean delay of the event loop.',
  nodejs_eventloop_lag_p99_seconds: '99th percentile of the delay.',
  nodejs_eventloop_lag_max_seconds: 'Longest delay of the event loop.',
};
type Name = keyof typeof HELP;

/** Returns the value of each metric of `HELP`; undefined leaves one out. */
function readFigures(figures: Figures, own: ProcessFigures): Record<Name, number | undefined> {
  const connections = figures.connections();
  const lastReload = figures.lastReload();
  const store = figures.store();
  return {
    gateway_requests_in_flight: figures.inFlight(),
    gateway_open_streams: figures.openStreams(),
    gateway_buffered_bytes: figures.bufferedBytes(),
    gateway_log_lines_dropped_total: figures.droppedLogLines(),
    gateway_requests_uncounted_total: figures.uncountedRequests(),
    gateway_descriptors_exhausted_total: figures.exhaustions(),
    gateway_config_last_reload_successful: Number(lastReload.isSuccessful),
    gateway_config_last_reload_success_timestamp_seconds: lastReload.succeededAtMs / 1000,
    gateway_upstream_connections_open: connections?.open,
    gateway_upstream_connections_made_total: connections?.made,
    gateway_upstream_connections_reused_total: connections?.reused,
    gateway_rate_limit_store_up: store && Number(!store.isAway),
    gateway_rate_limit_store_fallbacks_total: store?.fallbacks,
    process_cpu_seconds_total: own.cpuSeconds,
    process_resident_memory_bytes: own.rssBytes,
    process_start_time_seconds: STARTED_AT_MS / 1000,
    nodejs_eventloop_lag_mean_seconds: own.loopDelayMs.mean / 1000,
    nodejs_eventloop_lag_p99_seconds: own.loopDelayMs.p99 / 1000,
    nodejs_eventloop_lag_max_seconds: own.loopDelayMs.max / 1000,
  };
}

function renderFigures({ figures, processFigures }: ExpositionSources): string {
  const build = NO_LABELS.with('version', VERSION).with('node', process.versions.node);
  let text = renderFigure(['gateway_build_info', 'gauge', 'Always 1.'], [[build, 1]]);
  for (const [name, value] of Object.entries(readFigures(figures, processFigures()))) {
    if (value === undefined) continue;
    const type = name.endsWith('_total') ? 'counter' : 'gauge';
    text += renderFigure([name, type, HELP[name as Name]], [[NO_LABELS, value]]);
  }
  return text;
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
  return renderFigure(['gateway_breaker_circuits', 'gauge', help], samples);
}
