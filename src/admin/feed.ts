/** `GET /events`: server-sent events for the page. */

import type { Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { fromIterable } from '../lib/byte-source.ts';
import { pause } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Answer } from '../lib/attempt.ts';
import type { View } from './view.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

/** Returns a function that returns the body of an answer. It throws `rateLimit` if too many feeds are open. */
export function createFeed(config: () => Config, view: View): (call: Call) => Answer['body'] {
  let openFeeds = 0;

  /** The next events are made when the client has taken the ones before: a slow one misses states. */
  async function* events(call: Call): AsyncGenerator<Buffer> {
    try {
      let sentRequests = -1;
      let sentConfig: Config | undefined;
      while (!call.cancellation.reason && !call.isDraining) {
        const current = config();
        let text = '';
        if (current !== sentConfig) text += toEvent('settings', view.settings());
        const { total } = view.recent;
        if (total !== sentRequests) text += toEvent('requests', view.recent.since(sentRequests));
        [sentConfig, sentRequests] = [current, total];
        yield Buffer.from(text + toEvent('state', view.state()));
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
    // The sender of an answer always ends its body.
    openFeeds += 1;
    return fromIterable(events(call));
  };
}

/** JSON has no line breaks of its own. */
function toEvent(name: string, data: unknown): string {
  return `event: ${name}\ndata: ${JSON.stringify(data)}\n\n`;
}
