import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { connect } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';

import { idle, replaceNow, untilSteady, useManualTimers } from './support/clock.ts';
import { chatBody, providerToml, rawChat, startGateway } from './support/gateway.ts';
import { createGate, errorAfter, eventually, openChat } from './support/streams.ts';
import {
  CHUNK,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from './support/upstream.ts';

const STREAM = chatBody({ stream: true });
const LAST = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n';
const DONE = 'data: [DONE]\n\n';
const MIB = 1_048_576;

async function start(t: TestContext, script?: Script, server = '', isInProcess = false) {
  const upstream = await startUpstream(t, script);
  const toml = `[server]\n${server}\n${providerToml(upstream)}`;
  return { upstream, gateway: await startGateway(t, { toml, isInProcess }) };
}

/** Sends the head of a stream and these events, and leaves it open. */
function begin(events: string | Buffer): Script {
  return (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(events);
  };
}

test('the first event reaches the client before the provider has a second one', async (t) => {
  const { opened: seen, open: seeFirst } = createGate();
  const { gateway } = await start(t, async (request, response) => {
    await begin(CHUNK)(request, response);
    await seen;
    response.end(LAST + DONE);
  });
  const chat = openChat(gateway.port);
  await eventually(() => chat.text() === CHUNK, 'the first event');
  seeFirst();
  assert.equal(await chat.ended, CHUNK + LAST + DONE);
});

for (const { version, framing, frame, end } of [
  {
    version: '1.1',
    framing: 'in chunks',
    frame: (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`,
    end: '0\r\n\r\n',
  },
  { version: '1.0', framing: 'as it is', frame: (text: string) => text, end: '' },
]) {
  test(`a client of HTTP/${version} gets a stream ${framing}, an event at a time`, async (t) => {
    const events = [CHUNK, CHUNK.repeat(20), LAST + DONE];
    const gates = events.map(() => createGate());
    const { gateway } = await start(t, async (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (const [index, event] of events.entries()) {
        response.write(event);
        await gates[index]!.opened;
      }
      response.end();
    });
    const socket = connect(gateway.port, '127.0.0.1');
    t.after(() => socket.destroy());
    const ended = once(socket, 'end');
    let text = '';
    socket.setEncoding('utf8').on('data', (piece: string) => (text += piece));
    socket.write(rawChat(STREAM, ['Connection: close']).replace('HTTP/1.1', `HTTP/${version}`));
    let expected = '';
    for (const [index, event] of events.entries()) {
      expected += frame(event);
      const bodyOf = () => text.slice(text.indexOf('\r\n\r\n') + 4);
      await eventually(() => bodyOf().startsWith(expected), `event ${index}`);
      gates[index]!.open();
    }
    await ended;
    assert.equal(text.slice(text.indexOf('\r\n\r\n') + 4), expected + end);
  });
}

test('the end of a stream that comes in one packet with a long event follows it', async (t) => {
  const long = `data: ${JSON.stringify({ error: {}, choices: [{ delta: { content: 'x'.repeat(300_000) } }] })}\n\n`;
  const { gateway } = await start(t, begin(CHUNK + long + LAST + DONE));
  assert.equal(await openChat(gateway.port).ended, CHUNK + long + LAST + DONE);
});

test('a comment reaches the client of a running stream at once', async (t) => {
  const { opened: seen, open: see } = createGate();
  const { gateway } = await start(t, async (request, response) => {
    await begin(`${CHUNK}: keep-alive\n`)(request, response);
    await seen;
    response.end(LAST + DONE);
  });
  const chat = openChat(gateway.port);
  await eventually(() => chat.text().endsWith(': keep-alive\n'), 'the comment');
  see();
  assert.equal(await chat.ended, `${CHUNK}: keep-alive\n${LAST}${DONE}`);
});

test('a stream carries the headers that keep proxies from holding it back', async (t) => {
  const { gateway } = await start(t, (_, response) => {
    response.writeHead(200, {
      'content-type': 'text/event-stream;charset=UTF-8',
      'x-request-id': 'upstream-1',
      'x-ratelimit-remaining-requests': '7',
      'set-cookie': 'a=b',
      server: 'banner',
      'cache-control': 'private',
    });
    response.end(completionEvents());
  });
  const { headers } = await gateway.chat(STREAM, { headers: { 'x-request-id': 'mine-1' } });
  const { date, connection, 'keep-alive': _, 'server-timing': timing, ...others } = headers;
  assert.ok(date !== undefined && connection !== undefined && timing !== undefined);
  assert.deepEqual(others, {
    'content-type': 'text/event-stream;charset=UTF-8',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
    'x-gateway-provider': 'p',
    'x-request-id': 'mine-1',
    'x-upstream-request-id': 'upstream-1',
    'x-ratelimit-remaining-requests': '7',
    'transfer-encoding': 'chunked',
  });
});

const ERROR_EVENTS: Record<string, string> = {
  'an error object': 'data: {"error":{"message":"boom","type":"x","code":null}}\n\n',
  'an error object with line ends of two bytes': 'data: {"error":{"message":"boom"}}\r\n\r\n',
  'an error object over two lines': 'data: {"error":\ndata: {"message":"boom"}}\n\n',
  'an error object without a space': 'data:{"error" : {"message":"boom"}}\n\n',
  'an error string': 'data: {"error":"boom"}\n\n',
  'an object called error': 'data: {"object": "error","message":"boom","code":502}\n\n',
  'an event named error': 'event: error\ndata: {"message":"boom"}\n\n',
  'an event named error with an error object':
    'event:error\ndata: {"error":{"message":"boom"}}\n\n',
  'an event named error with plain text': 'event: error\ndata: boom\n\n',
  'an error beside choices':
    'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"error"}],"error":{"code":502,"message":"boom"}}\n\n',
  'an SSE field error with an object': 'error: {"code":502,"message":"boom","type":"x"}\n\n',
  'an SSE field error with an error object': 'error:{"error":{"message":"boom"}}\n\n',
  'an SSE field error with plain text': 'error: boom\n\n',
  'a bare line of JSON with an error': '{"error":{"code":502,"message":"boom"}}\n\n',
  'a bare line of JSON with an error before [DONE]': '{"error":"boom"}\ndata: [DONE]\n\n',
  'a bare line of JSON with an error before data': '{"error":"boom"}\ndata: {"choices":[]}\n\n',
};
const BOOM = {
  type: 'provider_error',
  message: 'API error: 502 - boom',
  code: 'API_ERROR',
  provider: 'p',
  status: 502,
};

for (const [name, event] of Object.entries(ERROR_EVENTS)) {
  test(`${name} as the first event is an HTTP error`, async (t) => {
    const { gateway, upstream } = await start(t);
    for (const before of ['', ': comment\n\n', ': comment\n', 'data:\n\n']) {
      upstream.script = begin(before + event);
      const reply = await gateway.chat(STREAM);
      assert.equal(reply.status, 502, before);
      assert.equal(reply.headers['content-type'], 'application/json');
      assert.deepEqual(reply.json(), { error: BOOM }, before);
      // The upstream never ended it.
      await upstream.requests.at(-1)?.closed;
    }
  });

  test(`${name} in a running stream becomes one documented error event, and the end`, async (t) => {
    const { gateway, upstream } = await start(t);
    for (const after of [
      '',
      CHUNK + LAST + DONE,
      DONE,
      'data: {"error":{"message":"again"}}\n\n',
    ]) {
      for (const before of [CHUNK, `${CHUNK}: comment\n\n`]) {
        upstream.script = begin(before + event + after);
        const reply = await gateway.chat(STREAM);
        assert.equal(reply.status, 200);
        assert.deepEqual(errorAfter(reply.text, before), BOOM);
        await upstream.requests.at(-1)?.closed;
      }
    }
    // And where the error comes alone, in two packets.
    for (const cut of [5, event.length - 2, event.length - 1]) {
      const { opened: seen, open: see } = createGate();
      upstream.script = async (request, response) => {
        await begin(CHUNK)(request, response);
        await seen;
        response.write(event.slice(0, cut));
        for (let turn = 0; turn < 20; turn += 1) await nextTurn();
        response.write(event.slice(cut));
      };
      const chat = openChat(gateway.port);
      await eventually(() => chat.text() === CHUNK, 'the first event');
      see();
      assert.deepEqual(errorAfter(await chat.ended, CHUNK), BOOM, `cut at ${cut}`);
    }
  });
}

test('an error event of more than 256 KiB becomes the documented error event, without its message', async (t) => {
  const error = { message: `sk-secretsecretsecret ${'x'.repeat(300_000)}` };
  const { gateway, upstream } = await start(t);
  for (const event of [`data: ${JSON.stringify({ error })}`, `error: ${JSON.stringify(error)}`]) {
    upstream.script = (_, response) => sendEvents(response, `${CHUNK}${event}\n\n`);
    const { message, code } = errorAfter((await gateway.chat(STREAM)).text, CHUNK);
    assert.deepEqual([message, code], ['API error: 502 - Bad Gateway', 'API_ERROR']);
  }
});

const NAMED_STATUSES: [status: number, error: object, beside?: object][] = [
  [503, { code: 503 }],
  [404, { status: 404 }],
  [429, { code: 429 }],
  [401, { code: 401 }],
  [502, { code: 200 }],
  [502, { code: 600 }],
  [502, { code: 'x', type: 'y' }],
  [400, { status_code: 400, code: 'tool_use_failed' }],
  [422, { code: '422' }],
  [422, { status_code: 422, status: 503, code: 500 }],
  [503, { status: 503, code: 500 }],
  [413, { type: 'overloaded_error' }, { code: '413' }],
  [500, { code: 500 }, { status: 503 }],
  [404, {}, { type: 'not_found_error' }],
  [400, { type: 'invalid_request_error' }],
  [400, { code: 'tool_use_failed', type: 'invalid_request_error' }],
  [400, { code: 'unsupported_value' }],
  [400, { code: 'context_length_exceeded' }],
  [400, { code: 'content_filter' }],
  [401, { type: 'authentication_error' }],
  [401, { code: 'invalid_api_key', type: 'invalid_request_error' }],
  [403, { type: 'permission_error' }],
  [403, { code: 'permission_denied' }],
  [404, { type: 'not_found_error' }],
  [404, { code: 'model_not_found', type: 'invalid_request_error' }],
  [429, { type: 'rate_limit_error' }],
  [429, { code: 'rate_limit_exceeded', type: 'tokens' }],
  [429, { code: null, type: 'insufficient_quota' }],
  [503, { type: 'overloaded_error' }],
];

test('the status of an error is what it names or its code or type stands for, in events and in a complete 200', async (t) => {
  const { gateway, upstream } = await start(t);
  for (const [status, error, beside] of NAMED_STATUSES) {
    const body = { ...beside, error: { message: 'm', ...error } };
    const event = `data: ${JSON.stringify(body)}\n\n`;
    const code = status === 429 ? 'RATE_LIMIT_ERROR' : 'API_ERROR';
    upstream.script = (_, response) => sendEvents(response, event);
    const first = await gateway.chat(STREAM);
    assert.deepEqual([first.status, first.json().error.code], [status, code], event);
    upstream.script = (_, response) => sendEvents(response, CHUNK + event);
    assert.equal(errorAfter((await gateway.chat(STREAM)).text, CHUNK).code, code, event);
    upstream.script = (_, response) => sendJson(response, body);
    const complete = await gateway.chat(chatBody());
    assert.deepEqual(complete.json(), first.json());
    assert.equal(complete.status, status, event);
  }
});

test('words that look like errors inside an answer are left alone', async (t) => {
  const { gateway, upstream } = await start(t);
  const innocent = [
    'data: {"choices":[{"delta":{"content":"{\\"error\\":{\\"message\\":\\"x\\"}}"}}]}\n\n',
    'data: {"choices":[],"error":null}\n\n',
    'data: {"choices":[{"delta":{"error":"x"}}]}\n\n',
    'event: message\ndata: {"choices":[]}\n\n',
    'data: "error"\n\ndata: not JSON "error"\n\n',
    'data: error: {"message":"x"}\n\nerrors: x\n\nerror\n\nid: error: x\n\n',
    '{"choices":[{"delta":{"error":"x"}}]}\n\n{"error":null}\n\n{"error":\n\n',
  ].join('');
  upstream.script = (_, response) => sendEvents(response, innocent + LAST + DONE);
  assert.equal((await gateway.chat(STREAM)).text, innocent + LAST + DONE);
});

const BROKEN_ENDS: Record<string, { script: Script; before: string; code: string }> = {
  'is cut between events': {
    script: async (request, response) => {
      await begin(CHUNK)(request, response);
      setTimeout(() => response.destroy(), 20);
    },
    before: CHUNK,
    code: 'PROVIDER_ERROR',
  },
  'is cut inside an event': {
    script: async (request, response) => {
      await begin(CHUNK + CHUNK.slice(0, 30))(request, response);
      setTimeout(() => response.destroy(), 20);
    },
    before: CHUNK,
    code: 'PROVIDER_ERROR',
  },
  'is closed without a finish_reason': {
    script: (_, response) => sendEvents(response, CHUNK),
    before: CHUNK,
    code: 'PROVIDER_ERROR',
  },
  'is closed without a choice': {
    script: (_, response) => sendEvents(response, 'data: {"choices":[]}\n\n'),
    before: 'data: {"choices":[]}\n\n',
    code: 'PROVIDER_ERROR',
  },
  'is closed after an empty finish_reason': {
    script: (_, response) => sendEvents(response, LAST.replace('stop', '')),
    before: LAST.replace('stop', ''),
    code: 'PROVIDER_ERROR',
  },
  'is closed after a finish_reason of "null"': {
    script: (_, response) => sendEvents(response, LAST.replace('"stop"', ' "null"')),
    before: LAST.replace('"stop"', ' "null"'),
    code: 'PROVIDER_ERROR',
  },
  ...Object.fromEntries(
    Object.entries({
      'which has its index first': '{"index":1,"delta":{"content":"b"},"finish_reason":null}',
      'which has its index last': '{"delta":{"content":"b"},"finish_reason":null,"index":1}',
      'which has other indices': '{"delta":{"tool_calls":[{"index":0}]},"index" : 1}',
      'which is finished by "null"': '{"index":1,"delta":{},"finish_reason":"null"}',
    }).map(([which, choice]) => {
      const second = `data: {"choices":[${choice}]}\n\n`;
      const before = CHUNK + second + LAST + second;
      const script: Script = (_, response) => sendEvents(response, before);
      const name = `is closed before the second of two choices, ${which}, is finished`;
      return [name, { script, before, code: 'PROVIDER_ERROR' }];
    }),
  ),
  'is closed before the first of two choices is finished': {
    script: (_, response) => sendEvents(response, CHUNK + LAST.replace('"index":0', '"index":1')),
    before: CHUNK + LAST.replace('"index":0', '"index":1'),
    code: 'PROVIDER_ERROR',
  },
  'is closed inside an event': {
    script: (_, response) => sendEvents(response, CHUNK + CHUNK.slice(0, 30)),
    before: CHUNK,
    code: 'PROVIDER_ERROR',
  },
  'is closed inside an event after its finish_reason': {
    script: (_, response) => sendEvents(response, CHUNK + LAST + CHUNK.slice(0, 30)),
    before: CHUNK + LAST,
    code: 'PROVIDER_ERROR',
  },
  'is closed inside a long event': {
    script: (_, response) => sendEvents(response, `${CHUNK}data: {"x":"${'y'.repeat(200_000)}`),
    before: CHUNK,
    code: 'PROVIDER_ERROR',
  },
  'has an event that nobody would hold in memory': {
    script: (_, response) => sendEvents(response, `${CHUNK}data: ${'y'.repeat(17_000_000)}\n\n`),
    before: CHUNK,
    code: 'PROVIDER_ERROR',
  },
  'falls silent': { script: begin(CHUNK), before: CHUNK, code: 'TIMEOUT' },
  'falls silent inside an event': {
    script: begin(CHUNK + CHUNK.slice(0, 30)),
    before: CHUNK,
    code: 'TIMEOUT',
  },
};

describe('a stream that does not finish', { concurrency: true }, () => {
  for (const [name, { script, before, code }] of Object.entries(BROKEN_ENDS)) {
    test(`ends in the error event, on a line of its own and without [DONE], when it ${name}`, async (t) => {
      // On a busy machine a second may pass before a cut is noticed.
      const limit = code === 'TIMEOUT' ? 'stream_idle_timeout = 1' : '';
      const { gateway } = await start(t, script, limit);
      const { text } = await gateway.chat(STREAM);
      assert.equal(errorAfter(text, before).code, code);
      const rest = text.slice(before.length);
      assert.ok(rest.startsWith('data: '), rest.slice(0, 40));
    });
  }

  test('is a 504 when no event comes in time, comments or not', async (t) => {
    for (const server of ['timeout = 1', 'first_token_timeout = 1']) {
      const { gateway, upstream } = await start(t, begin(': keep-alive\n\n'), server);
      const reply = await gateway.chat(STREAM);
      assert.equal(reply.status, 504);
      assert.deepEqual(reply.json().error.type, 'timeout_error');
      await upstream.requests[0]?.closed;
    }
  });
});

/** A running stream whose provider sends what the test says, when the client has seen everything before it. */
async function startSteps(t: TestContext, beginning: string, server = '') {
  const timers = useManualTimers(t);
  let response: ServerResponse | undefined;
  const { gateway, upstream } = await start(
    t,
    (_, opened) => {
      response = opened.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(beginning);
    },
    server,
  );
  const chat = openChat(gateway.port);
  const sent = [beginning];
  const isSeen = () => chat.text() === sent.join('');
  await eventually(isSeen, 'the beginning');
  const send = async (text: string) => {
    sent.push(text);
    response!.write(text);
    await eventually(isSeen, text);
  };
  return { timers, gateway, upstream, chat, send, end: () => response!.end() };
}

const NOT_QUITE_IDLE_MS = 999;

test('a stream is not silent as long as data comes within the idle limit, however long it takes', async (t) => {
  const { timers, chat, send, end } = await startSteps(t, CHUNK, 'stream_idle_timeout = 1');
  for (const event of [...Array<string>(5).fill(CHUNK), LAST]) {
    timers.advance(NOT_QUITE_IDLE_MS);
    await send(event);
  }
  timers.advance(NOT_QUITE_IDLE_MS);
  end();
  assert.equal(await chat.ended, CHUNK.repeat(6) + LAST + DONE);
});

test('a stream that has begun is not bound by the limits for an answer', async (t) => {
  const limits = 'timeout = 1\nfirst_token_timeout = 1\nstream_idle_timeout = 10';
  const { timers, chat, send, end } = await startSteps(t, CHUNK, limits);
  timers.advance(9999);
  await send(LAST);
  end();
  assert.equal(await chat.ended, CHUNK + LAST + DONE);
});

test('a stream counts as silent although comments come', async (t) => {
  const { timers, chat, send } = await startSteps(t, CHUNK, 'stream_idle_timeout = 1');
  const comments = Array<string>(3).fill(': keep-alive\n\n');
  for (const comment of comments) {
    timers.advance(333);
    await send(comment);
  }
  timers.advance(1);
  const { code } = errorAfter(await chat.ended, CHUNK + comments.join(''));
  assert.equal(code, 'TIMEOUT');
});

test('a stream is not silent while one event comes in pieces', async (t) => {
  const timers = useManualTimers(t);
  let response: ServerResponse | undefined;
  const { gateway } = await start(
    t,
    (_, opened) => {
      response = opened.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(CHUNK);
    },
    'stream_idle_timeout = 1',
  );
  const chat = openChat(gateway.port);
  await eventually(() => chat.text() === CHUNK, 'the first event');
  for (const piece of LAST.match(/[^]{1,20}/g)!) {
    timers.advance(NOT_QUITE_IDLE_MS);
    const before = timers.started();
    response!.write(piece);
    await eventually(() => timers.started() > before, 'the limit starts anew');
  }
  timers.advance(NOT_QUITE_IDLE_MS);
  response!.end(DONE);
  assert.equal(await chat.ended, CHUNK + LAST + DONE);
});

for (const [what, part] of [
  ['events', `data: {"x":"${'y'.repeat(65_500)}"}\n\n`],
  ['comments', `: ${'y'.repeat(65_500)}\n\n`],
] as const) {
  test(`the idle limit does not run while the client is slow to take the ${what} that came`, async (t) => {
    const timers = useManualTimers(t);
    // More than the network holds.
    const size = 30 * MIB;
    let sent = 0;
    const { gateway } = await start(
      t,
      (_, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(CHUNK);
        const push = () => {
          while (sent < size) {
            sent += part.length;
            if (!response.write(part)) return;
          }
          if (!response.writableEnded) response.end(LAST + DONE);
        };
        response.on('drain', push);
        push();
      },
      'stream_idle_timeout = 1',
    );
    const chat = openChat(gateway.port);
    const response = await chat.response;
    response.pause();
    await eventually(() => sent > 0, 'the first events');
    await untilSteady(() => sent);
    assert.ok(sent < size, 'the gateway waits for its client');
    timers.advance(60_000);
    response.resume();
    const { length } = await chat.ended;
    const others = CHUNK.length + LAST.length + DONE.length;
    assert.equal(length, part.length * Math.ceil(size / part.length) + others);
  });
}

test('after [DONE] the provider is given 5 s to end, and no longer', async (t) => {
  const { timers, gateway, upstream, chat } = await startSteps(t, CHUNK + LAST + DONE);
  const [request] = upstream.requests;
  let isOver = false;
  void request!.closed.then(() => (isOver = true));
  timers.advance(4999);
  await idle(100);
  assert.equal(isOver, false, 'its connection may still be kept');
  timers.advance(1);
  assert.equal(await chat.ended, CHUNK + LAST + DONE);
  await request!.closed;
  assert.equal(gateway.accessLines()[0]?.['outcome'], 'ok');
});

test('a client that is slow to take comments gets no longer idle limit by them', async (t) => {
  let nowMs = 1000;
  replaceNow(t, () => nowMs);
  const { timers, chat, send } = await startSteps(t, CHUNK, 'stream_idle_timeout = 1');
  const advance = (ms: number) => {
    nowMs += ms;
    timers.advance(ms);
  };
  // More than one write takes: the gateway waits for its client.
  const comments = Array<string>(3).fill(`: ${'y'.repeat(240_000)}\n\n`);
  for (const comment of comments) {
    advance(333);
    const before = timers.started();
    await send(comment);
    await eventually(() => timers.started() > before, 'the limit goes on');
  }
  advance(1);
  const { code } = errorAfter(await chat.ended, CHUNK + comments.join(''));
  assert.equal(code, 'TIMEOUT');
});

test('with stream_idle_timeout = 0 a client that is slow to take comments is not cut off', async (t) => {
  const { timers, chat, send, end } = await startSteps(t, CHUNK, 'stream_idle_timeout = 0');
  const comment = `: ${'y'.repeat(240_000)}\n\n`;
  await send(comment);
  await idle(60);
  timers.advance(1000);
  await send(LAST);
  end();
  assert.equal(await chat.ended, CHUNK + comment + LAST + DONE);
});

test('more than 1 MiB of comments before the first event is a 502', async (t) => {
  const comments = (count: number) => `: ${'c'.repeat(1000)}\n\n`.repeat(count);
  const { gateway, upstream } = await start(t);
  upstream.script = (_, response) => sendEvents(response, comments(1300) + LAST + DONE);
  const reply = await gateway.chat(STREAM);
  assert.deepEqual([reply.status, reply.json().error.code], [502, 'PROVIDER_ERROR']);
  upstream.script = (_, response) => sendEvents(response, comments(900) + LAST + DONE);
  assert.equal((await gateway.chat(STREAM)).text, comments(900) + LAST + DONE);
});

test('a finished stream without [DONE] gets one', async (t) => {
  const { gateway, upstream } = await start(t);
  for (const end of [
    LAST,
    LAST.replaceAll('\n', '\r\n'),
    LAST.replace('"stop"', ' "length"'),
    `${LAST}: bye\n`,
    // A choice that goes on after its end, and indices that are not those of choices.
    `${LAST}${CHUNK}data: {"choices":[],"usage":{"index":7}}\n\n`,
    `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1}]}}]}\n\n${LAST}`,
    // Two choices.
    LAST.replace('"index":0', '"index":1') + LAST,
    `${LAST.replace('"index":0', '"index":1')}data: {"choices":[]}\n\n${LAST}`,
    'data: {"choices":[{"index":1,"finish_reason":"stop"},{"index":0,"finish_reason":"stop"}]}\n\n',
    // No more than 1,000 are counted.
    `data: ${JSON.stringify({
      choices: Array.from({ length: 1001 }, (_, index) => ({
        index,
        finish_reason: index < 1000 ? 'stop' : null,
      })),
    })}\n\n`,
  ]) {
    upstream.script = (_, response) => sendEvents(response, CHUNK + end);
    assert.equal((await gateway.chat(STREAM)).text, CHUNK + end + DONE);
  }
});

test('a last event without its blank line is passed on, and the stream is finished properly', async (t) => {
  const { gateway, upstream } = await start(t);
  for (const end of ['', '\n', '\r\n']) {
    upstream.script = (_, response) => sendEvents(response, CHUNK + LAST.trimEnd() + end);
    const { text } = await gateway.chat(STREAM);
    assert.ok(text.startsWith(CHUNK + LAST.trimEnd() + end), text);
    assert.match(text.slice((CHUNK + LAST.trimEnd()).length), /^[\r\n]{2,}data: \[DONE\]\n\n$/);

    upstream.script = (_, response) => sendEvents(response, CHUNK + LAST + DONE.trimEnd() + end);
    assert.equal((await gateway.chat(STREAM)).text, CHUNK + LAST + DONE.trimEnd() + end);

    for (const error of [
      'data: {"error":"boom"}',
      'error: {"message":"boom"}',
      '{"error":"boom"}',
    ]) {
      upstream.script = (_, response) => sendEvents(response, CHUNK + error + end);
      assert.deepEqual(errorAfter((await gateway.chat(STREAM)).text, CHUNK), BOOM, error);
    }
  }
});

test('a connection that breaks after [DONE] leaves the answer complete', async (t) => {
  const { gateway } = await start(t, async (request, response) => {
    await begin(completionEvents())(request, response);
    setTimeout(() => response.destroy(), 20);
  });
  assert.equal((await gateway.chat(STREAM)).text, completionEvents());
});

test('what a provider sends after [DONE] does not reach the client, in the same packet or later', async (t) => {
  const { gateway, upstream } = await start(t);
  const late = 'data: {"error":{"message":"late"}}\n\n';
  const end = CHUNK + LAST + DONE;
  for (const rest of [late, late.trimEnd(), ': bye\n', 'data: {"usa', DONE, '\n']) {
    upstream.script = (_, response) => sendEvents(response, end + rest);
    assert.equal((await gateway.chat(STREAM)).text, end, rest);
  }
  upstream.script = begin(end);
  assert.equal((await gateway.chat(STREAM)).text, end, 'the provider never ends it');
  const outcomes = gateway.accessLines().map(({ outcome }) => outcome);
  assert.deepEqual(new Set(outcomes), new Set(['ok']));
});

test('a stream whose client closes at [DONE] is logged as ok, and its upstream connection is used again', async (t) => {
  const { opened: closed, open: close } = createGate();
  const answer: Script = async (request, response) => {
    await begin(completionEvents())(request, response);
    if (upstream.requests.length === 1) await closed;
    response.end();
  };
  // Each worker has connections of its own.
  const { gateway, upstream } = await start(t, answer, '', true);
  const ports = new Set<number | undefined>();
  const { script } = upstream;
  upstream.script = (request, response) => {
    ports.add(response.socket?.remotePort);
    return script(request, response);
  };
  const chat = openChat(gateway.port);
  await eventually(() => chat.text().endsWith(DONE), '[DONE]');
  chat.leave();
  await eventually(() => gateway.accessLines().length === 1, 'the access line');
  const [line] = gateway.accessLines();
  assert.deepEqual([line?.['outcome'], line?.['status']], ['ok', 200]);
  close();
  await upstream.requests[0]?.closed;
  assert.equal((await gateway.chat(STREAM)).text, completionEvents());
  assert.equal(ports.size, 1);
});

test('a byte order mark at the start is passed on, and hides nothing', async (t) => {
  const { gateway, upstream } = await start(t);
  const mark = '\u{feff}';
  upstream.script = (_, response) => sendEvents(response, mark + completionEvents());
  assert.equal((await gateway.chat(STREAM)).text, mark + completionEvents());
  for (const end of ['\n\n', '']) {
    upstream.script = (_, response) => sendEvents(response, `${mark}data: {"error":"boom"}${end}`);
    const reply = await gateway.chat(STREAM);
    assert.equal(reply.status, 502);
    assert.deepEqual(reply.json(), { error: BOOM });
  }
  // One, and only there.
  for (const before of [mark, ': comment\n\n']) {
    upstream.script = (_, response) =>
      sendEvents(response, `${before}${mark}data: {"error":"boom"}\n\n${completionEvents()}`);
    assert.equal((await gateway.chat(STREAM)).status, 200);
  }
});

test('an answer that names no coding, in whatever way, is passed on', async (t) => {
  const { gateway, upstream } = await start(t);
  for (const coding of ['identity', 'Identity', '']) {
    upstream.script = (_, response) => {
      response.writeHead(200, {
        'content-type': 'text/event-stream',
        'content-encoding': coding,
      });
      response.end(completionEvents());
    };
    assert.equal((await gateway.chat(STREAM)).text, completionEvents(), coding);
  }
});

test('a stream that ends before its first event, or has [DONE] in its place, is a 502', async (t) => {
  const { gateway, upstream } = await start(t);
  for (const events of [DONE, `: processing\n\n${DONE}`]) {
    upstream.script = begin(events);
    assert.equal((await gateway.chat(STREAM)).status, 502, 'the provider never ends it');
  }
  for (const events of [
    '',
    '\n\n',
    ': only a comment\n\n',
    'event: message\n\n',
    'data: {"choi',
    DONE,
    DONE.trimEnd(),
    DONE + CHUNK,
  ]) {
    upstream.script = (_, response) => sendEvents(response, events);
    const reply = await gateway.chat(STREAM);
    assert.equal(reply.status, 502, JSON.stringify(events));
    assert.equal(reply.json().error.code, 'PROVIDER_ERROR');
  }
});

test('an event of 8 MiB passes byte for byte, first or later', async (t) => {
  const { gateway, upstream } = await start(t);
  const big = `data: {"choices":[{"delta":{"content":"${'\u{1F600}'.repeat(2 * MIB)}"}}]}\n\n`;
  const digest = (text: string) => createHash('sha256').update(text).digest('hex');
  for (const events of [big + CHUNK + LAST + DONE, CHUNK + big + LAST + DONE]) {
    upstream.script = (_, response) => sendEvents(response, events);
    const reply = await gateway.chat(STREAM);
    assert.equal(reply.status, 200);
    assert.equal(reply.bytes.length, Buffer.byteLength(events));
    assert.equal(digest(reply.text), digest(events));
  }
});

test('a finish_reason in an event of 8 MiB counts', async (t) => {
  const big = `data: {"choices":[{"finish_reason":"stop","delta":{"content":"${'x'.repeat(8 * MIB)}"}}]}\n\n`;
  const { gateway } = await start(t, (_, response) => sendEvents(response, CHUNK + big));
  assert.ok((await gateway.chat(STREAM)).text.slice(CHUNK.length + big.length) === DONE);
});

test('an answer that is compressed unasked is refused', async (t) => {
  const { gateway, upstream } = await start(t, (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream', 'content-encoding': 'gzip' });
    response.end(gzipSync(completionEvents()));
  });
  const reply = await gateway.chat(STREAM, { headers: { 'accept-encoding': 'gzip, br' } });
  assert.equal(upstream.requests[0]?.headers['accept-encoding'], 'identity');
  assert.equal(reply.status, 502);
  assert.equal(reply.json().error.message, 'Provider error: the answer is compressed');
});

test('an answer of the wrong kind is an error, not an empty stream', async (t) => {
  const { gateway, upstream } = await start(t, (_, response) =>
    sendJson(response, { choices: [] }),
  );
  const complete = await gateway.chat(STREAM);
  assert.equal(complete.status, 501);
  assert.equal(complete.json().error.type, 'unsupported_feature');
  assert.equal(complete.headers['x-should-retry'], 'false');

  upstream.script = (_, response) => sendJson(response, { error: { message: 'boom' } });
  assert.deepEqual((await gateway.chat(STREAM)).json(), { error: BOOM });

  upstream.script = (_, response) => sendEvents(response, completionEvents());
  const streamed = await gateway.chat(chatBody());
  assert.equal(streamed.status, 502);
  assert.equal(streamed.json().error.code, 'PROVIDER_ERROR');
});

test('a client that does not read holds the provider back', async (t) => {
  const wanted = 100 * MIB;
  const part = Buffer.from(`data: {"x":"${'y'.repeat(65_500)}"}\n\n`);
  let written = 0;
  const { gateway } = await start(t, async (request, response) => {
    await begin(CHUNK)(request, response);
    const push = () => {
      while (written < wanted) {
        written += part.length;
        if (!response.write(part)) return;
      }
    };
    response.on('drain', push);
    push();
  });
  const chat = openChat(gateway.port);
  (await chat.response).pause();
  await eventually(() => written > part.length, 'the first events');
  await untilSteady(() => written);
  chat.leave();
  assert.ok(written < 16 * MIB, `${written} bytes`);
});
