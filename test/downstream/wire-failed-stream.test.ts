/** A failed stream's end: its error event, and later its connection, without the last chunk. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { idle, stopClock, useManualTimers } from '../support/clock.ts';
import { chatBody, rawChat, STREAM } from '../support/gateway.ts';
import { isRefused, openRaw, parseReplies } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, errorAfter, eventually, linesOf } from '../support/streams.ts';
import { beginStream, CHUNK, flood, type Script, sendEvents } from '../support/upstream.ts';

const { failedStreamMs } = CLIENT_TIME_LIMITS;
const REQUEST = rawChat(STREAM);
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';

const endEarly: Script = (_, response) => sendEvents(response, CHUNK);
const cut: Script = (request, response) => {
  beginStream(CHUNK)(request, response);
  setImmediate(() => response.destroy());
};
const failInEvent: Script = (_, response) =>
  sendEvents(response, `${CHUNK}data: {"error":{"message":"m","code":"overloaded"}}\n\n`);

/** Starts a client with a failed stream. The test fires the timer for its end. */
async function startFailed(t: TestContext, script = endEarly, request = REQUEST) {
  const timers = useManualTimers(t);
  const { gateway } = await scenario(t, {
    providers: { p: script },
    server: 'max_concurrent_requests = 1',
    clientTimeLimits: { failedStreamMs },
  });
  const client = openRaw(t, gateway.port, { allowHalfOpen: true });
  let hasEnded = false;
  client.socket.once('end', () => (hasEnded = true));
  client.socket.write(request);
  await eventually(() => client.text().includes('data: {"error"'), 'the error event');
  const isTimed = () => timers.running().includes(failedStreamMs);
  return { gateway, client, timers, isTimed, hasEnded: () => hasEnded };
}

/** Checks for one stream with its error event, and without the last chunk. */
function assertCut(text: string): void {
  const [{ status, body, isWhole }, ...others] = parseReplies(text) as [
    ReturnType<typeof parseReplies>[number],
  ];
  assert.deepEqual([status, isWhole, others.length], [200, false, 0]);
  errorAfter(body, CHUNK);
  assert.ok(text.endsWith('\n\n\r\n'), 'the chunk of the error event is whole');
}

/** Writes until a connection closed on both sides would be reset. */
async function writeOn({ socket }: ReturnType<typeof openRaw>): Promise<void> {
  for (let part = 0; part < 3; part += 1) {
    socket.write(HEALTH);
    await idle(200);
  }
}

for (const [what, script] of Object.entries({ endEarly, cut, failInEvent })) {
  test(`a failed stream is half-closed two seconds after its error event (${what})`, async (t) => {
    assert.equal(failedStreamMs, 2000);
    const { gateway, client, timers, isTimed, hasEnded } = await startFailed(t, script);
    await eventually(isTimed, 'the wait');
    // The request is over with its error event.
    await linesOf(gateway);
    assert.equal((await gateway.chat(chatBody({ model: 'other/m' }))).status, 400);
    timers.advance(failedStreamMs - 1);
    await idle(100);
    assert.equal(hasEnded(), false);
    timers.advance(1);
    await eventually(hasEnded, 'the end');
    assertCut(client.text());
    await writeOn(client);
    client.socket.end();
    assert.equal(await client.closed, undefined);
    assertCut(client.text());
  });
}

for (const how of ['closes its connection', 'resets its connection'] as const) {
  test(`a client that ${how} after the error event ends the wait`, async (t) => {
    const { gateway, client, isTimed } = await startFailed(t);
    await eventually(isTimed, 'the wait');
    if (how === 'closes its connection') client.socket.end();
    else client.socket.resetAndDestroy();
    await client.closed;
    await eventually(() => !isTimed(), 'no timer');
    const [line, ...others] = await linesOf(gateway);
    assert.deepEqual([line?.['outcome'], others.length], ['upstream_error', 0]);
  });
}

test('the wait after the error event begins when its client has taken it', async (t) => {
  const timers = useManualTimers(t);
  const gate = createGate();
  // More than both kernels hold.
  const part = `data: {"x":"${'y'.repeat(65_000)}"}\n\n`;
  const { script } = flood(part, 12_000_000, gate.opened);
  const { p, gateway } = await scenario(t, {
    providers: {
      p: (request, response) => {
        script(request, response);
        // Break off instead of `[DONE]`.
        Object.assign(response, { end: () => response.destroy() });
      },
    },
    clientTimeLimits: { failedStreamMs },
  });
  const client = openRaw(t, gateway.port);
  client.socket.write(REQUEST);
  await eventually(() => client.text().includes(CHUNK), 'the first event');
  client.socket.pause();
  gate.open();
  const isTimed = () => timers.running().includes(failedStreamMs);
  await idle(300);
  assert.equal(p.requests.length, 1);
  assert.equal(isTimed(), false);
  assert.deepEqual(gateway.accessLines(), []);
  client.socket.resume();
  await eventually(isTimed, 'the wait');
  timers.advance(failedStreamMs);
  assert.equal(await client.closed, undefined);
  const [{ body } = { body: '' }] = parseReplies(client.text());
  assert.match(body, /\n\ndata: \{"error":.*\n\n$/);
});

// More than both kernels hold.
const BODY = chatBody({ stream: true, padding: 'x'.repeat(12_000_000) });
const BEHIND = {
  'a request': HEALTH,
  'thirty requests, the last one with a body,': HEALTH.repeat(30) + rawChat(BODY),
  'a request with a body': rawChat(BODY),
  'the half of a request with a body': rawChat(BODY).slice(0, 6_000_000),
  'half a head': HEALTH.slice(0, 20),
  'bytes that are not HTTP': '\0\0\r\n\r\n',
};
for (const [what, bytes] of Object.entries(BEHIND)) {
  for (const when of ['before', 'behind'] as const) {
    test(`${what} ${when} the error event of a stream has no answer`, async (t) => {
      const gate = createGate();
      const script: Script = (request, response) => {
        beginStream(CHUNK)(request, response);
        void gate.opened.then(() => response.end());
      };
      const { p, gateway } = await scenario(t, {
        providers: { p: script },
        clientTimeLimits: { failedStreamMs: 300 },
      });
      const client = openRaw(t, gateway.port, { allowHalfOpen: true });
      client.socket.write(REQUEST);
      await eventually(() => client.text().includes(CHUNK), 'the first event');
      if (when === 'before') {
        client.socket.write(bytes);
        await idle(60);
      }
      gate.open();
      await eventually(() => client.text().includes('data: {"error"'), 'the error event');
      const ended = new Promise((resolve) => client.socket.once('end', resolve));
      if (when === 'behind') client.socket.write(bytes);
      await ended;
      client.socket.end();
      assert.equal(await client.closed, undefined);
      assertCut(client.text());
      assert.equal(p.requests.length, 1);
      await linesOf(gateway);
    });
  }
}

test('a failed stream in HTTP/1.0 ends with its connection at once', async (t) => {
  const request = REQUEST.replace('HTTP/1.1', 'HTTP/1.0');
  const { client, isTimed, hasEnded } = await startFailed(t, endEarly, request);
  await eventually(hasEnded, 'the end');
  assert.equal(isTimed(), false);
  errorAfter(client.text().split('\r\n\r\n')[1]!, CHUNK);
});

/** As `startFailed`, in real time, with a wait longer than any test. */
async function startWaiting(t: TestContext) {
  const { gateway } = await scenario(t, {
    providers: { p: endEarly },
    clientTimeLimits: { failedStreamMs: 60_000_000 },
  });
  const client = openRaw(t, gateway.port, { allowHalfOpen: true });
  const ended = new Promise((resolve) => client.socket.once('end', resolve));
  // The second request never has its turn.
  client.socket.write(REQUEST + HEALTH);
  await linesOf(gateway);
  return { gateway, client, ended };
}

test('a drain half-closes a failed connection as soon as an idle connection', async (t) => {
  const clock = stopClock(t);
  const { gateway, client, ended } = await startWaiting(t);
  let hasEnded = false;
  void ended.then(() => (hasEnded = true));
  const drained = gateway.drain(60_000_000);
  t.after(() => gateway.cut());
  await eventually(() => isRefused(gateway.port), 'the port is closed');
  clock.nowMs += 999;
  // Enough for several checks of idle connections.
  await idle(400);
  assert.equal(hasEnded, false);
  clock.nowMs += 1;
  await ended;
  await writeOn(client);
  assert.equal(client.socket.destroyed, false);
  assertCut(client.text());
  // The drain does not wait for a client that does not close.
  clock.nowMs += 1000;
  await drained;
  client.socket.end();
  await client.closed;
});

test('a second signal ends the wait after an error event', async (t) => {
  stopClock(t);
  const { gateway, client, ended } = await startWaiting(t);
  const drained = gateway.drain(60_000_000);
  gateway.cut();
  assert.deepEqual(await drained, { finished: 0, cut: 0 });
  await ended;
  assertCut(client.text());
});
