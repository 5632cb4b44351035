import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { ALL_SCALES, atSomeScale, idle, untilSteady } from '../support/clock.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { openRaw, statusesOf } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually, linesOf, lineOf, assertNoErrors } from '../support/streams.ts';
import {
  completion,
  sendJson,
  type Script,
  CHUNK,
  LAST,
  DONE,
  flood,
  beginStream,
  sendEvents,
} from '../support/upstream.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';

const MIB = 1_048_576;
const SLOW_BYTES = 18 * MIB;
const STUCK_MS = 800;
/** The limit in tests about its end. A busy network may restart the clock once. */
const CUT_MS = 400;

const PART = Buffer.from(`data: {"x":"${'y'.repeat(65_500)}"}\n\n`);

const eventOf = (bytes: number) => `data: {"choices":[],"x":"${'y'.repeat(bytes)}"}\n\n`;
const answerOf =
  (bytes: number): Script =>
  (_, response) =>
    sendJson(response, completion('y'.repeat(bytes)));

/** Opens a client that does not read until the test resumes it. */
function openReader(t: TestContext, port: number, requests: string): Socket {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  t.after(() => socket.destroy());
  socket.pause();
  socket.write(requests);
  return socket;
}

const start = (t: TestContext, script: Script, sendTimeoutMs = 60_000) =>
  scenario(t, { providers: { p: script }, clientTimeLimits: { sendTimeoutMs } });

test('streams of 100 MiB without a reader hold the provider back, and little memory', async (t) => {
  const { p: upstream, gateway } = await start(t, flood(PART, 100 * MIB).script);
  const held = createMemoryProbe();
  assert.equal((await gateway.send('/health')).status, 200);
  const before = held();
  const count = 6;
  const readers = Array.from({ length: count }, () =>
    openReader(t, gateway.port, rawChat(chatBody({ stream: true }))),
  );
  await eventually(() => upstream.requests.length === count, 'every request upstream');
  const sent = () => [...upstream.sockets].reduce((sum, { bytesWritten }) => sum + bytesWritten, 0);
  await eventually(() => sent() > count * MIB, 'the network is full');
  await untilSteady(sent);
  assert.ok(sent() < count * 16 * MIB, `${sent()} bytes were sent`);
  await eventually(() => held() - before < count * MIB, 'less than 1 MiB is held for each');

  for (const reader of readers) reader.destroy();
  for (const { outcome } of await linesOf(gateway, count)) assert.equal(outcome, 'client_closed');
  assert.equal(upstream.requests.length, count);
  await Promise.all(upstream.requests.map(async ({ closed }) => closed));
  assertNoErrors(gateway);
});

/** Sends a slow stream, and a second request behind it. Returns all answers. */
async function pipeline(t: TestContext, clientTimeLimits: object, second: string): Promise<string> {
  const { opened, open: finish } = createGate();
  const p: Script = async ({ body }, response) => {
    if (!body.includes('"stream":true')) return sendJson(response, completion('y'.repeat(MIB)));
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
    await opened;
    return response.end(LAST + DONE);
  };
  const { gateway } = await scenario(t, { providers: { p }, clientTimeLimits });
  const { socket, text, closed } = openRaw(t, gateway.port);
  socket.write(rawChat(chatBody({ stream: true })) + second);
  // Several times the limit.
  await idle(700);
  finish();
  await closed;
  return text();
}

for (const more of ['', 'connection: close\r\n']) {
  const how = more ? 'with' : 'without';
  test(`an upload refused ${how} Connection: close cuts no running answer`, async (t) => {
    const head = `POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n${more}content-length: 9\r\n`;
    const refused = `${head}\r\nx`;
    const text = await pipeline(t, { lingerCheckMs: 40 }, refused);
    assert.deepEqual(statusesOf(text), [200, 401]);
    assert.ok(text.includes('[DONE]'), text);
  });
}

test('an answer that a reset finds half written does not count as delivered', async (t) => {
  const { gateway } = await start(t, answerOf(60_000));
  // Each answer fits into one write, but the network does not hold all answers.
  const count = 1000;
  // Long requests, so one read brings fewer than 100.
  const request = rawChat(chatBody({ padding: 'x'.repeat(700) }));
  const reader = openReader(t, gateway.port, request.repeat(count));
  const delivered = () => gateway.accessLines().filter(({ outcome }) => outcome === 'ok').length;
  await eventually(() => delivered() > 0, 'the first answer is delivered');
  const before = await untilSteady(delivered);
  assert.ok(before < count, `${before}`);
  reader.resetAndDestroy();
  await eventually(() => gateway.accessLines().length > before, 'the last access line');
  assert.equal(delivered(), before);
  assert.equal(gateway.accessLines().length, before + 1);
});

describe('a client that stops reading', { concurrency: 4 }, () => {
  const STREAM = rawChat(chatBody({ stream: true }));
  const COMPLETE = rawChat(chatBody());
  const stuck: Record<string, [script: Script, requests: string]> = {
    'a stream': [flood(PART, 100 * MIB).script, STREAM],
    'one event of 12 MiB': [beginStream(eventOf(12 * MIB)), STREAM],
    'a complete answer of 16 MiB': [answerOf(16 * MIB), COMPLETE],
    // Each answer fits into one write, but the network does not hold all answers.
    'many answers of 200 KiB on one connection': [answerOf(200_000), COMPLETE.repeat(100)],
  };
  for (const [what, [script, requests]] of Object.entries(stuck)) {
    const skip = /event|many/.test(what) && LEFT_TO_SWEEPS;
    test(`of ${what} is cut off although it keeps sending line breaks`, { skip }, async (t) => {
      const { p: upstream, gateway } = await start(t, script, CUT_MS);
      const startedAt = performance.now();
      const reader = openReader(t, gateway.port, requests);
      // A client sending line breaks need not read.
      const sending = setInterval(() => reader.writable && reader.write('\r\n'), CUT_MS / 10);
      t.after(() => clearInterval(sending));
      const outcomes = () => gateway.accessLines().map(({ outcome }) => outcome);
      await eventually(() => outcomes().includes('client_closed'), 'the client is cut off');
      const tookMs = performance.now() - startedAt;
      assert.ok(tookMs >= CUT_MS * 0.9, `${tookMs} ms`);
      const areOver = () => outcomes().length === upstream.requests.length;
      await eventually(areOver, 'every request is over');
      await Promise.all(upstream.requests.map(async ({ closed }) => closed));
      assertNoErrors(gateway);
      assert.equal((await gateway.send('/health')).status, 200);
    });
  }

  /**
   * Checks that a slow reader gets everything: a stream at an even pace over three limits, or a
   * complete answer with pauses for half the limit.
   */
  async function checkSlowReader(
    t: TestContext,
    script: Script,
    isStream: boolean,
    stuckMs: number,
  ) {
    const { p: upstream, gateway } = await start(t, script, stuckMs);
    const socket = openReader(t, gateway.port, isStream ? STREAM : COMPLETE);
    // Much slower than the gateway, but too fast for the network's buffers to hide the pauses.
    const bytesPerMs = SLOW_BYTES / (3 * stuckMs);
    let received = 0;
    const startedAt = performance.now();
    const elapsedMs = () => performance.now() - startedAt;
    for (let pauses = 0; gateway.accessLines().length === 0 && !socket.closed;) {
      const isAhead = isStream && received >= elapsedMs() * bytesPerMs;
      const part = isAhead ? null : (socket.read() as Buffer | null);
      received += part?.length ?? 0;
      const isPause = !isStream && received > pauses * 3 * MIB && pauses < 8;
      if (isPause) pauses += 1;
      await sleep(isPause ? stuckMs * 0.6 : part ? 0 : 2);
    }
    const tookMs = elapsedMs();
    assert.equal((await lineOf(gateway))['outcome'], 'ok', `cut off after ${received} bytes`);
    assert.ok(tookMs > stuckMs * 1.5, `too fast to prove anything: ${tookMs} ms`);
    assert.equal(upstream.requests.length, 1);
  }

  const slow: Record<string, Script> = {
    'a stream': flood(PART, SLOW_BYTES).script,
    'one event of 15 MiB': (_, response) => sendEvents(response, eventOf(15 * MIB) + LAST + DONE),
    'a complete answer of 30 MiB': answerOf(30 * MIB),
  };
  for (const [what, script] of Object.entries(slow)) {
    test(
      `of ${what} again and again, but never for long, gets all of it`,
      { ...ALL_SCALES, skip: what !== 'a stream' && LEFT_TO_SWEEPS },
      async (t) => {
        const isStream = !what.includes('complete');
        await atSomeScale(async (scale) => checkSlowReader(t, script, isStream, scale * STUCK_MS));
      },
    );
  }
});
