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
  const write = (response: ServerResponse, patch: object) =>
    response.write(`data: ${JSON.stringify(patch)}\n\n`);
  const server = createServer((request, response) => {
    if (request.url === prefix) {
      response.writeHead(200, {
        'content-type': 'text/html; charset=utf-8',
        'content-security-policy': page.policy,
      });
      response.end(page.html);
    } else if (request.url !== `${prefix}events`) {
      response.writeHead(404).end();
    } else {
      feed.connections += 1;
      if (feed.refuseWith !== undefined) {
        response.writeHead(feed.refuseWith).end();
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
