import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { Socket } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { CLIENT_TIME_LIMITS } from '../../src/downstream/listener.ts';
import { ALL_SCALES, atSomeScale, startStopwatch, useManualTimers } from '../support/clock.ts';
import {
  assertError,
  NOT_AUTHENTICATED,
  parseRaw,
  refusal,
  type ExpectedError,
} from '../support/errors.ts';
import { chatBody, CLIENT_TOKEN, type TestGateway } from '../support/gateway.ts';
import { openRaw, readReply, sendRaw, statusesOf } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { assertNoErrors, createGate, eventually, linesOf } from '../support/streams.ts';
import { completion, type Script, sendJson } from '../support/upstream.ts';

const MIB = 1_048_576;
const LIMITS = { headersMs: 300, requestMs: 600, lingerCheckMs: 80 };
/** The gateway's own limits, with more time to read an answer. */
const AMPLE = { lingerCheckMs: 10_000 };
/** How many times its limit an answer may take on a busy machine, in the process's own time. */
const GENEROUS = 12;

const AUTHORIZATION = `Authorization: Bearer ${CLIENT_TOKEN}`;
const JSON_TYPE = 'Content-Type: application/json';
const BODY = JSON.stringify(chatBody());
const HEALTH = 'GET /health HTTP/1.1\r\nHost: x\r\n';

function chat(...more: string[]): string {
  const lines = ['POST /v1/chat/completions HTTP/1.1', 'Host: x', AUTHORIZATION, JSON_TYPE];
  return `${[...lines, ...more].join('\r\n')}\r\n\r\n`;
}

/** Returns the first answer in the text, for `assertError`. */
function firstAnswer(text: string): ReturnType<typeof parseRaw> {
  return parseRaw(readReply(text));
}

async function start(t: TestContext, server = '', clientTimeLimits: object = LIMITS) {
  const { p: upstream, gateway } = await scenario(t, { server, clientTimeLimits });
  return { gateway, upstream };
}

/** Checks that nothing is left from a client, and other clients are served. */
async function assertServing(gateway: TestGateway, requests: number): Promise<void> {
  await linesOf(gateway, requests);
  assertNoErrors(gateway);
  await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
  assert.equal((await gateway.chat(chatBody())).status, 200);
}

test('each of three uploads on a connection has its own time', async (t) => {
  const timers = useManualTimers(t);
  const { gateway } = await start(t, '', AMPLE);
  const { socket, text } = openRaw(t, gateway.port);
  for (let count = 1; count <= 3; count += 1) {
    socket.write(chat(`Content-Length: ${BODY.length}`) + BODY.slice(0, 20));
    await eventually(() => gateway.reservedBytes() > 0, 'the upload');
    // Three of the four checks in a row that find no new byte.
    timers.advance(0.75 * CLIENT_TIME_LIMITS.requestMs);
    socket.write(BODY.slice(20));
    await eventually(() => statusesOf(text()).length >= count, 'the answer');
    assert.equal(statusesOf(text()).at(-1), 200, `upload ${count}`);
  }
});

describe('a client that takes its time', { concurrency: 4 }, () => {
  /** The bytes sent, their limit, the number of access lines, and the following bytes. */
  type Slow = readonly [sent: string, limitMs: number, calls: number, drip?: string];
  const { headersMs, requestMs } = LIMITS;
  const half = BODY.slice(0, 20);
  const chunked = chat('Transfer-Encoding: chunked');
  /** `drip` is sent byte by byte, every tenth of the limit, while the connection lasts. */
  const slow: Record<string, Slow> = {
    'nothing at all': ['', headersMs, 0],
    'half a request line': ['GET /hea', headersMs, 0],
    'half of its headers': [`${HEALTH}a: b`, headersMs, 0],
    'headers that never end': [`${HEALTH}a: b`, headersMs, 0, 'b'],
    'half of a body': [chat('Content-Length: 100') + half, requestMs, 1],
    'most of a body at once': [chat('Content-Length: 99999') + ' '.repeat(90_000), requestMs, 1],
    'a body that never ends': [chat('Content-Length: 9999'), requestMs, 1, ' '],
    'half of a chunked body': [`${chunked}ffff\r\n{`, requestMs, 1],
    'chunks that never end': [chunked, requestMs, 1, '1\r\n \r\n'],
  };
  for (const [what, [sent, limitMs, calls, drip]] of Object.entries(slow)) {
    const check = async (t: TestContext, scale: number) => {
      const limits = { headersMs: scale * headersMs, requestMs: scale * requestMs };
      const ms = scale * limitMs;
      const { gateway, upstream } = await start(t, '', { ...LIMITS, ...limits });
      const { socket, text, closed } = openRaw(t, gateway.port);
      const startedAt = performance.now();
      const elapsedMs = startStopwatch(t);
      socket.write(sent);
      const dripping = setInterval(() => drip && socket.writable && socket.write(drip), ms / 10);
      t.after(() => clearInterval(dripping));
      await closed;
      const tookMs = performance.now() - startedAt;
      assert.ok(tookMs >= ms * 0.9, `${tookMs} ms`);
      assert.ok(elapsedMs() < ms * GENEROUS, `${elapsedMs()} ms`);
      const answer = firstAnswer(text());
      assertError(answer, refusal(/time/, 408));
      assert.equal(answer.headers['connection'], 'close');
      assert.equal(upstream.requests.length, 0);
      await assertServing(gateway, calls);
    };
    test(`and sends ${what} gets a 408 and is cut off`, ALL_SCALES, async (t) => {
      // A busy machine may be too slow for the headers' limit, the shorter of the two.
      await atSomeScale(async (scale) => check(t, scale));
    });
  }

  test('between requests keeps its connection', async (t) => {
    const { gateway } = await start(t);
    const { socket, text } = openRaw(t, gateway.port);
    for (let round = 1; round <= 3; round += 1) {
      socket.write(`${HEALTH}\r\n`);
      await eventually(() => statusesOf(text()).length === round, 'the answer');
      await sleep(2 * LIMITS.headersMs);
      assert.ok(socket.writable, 'the connection is open');
    }
  });

  test('with a body that goes on for several limits is answered', ALL_SCALES, async (t) => {
    await atSomeScale(async (scale) => {
      const limits = { headersMs: scale * headersMs, requestMs: scale * requestMs };
      const { gateway } = await start(t, '', limits);
      const { socket, text } = openRaw(t, gateway.port);
      const body = JSON.stringify(chatBody({ padding: 'x'.repeat(scale * 10_000) }));
      socket.write(chat(`Content-Length: ${body.length}`));
      const part = Math.ceil(body.length / 20);
      for (let at = 0; at < body.length; at += part) {
        socket.write(body.slice(at, at + part));
        await sleep(limits.requestMs / 5);
      }
      await eventually(() => statusesOf(text()).length > 0, 'the answer');
      assert.deepEqual(statusesOf(text()), [200]);
    });
  });

  test('with a pipelined body or head behind a slow answer is answered', ALL_SCALES, async (t) => {
    await atSomeScale(async (scale) => {
      const { opened, open } = createGate();
      const p: Script = async ({ body }, response) => {
        if (body.includes('first')) await opened;
        sendJson(response, completion());
      };
      const limits = { headersMs: scale * headersMs, requestMs: scale * requestMs };
      const clientTimeLimits = { ...LIMITS, ...limits };
      const { gateway } = await scenario(t, { providers: { p }, clientTimeLimits });
      const { socket, text } = openRaw(t, gateway.port);
      const first = JSON.stringify(chatBody({ padding: 'first' }));
      const large = JSON.stringify(chatBody({ padding: 'x'.repeat(1_000_000) }));
      socket.write(`${chat(`Content-Length: ${first.length}`)}${first}`);
      socket.write(`${chat(`Content-Length: ${large.length}`)}${large}`);
      const other = openRaw(t, gateway.port);
      other.socket.write(`${chat(`Content-Length: ${first.length}`)}${first}GET /hea`);
      await sleep(3 * limits.requestMs);
      open();
      await eventually(() => statusesOf(text()).length === 2, 'both answers');
      other.socket.write('lth HTTP/1.1\r\nhost: a\r\n\r\n');
      await eventually(() => statusesOf(other.text()).length === 2, 'both answers');
      const both = [statusesOf(text()), statusesOf(other.text())].map(String);
      assert.deepEqual(both, ['200,200', '200,200']);
    });
  });

  test('within the limits is answered', ALL_SCALES, async (t) => {
    await atSomeScale(async (scale) => {
      const limits = { headersMs: scale * headersMs, requestMs: scale * requestMs };
      const { gateway } = await start(t, '', limits);
      const { socket, text } = openRaw(t, gateway.port);
      const bytes = chat(`Content-Length: ${BODY.length}`) + BODY;
      const part = Math.ceil(bytes.length / 5);
      for (let at = 0; at < bytes.length; at += part) {
        socket.write(bytes.slice(at, at + part));
        await sleep(limits.headersMs / 20);
      }
      await eventually(() => statusesOf(text()).length > 0, 'the answer');
      assert.deepEqual(statusesOf(text()), [200]);
    });
  });
});

describe('a client that closes its sending side', { concurrency: 4 }, () => {
  const unfinished: Record<string, [bytes: string, calls: number]> = {
    'before a byte': ['', 0],
    'inside the headers': [`${HEALTH}a: b`, 0],
    'inside a body': [chat('Content-Length: 100') + BODY.slice(0, 20), 1],
    'inside a chunked body': [`${chat('Transfer-Encoding: chunked')}ffff\r\n{`, 1],
  };
  for (const [where, [bytes, calls]] of Object.entries(unfinished)) {
    test(`${where} is closed and leaves nothing behind`, async (t) => {
      const { gateway, upstream } = await start(t, '', AMPLE);
      const { socket, text, closed } = openRaw(t, gateway.port, { allowHalfOpen: true });
      socket.end(bytes);
      await closed;
      for (const status of statusesOf(text())) assert.equal(status, 400, text());
      assert.equal(upstream.requests.length, 0);
      await assertServing(gateway, calls);
    });
  }
});

/** Sends a body of this size before it reads any answer, as some clients do. */
async function upload(socket: Socket, size: number, isChunked: boolean): Promise<void> {
  const part = Buffer.alloc(65_536, 'x');
  socket.pause();
  for (let sent = 0; sent < size && socket.writable; sent += part.length) {
    if (isChunked) socket.write('10000\r\n');
    const isFlushed = socket.write(part);
    if (isChunked) socket.write('\r\n');
    if (!isFlushed) await Promise.race([once(socket, 'drain'), once(socket, 'close')]);
  }
  if (isChunked) socket.write('0\r\n\r\n');
  socket.resume();
}

describe('an upload that is refused', { concurrency: 3 }, () => {
  const SIZE = 12 * MIB;
  /** A size that a busy machine can send within the limits. */
  const settings = `max_body_bytes = ${MIB}`;
  const framings = {
    'with a Content-Length': [`Content-Length: ${SIZE}`, false],
    'in chunks': ['Transfer-Encoding: chunked', true],
  } as const;
  const WITHOUT_TOKEN = [AUTHORIZATION, NOT_AUTHENTICATED] as const;
  /**
   * When a body is refused, the head's line replaced to cause the refusal, and the error. Without a
   * line, the body is too large.
   */
  const reasons: readonly (readonly [string, line?: string, expected?: ExpectedError])[] = [
    ['for its size'],
    ['for its token', ...WITHOUT_TOKEN],
    ['for its type', JSON_TYPE, refusal(/Content-Type/)],
    ['in a drain', ...WITHOUT_TOKEN],
    ['in a drain for its size'],
    ['with Connection: close'],
  ];
  for (const [where, line = '', expected = refusal(/exceeds/, 413)] of reasons) {
    for (const [framing, [length, isChunked]] of Object.entries(framings)) {
      test(`${where}, ${framing}, is read to its end, and so is the answer`, async (t) => {
        const { gateway, upstream } = await start(t, settings, AMPLE);
        const { socket, text, closed } = openRaw(t, gateway.port);
        const more = where.includes('close') ? ['Connection: close'] : [];
        const bytes = chat(length, ...more).replace(line, line && 'x: y');
        socket.write(bytes.slice(0, 30));
        await eventually(() => !socket.connecting, 'the connection');
        const ended = where.includes('drain') && gateway.drain(60_000);
        socket.write(bytes.slice(30));
        await upload(socket, SIZE, isChunked);
        assert.equal(await closed, undefined, text());
        const answer = firstAnswer(text());
        assertError(answer, expected);
        assert.equal(answer.headers['connection'], 'close');
        assert.equal(upstream.requests.length, 0);
        if (ended) await ended;
        else await assertServing(gateway, 1);
      });
    }
  }

  test('in a drain, is read even beyond the life of idle connections', async (t) => {
    const { gateway } = await start(t, settings, AMPLE);
    const { socket, text, closed } = openRaw(t, gateway.port);
    const head = chat('Content-Length: 25').replace(AUTHORIZATION, 'x: y');
    socket.write(head.slice(0, 30));
    await eventually(() => !socket.connecting, 'the connection');
    const ended = gateway.drain(60_000);
    socket.write(head.slice(30));
    for (let sent = 0; sent < 25; sent += 1) {
      socket.write('x');
      await sleep(80);
    }
    assert.equal(await closed, undefined, text());
    assert.equal(socket.bytesWritten, head.length + 25);
    assertError(firstAnswer(text()), NOT_AUTHENTICATED);
    await ended;
  });
});

test('requests behind a refused body are answered, and the body is never a request', async (t) => {
  // Each body is itself a request.
  const smuggled = `${HEALTH}x-smuggled: yes\r\n\r\n`;
  const sized = chat(`Content-Length: ${smuggled.length}`) + smuggled;
  const inChunks = `${smuggled.length.toString(16)}\r\n${smuggled}\r\n0\r\n\r\n`;
  const refused: readonly [bytes: string, status: number][] = [
    [sized.replace(AUTHORIZATION, 'x: y'), 401],
    [sized.replace('/chat/', '/no/'), 404],
    [sized.replace('POST', 'PUT'), 404],
    [sized.replace(JSON_TYPE, 'x: y'), 400],
    [sized, 400],
    [chat('Content-Length: 2000') + smuggled.padEnd(2000, smuggled), 413],
    [chat('Transfer-Encoding: chunked') + inChunks, 400],
  ];
  const { gateway, upstream } = await start(t, 'max_body_bytes = 1000');
  const next = chat(`Content-Length: ${BODY.length}`) + BODY;
  for (const [bytes, status] of refused) {
    const last = `${HEALTH}Connection: close\r\n\r\n`;
    const { text } = await sendRaw(gateway.port, bytes + next + last);
    assert.deepEqual(statusesOf(text), [status, 200, 200], text);
  }
  const bodies = new Set(upstream.requests.map(({ body }) => body.toString()));
  assert.deepEqual([...bodies], [BODY.replace('p/m', 'm')]);
  assert.equal(upstream.requests.length, refused.length);
});
