/** The memory of the admin listener, for /metrics and the page. */

import { hostname } from 'node:os';

import type { Config } from '../config/config.ts';
import { redactFacts } from '../lib/log.ts';
import type { Redactor } from '../lib/secrets.ts';
import { VERSION } from '../lib/version.ts';
import type { FinishedRequest } from '../request/facts.ts';
import { INCIDENT_KINDS } from '../request/incident-kind.ts';
import {
  createLagFigures,
  type FigureRow,
  type Figures,
  readFigures,
  readPageFigures,
  renderFigure,
} from './figures.ts';
import { LabelSet } from './labels.ts';
import { RequestMetrics } from './metrics.ts';
import { AllNames } from './names.ts';
import { RecentRequests } from './recent-requests.ts';
import { Slowness } from './slowness.ts';
import { Traffic } from './traffic.ts';

/** A minute's median shows a change half a minute late. */
const MEDIAN_LATE_MS = 30_000;

/** Finished requests and figures. Its creation begins to measure the event loop. */
export class AdminView {
  readonly #config: () => Config;
  readonly #figures: Figures;
  readonly #redact: Redactor;
  readonly #names = new AllNames((name) => this.#redact(name) === name);
  readonly #metrics = new RequestMetrics(this.#names);
  readonly #traffic = new Traffic(() => performance.timeOrigin + performance.now());
  readonly #recent: RecentRequests;
  readonly #readLag = createLagFigures();
  readonly #slowness = new Slowness();

  /** @param config - returns the settings in use, which a reload replaces */
  constructor(config: () => Config, figures: Figures, redact: Redactor) {
    this.#config = config;
    this.#figures = figures;
    this.#redact = redact;
    this.#recent = new RecentRequests(redact);
  }

  /** Counts a finished request. */
  observe(request: FinishedRequest): void {
    this.#traffic.add(request, this.#metrics.add(request));
    this.#recent.add(request);
  }

  /** Takes new settings, whose names become labels. */
  onConfig(next: Config): void {
    this.#names.useSettings(next);
    this.#metrics.learn(next);
  }

  /** Takes a provider's model list, whose names become labels. */
  onModels(provider: string, names: readonly string[]): void {
    this.#names.useList(provider, names, this.#config());
  }

  /**
   * Forgets the series and rows of names that a reload took away five minutes ago. Must be called
   * every few seconds.
   */
  forgetFormerNames(): void {
    if (!this.#names.expire(this.#config())) return;
    this.#metrics.forgetUnknown();
    this.#traffic.forgetUnknown(this.#names);
    this.#slowness.forgetUnknown(this.#names);
  }

  /** Yields all metrics in the exposition format, in parts. */
  *scrape(): Generator<string> {
    yield* this.#metrics.render();
    const figures = readFigures(this.#config(), this.#figures);
    const rows = [...this.#incidentFigures(), ...figures, ...this.#readLag()];
    yield* rows.map(renderFigure);
  }

  /** Returns the page's view, with masked keys. Unchanged parts may be the same objects. */
  present() {
    const figures = this.#figures;
    const config = this.#config();
    const { lasting, ended } = figures.incidents().report();
    const { clients, providers, ...report } = this.#traffic.report();
    const withLimits = Object.entries(clients).map(([name, row]) => {
      const limits = figures.usedOf(name);
      return [name, limits.length > 0 ? { ...row, limits } : row] as const;
    });
    return {
      settings: {
        version: VERSION,
        node: process.versions.node,
        host: hostname(),
        startedAt: new Date(performance.timeOrigin).toISOString(),
        settings: [...config.resolved],
        warnings: figures.warnings(),
      },
      now: new Date().toISOString(),
      draining: figures.isDraining(),
      incidents: [...lasting, ...ended].map((one) => redactFacts(one.toFacts(), this.#redact)),
      figures: readPageFigures(figures),
      ...report,
      clients: Object.fromEntries(withLimits),
      providers: describeProviders(config, figures, providers),
      requests: this.#recent.report(),
    };
  }

  /** Judges whether providers are slow. Must be called every few seconds. */
  judgeSlowness(): void {
    for (const { id } of this.#config().providers.registered) {
      const cause = this.#slowness.causeOf(id, (time) => this.#traffic.typicalTimes(id, time));
      this.#figures.incidents().set('slow', cause, { id }, MEDIAN_LATE_MS);
    }
  }

  #incidentFigures(): FigureRow[] {
    const incidents = this.#figures.incidents();
    const root = new LabelSet();
    const lasting = incidents.report().lasting.map((incident) => {
      const { kind, models = [], provider } = incident.toFacts();
      const labels = root.with('kind', kind).with('provider', provider);
      const ofModels = models.map(({ model }) => labels.with('model', this.#metrics.nameOf(model)));
      const { client } = incident;
      const ofClients = client === undefined ? [] : [labels.with('client', client)];
      return { labels, ofModels, ofClients };
    });
    const ones = (all: LabelSet[]) => [...new Set(all)].map((labels) => [labels, 1] as const);
    const begun = INCIDENT_KINDS.map(
      (kind) => [root.with('kind', kind), incidents.counts.get(kind) ?? 0] as const,
    );
    return [
      ['gateway_incident', ones(lasting.map(({ labels }) => labels)), 'Always 1: it lasts.'],
      [
        'gateway_incident_model',
        ones(lasting.flatMap(({ ofModels }) => ofModels)),
        'Always 1: the model fails.',
      ],
      [
        'gateway_incident_client',
        ones(lasting.flatMap(({ ofClients }) => ofClients)),
        'Always 1: the holder of memory, or the first client that it affects.',
      ],
      ['gateway_incidents_total', begun, 'Incidents that have begun.'],
    ];
  }
}

/** Returns the rows of registered providers, and of configured providers without a key. */
function describeProviders(
  { providers: { registered, skipped } }: Config,
  figures: Figures,
  sums: Readonly<Record<string, object>>,
): Readonly<Record<string, object>> {
  const circuits = figures.circuits();
  const agesMs = figures.oldestAgesMs();
  const asked = registered.map(({ id }) => {
    const keptAway = circuits
      .filter(({ provider, state }) => provider === id && state === 'open')
      .map(({ model, isStream: stream, openUntilMs }) => {
        return { model, stream, until: wallClock(openUntilMs) };
      });
    const inFlight = figures.inFlightOf(`providers.${id}`);
    const oldestSeconds = Math.floor((agesMs.get(id) ?? 0) / 1000);
    return [id, { ...sums[id], keptAway, inFlight, oldestSeconds }];
  });
  // Built-in providers without a key are shown only if the settings name them.
  const named = skipped.filter(({ isConfigured }) => isConfigured);
  const rest = named.map(({ id, reason }) => [id, { skipped: reason }]);
  return Object.fromEntries([...asked, ...rest]) as Record<string, object>;
}

/**
 * Returns a time of `performance.now()` as a time of day in whole seconds, so that it stays equal.
 */
function wallClock(ms: number): string {
  const atMs = Date.now() + ms - performance.now();
  return new Date(Math.round(atMs / 1000) * 1000).toISOString();
}
