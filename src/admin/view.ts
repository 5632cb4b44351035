/** The memory of the admin listener, as /metrics and the page show it. */

import { hostname } from 'node:os';

import { needsKey, type Config } from '../config/config.ts';
import type { FinishedRequest } from '../request/facts.ts';
import type { Redactor } from '../lib/secrets.ts';
import { VERSION } from '../lib/version.ts';
import { attentionOf } from './attention.ts';
import { createLoopWatch, readFigures, renderFigure, type Figures } from './figures.ts';
import { configuredModels, listedModels, ModelLabels } from './labels.ts';
import { RequestMetrics } from './metrics.ts';
import { describeProviders } from './provider-state.ts';
import { RecentRequests } from './recent-requests.ts';
import { Traffic } from './traffic.ts';

/** Window of the event loop's delays that the feed shows, to all pages together. */
const FEED_WINDOW_MS = 15_000;

/** Creates the view of finished requests and figures. The event loop is watched from now on. */
export function createView(config: () => Config, figures: Figures, redact: Redactor) {
  const models = new ModelLabels();
  const metrics = new RequestMetrics(models);
  const nowMs = () => performance.timeOrigin + performance.now();
  const traffic = new Traffic(nowMs, () => figures.openStreams());
  const recent = new RecentRequests(redact);
  const scrapeDelay = createLoopWatch(0);
  const feedDelay = createLoopWatch(FEED_WINDOW_MS);
  // A name that looks like a key must not be seen.
  const learn = (names: readonly string[]) =>
    models.learn(names.filter((name) => redact(name) === name));
  return {
    /** Counts a finished request. */
    observe(request: FinishedRequest) {
      traffic.add(request, metrics.add(request));
      recent.add(request);
    },
    /** Takes new settings: their names of models become labels. */
    onConfig(next: Config) {
      learn(configuredModels(next));
      metrics.learn(next);
    },
    /** Takes the models that a provider lists: their names become labels. */
    onModels: (provider: string, names: readonly string[]) => learn(listedModels(provider, names)),
    /** Yields all metrics in the exposition format, in parts. */
    *scrape(): Generator<string> {
      yield* metrics.render();
      yield* readFigures(config(), figures, scrapeDelay()).map(renderFigure);
    },
    /** Returns all that the page shows. What has not changed since the last time may be the same object. */
    present() {
      const current = config();
      const rows = readFigures(current, figures, feedDelay());
      const { clients, ...report } = traffic.report();
      const withLimits = Object.entries(clients).map(([name, row]) => {
        return [name, { ...row, limits: figures.usedOf(name) }] as const;
      });
      return {
        settings: describeSettings(current, figures.url()),
        now: new Date().toISOString(),
        draining: figures.isDraining(),
        accepting: figures.isListening(),
        attention: attentionOf(current, figures),
        figures: Object.fromEntries(rows.filter(([, figure]) => typeof figure === 'number')),
        ...report,
        clients: Object.fromEntries(withLimits),
        providers: describeProviders(current, figures, traffic, redact),
        requests: recent.report(),
      };
    },
  };
}

/** Keys are masked. */
function describeSettings(config: Config, url: string) {
  return {
    version: VERSION,
    node: process.versions.node,
    host: hostname(),
    startedAt: new Date(performance.timeOrigin).toISOString(),
    url,
    needsKey: needsKey(config),
    settings: [...config.resolved],
    warnings: config.warnings,
  };
}
