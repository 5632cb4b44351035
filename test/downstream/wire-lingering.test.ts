import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { idle, useManualTimers } from '../support/clock.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { responseClosed, startHttpServer } from '../support/http-server.ts';
import { openRaw, statusesOf, watchServerSide } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';

const UPLOAD_BYTES = 100;
const FRAMING = `content-length: ${UPLOAD_BYTES}`;
const HEAD = `POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n${FRAMING}\r\n\r\n`;
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';
const CHECK_MS = CLIENT_TIME_LIMITS.lingerCheckMs;

/** Starts a gateway on manual timers, and an upload refused after the head. */
async function start(
  t: TestContext,
  { head = HEAD, allowHalfOpen = false, timers = useManualTimers(t) } = {},
) {
  const { gateway, p: upstream } = await scenario(t);
  const client = openRaw(t, gateway.port, { allowHalfOpen });
  const own = watchServerSide(t, client.socket);
  client.socket.write(head);
  await eventually(() => client.text().includes('}}'), 'the answer');
  await eventually(() => timers.repeating().includes(CHECK_MS), 'the checks');
  const ownSocket = own.socket!;
  return {
    ...client,
    gateway,
    upstream,
    timers,
    own,
    isOpen: () => !ownSocket.destroyed,
    /** Sends bytes, and resolves when the gateway has read them. */
    send: async (bytes: string) => {
      const { socket } = client;
      socket.write(bytes);
      await eventually(() => ownSocket.bytesRead === socket.bytesWritten, 'it is read');
    },
  };
}

test('a refused upload is read to its end if some of it comes every 5 s', async (t) => {
  const { timers, isOpen, send, closed, text } = await start(t);
  assert.match(text(), /^HTTP\/1\.1 401 [^]*\r\nconnection: close\r\n/i);
  for (let second = 0; second < 25; second += 5) {
    timers.advance(5 * CHECK_MS - 1);
    assert.ok(isOpen(), `closed after ${second} s`);
    await send('x');
    timers.advance(1);
  }
  await send('x'.repeat(UPLOAD_BYTES - 5));
  assert.equal(await closed, undefined);
  assert.deepEqual(statusesOf(text()), [401]);
  await eventually(() => !isOpen(), 'the end');
  timers.advance(CHECK_MS);
  assert.ok(!timers.repeating().includes(CHECK_MS), 'there are no more checks');
});

test('a refused upload is closed after 5 s without bytes, or 30 s in all', async (t) => {
  const { timers, isOpen, send } = await start(t);
  await send('x');
  timers.advance(6 * CHECK_MS - 1);
  assert.ok(isOpen());
  timers.advance(1);
  assert.ok(!isOpen());
  const other = await start(t, { timers });
  for (let second = 0; second < 30; second += 1) {
    assert.ok(other.isOpen(), `closed after ${second} s`);
    await other.send('x');
    timers.advance(CHECK_MS);
  }
  assert.ok(!other.isOpen());
});

test('a connection that stays open behind a refused upload is closed after 5 s', async (t) => {
  const { socket, timers, isOpen } = await start(t, { allowHalfOpen: true });
  assert.equal(socket.readableEnded, false);
  socket.write('x'.repeat(UPLOAD_BYTES));
  await eventually(() => socket.readableEnded, 'the end that the gateway sends');
  assert.ok(isOpen());
  timers.advance(6 * CHECK_MS);
  assert.ok(!isOpen());
});

test('bytes behind a refused upload get no answer and no log line', async (t) => {
  for (const behind of [rawChat(chatBody()) + HEALTH, 'canary\r\n\r\n']) {
    const { socket, closed, gateway, text, upstream } = await start(t);
    socket.write('x'.repeat(UPLOAD_BYTES) + behind);
    assert.equal(await closed, undefined);
    await idle(100);
    assert.deepEqual(statusesOf(text()), [401]);
    assert.equal(upstream.requests.length, 0);
    assert.equal(gateway.lines().length, 1);
  }
});

for (const isOver of [true, false]) {
  const when = isOver ? 'is over' : 'goes on';
  test(`a request behind a refused upload does not begin when its call ${when}`, async (t) => {
    const gate = createGate();
    if (isOver) gate.open();
    let calls = 0;
    const port = await startHttpServer(t, async (call) => {
      calls += 1;
      await call.reply.send(401, {}, '{}');
      await responseClosed(call);
      await gate.opened;
    });
    // Half-open, so the connection outlives the gateway's end.
    const { socket, closed, text } = openRaw(t, port, { allowHalfOpen: true });
    const own = watchServerSide(t, socket);
    socket.write(HEAD);
    await eventually(() => text().includes('{}'), 'the answer');
    socket.write('x'.repeat(UPLOAD_BYTES) + HEALTH);
    await eventually(() => own.requests === 2, 'the request behind it');
    gate.open();
    await idle(100);
    assert.equal(calls, 1);
    socket.end();
    assert.equal(await closed, undefined);
  });
}

test('the gateway takes one read of 100,000 requests behind a refused upload', async (t) => {
  const { socket, timers, isOpen, own } = await start(t);
  socket.write('x'.repeat(UPLOAD_BYTES) + HEALTH.repeat(100_000));
  await eventually(() => own.requests > 1, 'the first of them');
  await idle(200);
  assert.ok(own.requests < 4000, `${own.requests} requests`);
  timers.advance(6 * CHECK_MS);
  assert.ok(!isOpen());
});

test('a refused upload in chunks of one byte is closed after 5 s', async (t) => {
  const head = HEAD.replace(/content-length: \d+/, 'transfer-encoding: chunked');
  const { socket, timers, isOpen, own } = await start(t, { head });
  socket.write('1\r\nx\r\n'.repeat(200_000));
  await eventually(() => own.socket!.bytesRead > 1000, 'the first of it');
  await idle(200);
  const { bytesRead } = own.socket!;
  timers.advance(6 * CHECK_MS);
  assert.ok(!isOpen());
  assert.ok(bytesRead < 300_000, `${bytesRead} bytes`);
});

test('a body sent in spite of a refused Expect: 100-continue resets nothing', async (t) => {
  const { gateway } = await scenario(t);
  const size = 8_000_000;
  const { socket, closed, text } = openRaw(t, gateway.port, { allowHalfOpen: true });
  const lines = `content-length: ${size}\r\nexpect: 100-continue`;
  socket.write(HEAD.replace(/content-length: \d+/, lines));
  await eventually(() => text().includes('}}'), 'the answer');
  socket.end('x'.repeat(size));
  assert.equal(await closed, undefined);
  assert.equal(socket.bytesWritten > size, true);
  assert.deepEqual(statusesOf(text()), [401]);
});
