/**
 * Server-sent events of `GET /events`. Each event is a JSON merge patch (RFC 7396) of the view. A
 * feed's first event is the whole view.
 */

import type { Call } from '../downstream/call.ts';
import { GatewayError } from '../lib/errors.ts';

const MAX_FEEDS = 8;
const INTERVAL_MS = 1000;

type View = Readonly<Record<string, unknown>>;

const NOTHING: View = {};

/** Makes the events of all open feeds. */
export class Feed {
  readonly #view: () => View;
  #openFeeds = 0;
  #timer: NodeJS.Timeout | undefined;
  #latest: View | undefined;
  /** Functions that resume the feeds waiting for the next view. */
  readonly #waiting = new Set<() => void>();
  /** The latest event, because all feeds that keep up send the same event. */
  #made: { readonly from: View; readonly to: View; readonly event: Buffer } | undefined;

  /** @param view - called when a feed opens, and once in `INTERVAL_MS` for all feeds together */
  constructor(view: () => View) {
    this.#view = view;
  }

  /** Returns a call's events, which must be read. Throws `rateLimit` if too many feeds are open. */
  open(call: Call): AsyncIterable<Buffer> {
    if (this.#openFeeds >= MAX_FEEDS) {
      throw new GatewayError('rateLimit', `Rate limit exceeded: ${MAX_FEEDS} feeds are open`);
    }
    this.#openFeeds += 1;
    // A feed begins with a new view.
    this.#latest = undefined;
    this.#timer ??= setInterval(() => this.#resumeAll(), INTERVAL_MS);
    return this.#events(call);
  }

  /** Makes each event once the client has taken its former event, so a slow client misses views. */
  async *#events(call: Call): AsyncGenerator<Buffer> {
    const { cancellation } = call;
    let resume = () => {};
    // Registered once instead of for each wait, because a feed is open for days.
    cancellation.onCancel(() => resume());
    try {
      let sent = NOTHING;
      while (!cancellation.reason && !call.isDraining) {
        const next = (this.#latest ??= this.#view());
        yield this.#eventOf(sent, next);
        sent = next;
        if (cancellation.reason) return;
        await new Promise<void>((resolve) => this.#waiting.add((resume = resolve)));
        this.#waiting.delete(resume);
      }
    } finally {
      this.#close();
    }
  }

  #close(): void {
    this.#openFeeds -= 1;
    if (this.#openFeeds > 0) return;
    clearInterval(this.#timer);
    this.#timer = this.#made = undefined;
  }

  /** Resumes all feeds. The first feed calls `view`, so an error of `view` fails only the feed. */
  #resumeAll(): void {
    this.#latest = undefined;
    for (const resume of this.#waiting) resume();
    this.#waiting.clear();
  }

  #eventOf(from: View, to: View): Buffer {
    if (this.#made?.from !== from || this.#made.to !== to) {
      // JSON has no line breaks of its own.
      const event = Buffer.from(`data: ${JSON.stringify(patchOf(from, to) ?? {})}\n\n`);
      this.#made = { from, to, event };
    }
    return this.#made.event;
  }
}

const isObject = (value: unknown): value is View =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * Returns the merge patch from `before` to `after`; undefined if they are equal. An undefined
 * member is an absent member. Null is never a value.
 */
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
