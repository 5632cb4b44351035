import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { test, type TestContext } from 'node:test';

import { idle, untilSteady, useManualTimers } from '../support/clock.ts';
import { rawChat, triesOf, STREAM, type LogLine } from '../support/gateway.ts';
import { openRaw, watchServerSide } from '../support/raw.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, errorAfter, eventually, openChat, lineOf } from '../support/streams.ts';
import {
  answerWell,
  beginStream as begin,
  CHUNK,
  completionEvents,
  failWith,
  type Script,
  LAST,
  DONE,
} from '../support/upstream.ts';

const KEEP_ALIVE = ': keep-alive\n\n';
const SILENCE_MS = 15_000;
/** `stream_idle_timeout` by default. */
const IDLE_MS = 300_000;

/** Wraps a script so that it waits until the test calls `open`. */
function held(script: Script) {
  const { opened, open } = createGate();
  const waiting: Script = async (...exchange) => {
    await opened;
    return script(...exchange);
  };
  return { script: waiting, open };
}

/** Starts a gateway on manual timers, with `stream_keepalive = 15`. */
async function start<Id extends string = 'p'>(t: TestContext, settings: ScenarioSettings<Id>) {
  const timers = useManualTimers(t);
  const server = `stream_keepalive = 15\n${settings.server ?? ''}`;
  const started = await scenario(t, { ...settings, server });
  const { gateway, asked } = started;
  const line = async () => lineOf(gateway);
  /** Opens a chat, and waits until a provider is asked. */
  const ask = async () => {
    const chat = openChat(gateway.port);
    await eventually(() => asked().some((count) => count > 0), 'the provider is asked');
    /** Waits until the client has exactly this text. */
    const has = async (text: string) => {
      await eventually(() => chat.text() === text, `${JSON.stringify(text)} is there`);
    };
    return { ...chat, has };
  };
  return { ...started, timers, line, ask };
}

/** Like `start`, with a chat begun by a comment. */
async function startEarly<Id extends string = 'p'>(t: TestContext, settings: ScenarioSettings<Id>) {
  const started = await start(t, settings);
  const chat = await started.ask();
  started.timers.advance(SILENCE_MS);
  await chat.has(KEEP_ALIVE);
  return { ...started, chat };
}

test('a stream begins with 200 and a comment after a silence, and repeats it', async (t) => {
  const { script, open } = held(answerWell);
  const { timers, line, ask } = await start(t, { providers: { p: script } });
  const chat = await ask();
  timers.advance(SILENCE_MS - 1);
  assert.equal(await untilSteady(chat.text), '');
  timers.advance(1);
  await chat.has(KEEP_ALIVE);
  const { statusCode, headers } = await chat.response;
  const { date: _, connection: _connection, 'keep-alive': _keepAlive, ...others } = headers;
  assert.equal(statusCode, 200);
  const id = others['x-request-id'];
  assert.deepEqual(others, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
    'x-request-id': id,
    'transfer-encoding': 'chunked',
  });
  timers.advance(SILENCE_MS);
  await chat.has(KEEP_ALIVE.repeat(2));
  open();
  assert.equal(await chat.ended, KEEP_ALIVE.repeat(2) + completionEvents());
  const { status, outcome, provider, request_id, finish_reason } = await line();
  assert.deepEqual(
    [status, outcome, provider, request_id, finish_reason],
    [200, 'ok', 'p', id, 'stop'],
  );
});

test('a running stream gets a comment after each silence, only between events', async (t) => {
  let response: ServerResponse | undefined;
  const script: Script = (request, opened) => {
    response = opened;
    return begin(CHUNK)(request, opened);
  };
  const { timers, ask } = await start(t, { providers: { p: script } });
  const chat = await ask();
  await chat.has(CHUNK);
  timers.advance(SILENCE_MS - 1);
  response!.write(CHUNK);
  await chat.has(CHUNK.repeat(2));
  timers.advance(SILENCE_MS - 1);
  const cut = LAST.length / 2;
  const before = timers.started(IDLE_MS);
  response!.write(LAST.slice(0, cut));
  await eventually(() => timers.started(IDLE_MS) > before, 'half of the event is there');
  assert.equal(chat.text(), CHUNK.repeat(2));
  timers.advance(1);
  await chat.has(CHUNK.repeat(2) + KEEP_ALIVE);
  timers.advance(SILENCE_MS);
  await chat.has(CHUNK.repeat(2) + KEEP_ALIVE.repeat(2));
  response!.end(LAST.slice(cut) + DONE);
  assert.equal(await chat.ended, CHUNK.repeat(2) + KEEP_ALIVE.repeat(2) + LAST + DONE);
});

test("a provider's comments pass once the stream has begun, and end a silence", async (t) => {
  let response: ServerResponse | undefined;
  const script: Script = (request, opened) => {
    response = opened;
    return begin(': one\n\n')(request, opened);
  };
  const { timers, ask } = await start(t, { providers: { p: script } });
  const chat = await ask();
  assert.equal(await untilSteady(chat.text), '');
  timers.advance(SILENCE_MS);
  await chat.has(KEEP_ALIVE);
  timers.advance(SILENCE_MS - 1);
  response!.write(': two\n\n');
  await chat.has(`${KEEP_ALIVE}: one\n\n: two\n\n`);
  timers.advance(SILENCE_MS - 1);
  // A partial line does not pass.
  response!.write(': th');
  await idle(100);
  response!.write('ree\n');
  await chat.has(`${KEEP_ALIVE}: one\n\n: two\n\n: three\n`);
  response!.end(completionEvents());
  assert.equal(await chat.ended, `${KEEP_ALIVE}: one\n\n: two\n\n: three\n${completionEvents()}`);
});

test("llama.cpp's progress passes as a comment does once the stream has begun", async (t) => {
  const delta = { role: 'assistant', content: null };
  const json = { choices: [{ index: 0, delta }], prompt_progress: { total: 9, processed: 3 } };
  const progress = `data: ${JSON.stringify(json)}\n\n`;
  let breakOff = () => {};
  const { script, open } = held(async (request, response) => {
    await begin(progress)(request, response);
    breakOff = () => response.destroy();
  });
  const providers = { p: script, q: answerWell };
  const { chat } = await startEarly(t, { providers, fallback: ['q'] });
  open();
  await chat.has(KEEP_ALIVE + progress);
  breakOff();
  assert.equal(await chat.ended, KEEP_ALIVE + progress + completionEvents());
});

test('a byte order mark after a comment is left out', async (t) => {
  const { script, open } = held(begin(`\ufeff${completionEvents()}`));
  const { chat } = await startEarly(t, { providers: { p: script } });
  open();
  assert.equal(await chat.ended, KEEP_ALIVE + completionEvents());
});

test("a failed provider's chunk of usage does not reach a stream that has begun", async (t) => {
  let response: ServerResponse | undefined;
  const p: Script = (_, opened) => {
    response = opened;
  };
  const providers = { p, q: answerWell };
  const { chat } = await startEarly(t, { providers, fallback: ['q'] });
  response!.writeHead(200, { 'content-type': 'text/event-stream' });
  response!.write('data: {"choices":[],"usage":{"total_tokens":7}}\n\n');
  await idle(100);
  response!.end('data: {"error":{"code":503,"message":"busy"}}\n\n');
  assert.equal(await chat.ended, KEEP_ALIVE + completionEvents());
});

test('a failure after the stream has begun is an error event, without [DONE]', async (t) => {
  const p = held(failWith(503));
  const settings = { providers: { p: p.script }, more: '[admin]\nport = 0' };
  const { gateway, chat, line } = await startEarly(t, settings);
  await idle(60);
  p.open();
  const { type, code, status } = errorAfter(await chat.ended, KEEP_ALIVE);
  assert.deepEqual([type, code, status], ['provider_error', 'API_ERROR', 503]);
  const logged = await line();
  const { outcome, provider, level, reason, bytes } = logged;
  // Neither a comment nor the error event counts as a token.
  assert.equal(logged['first_byte_ms'], undefined);
  assert.deepEqual(
    [logged['status'], outcome, provider, level, reason, bytes, triesOf(logged)],
    [200, 'upstream_error', 'p', 'warn', 'API error: 503', chat.text().length, 'p:503'],
  );
  const { text } = await gateway.admin('/metrics');
  assert.match(text, /^gateway_processing_seconds_bucket\{le="10?"\} 1$/m);
  assert.doesNotMatch(text, /^gen_ai_server_time_to_first_token_seconds_count.* [1-9]/m);
});

test('the first token is counted when it comes, although the stream began before', async (t) => {
  const p = held(answerWell);
  const settings = { providers: { p: p.script }, more: '[admin]\nport = 0' };
  const { gateway, chat, line } = await startEarly(t, settings);
  const beforeMs = performance.now();
  await eventually(() => performance.now() - beforeMs > 50, 'a wait');
  p.open();
  await chat.ended;
  assert.ok(((await line())['first_byte_ms'] as number) >= 50);
  const { text } = await gateway.admin('/metrics');
  assert.match(text, /^gen_ai_server_time_to_first_token_seconds_count.* 1$/m);
});

/** Starts a gateway with comments every 5 ms, and a client that does not read yet. */
async function startSlow(t: TestContext, script: Script, sendTimeoutMs = 60_000) {
  const started = await scenario(t, {
    providers: { p: script },
    clientTimeLimits: { sendTimeoutMs },
    adjust: (config) => ({ ...config, server: { ...config.server, streamKeepaliveMs: 5 } }),
  });
  const client = openRaw(t, started.gateway.port);
  client.socket.pause();
  client.socket.write(rawChat(STREAM));
  return { ...started, client };
}

const PART = `data: {"x":"${'y'.repeat(65_500)}"}\n\n`;
const MUCH = CHUNK + PART.repeat(256);

test('a client that does not read gets no comments until it reads again', async (t) => {
  const { p, client } = await startSlow(t, begin(MUCH));
  await eventually(() => p.requests.length === 1, 'the provider is asked');
  await idle(1000);
  client.socket.resume();
  const end = `${KEEP_ALIVE.length.toString(16)}\r\n${KEEP_ALIVE}\r\n`;
  await eventually(() => client.text().endsWith(end.repeat(3)), 'comments at the end');
  const text = client.text();
  const whole = text.slice(0, text.lastIndexOf('y'));
  assert.ok(whole.length > MUCH.length);
  assert.ok(!whole.includes(end.repeat(20)));
});

test('no comment follows the end of a stream that the client has not read yet', async (t) => {
  const gate = createGate();
  const { gateway } = await scenario(t, {
    providers: {
      p: async (_, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        const event = `data: {"x":"${'y'.repeat(12_000)}"}\n\n`;
        const passed = side.socket!;
        // Fill the network, but stop while the gateway would still take more.
        for (let bytes = 0; passed.writableLength === 0;) {
          response.write(event);
          bytes += event.length;
          await eventually(() => passed.bytesWritten > bytes, 'the event is passed on');
        }
        response.end(LAST + DONE);
        gate.open();
      },
    },
    adjust: (config) => ({ ...config, server: { ...config.server, streamKeepaliveMs: 5 } }),
  });
  const { socket, text } = openRaw(t, gateway.port);
  const side = watchServerSide(t, socket);
  socket.pause();
  socket.write(rawChat(STREAM));
  await gate.opened;
  await idle(200);
  assert.ok(side.socket!.writableLength > 0);
  socket.resume();
  await lineOf(gateway);
  await eventually(() => text().includes('[DONE]'), 'the end');
  await idle(50);
  assert.ok(text().endsWith('data: [DONE]\n\n\r\n0\r\n\r\n'), text().slice(-100));
});

test("a provider's comments that a client does not read are bounded", async (t) => {
  const comment = `: ${'y'.repeat(65_500)}\n\n`;
  const { gateway, p, client } = await startSlow(t, begin(comment.repeat(512)));
  await eventually(() => p.requests.length === 1, 'the provider is asked');
  await p.requests[0]!.closed;
  client.socket.destroy();
  // The limit on comments ended the stream, and not the attempt's time limit.
  const [tried] = (await lineOf(gateway))['tries'] as LogLine[];
  assert.equal(tried!['outcome'], 'upstream_error');
});

test('a client that does not read is cut off, comments or not', async (t) => {
  const { gateway } = await startSlow(t, begin(MUCH), 400);
  assert.equal((await lineOf(gateway))['outcome'], 'client_closed');
});
