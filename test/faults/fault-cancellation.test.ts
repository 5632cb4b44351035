import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { connect, createServer, type Socket } from 'node:net';
import { test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { startBlackHole } from '../support/fault-proxy.ts';
import {
  chatBody,
  providerToml,
  rawChat,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { listen } from '../support/listen.ts';
import { rawResponse } from '../support/raw-upstream.ts';
import { eventually, linesOf } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { completion, failWith, startUpstream, beginStream, CHUNK } from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';

/** More listeners than Node allows without a warning. */
const CLIENTS = 12;

/** Settings with which provider `p`, or its fallback `q`, never completes a TLS handshake. */
const PHASES: Record<string, (tls: string, p: string) => string> = {
  'while a connection is being made': (tls) => tls,
  'while a connection to the fallback is being made': (tls, p) =>
    `[providers]\nfallback = ["q"]\n${p}${tls.replace('.p]', '.q]')}`,
};

/** Starts a provider that accepts connections, but never completes a TLS handshake. */
async function startSilentTls(t: TestContext) {
  const { baseUrl, sockets } = await listen(
    t,
    createServer((socket) => socket.resume()),
  );
  const release = () => sockets.forEach((socket) => socket.destroy());
  return { baseUrl: baseUrl.replace('http:', 'https:'), sockets, release };
}

const clientSockets = new WeakSet<Socket>();

/** Counts the gateway's new sockets from now on, in this thread. */
function watchOutgoing(t: TestContext) {
  const sockets: Socket[] = [];
  const onSocket = (message: unknown) => sockets.push((message as { socket: Socket }).socket);
  subscribe('net.client.socket', onSocket);
  t.after(() => unsubscribe('net.client.socket', onSocket));
  const open = () => sockets.filter((socket) => !clientSockets.has(socket) && !socket.destroyed);
  return {
    open: () => open().length,
    connecting: () => open().filter((socket) => socket.connecting).length,
  };
}

function watchWarnings(t: TestContext): string[] {
  const warnings: string[] = [];
  const onWarning = ({ name, message }: Error) => warnings.push(`${name}: ${message}`);
  process.on('warning', onWarning);
  t.after(() => process.off('warning', onWarning));
  return warnings;
}

function ask(port: number, stream: boolean): Socket {
  const client = connect(port, '127.0.0.1').on('error', () => {});
  clientSockets.add(client);
  client.write(rawChat(chatBody({ stream })));
  return client;
}

function resources(): string {
  return process.getActiveResourcesInfo().toSorted().join(' ');
}

function assertQuiet({ log }: TestGateway, warnings: readonly string[]): void {
  assert.deepEqual(
    // Lines about a provider's failure before the fallback are expected.
    log.filter((line) =>
      /"level":"(?:error|warn)","message":"(?!breaker opened|incident)/.test(line),
    ),
    [],
  );
  assert.deepEqual(warnings, []);
}

for (const [when, toToml] of Object.entries(PHASES)) {
  for (const stream of [false, true]) {
    const kind = stream ? 'streams' : 'complete answers';
    test(
      `${CLIENTS} clients of ${kind} that leave ${when} leave no timer, listener or socket`,
      { skip: OVER_FETCH },
      async (t) => {
        const warnings = watchWarnings(t);
        const silentTls = await startSilentTls(t);
        // Connection: close, so no idle connection is kept for the next request.
        const p = await startUpstream(t, failWith(503, { headers: { connection: 'close' } }));
        const gateway = await startGateway(t, {
          toml: toToml(providerToml(silentTls), providerToml(p)),
        });
        const listenersOf = () =>
          process.eventNames().map((name) => [name, process.listenerCount(name)]);
        const listeners = listenersOf();
        const outgoing = watchOutgoing(t);
        let ever = 0;
        const comeAndGo = async (count: number) => {
          ever += count;
          const clients = Array.from({ length: count }, () => ask(gateway.port, stream));
          const isReached = () => silentTls.sockets.size === count && p.sockets.size === 0;
          await eventually(isReached, when);
          await sleep(20);
          assert.ok(isReached(), 'they stay in the phase');
          for (const client of clients) client.destroy();
          await linesOf(gateway, ever);
          silentTls.release();
          await eventually(() => outgoing.open() === 0, 'every connection upstream closed');
        };
        // The first use of fetch leaves resources for good. They are not the request's.
        await comeAndGo(1);
        // Wait until earlier tests have released their resources.
        let before = '';
        while (before !== resources()) {
          before = resources();
          await sleep(50);
        }
        await comeAndGo(CLIENTS);
        // A replacement connection for a departed client would come a moment later.
        await sleep(50);
        await eventually(() => resources() === before, `as before: ${before}`);
        assert.equal(outgoing.open(), 0);
        for (const line of gateway.accessLines()) assert.equal(line['outcome'], 'client_closed');
        assert.deepEqual(listenersOf(), listeners);
        assertQuiet(gateway, warnings);
      },
    );
  }
}

for (const [which, isThereBefore] of [
  ['that still waits for its own connection', true],
  ['that comes when it has left', false],
] as const) {
  test(`a client that leaves early does not disturb another client ${which}`, async (t) => {
    const warnings = watchWarnings(t);
    const hole = await startBlackHole(t, rawResponse(JSON.stringify(completion())));
    const gateway = await startGateway(t, { toml: providerToml(hole) });
    const outgoing = watchOutgoing(t);
    let answer = '';
    const askAndRead = () =>
      ask(gateway.port, false).on('data', (chunk: Buffer) => (answer += chunk.toString()));
    const clients = [ask(gateway.port, false)];
    if (isThereBefore) clients.push(askAndRead());
    await eventually(() => outgoing.connecting() === clients.length, 'connections being made');
    clients[0]!.destroy();
    if (!isThereBefore) clients.push(askAndRead());
    await linesOf(gateway);
    hole.open();
    await eventually(() => answer.startsWith('HTTP/1.1 200 '), 'the answer');
    clients[1]!.destroy();
    assertQuiet(gateway, warnings);
  });
}

test(
  'of two clients in a stream, the client that leaves closes only its own connection',
  { skip: OVER_FETCH },
  async (t) => {
    const { gateway } = await scenario(t, { providers: { p: beginStream(CHUNK) } });
    const outgoing = watchOutgoing(t);
    const received = [0, 0];
    const clients = received.map((_, index) =>
      ask(gateway.port, true).on('data', () => (received[index]! += 1)),
    );
    await eventually(() => !received.includes(0), 'both are being answered');
    clients[0]!.destroy();
    await linesOf(gateway);
    await eventually(() => outgoing.open() === 1, 'one connection');
    // A replacement connection for the departed client would come a moment later.
    await sleep(50);
    assert.equal(outgoing.open(), 1);
    clients[1]!.destroy();
    await eventually(() => outgoing.open() === 0, 'no connection');
  },
);

test('a stream whose head cannot be sent ends its request upstream', async (t) => {
  const { p: upstream, gateway } = await scenario(t, {
    server: 'timeout = 3600',
    providers: { p: beginStream(CHUNK) },
    // An invalid header value as a provider id. Settings refuse it.
    adjust: (config) => ({
      ...config,
      providers: {
        ...config.providers,
        registered: config.providers.registered.map((p) => ({ ...p, id: 'p\u2603' })),
      },
    }),
  });
  const reply = await gateway.chat(chatBody({ model: 'p\u2603/m', stream: true }));
  assert.equal(reply.status, 500);
  assert.match(reply.text, /"INTERNAL_ERROR"/);
  await upstream.requests[0]!.closed;
});
