import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { GatewayError } from '../../src/lib/errors.ts';
import { startStopwatch, stopClock, idle } from '../support/clock.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { isRefused, openRaw } from '../support/raw.ts';
import { createGate, errorAfter, eventually, openChat } from '../support/streams.ts';
import {
  CHUNK,
  completion,
  sendJson,
  LAST,
  DONE,
  failWith,
  flood,
  beginStream,
  type Script,
} from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';

const END = LAST + DONE;
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';

/** A gateway whose provider begins streams at once and finishes everything when `finish` is called. */
async function start(t: TestContext) {
  const { opened, open: finish } = createGate();
  const p: Script = async (request, response) => {
    const isStream = request.body.includes('"stream":true');
    if (isStream) beginStream(CHUNK)(request, response);
    await opened;
    if (isStream) response.end(END);
    else sendJson(response, completion());
  };
  const { p: upstream, gateway } = await scenario(t, { providers: { p } });
  return { upstream, finish, gateway };
}

test('a drain finishes requests and streams in flight, and refuses new connections', async (t) => {
  const { gateway, upstream, finish } = await start(t);
  const stream = openChat(gateway.port);
  const complete = openChat(gateway.port, chatBody());
  await eventually(() => stream.text() === CHUNK && upstream.requests.length === 2, 'both begun');

  let isDrained = false;
  const drained = gateway.drain(10_000).then(() => (isDrained = true));
  await eventually(() => isRefused(gateway.port), 'new connections are refused');
  assert.equal(isDrained, false);
  finish();
  assert.equal(await stream.ended, CHUNK + END);
  assert.deepEqual(JSON.parse(await complete.ended), completion());
  await drained;
  assert.deepEqual(
    gateway.accessLines().map(({ outcome }) => outcome),
    ['ok', 'ok'],
  );
});

test('an answer given while draining says that its connection closes', async (t) => {
  const { gateway, upstream, finish } = await start(t);
  const client = openRaw(t, gateway.port);
  client.socket.write(rawChat(chatBody()));
  await eventually(() => upstream.requests.length === 1, 'the request reached the provider');
  const drained = gateway.drain(10_000);
  await eventually(() => isRefused(gateway.port), 'new connections are refused');
  finish();
  await drained;
  await client.closed;
  assert.match(client.text(), /^HTTP\/1\.1 200 /);
  assert.match(client.text(), /\r\nconnection: close\r\n/i);
});

test('GET /health on a connection that was kept alive says 503 and draining', async (t) => {
  const { gateway, finish } = await start(t);
  const client = openRaw(t, gateway.port);
  client.socket.write(HEALTH);
  await eventually(() => client.text().includes('healthy'), 'the first answer');
  // An idle connection is closed by the drain; one that is carrying a stream is not.
  client.socket.write(rawChat(chatBody({ stream: true })));
  await eventually(() => client.text().includes('"content":"a"'), 'the first event');
  const drained = gateway.drain(10_000);
  client.socket.write(HEALTH);
  // Long enough for the second request to be on the connection.
  await idle(60);
  finish();
  await drained;
  await client.closed;
  const [, answer = ''] = client.text().split('data: [DONE]');
  assert.match(answer, /HTTP\/1\.1 503 /);
  assert.match(answer, /\r\nconnection: close\r\n/i);
  assert.match(answer, /\{"status":"draining","version":"[^"]+"\}$/);
});

test('a drain closes an idle connection a second after the port is closed', async (t) => {
  const clock = stopClock(t);
  const { gateway } = await start(t);
  const client = openRaw(t, gateway.port);
  let isOpen = true;
  void client.closed.then(() => (isOpen = false));
  client.socket.write(HEALTH);
  await eventually(() => client.text().includes('healthy'), 'the answer');
  // Neither the deadline nor the limit on idle connections passes in the time of a test.
  const drained = gateway.drain(60_000_000);
  t.after(() => gateway.cut());
  await eventually(() => isRefused(gateway.port), 'the port is closed');
  clock.nowMs += 999;
  // Several checks for idle connections.
  await idle(400);
  assert.ok(isOpen);
  clock.nowMs += 1;
  await idle(1000);
  assert.ok(!isOpen);
  await drained;
});

test(
  'a drain serves 1,000 clients that have just connected',
  { skip: process.platform !== 'linux' && 'the kernel may hold fewer connections' },
  async (t) => {
    // On a busy machine a client may take longer to write its request than the grace of idle connections.
    stopClock(t);
    const { gateway } = await start(t);
    const clients = Array.from({ length: 1000 }, () => openRaw(t, gateway.port));
    let refused = 0;
    for (const { socket } of clients) {
      socket.on('connect', () => socket.write(HEALTH));
      // The kernel had not connected it yet when the port was closed.
      socket.on('error', ({ code }: NodeJS.ErrnoException) => {
        if (code === 'ECONNREFUSED') refused += 1;
      });
    }
    // The sockets connect before the gateway accepts any of them.
    await new Promise((resolve) => process.nextTick(resolve));
    await gateway.drain(10_000);
    await Promise.all(clients.map(({ closed }) => closed));
    const answered = clients.filter(({ text }) => text().includes('draining')).length;
    assert.equal(answered, 1000 - refused);
    assert.ok(refused < 500, `${refused} are refused`);
  },
);

test('a connection that was idle long before a drain still takes a request after the port is closed', async (t) => {
  const clock = stopClock(t);
  const { gateway } = await start(t);
  const client = openRaw(t, gateway.port);
  client.socket.write(HEALTH);
  await eventually(() => client.text().includes('healthy'), 'the first answer');
  clock.nowMs += 10_000;
  const drained = gateway.drain(10_000);
  await eventually(() => isRefused(gateway.port), 'new connections are refused');
  // Several checks for idle connections.
  await sleep(400);
  client.socket.write(HEALTH);
  await eventually(() => client.text().includes('draining'), 'the second answer');
  assert.match(client.text(), /HTTP\/1\.1 503 .*\r\nconnection: close\r\n/is);
  await drained;
});

test('a connection still takes a request after an answer that ends long after a drain has begun', async (t) => {
  const clock = stopClock(t);
  const { gateway, finish } = await start(t);
  const client = openRaw(t, gateway.port);
  // Its head has come before the drain, and says nothing of a close.
  client.socket.write(rawChat(chatBody({ stream: true })));
  await eventually(() => client.text().includes('"content":"a"'), 'the first event');
  const drained = gateway.drain(60_000);
  await eventually(() => isRefused(gateway.port), 'new connections are refused');
  clock.nowMs += 10_000;
  finish();
  await eventually(() => client.text().endsWith('0\r\n\r\n'), 'the end of the stream');
  // Several checks for idle connections.
  await sleep(400);
  client.socket.write(HEALTH);
  await eventually(() => client.text().includes('draining'), 'the second answer');
  await drained;
});

test('connections whose answers began before a drain do not delay it until its deadline', async (t) => {
  const elapsedMs = startStopwatch(t);
  // Whether a connection has been unused for long enough is a matter of fractions of milliseconds.
  const drains = Array.from({ length: 30 }, async (_, index) => {
    // The threads of thirty gateways take longer to start than what is measured.
    const { gateway, finish } = await start(t);
    const client = openRaw(t, gateway.port);
    client.socket.write(rawChat(chatBody({ stream: true })));
    await eventually(() => client.text().includes('"content":"a"'), 'the first event');
    const drained = gateway.drain(60_000);
    setTimeout(finish, 50 + 7.3 * index);
    await drained;
    assert.ok(client.text().endsWith('0\r\n\r\n'));
  });
  await Promise.all(drains);
  assert.ok(elapsedMs() < 4000, `${elapsedMs()} ms`);
});

test('at the deadline of a drain streams end in the error event and the others get an error', async (t) => {
  // The text of an error that is not the gateway's own: no worker is told to drain with one.
  const { gateway, upstream } = await start(t);
  const stream = openChat(gateway.port);
  const complete = openChat(gateway.port, chatBody());
  await eventually(() => stream.text() === CHUNK && upstream.requests.length === 2, 'both begun');
  await gateway.drain(50);
  errorAfter(await stream.ended, CHUNK);
  assert.ok(((await complete.response).statusCode ?? 0) >= 500);
  const { error: refusal } = JSON.parse(await complete.ended) as { error: { type: string } };
  assert.equal(typeof refusal.type, 'string');
  await Promise.all(upstream.requests.map(({ closed }) => closed));
  assert.doesNotMatch(await stream.ended, /test is over/);
});

test('requests that a shutdown ends are not logged as errors of the gateway', async (t) => {
  const { gateway, upstream } = await start(t);
  const stream = openChat(gateway.port);
  const complete = openChat(gateway.port, chatBody());
  await eventually(() => stream.text() === CHUNK && upstream.requests.length === 2, 'both begun');
  // What the server drains with.
  await gateway.drain(0, new GatewayError('internal', 'The gateway is shutting down'));
  assert.equal((await complete.response).statusCode, 500);
  await stream.ended;
  assert.deepEqual(
    gateway.accessLines().map(({ level }) => level),
    ['warn', 'warn'],
  );
});

/** Clients that send these and read nothing of answers that have no end. */
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

test('a drain that is cut short after its deadline counts what was cut once', async (t) => {
  const gateway = await startStuckClients(t, [chatBody()]);
  const drained = gateway.drain(0, new GatewayError('internal', 'The gateway is shutting down'));
  await sleep(50);
  gateway.cut();
  assert.deepEqual(await drained, { finished: 0, cut: 1 });
});

test('what a drain cuts while its client reads nothing is on its access line before the drain is over', async (t) => {
  const gateway = await startStuckClients(t, [chatBody(), chatBody({ stream: true })]);
  await gateway.drain(0, new GatewayError('internal', 'The gateway is shutting down'));
  assert.deepEqual(
    gateway.accessLines().map(({ level, outcome }) => `${String(level)} ${String(outcome)}`),
    ['warn internal_error', 'warn internal_error'],
  );
});

test('a request that comes after the deadline of a drain is told so, and no provider is asked', async (t) => {
  // A connection is left without a request for a second, which a slow machine may take for the rest of this.
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

test('a request that waits for a retry does not delay the deadline of a drain', async (t) => {
  const p = failWith(503, { headers: { 'retry-after': '20' } });
  const { p: upstream, gateway } = await scenario(t, { providers: { p }, server: 'retries = 1' });
  const chat = openChat(gateway.port, chatBody());
  await eventually(() => upstream.requests.length === 1, 'the first try');
  await gateway.drain(50);
  assert.ok(((await chat.response).statusCode ?? 0) >= 500);
  assert.equal(upstream.requests.length, 1);
});
