/**
 * `GET /events`: server-sent events for the page. Each event is a JSON merge patch (RFC 7396) of the view; the first
 * event of a feed is the whole view.
 */

import type { Call } from '../downstream/call.ts';
import { GatewayError } from '../lib/errors.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

type View = Readonly<Record<string, unknown>>;

const NOTHING: View = {};

/**
 * Returns a function that returns the events for a call. That function throws `rateLimit` if too many feeds are open.
 * `view` is called when a feed opens, and once in `INTERVAL_MS` for all feeds together.
 */
export function createFeed(view: () => View): (call: Call) => AsyncIterable<Buffer> {
  let openFeeds = 0;
  let timer: NodeJS.Timeout | undefined;
  let latest: View | undefined;
  /** Resumes each feed that waits for the next view. */
  const waiting = new Set<() => void>();
  /** The latest event: feeds that keep up with the views all send the same event. */
  let made: { readonly from: View; readonly to: View; readonly event: Buffer } | undefined;

  /** The first feed that resumes calls `view`: if it throws, the feed fails and not the process. */
  function onInterval(): void {
    latest = undefined;
    for (const resume of waiting) resume();
    waiting.clear();
  }

  function eventOf(from: View, to: View): Buffer {
    if (made?.from !== from || made.to !== to) {
      // JSON has no line breaks of its own.
      const event = Buffer.from(`data: ${JSON.stringify(patchOf(from, to) ?? {})}\n\n`);
      made = { from, to, event };
    }
    return made.event;
  }

  /** A feed begins with the present. */
  function open(): void {
    openFeeds += 1;
    latest = undefined;
    timer ??= setInterval(onInterval, INTERVAL_MS);
  }

  function close(): void {
    openFeeds -= 1;
    if (openFeeds > 0) return;
    clearInterval(timer);
    timer = made = undefined;
  }

  /** The next event is made when the client has taken the one before: a slow client misses views. */
  async function* events(call: Call): AsyncGenerator<Buffer> {
    const { cancellation } = call;
    let resume = () => {};
    // Once: a feed is open for days.
    cancellation.onCancel(() => resume());
    try {
      let sent = NOTHING;
      while (!cancellation.reason && !call.isDraining) {
        const next = (latest ??= view());
        yield eventOf(sent, next);
        sent = next;
        if (cancellation.reason) return;
        await new Promise<void>((resolve) => waiting.add((resume = resolve)));
        waiting.delete(resume);
      }
    } finally {
      close();
    }
  }

  return (call) => {
    if (openFeeds >= MAX_FEEDS) {
      throw new GatewayError('rateLimit', `Rate limit exceeded: ${MAX_FEEDS} feeds are open`);
    }
    // The sender of an answer always ends its body.
    open();
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
