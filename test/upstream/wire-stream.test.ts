import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';

import { idle, untilSteady, useManualTimers, stopClock } from '../support/clock.ts';
import { chatBody, rawChat, STREAM } from '../support/gateway.ts';
import { openRaw } from '../support/raw.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, errorAfter, eventually, openChat, lineOf } from '../support/streams.ts';
import { LEFT_TO_SWEEPS, sweep } from '../support/sweep.ts';
import {
  answerWell,
  beginStream as begin,
  CHUNK,
  completionEvents,
  sendEvents,
  sendJson,
  type Script,
  LAST,
  DONE,
  flood,
} from '../support/upstream.ts';

const MIB = 1_048_576;

/** Starts a gateway with functions to set the provider's script or its events. */
async function start(t: TestContext, settings: ScenarioSettings<'p'> = {}) {
  const { gateway, p } = await scenario(t, settings);
  const provide = (script: Script | string) => {
    p.script = typeof script === 'string' ? (_, response) => sendEvents(response, script) : script;
  };
  const stream = async (script: Script | string) => {
    provide(script);
    return gateway.chat(STREAM);
  };
  return { gateway, p, provide, stream };
}

/**
 * Starts a gateway for running streams. The client has seen each beginning, and the test sends each
 * next part.
 */
async function startManySteps(t: TestContext, { server = '' } = {}) {
  const { gateway, p } = await start(t, { server });
  const beginSteps = async (beginning = CHUNK) => {
    let response: ServerResponse | undefined;
    p.script = (request, opened) => {
      response = opened;
      return begin(beginning)(request, opened);
    };
    const chat = openChat(gateway.port);
    const sent = [beginning];
    const isSeen = () => chat.text() === sent.join('');
    await eventually(isSeen, 'the beginning');
    const send = async (text: string) => {
      sent.push(text);
      response!.write(text);
      await eventually(isSeen, text);
    };
    const write = (text: string) => response!.write(text);
    return { chat, send, write, end: (text = '') => void response!.end(text) };
  };
  return { gateway, p, begin: beginSteps };
}

/** As `startManySteps`, with a single stream. */
async function startSteps(t: TestContext, beginning = CHUNK, settings = {}) {
  const { gateway, p, begin: beginSteps } = await startManySteps(t, settings);
  return { gateway, p, ...(await beginSteps(beginning)) };
}

const inChunk = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`;
for (const { version, framing, frame, end } of [
  { version: '1.1', framing: 'in chunks', frame: inChunk, end: '0\r\n\r\n' },
  { version: '1.0', framing: 'as it is', frame: String, end: '' },
]) {
  test(`a client of HTTP/${version} gets a stream ${framing}, one event at a time`, async (t) => {
    const events = [CHUNK, ': keep-alive\n', CHUNK.repeat(20), LAST + DONE];
    const gates = events.map(() => createGate());
    const { gateway, provide } = await start(t);
    provide(async (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (const [index, event] of events.entries()) {
        response.write(event);
        await gates[index]!.opened;
      }
      response.end();
    });
    const { socket, text, closed } = openRaw(t, gateway.port);
    socket.write(rawChat(STREAM, ['Connection: close']).replace('HTTP/1.1', `HTTP/${version}`));
    let expected = '';
    const bodyOf = () => text().slice(text().indexOf('\r\n\r\n') + 4);
    for (const [index, event] of events.entries()) {
      expected += frame(event);
      await eventually(() => bodyOf().startsWith(expected), `event ${index}`);
      gates[index]!.open();
    }
    await closed;
    assert.equal(bodyOf(), expected + end);
  });
}

test('the end of a stream follows a long event in the same packet', async (t) => {
  const choices = [{ delta: { content: 'x'.repeat(300_000) } }];
  const events = `${CHUNK}data: ${JSON.stringify({ error: {}, choices })}\n\n${LAST}${DONE}`;
  const { stream } = await start(t);
  assert.equal((await stream(begin(events))).text, events);
});

const ERROR_EVENTS: readonly string[] = [
  'data: {"error":{"message":"boom","type":"x","code":null}}\n\n',
  'data: {"error":{"message":"boom"}}\r\n\r\n',
  'data: {"error":\ndata: {"message":"boom"}}\n\n',
  'data:{"error" : {"message":"boom"}}\n\n',
  'data: {"error":"boom"}\n\n',
  'data: {"object": "error","message":"boom","code":502}\n\n',
  'event: error\ndata: {"message":"boom"}\n\n',
  'event:error\ndata: {"error":{"message":"boom"}}\n\n',
  'event: error\ndata: boom\n\n',
  // Beside choices.
  'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"error"}],' +
    '"error":{"code":502,"message":"boom"}}\n\n',
  // An SSE field `error`.
  'error: {"code":502,"message":"boom","type":"x"}\n\n',
  'error:{"error":{"message":"boom"}}\n\n',
  'error: boom\n\n',
  // A bare JSON line, also before `[DONE]` and before data.
  '{"error":{"code":502,"message":"boom"}}\n\n',
  '{"error":"boom"}\ndata: [DONE]\n\n',
  '{"error":"boom"}\ndata: {"choices":[]}\n\n',
  '[{"error":{"code":502,"message":"boom"}}]\n\n',
  // Over several lines, with or without an indent.
  '{\n  "error": {\n    "code": 502,\n    "message": "boom"\n  }\n}\n\n',
  '[{\r\n"error": {\r\n"code": 502,\r\n"message": "boom"\r\n}\r\n}\r\n]\r\n\r\n',
  '[\n{\n"error":\n{"message": "boom"}\n}\n]\n: comment\ndata: [DONE]\n\n',
  // A field `error` beside data.
  'data: {"choices":[]}\nerror: {"message":"boom"}\ndata: [DONE]\nevent: message\n\n',
  'data: {"errors":[{"message":"boom"}]}\n\n',
];
const BOOM = {
  type: 'provider_error',
  message: 'API error: 502 - boom',
  code: 'API_ERROR',
  provider: 'p',
  status: 502,
};

test('an error event in any form is an HTTP error, or one error event after a token', async (t) => {
  const { p, stream } = await start(t);
  const again = 'data: {"error":{"message":"again"}}\n\n';
  for (const event of ERROR_EVENTS) {
    for (const before of sweep(['', ': comment\n\n', ': comment\n', 'data:\n\n'], ['', ': c\n'])) {
      const reply = await stream(begin(before + event));
      const { 'content-type': type } = reply.headers;
      assert.deepEqual([reply.status, type], [502, 'application/json'], before + event);
      assert.deepEqual(reply.json(), { error: BOOM }, before + event);
      // The provider left its answer open.
      await p.requests.at(-1)?.closed;
    }
    for (const after of sweep(['', CHUNK + LAST + DONE, DONE, again], ['', again])) {
      for (const before of sweep([CHUNK, `${CHUNK}: comment\n\n`], [CHUNK])) {
        const reply = await stream(begin(before + event + after));
        assert.equal(reply.status, 200);
        assert.deepEqual(errorAfter(reply.text, before), BOOM, event);
        await p.requests.at(-1)?.closed;
      }
    }
  }
});

test('an error in one packet and in two becomes the same', async (t) => {
  const { begin: beginSteps } = await startManySteps(t);
  for (const event of ERROR_EVENTS) {
    for (const cut of [5, event.length - 2, event.length - 1]) {
      const { chat, write } = await beginSteps();
      write(event.slice(0, cut));
      for (let turn = 0; turn < 20; turn += 1) await nextTurn();
      write(event.slice(cut));
      assert.deepEqual(errorAfter(await chat.ended, CHUNK), BOOM, `${event} cut at ${cut}`);
    }
  }
});

test('an error event above 256 KiB passes with the beginning of its message', async (t) => {
  const error = { message: `sk-secretsecretsecret ${'x'.repeat(300_000)}` };
  const { stream } = await start(t);
  for (const event of [`data: ${JSON.stringify({ error })}`, `error: ${JSON.stringify(error)}`]) {
    const { message, code } = errorAfter((await stream(`${CHUNK}${event}\n\n`)).text, CHUNK);
    assert.match(message, /^API error: 502 - \[secret\] x{400,500}(?:…|\.\.\.)?$/);
    assert.equal(code, 'API_ERROR');
  }
});

/** Errors by their status, each with other members in its body, if any. */
const NAMED_STATUSES: Record<number, [error: object, beside?: object][]> = {
  400: [
    [{ status_code: 400, code: 'tool_use_failed' }],
    [{ type: 'invalid_request_error' }],
    [{ code: 'tool_use_failed', type: 'invalid_request_error' }],
    [{ code: 'unsupported_value' }],
    [{ code: 'context_length_exceeded' }],
    [{ code: 'content_filter' }],
    [{ code: 'InvalidParameter' }],
    [{ code: 'invalid_parameter_error' }],
  ],
  401: [
    [{ code: 401 }],
    [{ type: 'authentication_error' }],
    [{ code: 'invalid_api_key', type: 'invalid_request_error' }],
  ],
  403: [[{ type: 'permission_error' }], [{ code: 'permission_denied' }]],
  404: [
    [{ status: 404 }],
    [{}, { type: 'not_found_error' }],
    [{ type: 'not_found_error' }],
    [{ code: 'model_not_found', type: 'invalid_request_error' }],
  ],
  413: [[{ type: 'overloaded_error' }, { code: '413' }]],
  422: [[{ code: '422' }], [{ status_code: 422, status: 503, code: 500 }]],
  429: [
    [{ code: 429 }],
    [{ type: 'rate_limit_error' }],
    [{ code: 'rate_limit_exceeded', type: 'tokens' }],
    [{ code: null, type: 'insufficient_quota' }],
  ],
  500: [[{ code: 500 }, { status: 503 }]],
  502: [[{ code: 200 }], [{ code: 600 }], [{ code: 'x', type: 'y' }]],
  503: [[{ code: 503 }], [{ status: 503, code: 500 }], [{ type: 'overloaded_error' }]],
};

test('an error has the status that it names, or that its code or type stands for', async (t) => {
  const { gateway, provide, stream } = await start(t);
  const rows = Object.entries(NAMED_STATUSES).flatMap(([status, errors]) =>
    errors.map(([error, beside]) => [Number(status), error, beside] as const),
  );
  for (const [status, error, beside] of rows) {
    const body = { ...beside, error: { message: 'm', ...error } };
    const event = `data: ${JSON.stringify(body)}\n\n`;
    const code = status === 429 ? 'RATE_LIMIT_ERROR' : 'API_ERROR';
    const first = await stream(event);
    assert.deepEqual([first.status, first.json().error.code], [status, code], event);
    assert.equal(errorAfter((await stream(CHUNK + event)).text, CHUNK).code, code, event);
    provide((_, response) => sendJson(response, body));
    const complete = await gateway.chat(chatBody());
    assert.deepEqual(complete.json(), first.json());
    assert.equal(complete.status, status, event);
  }
});

test('words that look like errors inside an answer pass unchanged', async (t) => {
  const { stream } = await start(t);
  const innocent = [
    'data: {"choices":[{"delta":{"content":"{\\"error\\":{\\"message\\":\\"x\\"}}"}}]}\n\n',
    'data: {"choices":[],"error":null}\n\n',
    'data: {"choices":[{"delta":{"error":"x"}}],"errors":[]}\n\n',
    'event: message\ndata: {"choices":[]}\n\n',
    'data: "error"\n\ndata: not JSON "error"\n\n',
    'data: error: {"message":"x"}\n\nerrors: x\n\nerror\n\nid: error: x\n\n',
    '{"choices":[{"delta":{"error":"x"}}]}\n\n{"error":null}\n\n{"error":\n\n',
  ].join('');
  assert.equal((await stream(innocent + LAST + DONE)).text, innocent + LAST + DONE);
});

const PART = CHUNK.slice(0, 30);
const STOPPED = CHUNK.replace('null', '"stop"');
const PREAMBLE = CHUNK.replace('"content":"a"', '"role":"assistant","content":""');
const ofSecondIndex = (event: string) => event.replace('"index":0', '"index":1');
const SECOND_CHOICE = LAST.replace('"index":0', '"index":1');
const ofSecond = (choice: string) => `${CHUNK}data: {"choices":[${choice}]}\n\n${LAST}`;
/** Unfinished streams, each with the passed part before the error event. */
const UNFINISHED: readonly [what: string, sent: string, passed?: string][] = [
  ['without a finish_reason', CHUNK],
  ['without any choice', 'data: {"type":"response.created"}\n\n'],
  ['with an empty finish_reason', CHUNK + LAST.replace('stop', '')],
  ['with a finish_reason of "null"', CHUNK + LAST.replace('"stop"', ' "null"')],
  ['a second choice with its index first', ofSecond('{"index":1,"finish_reason":null}')],
  ['a second choice with its index last', ofSecond('{"finish_reason":null,"index":1}')],
  ['a second choice with others', ofSecond('{"delta":{"tool_calls":[{"index":0}]},"index" : 1}')],
  ['a second choice with "null"', ofSecond('{"index":1,"delta":{},"finish_reason":"null"}')],
  ['a first choice that goes on', CHUNK + SECOND_CHOICE],
  ['a choice that goes on after its finish_reason', CHUNK + LAST + CHUNK],
  ['after one chunk of several with "stop" in each', CHUNK + STOPPED + STOPPED],
  ['after two chunks of several with "stop" in each', STOPPED + STOPPED + STOPPED],
  ['a second choice with "stop" in each chunk', LAST + ofSecondIndex(STOPPED).repeat(2)],
  ['inside an event', CHUNK + PART, CHUNK],
  ['inside an event after its finish_reason', CHUNK + LAST + PART, CHUNK + LAST],
  ['inside a long event', `${CHUNK}data: {"x":"${'y'.repeat(200_000)}`, CHUNK],
];

test('an unfinished stream that ends has an error event, and no [DONE]', async (t) => {
  const { stream } = await start(t);
  const cut =
    (sent: string): Script =>
    async (request, response) => {
      await begin(sent)(request, response);
      setTimeout(() => response.destroy(), 20);
    };
  const rows: [what: string, script: Script | string, passed: string][] = [
    ...UNFINISHED.map(
      ([what, sent, passed = sent]) => [what, sent, passed] as [string, string, string],
    ),
    ['cut', cut(CHUNK), CHUNK],
    ['cut inside an event', cut(CHUNK + PART), CHUNK],
  ];
  for (const [what, script, passed] of rows) {
    const { text } = await stream(script);
    assert.equal(errorAfter(text, passed).code, 'PROVIDER_ERROR', what);
    assert.ok(text.slice(passed.length).startsWith('data: '), `${what}: on its own line`);
  }
});

test('a stream with an event that nobody would hold ends with an error of the gateway', async (t) => {
  const { stream } = await start(t);
  const { text } = await stream(`${CHUNK}data: ${'y'.repeat(68_000_000)}\n\n`);
  const { code, message, provider } = errorAfter(text, CHUNK);
  assert.deepEqual([code, provider], ['INTERNAL_ERROR', undefined]);
  assert.equal(message, 'The event is larger than 67108864 bytes');
});

test('a stream without an event in time is a 504, and later silence an error event', async (t) => {
  for (const limit of ['timeout', 'first_token_timeout']) {
    const server = `${limit} = 1\nstream_idle_timeout = 1`;
    const { p, stream } = await start(t, { server });
    const reply = await stream(begin(': keep-alive\n\n'));
    assert.deepEqual([reply.status, reply.json().error.type], [504, 'timeout_error']);
    await p.requests[0]?.closed;
    // Between events or inside one.
    for (const sent of [CHUNK, CHUNK + PART]) {
      assert.equal(errorAfter((await stream(begin(sent))).text, CHUNK).code, 'TIMEOUT');
    }
  }
});

const IDLE_1 = { server: 'stream_idle_timeout = 1' };

for (const what of [
  'events',
  'pieces of one event',
  'nothing for longer than an answer may take',
]) {
  test(`a stream is not silent if ${what} comes within the idle limit`, async (t) => {
    const timers = useManualTimers(t);
    const server = 'timeout = 1\nfirst_token_timeout = 1\nstream_idle_timeout = 2';
    const { chat, write, end } = await startSteps(t, CHUNK, { server });
    const events = [...Array<string>(5).fill(CHUNK), LAST];
    const pieces = { events, 'pieces of one event': LAST.match(/[^]{1,20}/g)! }[what] ?? [LAST];
    for (const piece of pieces) {
      timers.advance(1999);
      const before = timers.started(2000);
      write(piece);
      await eventually(() => timers.started(2000) > before, 'the limit starts anew');
    }
    timers.advance(1999);
    end();
    assert.equal(await chat.ended, CHUNK + pieces.join('') + DONE);
  });
}

const LONG = 'y'.repeat(65_500);

/** Passes the beginning of `script` to a client. Then the client does not read for a minute. */
async function startSlowClient(t: TestContext, part: string, silentMs = 0) {
  // Stopped, because a busy machine could take longer than the limit to pass so much.
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  // More than the network holds.
  const size = 30 * MIB;
  const { opened, open } = createGate();
  const { counts, script } = flood(part, size, opened);
  const { gateway, provide } = await start(t, IDLE_1);
  provide(script);
  const chat = openChat(gateway.port);
  await eventually(() => chat.text() === CHUNK, 'the beginning');
  clock.nowMs += silentMs;
  const response = await chat.response;
  response.pause();
  open();
  await eventually(() => counts.sent > 0, 'the first events');
  await untilSteady(() => counts.sent);
  assert.ok(counts.sent < size, 'the gateway waits for its client');
  clock.nowMs += 60_000;
  if (silentMs === 0) timers.advance(60_000);
  response.resume();
  return { gateway, size: part.length * Math.ceil(size / part.length), text: await chat.ended };
}

for (const [what, part] of [
  ['events', `data: {"x":"${LONG}"}\n\n`],
  ['comments', `: ${LONG}\n\n`],
] as const) {
  const skip = what === 'comments' && LEFT_TO_SWEEPS;
  test(
    `the idle limit does not run while the client is slow to take ${what}`,
    { skip },
    async (t) => {
      const { size, text } = await startSlowClient(t, part);
      assert.equal(text.length, size + CHUNK.length + LAST.length + DONE.length);
    },
  );
}

for (const [silentMs, outcome] of [
  [899, 'ok'],
  [900, 'timeout'],
] as const) {
  test(`a tenth of the limit counts for a slow client (${silentMs} ms: ${outcome})`, async (t) => {
    const { gateway, text } = await startSlowClient(t, `: ${LONG}\n\n`, silentMs);
    assert.equal((await lineOf(gateway))['outcome'], outcome, text.slice(-300));
  });
}

test('after [DONE] the provider has 5 s to end its answer', async (t) => {
  const timers = useManualTimers(t);
  const { gateway, p, chat } = await startSteps(t, CHUNK + LAST + DONE);
  const [request] = p.requests;
  let isOver = false;
  void request!.closed.then(() => (isOver = true));
  timers.advance(4999);
  await idle(100);
  assert.equal(isOver, false, 'its connection may still be kept');
  timers.advance(1);
  assert.equal(await chat.ended, CHUNK + LAST + DONE);
  await request!.closed;
  assert.equal(gateway.accessLines()[0]?.['outcome'], 'ok');
  // With a Content-Length, the provider has ended its answer when the client has `[DONE]`.
  for (const events of [CHUNK + LAST + DONE, CHUNK + LAST]) {
    const headers = { 'content-type': 'text/event-stream', 'content-length': events.length };
    p.script = (_, response) => response.writeHead(200, headers).end(events);
    assert.equal((await gateway.chat(STREAM)).text, CHUNK + LAST + DONE);
    assert.ok(!timers.running().includes(5000), 'no timer is left');
  }
});

test('a client that is slow to take comments does not extend the idle limit', async (t) => {
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  const { chat, send } = await startSteps(t, CHUNK, IDLE_1);
  const advance = (ms: number) => {
    clock.nowMs += ms;
    timers.advance(ms);
  };
  // More than a write takes, so the gateway waits for its client.
  const comments = Array<string>(3).fill(`: ${'y'.repeat(240_000)}\n\n`);
  for (const comment of comments) {
    advance(333);
    await send(comment);
    // It passes when the gateway no longer waits, so the limit runs again.
    await send(': small\n\n');
  }
  advance(1);
  const passed = comments.map((comment) => `${comment}: small\n\n`).join('');
  const { code } = errorAfter(await chat.ended, CHUNK + passed);
  assert.equal(code, 'TIMEOUT');
});

test('a stream whose idle limit passed while the process was busy still ends', async (t) => {
  const clock = stopClock(t);
  useManualTimers(t);
  const { chat, write } = await startSteps(t, CHUNK, IDLE_1);
  // The limit passes before its timer fires, and the gateway then waits for its client.
  clock.nowMs += 2000;
  const comment = `: ${'y'.repeat(240_000)}\n\n`;
  write(comment);
  const { code } = errorAfter(await chat.ended, CHUNK + comment);
  assert.equal(code, 'TIMEOUT');
});

test('with stream_idle_timeout = 0 a client that is slow to take comments goes on', async (t) => {
  const timers = useManualTimers(t);
  const { chat, send, end } = await startSteps(t, CHUNK, { server: 'stream_idle_timeout = 0' });
  const comment = `: ${'y'.repeat(240_000)}\n\n`;
  await send(comment);
  await idle(60);
  timers.advance(1000);
  await send(LAST);
  end();
  assert.equal(await chat.ended, CHUNK + comment + LAST + DONE);
});

test('a finished stream without [DONE] gets it', async (t) => {
  const { stream } = await start(t);
  const manyChoices = Array.from({ length: 1001 }, (_, index) => ({
    index,
    finish_reason: index < 1000 ? 'stop' : null,
  }));
  for (const end of [
    LAST,
    LAST.replaceAll('\n', '\r\n'),
    LAST.replace('"stop"', ' "length"'),
    `${LAST}: bye\n`,
    // A choice goes on after its end and ends again, and an index belongs to no choice.
    `${LAST}${CHUNK}${LAST}data: {"choices":[],"usage":{"index":7}}\n\n`,
    // A preamble is no content for the ended choice.
    `${LAST}${PREAMBLE}`,
    `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1}]}}]}\n\n${LAST}`,
    // Two choices.
    SECOND_CHOICE + LAST,
    `${SECOND_CHOICE}data: {"choices":[]}\n\n${LAST}`,
    'data: {"choices":[{"index":1,"finish_reason":"stop"},{"index":0,"finish_reason":"stop"}]}\n\n',
    // Only 1,000 choices are counted.
    `data: ${JSON.stringify({ choices: manyChoices })}\n\n`,
    // In an event of 1 MiB.
    `data: {"choices":[{"finish_reason":"stop","delta":{"content":"${'x'.repeat(MIB)}"}}]}\n\n`,
  ]) {
    const { text } = await stream(CHUNK + end);
    assert.ok(text === CHUNK + end + DONE, end.slice(0, 300));
  }
});

test('a last event without its blank line passes, and the stream is finished', async (t) => {
  const { stream } = await start(t);
  for (const end of ['', '\n', '\r\n']) {
    const missing = end === '' ? '\n\n' : '\n';
    const { text } = await stream(CHUNK + LAST.trimEnd() + end);
    assert.equal(text, CHUNK + LAST.trimEnd() + end + missing + DONE);

    // Clients ignore an event without its blank line (WHATWG HTML, 9.2.6).
    const whole = CHUNK + LAST + DONE.trimEnd() + end;
    assert.equal((await stream(whole)).text, whole + missing);

    for (const error of [
      'data: {"error":"boom"}',
      'error: {"message":"boom"}',
      '{"error":"boom"}',
    ]) {
      assert.deepEqual(errorAfter((await stream(CHUNK + error + end)).text, CHUNK), BOOM, error);
    }
  }
});

test('bytes after [DONE] do not reach the client, nor does a broken connection', async (t) => {
  const { gateway, stream } = await start(t);
  const late = 'data: {"error":{"message":"late"}}\n\n';
  const end = CHUNK + LAST + DONE;
  for (const rest of [late, late.trimEnd(), ': bye\n', 'data: {"usa', DONE, '\n']) {
    assert.equal((await stream(end + rest)).text, end, rest);
  }
  assert.equal((await stream(begin(end))).text, end, 'the provider leaves it open');
  const breaking: Script = async (request, response) => {
    await begin(end)(request, response);
    setTimeout(() => response.destroy(), 20);
  };
  assert.equal((await stream(breaking)).text, end);
  const outcomes = gateway.accessLines().map(({ outcome }) => outcome);
  assert.deepEqual(new Set(outcomes), new Set(['ok']));
});

const HALF_ENDED = `${CHUNK}${LAST}data: [DONE]\r\n\r`;

for (const [what, next, passed] of [
  ['a line feed that comes alone', '\n', '\n'],
  ['a line feed with more behind it', '\n: bye\n\n', '\n'],
  ['no other byte', ': bye\n\n', ''],
  ['no second carriage return', '\r\n', ''],
  ['nothing if nothing comes', '', ''],
] as const) {
  test(`after [DONE] and a carriage return the client gets ${what}`, async (t) => {
    const timers = useManualTimers(t);
    for (const [beginning, rest] of [
      [HALF_ENDED, ''],
      [CHUNK, HALF_ENDED.slice(CHUNK.length)],
    ] as const) {
      const { chat, send, write, end } = await startSteps(t, beginning);
      if (rest !== '') await send(rest);
      if (next !== '') write(next);
      else end();
      assert.equal(await chat.ended, HALF_ENDED + passed);
      assert.ok(!timers.running().includes(500), 'nothing waits for a line feed');
    }
  });
}

test('a missing line feed is waited for half a second', async (t) => {
  const timers = useManualTimers(t);
  const { p, chat, end } = await startSteps(t, HALF_ENDED);
  let hasEnded = false;
  void chat.ended.then(() => (hasEnded = true));
  timers.advance(499);
  await idle(100);
  assert.equal(hasEnded, false);
  timers.advance(1);
  assert.equal(await chat.ended, HALF_ENDED);
  assert.equal(p.sockets.size, 1, 'its connection may still be kept');
  end('\n');
  await p.requests[0]?.closed;
  const { stream } = await start(t);
  const whole = CHUNK + LAST + DONE;
  assert.equal((await stream(begin(whole))).text, whole);
  for (const [rest, passed] of [
    ['\n', '\n'],
    ['\n\r', '\n'],
    [': bye\n\n', ''],
    [': bye\r', ''],
    ['data: x', ''],
  ] as const) {
    assert.equal((await stream(begin(HALF_ENDED + rest))).text, HALF_ENDED + passed, rest);
  }
});

test('nothing is written after the last line feed to a connection that is kept', async (t) => {
  useManualTimers(t);
  const { gateway, p, provide } = await start(t);
  let response: ServerResponse | undefined;
  provide((request, opened) => {
    response = opened;
    return begin(HALF_ENDED)(request, opened);
  });
  const client = openRaw(t, gateway.port);
  client.socket.write(rawChat(STREAM));
  await eventually(() => client.text().includes('[DONE]'), '[DONE]');
  response!.write('\n');
  const isWhole = () => client.text().endsWith('\r\n1\r\n\n\r\n0\r\n\r\n');
  await eventually(isWhole, 'the end');
  response!.end('\n');
  await p.requests[0]!.closed;
  await idle(60);
  assert.ok(isWhole());
});

for (const [when, events] of [
  ['at [DONE]', completionEvents()],
  ['while the last line feed is awaited', HALF_ENDED],
] as const) {
  test(`a stream whose client closes ${when} is ok and keeps its connection`, async (t) => {
    const { gateway, p, chat, end } = await startSteps(t, events);
    const [connection] = p.sockets;
    chat.leave();
    const { outcome, status, bytes } = await lineOf(gateway);
    assert.deepEqual([outcome, status, bytes], ['ok', 200, events.length]);
    end('\n');
    await p.requests[0]?.closed;
    // A connection is idle from the next turn on.
    await gateway.send('/health');
    p.script = answerWell;
    assert.equal((await gateway.chat(STREAM)).text, completionEvents());
    assert.deepEqual([...p.sockets], [connection]);
  });
}

test('a byte order mark at the start passes, and hides nothing', async (t) => {
  const { stream } = await start(t);
  const mark = '\u{feff}';
  const error = 'data: {"error":"boom"}';
  assert.equal((await stream(mark + completionEvents())).text, mark + completionEvents());
  for (const end of ['\n\n', '']) {
    const reply = await stream(mark + error + end);
    assert.equal(reply.status, 502);
    assert.deepEqual(reply.json(), { error: BOOM });
  }
  // A second mark, or a mark elsewhere, hides the error.
  for (const before of [mark, ': comment\n\n']) {
    const { status } = await stream(`${before}${mark}${error}\n\n${completionEvents()}`);
    assert.equal(status, 200);
  }
});

test('an answer without a coding passes, and a compressed answer is refused', async (t) => {
  const { gateway, p, provide } = await start(t);
  const ask = async (coding: string, body: string | Buffer) => {
    const headers = { 'content-type': 'text/event-stream', 'content-encoding': coding };
    provide((_, response) => response.writeHead(200, headers).end(body));
    return gateway.chat(STREAM, { headers: { 'accept-encoding': 'gzip, br' } });
  };
  for (const coding of ['identity', 'Identity', '']) {
    assert.equal((await ask(coding, completionEvents())).text, completionEvents(), coding);
  }
  const reply = await ask('gzip', gzipSync(completionEvents()));
  assert.equal(p.requests[0]?.headers['accept-encoding'], 'identity');
  assert.equal(reply.status, 502);
  assert.equal(reply.json().error.message, 'Provider error: the answer is compressed');
});
