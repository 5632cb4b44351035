/** `GET /metrics` in Prometheus' text format 0.0.4: series of finished requests, and figures of the moment. */

import type { Config } from '../config/config.ts';
import type { LoopDelay } from '../lib/shared-memory.ts';
import { VERSION } from '../lib/version.ts';
import { readProcess, STARTED_AT_MS, type Figures } from './figures.ts';
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
  yield Buffer.from(text + renderCircuits(config, figures));
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
  return {
    gateway_requests_in_flight: [figures.inFlight(), 'Requests begun and not over.'],
    gateway_open_streams: [figures.openStreams(), 'Streamed answers being sent.'],
    gateway_buffered_bytes: [figures.bufferedBytes(), 'Bytes held for all clients together.'],
    gateway_log_lines_dropped_total: [
      figures.droppedLogLines(),
      'Log lines lost because standard output did not take them.',
    ],
    gateway_requests_uncounted_total: [
      figures.uncountedRequests(),
      'Finished requests that the other metrics miss because the main thread did not run.',
    ],
    gateway_descriptors_exhausted_total: [
      figures.exhaustions(),
      'Connections to providers that failed for want of descriptors or ports.',
    ],
    gateway_config_last_reload_successful: [
      Number(isSuccessful),
      'Whether the settings that were read last are in use.',
    ],
    gateway_config_last_reload_success_timestamp_seconds: [
      succeededAtMs / 1000,
      'When the settings in use were read, in seconds since the epoch.',
    ],
    gateway_upstream_connections_open: [connections?.open, 'Connections to providers.'],
    gateway_upstream_connections_made_total: [connections?.made, 'Connections made to providers.'],
    gateway_upstream_connections_reused_total: [
      connections?.reused,
      'Requests sent to providers on a connection that had carried one before.',
    ],
    gateway_rate_limit_store_up: [
      store && Number(!store.isAway),
      'Whether the store of rate limits answers.',
    ],
    gateway_rate_limit_store_fallbacks_total: [
      store?.fallbacks,
      'Decisions about rate limits that were made without the store.',
    ],
    // The names of Prometheus' client libraries.
    process_cpu_seconds_total: [cpuSeconds, 'CPU time of the process.'],
    process_resident_memory_bytes: [rssBytes, 'Resident memory of the process.'],
    process_start_time_seconds: [STARTED_AT_MS / 1000, 'Start, in seconds since the epoch.'],
    nodejs_eventloop_lag_mean_seconds: [loopDelayMs.mean / 1000, 'Mean delay of the event loop.'],
    nodejs_eventloop_lag_p99_seconds: [loopDelayMs.p99 / 1000, '99th percentile of the delay.'],
    nodejs_eventloop_lag_max_seconds: [loopDelayMs.max / 1000, 'Longest delay.'],
  };
}

/** A series for each registered provider and state: alerts need those that are 0. */
function renderCircuits({ providers }: Config, figures: Figures): string {
  const circuits = figures.circuits();
  const samples = providers.registered.flatMap(({ id }) =>
    (['open', 'half-open'] as const).map((state) => {
      const labels = NO_LABELS.with('provider', id).with('state', state);
      const tripped = circuits.filter((one) => one.provider === id && one.state === state);
      return [labels, tripped.length] as const;
    }),
  );
  const help = "Circuits that are not closed: the provider's own, and one for each of its models.";
  return renderFigure('gateway_breaker_circuits', help, samples);
}
