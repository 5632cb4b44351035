/** `GET /events`: server-sent events for the page. */

import { needsKey, type Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { fromIterable } from '../lib/byte-source.ts';
import { pause } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Answer } from '../lib/attempt.ts';
import { VERSION } from '../lib/version.ts';
import { STARTED_AT_MS, type Figures, type ProcessFigures } from './figures.ts';
import type { History } from './history.ts';
import { describeProviders, type ProviderSources } from './provider-state.ts';
import type { RecentRequests } from './recent-requests.ts';
import { describeClients, describeModels } from './totals.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

interface FeedSources extends ProviderSources {
  readonly processFigures: () => ProcessFigures;
  readonly history: History;
  readonly recent: RecentRequests;
}

/** Returns a function that returns the body of an answer. It throws `rateLimit` if too many feeds are open. */
export function createFeed(sources: FeedSources): (call: Call) => Answer['body'] {
  const { config, figures, recent } = sources;
  let openFeeds = 0;

  /** The next events are made when the client has taken the ones before: a slow one misses states. */
  async function* events(call: Call): AsyncGenerator<Buffer> {
    try {
      let sentRequests = 0;
      let sentConfig: Config | undefined;
      let head = `retry: ${INTERVAL_MS}\n\n`;
      while (!call.cancellation.reason && !call.isDraining) {
        const requests = recent.since(sentRequests);
        sentRequests = recent.total;
        const hasNews = requests.length > 0 || head !== '';
        const current = config();
        if (current !== sentConfig) head += toEvent('settings', describeSettings(current, figures));
        sentConfig = current;
        yield Buffer.from(
          head +
            (hasNews ? toEvent('requests', requests) : '') +
            toEvent('state', describeState(sources)),
        );
        head = '';
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
function describeState(sources: FeedSources) {
  const { figures, history, metrics } = sources;
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
    models: describeModels(metrics),
    clients: describeClients(metrics),
  };
}
