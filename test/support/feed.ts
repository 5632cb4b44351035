/** An admin feed client that applies the merge patches and returns the view's parts. */

import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import type { TestContext } from 'node:test';

export interface FeedEvent {
  readonly name: string;
  readonly data: any; // oxlint-disable-line typescript/no-explicit-any
}

/** Opens the feed until the test ends. Rejects unless the answer is 200. */
export async function openFeed(t: TestContext, port: number) {
  const request = httpRequest({ host: '127.0.0.1', port, path: '/events', agent: false });
  request.end();
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  const close = () => request.destroy();
  t.after(close);
  request.on('error', () => {});
  response.on('error', () => {});
  if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
  const events: FeedEvent[] = [];
  const sizes: number[] = [];
  let view: Parts = {};
  const take = (patch: Parts) => {
    view = merge(view, patch) as Parts;
    const { settings, requests = {}, ...state } = view;
    const added = Object.values(patch['requests'] ?? {}).filter((one) => one !== null);
    if (patch['settings']) events.push({ name: 'settings', data: settings });
    if (patch['requests']) events.push({ name: 'requests', data: added });
    const tables = ['providers', 'models', 'clients'].map((name) => [name, rowsOf(state[name])]);
    const data = { ...state, ...Object.fromEntries(tables), requests: Object.values(requests) };
    events.push({ name: 'state', data });
  };
  let taken = 0;
  let onEvent = () => {};
  let text = '';
  response.setEncoding('utf8').on('data', (chunk: string) => {
    const parts = (text + chunk).split('\n\n');
    text = parts.pop()!;
    for (const part of parts) {
      sizes.push(part.length);
      take(JSON.parse(part.slice('data: '.length)) as Parts);
    }
    onEvent();
  });
  const ended = new Promise<void>((resolve) => response.once('close', resolve));
  return {
    /**
     * `settings` and `requests` (new requests only) if a patch has them; `state` for each patch.
     */
    events: events as readonly FeedEvent[],
    /** The length of each event in characters. */
    sizes: sizes as readonly number[],
    /** Resolves with the data of the next untaken event with this name, if it meets `condition`. */
    async next(
      name: string,
      condition: (data: FeedEvent['data']) => boolean = () => true,
    ): Promise<FeedEvent['data']> {
      for (;;) {
        const event = events[taken];
        if (event) taken += 1;
        if (event?.name === name && condition(event.data)) return event.data;
        if (!event) await new Promise<void>((resolve) => (onEvent = resolve));
      }
    },
    /** Resolves when the server has ended the feed. */
    ended,
    close,
  };
}

type Parts = Record<string, any>; // oxlint-disable-line typescript/no-explicit-any

/** Applies a JSON merge patch (RFC 7396). */
export function merge(target: unknown, patch: unknown): unknown {
  const isObject = (value: unknown): value is Parts =>
    typeof value === 'object' && value !== null && !Array.isArray(value);
  if (!isObject(patch)) return patch;
  const before = isObject(target) ? target : {};
  const entries = Object.keys({ ...before, ...patch }).map((name) => [
    name,
    name in patch ? merge(before[name], patch[name]) : before[name],
  ]);
  return Object.fromEntries(entries.filter(([, value]) => value !== null));
}

/** Returns a table's rows with their keys. The sums of `recent` become members of the row. */
function rowsOf(table: Parts = {}): Parts[] {
  return Object.entries(table).map(([id, row]: [string, Parts]) => ({
    id,
    ...row,
    ...row['recent'],
  }));
}
