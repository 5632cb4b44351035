import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { test, type TestContext } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { startStopwatch, stopClock, idle } from '../support/clock.ts';
import {
  chatBody,
  providerToml,
  rawChat,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { startHeldUpstream } from '../support/held-stream.ts';
import { isRefused, openRaw } from '../support/raw.ts';
import { errorAfter, eventually, openChat } from '../support/streams.ts';
import { sweep } from '../support/sweep.ts';
import {
  CHUNK,
  completion,
  completionEvents,
  sendJson,
  flood,
  type Script,
} from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';

const levelsOf = (gateway: TestGateway) => gateway.accessLines().map(({ level }) => level);
/** The reason for the drain. */
const SHUTDOWN = new GatewayError('internal', 'The gateway is shutting down');
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';

/**
 * Starts a gateway whose provider begins streams at once, and finishes everything after `finish`.
 */
async function start(t: TestContext) {
  const { upstream, finish } = await startHeldUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const untilRefused = () => eventually(() => isRefused(gateway.port), 'the port is closed');
  /** Begins a stream and a complete answer. */
  const begin = async () => {
    const stream = openChat(gateway.port);
    const complete = openChat(gateway.port, chatBody());
    const isBegun = () => stream.text() === CHUNK && upstream.requests.length === 2;
    await eventually(isBegun, 'both begun');
    return { stream, complete };
  };
  /** Opens a connection, and waits for the answer to `/health` or a stream's first event. */
  const open = async (request = HEALTH) => {
    const client = openRaw(t, gateway.port);
    client.socket.write(request);
    const sign = request === HEALTH ? 'healthy' : '"content":"a"';
    await eventually(() => client.text().includes(sign), 'the first answer');
    return client;
  };
  return { upstream, finish, gateway, untilRefused, begin, open };
}

const END = completionEvents();
const RAW_STREAM = rawChat(chatBody({ stream: true }));

test('a drain finishes requests in flight, and refuses new connections', async (t) => {
  const { gateway, finish, untilRefused, begin } = await start(t);
  const { stream, complete } = await begin();
  let isDrained = false;
  const drained = gateway.drain(10_000).then(() => (isDrained = true));
  await untilRefused();
  assert.equal(isDrained, false);
  finish();
  assert.equal(await stream.ended, CHUNK + END);
  assert.deepEqual(JSON.parse(await complete.ended), completion());
  assert.equal((await complete.response).headers['connection'], 'close');
  await drained;
  const outcomes = gateway.accessLines().map(({ outcome }) => outcome);
  assert.deepEqual(outcomes, ['ok', 'ok']);
});

test('a drain closes an idle connection a second after the port is closed', async (t) => {
  const clock = stopClock(t);
  const { gateway, untilRefused, open } = await start(t);
  const client = await open();
  let isOpen = true;
  const closed = client.closed.then(() => (isOpen = false));
  // Neither the deadline nor the limit on idle connections passes during a test.
  const drained = gateway.drain(60_000_000);
  t.after(() => gateway.cut());
  await untilRefused();
  clock.nowMs += 999;
  // Enough for several checks of idle connections.
  await idle(400);
  assert.ok(isOpen);
  clock.nowMs += 1;
  await closed;
  await drained;
});

const CROWD = sweep(1000, 300);
test(
  `a drain serves ${CROWD} clients that have just connected`,
  { skip: process.platform !== 'linux' && 'the kernel may hold fewer connections' },
  async (t) => {
    // A slow client's connection must not be taken for idle.
    stopClock(t);
    const { gateway } = await start(t);
    const clients = Array.from({ length: CROWD }, () => openRaw(t, gateway.port));
    let refused = 0;
    for (const { socket } of clients) {
      socket.on('connect', () => socket.write(HEALTH));
      // The kernel had not connected the socket when the port was closed.
      socket.on('error', ({ code }: NodeJS.ErrnoException) => {
        if (code === 'ECONNREFUSED') refused += 1;
      });
    }
    // All sockets connect before the gateway accepts any.
    await new Promise((resolve) => process.nextTick(resolve));
    await gateway.drain(10_000);
    await Promise.all(clients.map(({ closed }) => closed));
    const answered = clients.filter(({ text }) => text().includes('draining')).length;
    assert.equal(answered, CROWD - refused);
    assert.ok(refused < CROWD / 2, `${refused} are refused`);
  },
);

for (const [which, request] of [
  ['that was idle long before a drain', HEALTH],
  ['whose answer ends long after a drain has begun', RAW_STREAM],
] as const) {
  test(`a connection ${which} still takes a request after the port is closed`, async (t) => {
    const clock = stopClock(t);
    const { gateway, finish, untilRefused, open } = await start(t);
    // The head came before the drain, without Connection: close.
    const client = await open(request);
    if (request === HEALTH) clock.nowMs += 10_000;
    const drained = gateway.drain(60_000);
    await untilRefused();
    if (request !== HEALTH) {
      clock.nowMs += 10_000;
      finish();
      await eventually(() => client.text().endsWith('0\r\n\r\n'), 'the end of the stream');
    }
    // Enough for several checks of idle connections.
    await idle(400);
    client.socket.write(HEALTH);
    await eventually(() => client.text().includes('draining'), 'the second answer');
    assert.match(client.text(), /HTTP\/1\.1 503 [^]*\r\nconnection: close\r\n/i);
    await drained;
  });
}

test('connections with answers from before a drain do not delay it to its deadline', async (t) => {
  const elapsedMs = startStopwatch(t);
  // Many drains, because a connection's idle time is a matter of microseconds.
  const drains = Array.from({ length: 30 }, async (_, index) => {
    const { gateway, finish, open } = await start(t);
    const client = await open(RAW_STREAM);
    const drained = gateway.drain(60_000);
    setTimeout(finish, 50 + 7.3 * index);
    await drained;
    assert.ok(client.text().endsWith('0\r\n\r\n'));
  });
  await Promise.all(drains);
  assert.ok(elapsedMs() < 4000, `${elapsedMs()} ms`);
});

test('the deadline of a drain ends every request with an error', async (t) => {
  const { gateway, upstream, begin } = await start(t);
  const { stream, complete } = await begin();
  await gateway.drain(50, SHUTDOWN);
  errorAfter(await stream.ended, CHUNK);
  assert.equal((await complete.response).statusCode, 500);
  const { error: refusal } = JSON.parse(await complete.ended) as { error: { type: string } };
  assert.equal(typeof refusal.type, 'string');
  await Promise.all(upstream.requests.map(({ closed }) => closed));
  assert.deepEqual(levelsOf(gateway), ['warn', 'warn']);
});

test("a client does not see the text of an error that is not the gateway's own", async (t) => {
  const { gateway, begin } = await start(t);
  const { stream, complete } = await begin();
  await gateway.drain(50, new Error('canary'));
  assert.doesNotMatch((await stream.ended) + (await complete.ended), /canary/);
});

/** Starts clients that send these bodies, but do not read their endless answers. */
async function startStuckClients(t: TestContext, bodies: readonly object[]) {
  const answer = completion('x'.repeat(40_000_000));
  const { script: stream } = flood(`data: {"x":"${'y'.repeat(65_000)}"}\n\n`, Infinity);
  const p: Script = (request, response) =>
    request.body.includes('"stream":true') ? stream(request, response) : sendJson(response, answer);
  const { gateway } = await scenario(t, { providers: { p } });
  const clients = bodies.map((body) => {
    const socket = connect(gateway.port, '127.0.0.1').on('error', () => {});
    t.after(() => socket.destroy());
    socket.write(rawChat(body));
    return socket;
  });
  await eventually(() => clients.every(({ bytesRead }) => bytesRead > 0), 'both have begun');
  return gateway;
}

test('a drain that is cut after its deadline counts each request once', async (t) => {
  const gateway = await startStuckClients(t, [chatBody()]);
  const drained = gateway.drain(0, SHUTDOWN);
  await idle(50);
  gateway.cut();
  assert.deepEqual(await drained, { finished: 0, cut: 1 });
});

test('a second signal during drain_delay cancels requests in flight', async (t) => {
  const { gateway, begin } = await start(t);
  const { stream, complete } = await begin();
  const drained = gateway.drain(60_000_000, SHUTDOWN, 60_000_000);
  await idle(50);
  assert.equal(await isRefused(gateway.port), false);
  gateway.cut();
  errorAfter(await stream.ended, CHUNK);
  assert.equal((await complete.response).statusCode, 500);
  await complete.ended;
  assert.deepEqual(await drained, { finished: 0, cut: 2 });
});

test('a request that a drain cuts has its access line before the drain is over', async (t) => {
  const gateway = await startStuckClients(t, [chatBody(), chatBody({ stream: true })]);
  await gateway.drain(0, SHUTDOWN);
  assert.deepEqual(levelsOf(gateway), ['warn', 'warn']);
  const outcomes = gateway.accessLines().map(({ outcome }) => outcome);
  assert.deepEqual(outcomes, ['internal_error', 'internal_error']);
});

test('a request after the deadline of a drain is refused, and reaches no provider', async (t) => {
  // On a slow machine, the second until an idle connection is closed could pass.
  stopClock(t);
  const { gateway, upstream } = await start(t);
  const stream = openChat(gateway.port);
  await eventually(() => stream.text() === CHUNK, 'the first event');
  const client = openRaw(t, gateway.port);
  const request = rawChat(chatBody());
  client.socket.write(request.slice(0, 30));
  await eventually(() => !client.socket.connecting, 'a connection');
  const drained = gateway.drain(0);
  errorAfter(await stream.ended, CHUNK);
  client.socket.write(request.slice(30));
  await client.closed;
  assert.match(client.text(), /^HTTP\/1\.1 500 /);
  assert.equal(upstream.requests.length, 1);
  await drained;
});
