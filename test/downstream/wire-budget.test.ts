/** `max_buffered_bytes`: bodies and answers beyond it are refused, and all memory is given back. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { type ByteBudget, Reservation } from '../../src/lib/memory/byte-budget.ts';
import type { ByteSink } from '../../src/lib/memory/byte-source.ts';
import { EventRoom } from '../../src/lib/memory/event-room.ts';
import { openStream } from '../../src/upstream/answers/stream-opening.ts';
import { assertError, parseRaw, refusal, type ExpectedError } from '../support/errors.ts';
import { TransportError } from '../../src/upstream/connections/network-error.ts';
import {
  chatBody,
  providerToml,
  rawChat,
  startGateway,
  STREAM,
  type TestGateway,
} from '../support/gateway.ts';
import { openRaw, readReply, statusesOf, watchServerSide } from '../support/raw.ts';
import { idle, stopClock, untilSteady } from '../support/clock.ts';
import { newReplyContext, RecordedReply } from '../support/reply-context.ts';
import { byModel, scenario } from '../support/scenario.ts';
import { createGate, errorAfter, eventually, openChat } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';
import { newBudget } from '../support/shared.ts';
import { listen } from '../support/listen.ts';

const MIB = 1_048_576;
const TOO_MUCH: ExpectedError = {
  httpStatus: 429,
  type: 'rate_limit_error',
  code: 'RATE_LIMIT_ERROR',
  message: 'The gateway is short of memory: too many bytes in flight',
  retry_after: 1,
  headers: { 'retry-after': '1' },
};
const TOO_MUCH_ANSWERED: ExpectedError = {
  ...TOO_MUCH,
  headers: { ...TOO_MUCH.headers, 'x-gateway-provider': 'p' },
};

/** The error for an answer or event above the 2 MiB budget. */
const neverFits = (what: 'answer' | 'event'): ExpectedError => ({
  httpStatus: 500,
  type: 'internal_error',
  code: 'INTERNAL_ERROR',
  message: `The ${what} is larger than max_buffered_bytes, 2097152 bytes`,
  headers: { 'x-should-retry': 'false', 'x-gateway-provider': 'p' },
});

const LARGE = `data: {"x":"${'x'.repeat(0.9 * MIB)}"}\n\n`;
const bodyOf = (bytes: number, more: object = {}) =>
  JSON.stringify(chatBody({ ...more, x: 'x'.repeat(bytes) }));
const budget = (mebibytes: number) => `max_buffered_bytes = ${mebibytes * MIB}\n`;
const nothingIsReserved = async (gateway: TestGateway) =>
  eventually(() => gateway.reservedBytes() === 0, 'everything is freed');

/** Announces a body of this size from another client. Returns a function to end it. */
async function takeBudget(t: TestContext, gateway: TestGateway, bytes: number) {
  const { socket } = openRaw(t, gateway.port);
  const before = gateway.reservedBytes();
  socket.write(`${headWith(`content-length: ${bytes}`)}{`);
  await eventually(() => gateway.reservedBytes() === before + bytes, 'the budget is taken');
  return () => socket.destroy();
}

/** Starts a gateway with a 2 MiB budget, provider `p` and its fallback `q`. */
const start = async (t: TestContext, script: Script = answerWell, server = '') =>
  scenario(t, { server: budget(2) + server, providers: { p: script, q: {} }, fallback: ['q'] });

/** Returns the head of a chat request with this framing instead of Content-Length. */
function headWith(framing: string, more: readonly string[] = []): string {
  const [head = ''] = rawChat({}, more).split('\r\n\r\n');
  return `${head.replace('content-length: 2', framing)}\r\n\r\n`;
}

/** Asserts that a request's failure is the gateway's own, in its line and in its try. */
async function assertOwn(gateway: TestGateway): Promise<void> {
  const failed = () => gateway.accessLines().find(({ tries }) => tries);
  await eventually(() => failed() !== undefined, 'the access line');
  const { level, outcome, reason, tries } = failed()!;
  assert.deepEqual([level, outcome, reason], ['error', 'internal_error', 'memory']);
  const [{ outcome: ofTry, cause } = assert.fail()] = tries as Record<string, string>[];
  assert.deepEqual([ofTry, cause], ['internal_error', TOO_MUCH.message]);
  gateway.judge();
  const kinds = gateway.lines('incident').map(({ kind }) => kind);
  assert.deepEqual([kinds, gateway.lines('breaker opened')], [['memory'], []]);
}

const inChunk = (body: string) => `${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`;

/** Returns a script that sends `before`, and `after` when the gate is opened. */
function gatedStream(before: string, after: string, isEnded = true) {
  const gate = createGate();
  const script: Script = async (request, response) => {
    await beginStream(before)(request, response);
    await gate.opened;
    if (isEnded) response.end(after);
    else response.write(after);
  };
  return { gate, script };
}

for (const how of ['that grows', 'whose Content-Length is', 'that waits for 100 Continue and is']) {
  test(`a body ${how} beyond the rest is a 429 that closes the connection`, async (t) => {
    const { gateway, asked } = await start(t);
    await takeBudget(t, gateway, MIB);
    const body = bodyOf(1.5 * MIB);
    const request = {
      'that grows': `${headWith('transfer-encoding: chunked')}${inChunk(body)}`,
      'whose Content-Length is': `${headWith(`content-length: ${body.length}`)}${body}`,
    }[how];
    const expecting = headWith('content-length: 2000000', ['expect: 100-continue']);
    const next = request ? rawChat(chatBody()) : '';
    const bytes = (request ?? expecting) + next;
    const { socket, text, closed } = openRaw(t, gateway.port);
    // Hold the end back, because the gateway keeps a body's connection if the body is whole in
    // time.
    const heldBack = request ? next.length + 1 : 0;
    socket.write(bytes.slice(0, bytes.length - heldBack), 'latin1');
    await eventually(() => readReply(text()).status > 0, 'the answer');
    socket.write(bytes.slice(bytes.length - heldBack), 'latin1');
    await closed;
    assertError(parseRaw(readReply(text())), TOO_MUCH);
    assert.deepEqual(statusesOf(text()), [429]);
    assert.deepEqual(asked(), [0, 0]);
    assert.equal(gateway.accessLines()[0]!['outcome'], 'rate_limited');
    await eventually(() => gateway.reservedBytes() === MIB, 'it is freed');
  });
}

test('a body that can never fit is refused with 413, as above max_body_bytes', async (t) => {
  const { gateway, asked } = await start(t);
  const expected = refusal(new RegExp(`request body exceeds ${2 * MIB} bytes$`), 413);
  assertError(await gateway.chat(bodyOf(3 * MIB)), expected);
  assert.deepEqual(asked(), [0, 0]);
  await nothingIsReserved(gateway);
});

test('when memory is short, only requests above 64 KiB are refused', async (t) => {
  const { gateway, p } = await scenario(t, {
    server: budget(64),
    // Less than any Node process takes.
    adjust: (config) => ({ ...config, server: { ...config.server, memoryBytes: 16 * MIB } }),
  });
  for (let count = 0; count < 3; count += 1) {
    assertError(await gateway.chat(bodyOf(100_000)), TOO_MUCH);
    assert.equal((await gateway.chat(bodyOf(50_000))).status, 200);
  }
  assert.equal(p.requests.length, 3);
});

test('an accepted body reserves its Content-Length, whatever bodies follow', async (t) => {
  const { gateway, p } = await start(t);
  const first = bodyOf(1.5 * MIB);
  const socket = connect(gateway.port, '127.0.0.1');
  socket.write(headWith(`content-length: ${first.length}`) + first.slice(0, 100));
  await eventually(() => gateway.reservedBytes() === first.length, 'the first is reserved');
  for (let count = 0; count < 3; count += 1) {
    assertError(await gateway.chat(bodyOf(MIB)), TOO_MUCH);
  }
  assert.equal((await gateway.chat(bodyOf(1000))).status, 200);
  socket.write(first.slice(100));
  const [answer] = (await once(socket, 'data')) as [Buffer];
  socket.destroy();
  assert.match(answer.toString(), /^HTTP\/1\.1 200 /);
  assert.equal(p.requests.at(-1)!.body.length, first.length - 'p/'.length);
  await nothingIsReserved(gateway);
});

test('a request is held for its attempts, and given back when a stream begins', async (t) => {
  const { gate, script } = gatedStream(': wait\n\n', CHUNK, false);
  const { gateway, p } = await start(t, script);
  const body = chatBody({ stream: true, x: 'x'.repeat(MIB) });
  const stream = openChat(gateway.port, body);
  await eventually(() => p.requests.length === 1, 'the upstream is asked');
  assert.equal(gateway.reservedBytes(), JSON.stringify(body).length);
  gate.open();
  await eventually(() => stream.text() !== '', 'the stream begins');
  assert.equal(gateway.reservedBytes(), 0);
  stream.leave();
});

test('a complete answer is held until it is delivered, without its request', async (t) => {
  // More than the kernel takes at once.
  const answer = JSON.stringify(completion('x'.repeat(24 * MIB)));
  const p: Script = (_, response) =>
    response.writeHead(200, { 'content-type': 'application/json' }).end(answer);
  const { gateway } = await scenario(t, { server: budget(40), providers: { p } });
  const socket = connect(gateway.port, '127.0.0.1');
  socket.pause();
  socket.write(rawChat(chatBody({ x: 'x'.repeat(MIB) })));
  await eventually(() => gateway.reservedBytes() === answer.length, 'the answer is held');
  socket.destroy();
  await nothingIsReserved(gateway);
});

/** Begins an answer with this head, and sends more than the budget. */
const beginAnswer =
  (type: string, beginning: string, length?: number): Script =>
  (_, response) => {
    const head = { 'content-type': type, ...(length && { 'content-length': length }) };
    response.writeHead(200, head).write(`${beginning}"${length ? '' : 'x'.repeat(3 * MIB)}`);
  };
const EVENTS = 'text/event-stream';
for (const [what, script, expected] of [
  [
    'an answer whose Content-Length is beyond',
    beginAnswer('application/json', '{"choices":', 3 * MIB),
    neverFits('answer'),
  ],
  [
    'an answer that is longer than',
    beginAnswer('application/json', '{"choices":'),
    neverFits('answer'),
  ],
  ['a first event that is longer than', beginAnswer(EVENTS, 'data: {"x":'), neverFits('event')],
] as const) {
  test(`${what} max_buffered_bytes is a final error that blames no provider`, async (t) => {
    const { gateway, p, asked } = await start(t, script, 'retries = 1\n');
    const stream = what.includes('event');
    for (let count = 0; count < 4; count += 1) {
      const reply = await gateway.chat(chatBody({ stream }));
      assertError(reply, expected);
      assert.equal(reply.headers['retry-after'], undefined);
    }
    assert.deepEqual(asked(), [4, 0]);
    const [line] = gateway.accessLines();
    assert.deepEqual([line!['reason'], line!['outcome']], [expected.message, 'internal_error']);
    assert.equal(gateway.lines('incident').length, 0);
    assert.equal((line!['tries'] as { outcome: string }[])[0]!.outcome, 'internal_error');
    await Promise.all(p.requests.map(async ({ closed }) => closed));
    await nothingIsReserved(gateway);
  });
}

test('an unfinished event beyond the budget becomes an error event in a stream', async (t) => {
  const { gateway, asked } = await start(t, beginAnswer(EVENTS, `${CHUNK}data: {"x":`));
  const { status, text } = await gateway.chat(STREAM);
  assert.equal(status, 200);
  assert.equal(errorAfter(text, CHUNK).message, neverFits('event').message);
  assert.deepEqual(asked(), [1, 0]);
  await nothingIsReserved(gateway);
});

test('the memory of a failed attempt is free during the next', async (t) => {
  const { gateway, q } = await start(t, (_, response) => {
    response.setHeader('content-type', 'application/json');
    response.end('x'.repeat(1.5 * MIB));
  });
  const answer = completion('x'.repeat(1.5 * MIB));
  const body = JSON.stringify(chatBody());
  q.script = (_, response) => {
    assert.equal(gateway.reservedBytes(), body.length);
    sendJson(response, answer);
  };
  const reply = await gateway.chat(body);
  assert.equal(reply.status, 200, reply.text);
  assert.deepEqual(reply.json(), answer);
  await nothingIsReserved(gateway);
});

test('an event that fits passes whole, and short events need no budget', async (t) => {
  const large = `data: {"x":"${'x'.repeat(MIB)}"}\n\n`;
  const { gateway } = await start(t, ({ body }, response) => {
    const isLarge = body.includes('large');
    sendEvents(response, (isLarge ? large : '') + completionEvents());
  });
  const reply = await gateway.chat(chatBody({ stream: true, x: 'large' }));
  assert.equal(reply.text, large + completionEvents());
  await nothingIsReserved(gateway);

  // Leave only enough budget for a stream's request.
  await takeBudget(t, gateway, 2 * MIB - JSON.stringify(STREAM).length);
  for (let count = 0; count < 3; count += 1) {
    const { text } = await gateway.chat(STREAM);
    assert.equal(text, completionEvents());
  }
});

test('a stream in flight waits for the budget, and then goes on, byte for byte', async (t) => {
  const rest = `data: {"x":"${'x'.repeat(MIB)}"}\n\n${completionEvents()}`;
  const { gate, script } = gatedStream(CHUNK, rest);
  const { gateway } = await start(t, script);
  const stream = openChat(gateway.port);
  await eventually(() => stream.text().includes(CHUNK), 'the stream begins');
  const leave = await takeBudget(t, gateway, 1.5 * MIB);
  gate.open();
  await eventually(() => gateway.waitingBytes() > 0, 'the stream waits for memory');
  await idle(200);
  assert.ok(!stream.text().includes('error'), stream.text().slice(-300));
  leave();
  assert.equal(await stream.ended, CHUNK + rest);
  await nothingIsReserved(gateway);
});

test('a stream in flight ends well even if its memory never becomes free', async (t) => {
  const rest = `data: {"x":"${'x'.repeat(MIB)}"}\n\n${completionEvents()}`;
  const { gate, script } = gatedStream(CHUNK, rest);
  const { gateway } = await start(t, script);
  const stream = openChat(gateway.port);
  await eventually(() => stream.text().includes(CHUNK), 'the stream begins');
  await takeBudget(t, gateway, 1.5 * MIB);
  gate.open();
  const text = await stream.ended;
  assert.ok(text === CHUNK + rest, text.slice(-300));
});

test('a last event without its blank line passes while other clients wait', async (t) => {
  const last = `data: {"choices":[{"index":0,"finish_reason":"stop"}],"x":"${'x'.repeat(MIB)}"}\n`;
  const { gate, script } = gatedStream(CHUNK + last, '');
  const { gateway } = await start(t, script);
  const stream = openChat(gateway.port);
  await eventually(() => gateway.reservedBytes() > MIB, 'the last event is held');
  await takeBudget(t, gateway, 2 * MIB - gateway.reservedBytes());
  gate.open();
  const text = await stream.ended;
  // In parts, because a failed comparison would print a megabyte.
  assert.equal(text.slice(-100), `${last}\ndata: [DONE]\n\n`.slice(-100));
  assert.ok(text.startsWith(CHUNK + last));
});

for (const mebibytes of [0.9, 1.9]) {
  test(`six streams with events of ${mebibytes} MiB in a budget of 2 MiB end well`, async (t) => {
    const event = `data: {"x":"${'x'.repeat(mebibytes * MIB)}"}\n\n`;
    // In pieces as read from a socket.
    const events = CHUNK + event.repeat(3) + completionEvents();
    const { gateway } = await start(t, (_, response) => sendEvents(response, events));
    const streams = Array.from({ length: 6 }, () => openChat(gateway.port));
    for (const { ended } of streams) {
      const text = await ended;
      // Without assert.equal, because a failure would print megabytes.
      assert.ok(text === events, text.slice(-300));
    }
    await nothingIsReserved(gateway);
  });
}

test('an event that the client has read is released before the next comes', async (t) => {
  const { gateway } = await start(t, beginStream(CHUNK + LARGE));
  const stream = openChat(gateway.port);
  await eventually(() => stream.text() === CHUNK + LARGE, 'the event');
  await nothingIsReserved(gateway);
  stream.leave();
});

test('streams that wait for memory take turns', async (t) => {
  const state = { isEnough: false };
  const scripts: Record<string, Script> = {
    part: beginStream(CHUNK + LARGE.slice(0, -2)),
    many: (request, response) => {
      void beginStream(CHUNK)(request, response);
      const push = () => {
        while (!state.isEnough && !response.destroyed) if (!response.write(LARGE)) return;
        if (!response.writableEnded) response.end(completionEvents());
      };
      response.on('drain', push);
      push();
    },
    one: (_, response) => sendEvents(response, CHUNK + LARGE + completionEvents()),
  };
  const { gateway } = await start(t, byModel(scripts));
  const open = (model: string) =>
    openChat(gateway.port, chatBody({ model: `p/${model}`, stream: true }));
  // Beside this stream, only the budget's reserved part is left.
  const part = open('part');
  await eventually(() => gateway.reservedBytes() > 0.89 * MIB, 'a part of an event is held');
  const many = open('many');
  await eventually(() => many.text().length > LARGE.length, 'the first of many events');
  const text = await open('one').ended;
  assert.ok(text === CHUNK + LARGE + completionEvents(), text.slice(-300));
  state.isEnough = true;
  assert.ok((await many.ended).endsWith(completionEvents()));
  part.leave();
  await nothingIsReserved(gateway);
});

/** Begins a stream whose provider and client are played by the test. */
async function openRelay(whole: ByteBudget) {
  const reply = new RecordedReply();
  const context = newReplyContext(reply);
  let provider: ByteSink | undefined;
  let resumed = 0;
  const resume = () => (resumed += 1);
  const body = { start: (sink: ByteSink) => void (provider = sink), resume };
  const call = { ...context.call, budget: whole };
  const opening = openStream(body, {}, { ...context, call });
  provider!.write(Buffer.from(CHUNK));
  const answer = await opening;
  const ended = Promise.resolve(answer.deliver(reply));
  ended.catch(() => {});
  resumed = 0;
  reply.write = ({ length }: Buffer) => length < 65_536;
  return { provider: provider!, reply, resumed: () => resumed, ended };
}

test('the start of the next event is counted only when more of it comes', async () => {
  const whole = newBudget(MIB);
  const { provider, reply } = await openRelay(whole);
  const event = Buffer.from(`data: ${'x'.repeat(200_000)}\n\ndata: ${'x'.repeat(100_000)}`);
  provider.write(event.subarray(0, 180_000));
  assert.equal(whole.reservedBytes, 180_000);
  assert.equal(provider.write(event.subarray(180_000)), false);
  assert.equal(whole.reservedBytes, event.length);
  reply.onRoom();
  assert.equal(whole.reservedBytes, 0);
  provider.write(Buffer.alloc(50_000, 'x'));
  assert.equal(whole.reservedBytes, event.length - 200_008 + 50_000);
});

test('a stream that waits for memory does not resume after a comment', async (t) => {
  const whole = newBudget(MIB);
  const other = new Reservation(whole);
  t.after(() => other.close());
  other.resize(MIB);
  const { provider, reply, resumed } = await openRelay(whole);
  assert.equal(provider.write(Buffer.from(`data: ${'x'.repeat(100_000)}`)), false);
  reply.onRoom();
  assert.equal(resumed(), 0);
  other.close();
  await eventually(() => resumed() === 1, 'there is room');
});

test('a failed or closed stream no longer waits in front of other streams', async () => {
  const ways: ((whole: ByteBudget) => Promise<() => unknown>)[] = [
    async (whole) => {
      const { provider } = await openRelay(whole);
      assert.ok(!provider.write(Buffer.from(`data: ${'x'.repeat(200_000)}`)));
      // The client does not read the error.
      return () => provider.end(new Error('broken'));
    },
    async (whole) => {
      const stream = new EventRoom(whole);
      assert.ok(!stream.tryGrow(200_000));
      stream.wait();
      return () => stream.close();
    },
  ];
  for (const begin of ways) {
    const whole = newBudget(MIB);
    const other = new EventRoom(whole);
    const maxBytes = (MIB / 8) * 7;
    assert.ok(other.tryGrow(maxBytes));
    const end = await begin(whole);
    assert.ok(!other.tryGrow(maxBytes + 1));
    end();
    assert.ok(other.tryGrow(maxBytes + 1));
    other.close();
  }
});

test('an event is held until its client has taken all of it', async (t) => {
  const event = `data: {"x":"${'x'.repeat(15 * MIB)}"}\n\n`;
  const { gateway } = await scenario(t, {
    server: budget(40),
    providers: { p: beginStream(event) },
  });
  const { socket } = openRaw(t, gateway.port);
  const side = watchServerSide(t, socket);
  socket.pause();
  socket.write(rawChat(STREAM));
  await eventually(() => gateway.reservedBytes() >= event.length, 'the event is held');
  const before = await untilSteady(() => side.socket!.bytesWritten);
  socket.on('data', () => side.socket!.bytesWritten > before && socket.pause());
  socket.resume();
  await eventually(() => side.socket!.bytesWritten > before, 'more of it is written');
  assert.ok(gateway.reservedBytes() >= event.length);
  socket
    .removeAllListeners('data')
    .on('data', () => {})
    .resume();
  await nothingIsReserved(gateway);
});

test('the rest of a failed stream is held until its client has taken it', async (t) => {
  // More than the kernel takes at once.
  const event = `data: {"x":"${'x'.repeat(15 * MIB)}"}\n\n`;
  const script = beginStream(`${event}data: {"error":{"message":"no"}}\n\n`);
  const { gateway, p } = await scenario(t, { server: budget(40), providers: { p: script } });
  const { socket, text, closed } = openRaw(t, gateway.port);
  socket.pause();
  socket.write(rawChat(STREAM, ['connection: close']));
  await eventually(() => p.requests.length === 1, 'the request');
  await p.requests[0]!.closed;
  assert.ok(gateway.reservedBytes() >= event.length);
  socket.resume();
  await closed;
  assert.match(text(), /"code":"API_ERROR"/);
  await nothingIsReserved(gateway);
});

test('the idle limit of a stream that waits for memory blames no provider', async (t) => {
  const { gate, script } = gatedStream(CHUNK, `data: {"x":"${'x'.repeat(MIB)}"}\n\n`, false);
  const { gateway } = await start(t, script, 'stream_idle_timeout = 1\n');
  const stream = openChat(gateway.port);
  await eventually(() => stream.text().includes(CHUNK), 'the stream begins');
  await takeBudget(t, gateway, 1.5 * MIB);
  gate.open();
  assert.equal(errorAfter(await stream.ended, CHUNK).message, TOO_MUCH.message);
  await assertOwn(gateway);
});

test('a complete answer without room is a 429 that blames no provider', async (t) => {
  const large = completion('x'.repeat(MIB));
  const { gateway, asked } = await start(t, (_, response) => sendJson(response, large));
  await takeBudget(t, gateway, 1.5 * MIB);
  for (let count = 0; count < 4; count += 1)
    assertError(await gateway.chat(chatBody()), TOO_MUCH_ANSWERED);
  assert.deepEqual(asked(), [4, 0]);
  await assertOwn(gateway);
});

for (const [until, isFreed] of [
  ['until', false],
  ['for a part of', true],
] as const) {
  test(`a stream that waits for memory ${until} first_token_timeout is a 429`, async (t) => {
    const { gate, script } = gatedStream('', `data: {"x":"${'x'.repeat(MIB)}`, false);
    const { gateway, p, asked } = await start(t, script, 'first_token_timeout = 1\n');
    const answer = gateway.chat(chatBody({ stream: true }));
    await eventually(() => p.requests.length === 1, 'the provider is asked');
    const leave = await takeBudget(t, gateway, 1.5 * MIB);
    gate.open();
    await eventually(() => gateway.waitingBytes() > 0, 'the stream waits for memory');
    if (isFreed) leave();
    assertError(await answer, TOO_MUCH_ANSWERED);
    assert.deepEqual(asked(), [1, 0]);
    await assertOwn(gateway);
  });
}

/** Begins a stream that is stuck after it has passed on a part of an event. */
async function openStuckRelay(part: string) {
  const whole = newBudget(MIB);
  const other = new EventRoom(whole);
  other.tryResize(MIB);
  other.wait();
  const relay = await openRelay(whole);
  const { provider, reply } = relay;
  const write = reply.write.bind(reply);
  reply.write = (bytes: Buffer) => {
    reply.parts.push(bytes);
    return write(bytes);
  };
  provider.write(Buffer.from(part));
  return relay;
}

test('a stuck stream passes its part of an event on, and ends as other streams do', async () => {
  const content = `"delta":{"content":"${'x'.repeat(100_000)}`;
  const part = `data: {"choices":[{"index":0,${content}`;
  const finished = `data: {"choices":[{"index":0,"finish_reason":"stop",${content}`;
  const CUT = /the stream ended before the answer was finished/;
  for (const [beginning, rest, expected, error] of [
    [part, '"},"finish_reason":"stop"}]}\n\n', '"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'],
    [part, '"},"finish_reason":"stop"}]}', '"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'],
    [finished, '"}}]}\n\n', '"}}]}\n\ndata: [DONE]\n\n'],
    [part, '"}}]}\n\ndata: {"error":{"message":"no"}}\n\n', '"}}]}\n\n', /API error: 502 - no/],
    [part, 'yy', 'yy\n\n', CUT],
  ] as const) {
    const { provider, reply, ended } = await openStuckRelay(beginning);
    assert.ok(reply.text === CHUNK + beginning, reply.text.slice(-100));
    provider.write(Buffer.from(rest));
    provider.end();
    if (error) await assert.rejects(ended, error);
    else await ended;
    assert.equal(reply.text.slice((CHUNK + beginning).length), expected, rest);
  }
});

test('bytes behind the end of a stream are dropped', async () => {
  const { provider, reply, ended } = await openRelay(newBudget(MIB));
  provider.write(Buffer.from(completionEvents()));
  await ended;
  let writes = 0;
  reply.write = () => (writes += 1) > 0;
  assert.ok(provider.write(Buffer.from(CHUNK)));
  assert.equal(writes, 0);
});

/** Returns the error of a transport whose connection breaks in an answer. */
const cutOff = () =>
  new TransportError(Object.assign(new Error('closed'), { code: 'UND_ERR_SOCKET' }), 'inBody');

test('a cut while the gateway waits for memory is the failure of the gateway', async (t) => {
  const whole = newBudget(MIB);
  const other = new Reservation(whole);
  t.after(() => other.close());
  other.resize(MIB);
  const { provider, ended } = await openRelay(whole);
  assert.equal(provider.write(Buffer.from(`data: ${'x'.repeat(100_000)}`)), false);
  provider.end(cutOff());
  await assert.rejects(ended, { kind: 'rateLimit', scope: 'gateway' });
});

test('a cut after waits for memory is the failure of the provider', async (t) => {
  const whole = newBudget(MIB);
  const other = new Reservation(whole);
  t.after(() => other.close());
  const { provider, ended } = await openRelay(whole);
  for (let waits = 0; waits < 2; waits += 1) {
    other.resize(MIB);
    assert.equal(provider.write(Buffer.from(`data: ${'x'.repeat(100_000)}`)), false);
    other.resize(0);
    await eventually(() => whole.waitingBytes === 0, 'the wait ends');
    provider.write(Buffer.from('\n\n'));
  }
  provider.end(cutOff());
  await assert.rejects(ended, { kind: 'provider', scope: 'model' });
});

test('a stream keeps its turn among waiting streams until its event has passed', async (t) => {
  const whole = newBudget(MIB);
  const other = new Reservation(whole);
  t.after(() => other.close());
  const { provider } = await openRelay(whole);
  for (let waits = 0; waits < 2; waits += 1) {
    other.resize(MIB);
    provider.write(Buffer.from(`data: ${'x'.repeat(100_000)}`));
    other.resize(0);
    await eventually(() => whole.waitingBytes === 0, 'the wait ends');
    provider.write(Buffer.from('x'));
    assert.equal(whole.waitingStreams.size, 1);
    provider.write(Buffer.from('\n\n'));
    assert.equal(whole.waitingStreams.size, 0);
  }
});

test('comments before the answer are held no longer than their client needs', async () => {
  const whole = newBudget(MIB);
  const reply = new RecordedReply();
  const context = newReplyContext(reply);
  const call = { ...context.call, budget: whole };
  let provider!: ByteSink;
  const body = { start: (sink: ByteSink) => void (provider = sink), resume() {} };
  const opening = openStream(body, {}, { ...context, call });
  const comment = `: ${'x'.repeat(200_000)}\n\n`;
  reply.headersSent = true;
  for (let pauses = 1; pauses <= 2; pauses += 1) {
    reply.hasRoom = false;
    provider.write(Buffer.from(comment));
    assert.equal(whole.reservedBytes, comment.length);
    reply.hasRoom = true;
    provider.write(Buffer.from(': x\n\n'));
    assert.equal(whole.reservedBytes, 0);
  }
  provider.write(Buffer.from(CHUNK));
  await opening;
});

const PAUSES: [readMs: number, cutMs: number, kind: 'provider' | 'internal'][] = [
  // The client has not read when the cut comes.
  [Infinity, 9999, 'provider'],
  [Infinity, 10_000, 'internal'],
  // The client has read again, and the cut comes later.
  [9999, 9999, 'provider'],
  [10_000, 19_999, 'internal'],
  [10_000, 20_000, 'provider'],
];
for (const [readMs, cutMs, kind] of PAUSES) {
  const title = `a cut after ${cutMs} ms, read after ${readMs} ms, is the error ${kind}`;
  test(title, async (t) => {
    const clock = stopClock(t, 0);
    const { provider, reply, ended } = await openRelay(newBudget(MIB));
    assert.equal(provider.write(Buffer.from(`data: ${'x'.repeat(65_536)}\n\n`)), false);
    if (readMs < Infinity) {
      clock.nowMs = readMs;
      reply.onRoom();
      provider.write(Buffer.from(CHUNK));
    }
    clock.nowMs = cutMs;
    provider.end(cutOff());
    await assert.rejects(ended, { kind, scope: kind === 'internal' ? 'gateway' : 'model' });
  });
}

test('the error of a stream that has passed part of an event begins a new line', async () => {
  const part = `data: ${'x'.repeat(100_000)}`;
  const { provider, reply, ended } = await openStuckRelay(part);
  provider.end(new Error('broken'));
  await assert.rejects(ended, /broken/);
  assert.ok(reply.text === `${CHUNK}${part}\n\n`, reply.text.slice(-100));
});

test('at most 512 KiB of a long body are read or written in one turn', async (t) => {
  const received = { upstream: 0, client: 0 };
  const long = Buffer.alloc(8 * MIB, 'x');
  const provider = createServer((request, response) => {
    request.on('data', ({ length }: Buffer) => (received.upstream += length));
    request.on('end', () => {
      response.writeHead(200, { 'content-type': 'application/json' }).write('{"choices":"');
      response.write(long);
      response.end('"}');
    });
  });
  const gateway = await startGateway(t, {
    toml: `[server]\n${budget(64)}` + providerToml(await listen(t, provider)),
  });
  const socket = connect(gateway.port, '127.0.0.1');
  t.after(() => socket.destroy());
  socket.on('data', ({ length }: Buffer) => (received.client += length));
  const chat = JSON.stringify(chatBody({ x: '' })).replace('""}', '"');
  const size = (chat.length + long.length + 2).toString(16);
  socket.write(`${headWith('transfer-encoding: chunked')}${size}\r\n${chat}`);
  socket.write(long);
  socket.write('"}\r\n0\r\n\r\n');

  const last = { reserved: 0, ...received };
  const most = { reserved: 0, ...received };
  while (received.client < long.length) {
    await nextTurn();
    const now = { reserved: gateway.reservedBytes(), ...received };
    for (const name of ['reserved', 'upstream', 'client'] as const) {
      most[name] = Math.max(most[name], now[name] - last[name]);
      last[name] = now[name];
    }
  }
  assert.ok(received.upstream > long.length);
  for (const [name, bytes] of Object.entries(most)) {
    assert.ok(bytes <= MIB / 2, `${name}: ${bytes} bytes in one turn`);
  }
});
