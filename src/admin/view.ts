/** The memory of the admin listener, for /metrics and the page. */

import { hostname } from 'node:os';

import type { Config } from '../config/config.ts';
import {
  describeIncident,
  describeRefusals,
  foldEnded,
  type Notice,
  sortNotices,
} from '../incidents/notice.ts';
import { type Situation, verdictOf } from '../incidents/verdict.ts';
import { redactFacts } from '../lib/log.ts';
import { lookupsOf } from '../lib/name-lookup.ts';
import type { Redactor } from '../lib/secrets.ts';
import { VERSION } from '../lib/version.ts';
import type { FinishedRequest } from '../request/facts.ts';
import {
  createLagFigures,
  createPageFigures,
  describeHeld,
  type Figures,
  readFigures,
  renderFigure,
} from './figures.ts';
import { IncidentFigures } from './incident-figures.ts';
import { RequestMetrics } from './metrics.ts';
import { AllNames } from './names.ts';
import { RecentRequests, type RequestFilter } from './recent-requests.ts';
import { describeRows } from './rows.ts';
import { Slowness } from './slowness.ts';
import { STEPS, Traffic } from './traffic.ts';

/** More incidents above the page's charts would push them away. */
const MAX_LANES = 6;

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
  readonly #readPageFigures;
  readonly #slowness = new Slowness();
  readonly #incidents: IncidentFigures;

  /** @param config - returns the settings in use, which a reload replaces */
  constructor(config: () => Config, figures: Figures, redact: Redactor) {
    this.#config = config;
    this.#figures = figures;
    this.#redact = redact;
    this.#readPageFigures = createPageFigures(figures);
    this.#recent = new RecentRequests(redact);
    this.#incidents = new IncidentFigures(redact, (name) => this.#metrics.nameOf(name));
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
  }

  /** Yields all metrics in the exposition format, in parts. */
  *scrape(): Generator<string> {
    yield* this.#metrics.render();
    const figures = readFigures(this.#config(), this.#figures);
    const rows = [
      ...this.#incidents.read(this.#figures.incidents()),
      ...figures,
      ...this.#readLag(),
    ];
    yield* rows.map(renderFigure);
  }

  /** Returns the page's view, with masked keys. Unchanged parts may be the same objects. */
  present() {
    const config = this.#config();
    const { report, situation, shown } = this.#read(config);
    const { step, steps } = report;
    const { ended, lasting } = situation;
    return {
      settings: {
        version: VERSION,
        host: hostname(),
        startedAt: new Date(performance.timeOrigin).toISOString(),
        settings: [...config.resolved],
        warnings: this.#figures.warnings(),
      },
      ...shown,
      order: lasting.map(({ id }) => id),
      incidents: Object.fromEntries(lasting.map((one) => [one.id, one])),
      ended: foldEnded(ended),
      lanes: this.#lanesOf([...lasting, ...ended], step),
      figures: this.#readPageFigures(config),
      step,
      steps,
      kept: this.#recent.kept,
      requests: this.#recent.latest(),
    };
  }

  /** Returns the verdict, the incidents and the rows of the page's tables, with masked keys. */
  status() {
    const { situation, shown } = this.#read(this.#config());
    return {
      host: hostname(),
      version: VERSION,
      ...shown,
      incidents: [...situation.lasting, ...situation.ended],
    };
  }

  #read(config: Config) {
    const report = this.#traffic.report();
    const situation = this.#situationOf(report);
    const shown = {
      now: new Date().toISOString(),
      draining: this.#figures.isDraining(),
      verdict: verdictOf(situation),
      minute: report.minute,
      ...describeRows(config, this.#figures, report, situation),
    };
    return { report, situation, shown };
  }

  /** Returns the requests of a kind with these words, the newest first. */
  findRequests(filter: RequestFilter) {
    return this.#recent.find(filter);
  }

  /** Returns a request's fields with masked keys; undefined if it is not kept. */
  requestOf(number: number) {
    return this.#recent.factsOf(number);
  }

  #situationOf({ all, last, minute, providers }: ReturnType<Traffic['report']>): Situation {
    const { ended, failedAtMs, lasting, suspected } = this.#figures.incidents().report();
    const minutes = Object.entries(providers).map(([id, row]) => [id, row.minute] as const);
    const incidents = [...lasting, ...ended].map((one) =>
      describeIncident(one, redactFacts(one.toFacts(), this.#redact)),
    );
    return {
      all,
      last,
      minute,
      providers: Object.fromEntries(minutes),
      ...sortNotices([...incidents, ...this.#traffic.refusals().map(describeRefusals)]),
      held: describeHeld(this.#config(), this.#figures),
      suspected,
      failedAtMs,
      nowMs: performance.now(),
    };
  }

  /** Returns the incidents within the charts, with their begin and end as steps. */
  #lanesOf(notices: readonly Notice[], step: number) {
    const placeOf = (atMs: number) => Math.round(10 * this.#traffic.stepAt(atMs)) / 10;
    const incidents = notices.filter(({ client }) => client === undefined);
    const lanes = incidents.map(({ beganAtMs, ended, endedAtMs, icon, subject }) => {
      const to = endedAtMs === undefined ? undefined : placeOf(endedAtMs);
      return { icon, text: ended ? `${subject}, ended` : subject, from: placeOf(beganAtMs), to };
    });
    return lanes.filter(({ to = step }) => to > step - STEPS).slice(0, MAX_LANES);
  }

  /** Judges whether providers and name lookups are slow. Must be called every few seconds. */
  judgeSlowness(): void {
    const { registered } = this.#config().providers;
    const hosts = registered.map(({ id, baseUrl }) => ({ id, host: new URL(baseUrl).hostname }));
    const reports = {
      slow: this.#slowness.judge(hosts, (id, time) => this.#traffic.typicalTimes(id, time)),
      lookup_slow: this.#slowness.judgeLookups(hosts, lookupsOf),
    };
    const incidents = this.#figures.incidents();
    const figures = this.#figures.providers();
    for (const kind of ['slow', 'lookup_slow'] as const) {
      for (const { id, cause, lateMs, slowFrom } of reports[kind]) {
        const subject = id === undefined ? undefined : figures.get(id)!.subject;
        if (subject && slowFrom) subject.slowFrom = slowFrom;
        incidents.reportState(kind, cause, subject, lateMs);
      }
    }
  }
}
