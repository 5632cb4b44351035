/** Events above 256 KiB: image models send pictures of 20 MB and more in one event. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { before, test } from 'node:test';

import { idle } from '../support/clock.ts';
import { chatBody, providerToml, STREAM } from '../support/gateway.ts';
import { assertStops, buildOnce, emptyFolder, ROOT, startServing } from '../support/process.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { scenario } from '../support/scenario.ts';
import { eventually, linesOf } from '../support/streams.ts';
import {
  beginStream,
  CHUNK,
  DONE,
  LAST,
  sendEvents,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

before(buildOnce);

const MIB = 1_048_576;
const hashOf = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');

/** Returns an event of this length with a picture. */
function pictureEvent(bytes: number): Buffer {
  const head = Buffer.from('data: {"choices":[{"index":0,"delta":{"image":"');
  const tail = Buffer.from('"}}]}\n\n');
  return Buffer.concat([head, Buffer.alloc(bytes - head.length - tail.length, 'QUJD'), tail]);
}

/** Sends the events in pieces of this length. */
function inPieces(events: Buffer, pieceBytes: number): Script {
  return async (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    for (let at = 0; at < events.length; at += pieceBytes) {
      if (!response.write(events.subarray(at, at + pieceBytes))) await once(response, 'drain');
    }
    response.end();
  };
}

/** Asks for a stream. Resolves with the response's head. */
async function openStream(port: number): Promise<IncomingMessage> {
  const headers = { authorization: 'Bearer x', 'content-type': 'application/json' };
  const options = {
    host: '127.0.0.1',
    port,
    path: '/v1/chat/completions',
    method: 'POST',
    headers,
  };
  const request = httpRequest(options).end(JSON.stringify(STREAM));
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  return response;
}

/** Asks for a stream. Returns the answer's length and hash. */
async function digestOf(port: number): Promise<{ bytes: number; hash: string }> {
  const response = await openStream(port);
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    hash.update(chunk);
    bytes += chunk.length;
  }
  return { bytes, hash: hash.digest('hex') };
}

for (const [mib, pieceBytes] of [
  [20, 65_536],
  [60, 65_536],
  // The gateway joins such short pieces.
  [20, 1500],
] as const) {
  test(`an event of ${mib} MiB in pieces of ${pieceBytes} bytes is copied twice`, async (t) => {
    const events = Buffer.concat([pictureEvent(mib * MIB), Buffer.from(LAST + DONE)]);
    const { baseUrl } = await startUpstream(t, inPieces(events, pieceBytes));
    const settings = `[server]\nmax_buffered_bytes = ${128 * MIB}\n${providerToml({ baseUrl })}`;
    const cwd = emptyFolder(t, { 'gateway.toml': settings });
    const countFile = join(cwd, 'count.json');
    const probe = join(ROOT, 'test', 'support', 'copy-count.mjs');
    const env = {
      GATEWAY_PORT: '0',
      COPY_COUNT_FILE: countFile,
      NODE_OPTIONS: `--import=${probe}`,
    };
    const gateway = await startServing(t, [], { cwd, env });
    assert.deepEqual(await digestOf(gateway.port), { bytes: events.length, hash: hashOf(events) });
    await assertStops(gateway);
    const counted = readFileSync(countFile, 'utf8');
    const { bytes, maxBytesInTurn } = JSON.parse(counted) as Record<string, number>;
    assert.ok(bytes! >= events.length && bytes! < 2 * events.length + MIB, counted);
    assert.ok(maxBytesInTurn! < MIB, counted);
  });
}

test('an open stream keeps no byte of its first event', async (t) => {
  const event = pictureEvent(8 * MIB);
  const { gateway } = await scenario(t, { providers: { p: beginStream(event) } });
  const held = createMemoryProbe('buffers');
  const heldBefore = held();
  const response = await openStream(gateway.port);
  t.after(() => response.destroy());
  let bytes = 0;
  response.on('data', (chunk: Buffer) => (bytes += chunk.length)).on('error', () => {});
  await eventually(() => bytes === event.length, 'the client has the event');
  // Other tests' garbage and the sockets' buffers take some collections.
  for (let round = 0; round < 20 && held() - heldBefore >= MIB; round += 1) await idle(100);
  assert.ok(held() - heldBefore < MIB, 'the event is kept');
});

const usage = { prompt_tokens: 3, completion_tokens: 4 };
const data = (json: object) => `data: ${JSON.stringify(json)}\n\n`;
const choice = (more: object, index = 0) => ({ index, delta: { content: 'a' }, ...more });
const stop = { finish_reason: 'stop' };

/** Streams with `x` in an event, which is empty or long. */
const STREAMS: Readonly<Record<string, (x: string) => string>> = {
  'content, and the end behind it': (x) => data({ choices: [choice({ x })] }) + LAST + DONE,
  'a model, a finish_reason and a usage': (x) =>
    data({ x, model: 'm-1', choices: [choice(stop)], usage }) + DONE,
  'a usage first': (x) => data({ usage, choices: [choice(stop)], x }) + DONE,
  'a usage over several lines': (x) =>
    `: c\nid: 1\ndata: {"x":"${x}",\ndata:"choices":[{"finish_reason":"length"}],` +
    '"usage":{\ndata: "prompt_tokens": 7\ndata: }}\n\n',
  'a finish_reason without [DONE]': (x) => data({ choices: [choice(stop)], x }),
  'a finish_reason of another choice': (x) => data({ choices: [choice(stop, 1)], x }) + LAST,
  'a finish_reason of one choice of two': (x) =>
    data({ x, choices: [choice(stop), choice({}, 1)] }),
  'a finish_reason of both choices': (x) => data({ x, choices: [choice(stop), choice(stop, 1)] }),
  'no finish_reason': (x) => data({ choices: [choice({ finish_reason: 'null', x })] }),
  'an end without a blank line': (x) => data({ x, choices: [choice(stop)] }).trimEnd(),
  'an end with half a blank line': (x) => data({ x, choices: [choice(stop)] }).slice(0, -1),
  'a cut': (x) => LAST + data({ x, choices: [] }).slice(0, -4),
  'an error': (x) => data({ error: { message: 'boom', x } }) + LAST,
  'an event that is named error': (x) => `event: error\ndata: {"x":"${x}"}\n\n${LAST}`,
  'an event that was named error': (x) =>
    `event:error\nevent: errors\ndata: {"x":"${x}"}\n\n${LAST}`,
  'a field `error`': (x) => `error: {"message":"boom","x":"${x}"}\n\n${LAST}`,
  'a field `error` behind data': (x) => `data: {"x":"${x}"}\nerror: {"message":"boom"}\n\n${LAST}`,
  'an error on a line of its own': (x) => `data: {"x":"${x}"}\n{"error":"boom"}\n\n${LAST}`,
  'no JSON, and blank lines': (x) => `data: no ${x}\n\n\n${LAST}${DONE}`,
  'a comment inside an event': (x) => `data: {"a":\n: ${x}\ndata: 1}\n\n${LAST}${DONE}`,
  'a comment': (x) => `: ${x}\n${LAST}${DONE}: behind\n`,
  'a comment inside a preamble': (x) =>
    `id: 1\n: ${x}\ndata: {"choices":[{"delta":{"role":"assistant"}}]}\n\n` +
    data({ error: 'boom' }),
  'a comment beside [DONE]': (x) => `${LAST}id: 1\n: ${x}\ndata: [DONE]\n\n${CHUNK}`,
  'blanks behind [DONE]': (x) => `${LAST}data: [DONE]${x.replaceAll('x', ' ')}\n\n${CHUNK}`,
};
const LONG = 'x'.repeat(300_000);

test('an event above 256 KiB is judged like a short event, with each line end', async (t) => {
  const { gateway, p } = await scenario(t);
  let count = 0;
  const judge = async (stream: string) => {
    p.script = (_, response) => sendEvents(response, stream);
    const { status, text } = await gateway.chat(chatBody({ stream: true }));
    count += 1;
    const lines = await linesOf(gateway, count);
    const { outcome, finish_reason, prompt_tokens, response_model } = lines.at(-1)!;
    const told = text.replaceAll(LONG, '').replaceAll(' '.repeat(LONG.length), '');
    return { status, told, outcome, finish_reason, prompt_tokens, response_model };
  };
  for (const [what, stream] of Object.entries(STREAMS)) {
    for (const lineEnd of ['\n', '\r\n', '\r']) {
      for (const begun of ['', '\ufeff', CHUNK]) {
        const [short, long] = ['', LONG].map((x) => (begun + stream(x)).replaceAll('\n', lineEnd));
        const where = JSON.stringify([what, lineEnd, begun]);
        assert.deepEqual(await judge(long!), await judge(short!), where);
      }
    }
  }
});
