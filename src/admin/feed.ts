/** `GET /events`: server-sent events for the page. */

import { needsKey, type Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { fromIterable } from '../lib/byte-source.ts';
import { pause } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Answer } from '../lib/messages.ts';
import type { LoopDelay } from '../lib/shared-memory.ts';
import { VERSION } from '../lib/version.ts';
import { readProcess, STARTED_AT_MS, type Figures } from './figures.ts';
import type { History, RecentRequests } from './history.ts';
import type { RequestMetrics } from './metrics.ts';
import { describeProviders, type ProviderFailures } from './provider-state.ts';
import { clientTotals, modelTotals } from './totals.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

interface FeedSources {
  /** The settings in use; a reload replaces them. */
  readonly config: () => Config;
  readonly figures: Figures;
  readonly metrics: RequestMetrics;
  readonly failures: ProviderFailures;
  readonly history: History;
  readonly recent: RecentRequests;
  readonly readLoopDelay: () => LoopDelay;
}

/** Returns a function that returns the body of an answer. It throws `rateLimit` if too many feeds are open. */
export function createFeed(sources: FeedSources): (call: Call) => Answer['body'] {
  const { config, figures, recent } = sources;
  let openFeeds = 0;

  /** The next events are made when the client has taken the ones before: a slow one misses states. */
  async function* events(call: Call): AsyncGenerator<Buffer> {
    try {
      yield Buffer.from(`retry: ${INTERVAL_MS}\n\n`);
      let sentRequests = -1;
      let sentConfig: Config | undefined;
      while (!call.cancellation.reason && !call.isDraining) {
        const current = config();
        let text = '';
        if (current !== sentConfig) text += toEvent('settings', describeSettings(current, figures));
        if (recent.total !== sentRequests) text += toEvent('requests', recent.since(sentRequests));
        [sentConfig, sentRequests] = [current, recent.total];
        yield Buffer.from(text + toEvent('state', describeState(sources)));
        await pause(INTERVAL_MS, call.cancellation);
      }
    } finally {
      openFeeds -= 1;
    }
  }

  return (call) => {
    if (call.method === 'HEAD') return '';
    if (openFeeds >= MAX_FEEDS) {
      throw new GatewayError('rateLimit', `Rate limit exceeded: ${MAX_FEEDS} feeds are open`);
    }
    // Whoever sends the answer always ends its body.
    openFeeds += 1;
    return fromIterable(events(call));
  };
}

/** JSON has no line breaks of its own. */
function toEvent(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}

/** The `settings` event changes with a reload only. Keys are masked. */
function describeSettings(config: Config, figures: Figures) {
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

/** The `state` event: the present, the last minutes, and totals since the start. */
function describeState({
  config,
  figures,
  metrics,
  failures,
  history,
  readLoopDelay,
}: FeedSources) {
  return {
    now: new Date().toISOString(),
    draining: figures.isDraining(),
    inFlight: figures.inFlight(),
    openStreams: figures.openStreams(),
    bufferedBytes: figures.bufferedBytes(),
    droppedLogLines: figures.droppedLogLines(),
    connections: figures.connections() ?? null,
    process: { ...readProcess(), loopDelayP99Ms: readLoopDelay().p99 },
    history: history.report(),
    providers: describeProviders(config(), figures, metrics, failures),
    models: modelTotals(metrics),
    clients: clientTotals(metrics),
  };
}
