/** A client of the admin listener's feed. */

import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import type { TestContext } from 'node:test';

export interface FeedEvent {
  readonly name: string;
  readonly data: any; // oxlint-disable-line typescript/no-explicit-any
}

export interface Feed {
  /** Every event so far. */
  readonly events: readonly FeedEvent[];
  /** Resolves with the data of the next event of that name that meets the condition, and that was not taken before. */
  next(name: string, condition?: (data: FeedEvent['data']) => boolean): Promise<FeedEvent['data']>;
  /** Resolves when the server has ended it. */
  readonly ended: Promise<void>;
  close(): void;
}

/** Opens the feed; it is closed when the test ends. Rejects unless the answer is 200. */
export async function openFeed(t: TestContext, port: number): Promise<Feed> {
  const request = httpRequest({ host: '127.0.0.1', port, path: '/events', agent: false });
  request.end();
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  const close = () => request.destroy();
  t.after(close);
  request.on('error', () => {});
  response.on('error', () => {});
  if (response.statusCode !== 200) throw new Error(`status ${response.statusCode}`);
  const events: FeedEvent[] = [];
  let taken = 0;
  let onEvent = () => {};
  let text = '';
  response.setEncoding('utf8').on('data', (chunk: string) => {
    const parts = (text + chunk).split('\n\n');
    text = parts.pop()!;
    for (const part of parts) {
      const [, name, json] = /^event: (\w+)\ndata: (.*)$/.exec(part) ?? [];
      if (name) events.push({ name, data: JSON.parse(json!) });
    }
    onEvent();
  });
  const ended = new Promise<void>((resolve) => response.once('close', resolve));
  return {
    events,
    async next(name, condition = () => true) {
      for (;;) {
        const event = events[taken];
        if (event) taken += 1;
        if (event?.name === name && condition(event.data)) return event.data;
        if (!event) await new Promise<void>((resolve) => (onEvent = resolve));
      }
    },
    ended,
    close,
  };
}
