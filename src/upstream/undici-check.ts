/**
 * The check at start of what the undici transport assumes. Node and undici document little of it, so
 * the gateway tries all of it on a server of its own, and uses fetch if anything is different.
 *
 * What is assumed, and the test in test/wire-transports.test.ts that holds it on every major of Node:
 * - fetch's agent is stored under `undici.globalDispatcher.1` or `.2`: "without undici's symbol"
 * - its class takes `keepAliveTimeout`, `allowH2`, `connect` and `noProxy`: "the check passes on this Node"
 * - it publishes `undici:client:sendHeaders` with the socket: "without the channel undici:client:sendHeaders"
 * - `dispatch` takes an iterable body and keeps its content-length: "with an agent that sends no large bodies"
 * - it calls the handler as undici 6 and 7, or 8, do, to the end: "with an agent that ends no stream"
 * - a request whose socket is destroyed fails: "with an agent that does not report errors"
 * - it reuses connections, but none that was closed: "with an agent that closes every connection"
 */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { readAll, readEach } from '../lib/byte-source.ts';
import { Deadline } from '../lib/cancellation.ts';
import { createConnections } from './connections.ts';
import { TransportError } from './network-error.ts';
import type { UpstreamReply } from './provider.ts';
import { sendByUndici } from './undici-transport.ts';

const CHECK_TIMEOUT_MS = 2000;
/** Above the size from which bodies are sent in slices; also more than a paused connection holds. */
const LARGE_BODY = Buffer.alloc(131_072, 'x');

interface CheckContext {
  /** Sends to the scenario's handler. */
  readonly send: (body?: Buffer) => Promise<UpstreamReply>;
  /** Sets what the server does with the next requests; it waits for nothing. */
  readonly serve: (
    handler: (request: IncomingMessage, response: ServerResponse) => unknown,
  ) => void;
  readonly deadline: Deadline;
}

/** Each throws if the agent does not behave as its name says. */
const SCENARIOS: Readonly<Record<string, (context: CheckContext) => Promise<void>>> = {
  async 'a large request body'({ send, serve }) {
    serve(async (request, response) => {
      const { length } = await buffer(request);
      response.end(`${request.headers['content-length']} ${length}`);
    });
    const reply = await send(LARGE_BODY);
    expectEqual(await textOf(reply), `${LARGE_BODY.length} ${LARGE_BODY.length}`);
  },

  async 'a streamed answer'({ send, serve }) {
    let finish = () => {};
    serve((_, response) => {
      response.write('first');
      finish = () => response.end(LARGE_BODY);
    });
    const { status, body } = await send();
    expectEqual(status, 200);
    let length = 0;
    await readEach(body, (chunk) => {
      if (length === 0) expectEqual(String(chunk), 'first');
      finish();
      length += chunk.length;
      return true;
    });
    expectEqual(length, 'first'.length + LARGE_BODY.length);
  },

  async 'a cancelled request'({ send, serve, deadline }) {
    const closed = new Promise((resolve) => {
      serve((request, response) => {
        request.socket.once('close', resolve);
        response.write('first');
      });
    });
    const { body } = await send();
    await readEach(body, () => false);
    deadline.end({ abandon: true });
    await closed;
  },

  async 'reused connections'({ send, serve }) {
    const sockets: Socket[] = [];
    const answer = (request: IncomingMessage, response: ServerResponse) => {
      sockets.push(request.socket);
      response.end('answer');
    };
    serve(answer);
    await textOf(await send());
    // undici returns a connection to its pool one turn after the answer.
    await nextTurn();
    await textOf(await send());
    expectEqual(sockets[1], sockets[0]);
    const isClosed = once(sockets[0]!, 'close');
    sockets[0]!.end();
    await isClosed;
    await textOf(await send());
    await nextTurn();
    serve((request) => request.socket.destroy());
    const failure: unknown = await send().catch((thrown: unknown) => thrown);
    expectEqual(failure instanceof TransportError && failure.connectionFailure, 'stale');
  },
};

/** Resolves to the name of the first scenario that fails, or to `undefined`. Takes 2 s at most. */
export async function checkUndici(): Promise<string | undefined> {
  const connections = createConnections({ isDirect: true })!;
  let handler: Parameters<CheckContext['serve']>[0] = () => {};
  const server = createServer((request, response) => {
    // One fails if the check ends before its request.
    (async () => handler(request, response))().catch(() => {});
  });
  let deadline = new Deadline();
  let running: string | undefined = 'a server to try it on';
  const serve: CheckContext['serve'] = (next) => {
    handler = next;
  };
  const runAll = async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    for (const [name, run] of Object.entries(SCENARIOS)) {
      running = name;
      deadline = new Deadline();
      const send = async (body: Buffer = Buffer.from('{}')) =>
        sendByUndici(
          { method: 'POST', origin, path: '/', headers: [], body: [body] },
          deadline,
          connections,
        );
      await run({ deadline, send, serve });
    }
    running = undefined;
  };
  let timer: NodeJS.Timeout | undefined;
  const isLate = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, CHECK_TIMEOUT_MS);
  });
  await Promise.race([runAll().catch(() => {}), isLate]);
  clearTimeout(timer);
  deadline.end({ abandon: true });
  server.close();
  server.closeAllConnections();
  // Not awaited: undici may never report the end of a connection that it could not make.
  void connections.close();
  return running;
}

function expectEqual(actual: unknown, expected: unknown): void {
  if (actual !== expected) throw new Error('not as expected');
}

async function textOf({ body }: UpstreamReply): Promise<string> {
  return String(await readAll(body, LARGE_BODY.length));
}
