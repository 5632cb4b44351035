/** What the feed tells of the present: the `settings` and `state` events. */

import { needsKey, type Config } from '../config/config.ts';
import { VERSION } from '../lib/version.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';
import { STARTED_AT_MS, type Figures, type ProcessFigures } from './figures.ts';
import type { History } from './history.ts';
import type { Totals } from './totals.ts';

export interface StateSources {
  /** The settings in use; a reload replaces them. */
  readonly config: () => Config;
  readonly figures: Figures;
  readonly processFigures: () => ProcessFigures;
  readonly history: History;
  readonly totals: Totals;
}

/** What changes with a reload only. Keys are masked. */
export function describeSettings(config: Config, figures: Figures) {
  return {
    version: VERSION,
    node: process.versions.node,
    startedAt: new Date(STARTED_AT_MS).toISOString(),
    url: figures.url(),
    needsKey: needsKey(config),
    settings: [...config.resolved],
    warnings: config.warnings,
  };
}

/** What is true now, and what has happened in the last minutes and since the start. */
export function describeState(sources: StateSources) {
  const { figures, history, totals } = sources;
  const { cpuSeconds, rssBytes, loopDelayMs } = sources.processFigures();
  return {
    now: new Date().toISOString(),
    draining: figures.isDraining(),
    inFlight: figures.inFlight(),
    openStreams: figures.openStreams(),
    bufferedBytes: figures.bufferedBytes(),
    droppedLogLines: figures.droppedLogLines(),
    connections: figures.connections() ?? null,
    process: { cpuSeconds, rssBytes, loopDelayP99Ms: loopDelayMs.p99 },
    history: history.report(figures.openStreams()),
    providers: describeProviders(sources),
    models: totals.models(),
    clients: totals.clients(),
  };
}

function describeProviders({ config, figures, totals }: StateSources) {
  const circuits = figures.circuits();
  const { registered, skipped } = config().providers;
  return [
    ...registered.map(({ id }) => {
      const known = totals.provider(id);
      const standing = standingOf(circuits.filter(({ provider }) => provider === id));
      // Without a fallback there is no breaker, and with one it does not open for each failure.
      const since = standing.state === 'good' ? totals.failingSince(id) : null;
      const failing = since === null ? {} : { state: 'failing', why: known.lastError?.text };
      return { id, ...standing, ...failing, since, ...known };
    }),
    // Built-in providers without a key are of interest only if the settings name them.
    ...skipped
      .filter(({ isConfigured }) => isConfigured)
      .map(({ id, reason }) => ({
        id,
        state: 'skipped',
        why: reason,
        since: null,
        restsUntil: null,
        resting: [],
        ...totals.provider(id),
      })),
  ];
}

/** Whether a provider may be asked, by its tripped circuits: its own, and those of its models. */
function standingOf(circuits: readonly CircuitReport[]) {
  const own = circuits.find(({ model }) => model === undefined);
  const resting = circuits
    .filter(({ state }) => state === 'open')
    .map((circuit) => ({
      model: circuit.model ?? null,
      until: wallClock(circuit.restsUntilMs),
      why: circuit.cause ?? '',
    }));
  return {
    state: !own ? 'good' : own.state === 'open' ? 'resting' : 'half-open',
    why: own?.cause ?? null,
    restsUntil: own?.state === 'open' ? wallClock(own.restsUntilMs) : null,
    resting,
  };
}

/** Takes a time on the clock of `performance.now()`. */
function wallClock(ms: number): string {
  return new Date(Date.now() + ms - performance.now()).toISOString();
}
