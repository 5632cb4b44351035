/**
 * An answer's bytes, and not its content type, decide whether it is a completion, a stream or an
 * error.
 */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { assertError, type ExpectedError } from '../support/errors.ts';
import { chatBody } from '../support/gateway.ts';

import { scenario } from '../support/scenario.ts';
import { createGate, errorAfter, eventually, lineOf, openChat } from '../support/streams.ts';
import {
  answerWell,
  CHUNK,
  completion,
  completionEvents,
  DONE,
  LAST,
  type Script,
} from '../support/upstream.ts';

const TYPES = [
  'application/json',
  'Application/JSON; charset=utf-8',
  'text/event-stream',
  'text/plain',
  'application/octet-stream',
  undefined,
];

/** Sends these bytes with this type, whole or in pieces. */
const sends = (body: string | Buffer, type?: string, pieceBytes?: number): Script => {
  const bytes = Buffer.from(body);
  return async (_, response) => {
    response.writeHead(200, type === undefined ? {} : { 'content-type': type });
    if (pieceBytes === undefined) return response.end(bytes);
    for (let at = 0; at < bytes.length; at += pieceBytes) {
      const piece = bytes.subarray(at, at + pieceBytes);
      await new Promise((resolve) => response.write(piece, resolve));
    }
    return response.end();
  };
};

const NO_STREAMING: ExpectedError = {
  httpStatus: 501,
  type: 'unsupported_feature',
  code: 'UNSUPPORTED_FEATURE',
  message: 'Provider p does not support streaming',
  headers: { 'x-gateway-provider': 'p', 'x-should-retry': 'false' },
};
const FAILED: ExpectedError = {
  httpStatus: 502,
  type: 'provider_error',
  code: 'PROVIDER_ERROR',
  provider: 'p',
  message: /^Provider error: \S/,
  headers: { 'x-gateway-provider': 'p' },
};
const EVENTS = completionEvents();
const COMPLETION = JSON.stringify(completion());
/** Streams with different beginnings, some before the first event. */
const STREAMS = [
  EVENTS,
  `\ufeff${EVENTS}`,
  `: comment\n\n${EVENTS}`,
  `event: message\n${EVENTS}`,
  `\r\n\n${EVENTS}`,
  `id: {\n${EVENTS}`,
  EVENTS.replaceAll('\n', '\r\n'),
];
const COMPLETIONS = [
  COMPLETION,
  `\ufeff${COMPLETION}`,
  ` \r\n\t${COMPLETION}\n\n`,
  JSON.stringify(completion(), null, 2).replaceAll('\n', '\n\n'),
  JSON.stringify({ error: { message: 'half' }, ...completion() }),
  `[${COMPLETION}]`,
];
const LONG = JSON.stringify(completion('x'.repeat(2_000_000)));

for (const transport of ['auto', 'fetch']) {
  describe(`over GATEWAY_UPSTREAM=${transport}`, () => {
    const env = { GATEWAY_UPSTREAM: transport };

    test('a stream passes whatever its content type, however it is split', async (t) => {
      const { gateway, p } = await scenario(t, { env });
      for (const stream of STREAMS) {
        for (const type of TYPES) {
          for (const pieceBytes of type === 'application/json'
            ? [1, 2, 5, undefined]
            : [undefined]) {
            p.script = sends(stream, type, pieceBytes);
            const reply = await gateway.chat(chatBody({ stream: true }));
            assert.equal(reply.status, 200, reply.text);
            assert.equal(reply.text, stream);
            assert.match(reply.headers['content-type']!, /^text\/event-stream/i);
          }
        }
      }
    });

    test('a completion in place of a stream is a 501, whatever its content type', async (t) => {
      const { gateway, p } = await scenario(t, { env });
      for (const [index, body] of [...COMPLETIONS, LONG].entries()) {
        for (const type of TYPES) {
          p.script = sends(body, type, type === 'text/event-stream' && index < 4 ? 3 : undefined);
          assertError(await gateway.chat(chatBody({ stream: true })), NO_STREAMING);
        }
      }
    });

    test('a completion passes whatever its content type, and a stream is a 502', async (t) => {
      const { gateway, p } = await scenario(t, { env });
      for (const type of TYPES) {
        for (const body of [...COMPLETIONS, LONG]) {
          p.script = sends(body, type);
          const reply = await gateway.chat(chatBody());
          // A byte order mark is left where it is.
          assert.ok(reply.status === 200 && reply.text.endsWith(body.slice(1)), reply.text);
          assert.match(reply.headers['content-type']!, /^application\/json/i);
        }
        for (const stream of STREAMS) {
          p.script = sends(stream, type, type === 'text/event-stream' ? 2 : undefined);
          const text = 'a stream was answered to a request for a complete answer';
          const expected = { ...FAILED, message: `Provider error: ${text}` };
          assertError(await gateway.chat(chatBody()), expected);
        }
      }
    });
  });
}

test('an endless stream in place of a completion is refused at its first byte', async (t) => {
  const { gateway, p } = await scenario(t);
  p.script = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(`\n\n${CHUNK}`);
  };
  assertError(await gateway.chat(chatBody()), FAILED);
});

test('an empty answer in place of a stream is a 502, whatever its content type', async (t) => {
  const { gateway, p } = await scenario(t);
  for (const body of ['', ' \n', '\ufeff', ': comment\n\n']) {
    for (const type of TYPES) {
      p.script = sends(body, type);
      const expected = 'Provider error: the stream ended before its first token';
      assertError(await gateway.chat(chatBody({ stream: true })), { ...FAILED, message: expected });
    }
  }
});

test('an error in a 200 without `error` falls back, also in place of a stream', async (t) => {
  const bodies = [
    '{"code":500,"msg":"404 NOT_FOUND","success":false}',
    '{"base_resp":{"status_code":1000,"status_msg":"unknown error"}}',
    '{"detail":"busy"}',
  ];
  for (const body of bodies) {
    for (const sent of [body, `data: ${body}\n\n`, `${body}\n\n`]) {
      const { gateway, p, q } = await scenario(t, {
        providers: { p: sends(sent, 'application/json'), q: answerWell },
        fallback: ['q'],
      });
      for (const stream of sent === body ? [false, true] : [true]) {
        const reply = await gateway.chat(chatBody({ stream }));
        assert.equal(reply.headers['x-gateway-provider'], 'q', sent);
      }
      assert.equal(p.requests.length, q.requests.length);
    }
  }
});

test('an empty `error`, or a message alone, is no error after the first token', async (t) => {
  const { gateway, p } = await scenario(t);
  const begin = `${CHUNK}data: {"message":"hello"}\n\n`;
  for (const empty of ['{}', '[]', 'null', 'false', '""', '[{}]']) {
    const ofChunk = (name: string) => CHUNK.replace('{"choices"', `{"${name}":${empty},"choices"`);
    const stream = begin + ofChunk('error') + ofChunk('errors') + LAST + DONE;
    for (const text of [stream, ofChunk('error') + stream]) {
      p.script = sends(text, 'text/event-stream');
      assert.equal((await gateway.chat(chatBody({ stream: true }))).text, text);
    }
  }
  p.script = sends(`${CHUNK}event: error\ndata: {}\n\n`, 'text/event-stream');
  errorAfter((await gateway.chat(chatBody({ stream: true }))).text, CHUNK);
});

test('content after a finish_reason opens its choice again', async (t) => {
  const { gateway, p } = await scenario(t);
  for (const [steps, end] of [
    [[CHUNK, LAST, CHUNK], undefined],
    // A second choice has begun and not ended.
    [[CHUNK, CHUNK.replace('"index":0', '"index":1'), LAST], undefined],
    [[CHUNK, LAST, CHUNK, LAST], DONE],
  ] as const) {
    const gates = steps.map(() => createGate());
    p.script = async (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      for (const [index, step] of steps.entries()) {
        response.write(step);
        await gates[index]!.opened;
      }
      response.end();
    };
    const client = openChat(gateway.port, chatBody({ stream: true }));
    for (const [index, gate] of gates.entries()) {
      const passed = steps.slice(0, index + 1).join('');
      await eventually(() => client.text() === passed, `step ${index}`);
      gate.open();
    }
    const text = await client.ended;
    if (end) assert.equal(text, steps.join('') + end);
    else errorAfter(text, steps.join(''));
  }
});

test('a completion in place of a stream is refused after 1 MiB, even if endless', async (t) => {
  const { gateway, p } = await scenario(t);
  p.script = (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(`{"choices":["${'x'.repeat(1_100_000)}`);
  };
  assertError(await gateway.chat(chatBody({ stream: true })), NO_STREAMING);
});

test('a page with status 200 is no cut stream', async (t) => {
  for (const page of ['<html><p>busy</p></html>', '<html>\n\n<p>busy</p>\n\n', 'Service down']) {
    for (const stream of [false, true]) {
      const { gateway } = await scenario(t, { providers: { p: sends(page, 'text/html') } });
      for (let count = 0; count < 6; count += 1) await gateway.chat(chatBody({ stream }));
      const lines = gateway.accessLines();
      assert.ok(lines.every(({ reason }) => !/cut off|closed|ended before/.test(String(reason))));
    }
  }
});

test('the lines of a page never pass as comments', async (t) => {
  const { gateway } = await scenario(t, {
    server: 'stream_keepalive = 1',
    providers: {
      p: (_, response) => {
        response.writeHead(200, { 'content-type': 'text/html' });
        response.write('<html>\n\n');
        setTimeout(() => response.end('<p>busy</p>\n\n'), 1500);
      },
    },
  });
  const { text } = await gateway.chat(chatBody({ stream: true }));
  assert.doesNotMatch(text, /</);
  assert.equal((await lineOf(gateway))['outcome'], 'upstream_error');
});

test('white space before a stream passes up to a megabyte', async (t) => {
  const script: Script = ({ body }, response) => {
    const blankBytes = body.includes('much') ? 2_097_152 : 500_000;
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.end(`${' '.repeat(blankBytes)}\n${EVENTS}`);
  };
  const { gateway } = await scenario(t, { providers: { p: script } });
  const ask = async (amount: string) => gateway.chat(chatBody({ stream: true, user: amount }));
  assertError(await ask('much'), {
    ...FAILED,
    message: 'Provider error: too much before the first token',
  });
  assert.ok((await ask('some')).text.endsWith(EVENTS));
});
