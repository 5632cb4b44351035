/**
 * A feed that a test writes itself, served with the page as the gateway serves it, for what no real
 * gateway can be made to say at once.
 */

import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';

import { createPage } from '../../src/admin/page/page.ts';

export interface ScriptedFeed {
  readonly url: string;
  /** Connections to /events so far. */
  connections: number;
  /** What the next connections to /events are answered with instead of events. */
  refuseWith: number | undefined;
  /** The view, which each new connection gets first. */
  view: object;
  /** Sends a merge patch of the view. */
  send(patch: object): void;
  /** Ends the open connections. */
  cut(): void;
}

/** Serves the page and its feed below `prefix`, until the test ends. */
export async function startFeed(t: TestContext, prefix = '/'): Promise<ScriptedFeed> {
  const page = createPage();
  const open = new Set<ServerResponse>();
  const seen = new Map<number, Listed>();
  const write = (response: ServerResponse, patch: { readonly requests?: object }) => {
    for (const one of Object.values(patch.requests ?? {}) as Listed[]) seen.set(one.number, one);
    response.write(`data: ${JSON.stringify(patch)}\n\n`);
  };
  const server = createServer((request, response) => {
    if (request.url === prefix) {
      response.writeHead(200, {
        'content-type': 'text/html; charset=utf-8',
        'content-security-policy': page.policy,
      });
      response.end(page.html);
    } else if (request.url?.startsWith(`${prefix}requests?`)) {
      answerRequests(new URL(request.url, 'http://x').searchParams, seen, response);
    } else if (request.url !== `${prefix}events`) {
      response.writeHead(404).end();
    } else {
      feed.connections += 1;
      if (feed.refuseWith !== undefined) {
        const error = { message: 'Rate limit exceeded: 8 feeds are open' };
        response.writeHead(feed.refuseWith, { 'content-type': 'application/json' });
        response.end(feed.refuseWith === 429 ? JSON.stringify({ error }) : '');
        return;
      }
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write('retry: 200\n\n');
      write(response, feed.view);
      open.add(response);
      response.on('close', () => open.delete(response));
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.close();
    server.closeAllConnections();
  });
  const feed: ScriptedFeed = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}${prefix}`,
    connections: 0,
    refuseWith: undefined,
    view: {},
    send(patch) {
      for (const response of open) write(response, patch);
    },
    cut() {
      for (const response of open) response.destroy();
    },
  };
  return feed;
}

interface Listed {
  readonly number: number;
  readonly icon: string;
}

/** Answers `GET /requests` from the requests that the feed has sent. */
function answerRequests(
  query: URLSearchParams,
  seen: ReadonlyMap<number, Listed>,
  response: ServerResponse,
): void {
  const words = (query.get('words') ?? '').toLowerCase().split(/\s+/);
  const kind = query.get('kind');
  const isWanted = (one: Listed) => {
    const text = JSON.stringify(one).toLowerCase() + (one.icon === 'bad' ? ' failed' : '');
    const isOfKind = kind === 'Failed' ? one.icon === 'bad' : true;
    const isRetried = kind !== 'Retried' || (one as { tried?: unknown[] }).tried!.length > 1;
    return isOfKind && isRetried && words.every((word) => text.includes(word));
  };
  const number = query.get('number');
  const found = number
    ? seen.get(Number(number))
    : [...seen.values()].toReversed().filter(isWanted);
  response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(found));
}
