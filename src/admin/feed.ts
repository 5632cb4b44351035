/** `GET /events`: server-sent events for the page. Each is a JSON merge patch (RFC 7396) of the view; the first one is all of it. */

import type { Call } from '../downstream/call.ts';
import { pause } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

type View = Readonly<Record<string, unknown>>;

/** Returns a function that returns the events for a call. It throws `rateLimit` if too many feeds are open. */
export function createFeed(view: () => View): (call: Call) => AsyncIterable<Buffer> {
  let openFeeds = 0;

  /** The next event is made when the client has taken the one before: a slow one misses states. */
  async function* events(call: Call): AsyncGenerator<Buffer> {
    try {
      let sent: View = {};
      while (!call.cancellation.reason && !call.isDraining) {
        const next = view();
        // JSON has no line breaks of its own.
        yield Buffer.from(`data: ${JSON.stringify(patchOf(sent, next) ?? {})}\n\n`);
        sent = next;
        await pause(INTERVAL_MS, call.cancellation);
      }
    } finally {
      openFeeds -= 1;
    }
  }

  return (call) => {
    if (openFeeds >= MAX_FEEDS) {
      throw new GatewayError('rateLimit', `Rate limit exceeded: ${MAX_FEEDS} feeds are open`);
    }
    // The sender of an answer always ends its body.
    openFeeds += 1;
    return events(call);
  };
}

const isObject = (value: unknown): value is View =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Returns what makes `before` to `after`; undefined if they are the same. Absent and undefined are the same, null is never a value. */
export function patchOf(before: unknown, after: unknown): unknown {
  if (before === after) return undefined;
  if (!isObject(before) || !isObject(after)) {
    return JSON.stringify(before) === JSON.stringify(after) ? undefined : after;
  }
  const own = (view: View, name: string) => (Object.hasOwn(view, name) ? view[name] : undefined);
  const changes = Object.keys({ ...before, ...after }).map((name) => {
    const [old, now] = [own(before, name), own(after, name)];
    return [name, now === undefined && old !== undefined ? null : patchOf(old, now)] as const;
  });
  const made = changes.filter(([, change]) => change !== undefined);
  return made.length === 0 ? undefined : Object.fromEntries(made);
}
