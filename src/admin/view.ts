/** The memory of the admin listener, as /metrics and the page show it. */

import { hostname } from 'node:os';

import { needsKey, type Config } from '../config/config.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import { VERSION } from '../lib/version.ts';
import { attentionOf } from './attention.ts';
import {
  createLoopWatch,
  readFigures,
  renderFigure,
  STARTED_AT_MS,
  type Figures,
} from './figures.ts';
import { History, RecentRequests } from './history.ts';
import { configuredModels, listedModels, ModelLabels } from './labels.ts';
import { RequestMetrics } from './metrics.ts';
import { describeProviders, ProviderTries } from './provider-state.ts';
import { clientTotals, modelTotals } from './totals.ts';

/** Of the event loop's delays that the feed shows, to all pages together. */
const FEED_WINDOW_MS = 15_000;

export type View = ReturnType<typeof createView>;

/** Creates the view of finished requests and figures. The event loop is watched from now on. */
export function createView(config: () => Config, figures: Figures) {
  const models = new ModelLabels();
  const metrics = new RequestMetrics(models);
  const tries = new ProviderTries();
  const nowMs = () => performance.timeOrigin + performance.now();
  const history = new History(nowMs, () => figures.openStreams());
  const recent = new RecentRequests();
  const scrapeDelay = createLoopWatch(0, () => figures.loopDelays());
  const feedDelay = createLoopWatch(FEED_WINDOW_MS, () => figures.loopDelays());
  return {
    recent,
    /** Counts a finished request. */
    observe(request: FinishedRequest) {
      for (const observer of [metrics, tries, history, recent]) observer.add(request);
    },
    /** Takes new settings: their names of models become labels. */
    onConfig(next: Config) {
      models.learn(configuredModels(next));
      metrics.learn(next);
    },
    /** Takes the models that a provider lists: their names become labels. */
    onModels: (provider: string, names: readonly string[]) =>
      models.learn(listedModels(provider, names)),
    /** Yields all metrics in the exposition format, in parts. */
    *scrape(): Generator<string> {
      yield* metrics.render();
      yield* readFigures(config(), figures, scrapeDelay()).map(renderFigure);
    },
    /** The feed's `settings` event: it changes with a reload only. Keys are masked. */
    settings() {
      const current = config();
      return {
        version: VERSION,
        node: process.versions.node,
        host: hostname(),
        startedAt: new Date(STARTED_AT_MS).toISOString(),
        url: figures.url(),
        needsKey: needsKey(current),
        settings: [...current.resolved],
        warnings: current.warnings,
      };
    },
    /** The feed's `state` event: the present, the last minutes, and totals since the start. */
    state() {
      const rows = readFigures(config(), figures, feedDelay());
      return {
        now: new Date().toISOString(),
        draining: figures.isDraining(),
        accepting: figures.serving() > 0,
        attention: attentionOf(config(), figures),
        figures: Object.fromEntries(rows.filter(([, figure]) => typeof figure === 'number')),
        history: history.report(),
        providers: describeProviders(config(), figures, metrics, tries),
        models: modelTotals(metrics),
        clients: clientTotals(metrics),
      };
    },
  };
}
