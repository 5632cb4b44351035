/** `GET /events`: server-sent events for the page. */

import type { Call } from '../downstream/call.ts';
import { fromIterable } from '../lib/byte-source.ts';
import { pause } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Config } from '../config/config.ts';
import type { Answer } from '../lib/messages.ts';
import type { RecentRequests } from './recent-requests.ts';
import { describeSettings, describeState, type StateSources } from './state.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

interface FeedSources extends StateSources {
  readonly recent: RecentRequests;
}

/** Returns a function that returns the body of an answer. It throws `rateLimit` if too many feeds are open. */
export function createFeed(sources: FeedSources): (call: Call) => Answer['body'] {
  const { config, figures, recent } = sources;
  let openFeeds = 0;

  /** The next events are made when the client has taken the ones before: a slow one misses states. */
  async function* events(call: Call): AsyncGenerator<Buffer> {
    try {
      let seen = 0;
      let head = `retry: ${INTERVAL_MS}\n\n`;
      let told: Config | undefined;
      while (!call.cancellation.reason && !call.isDraining) {
        const requests = recent.since(seen);
        seen = recent.total;
        const hasNews = requests.length > 0 || head !== '';
        const current = config();
        if (current !== told) head += toEvent('settings', describeSettings(current, figures));
        told = current;
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
