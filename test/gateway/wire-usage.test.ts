import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { test, type TestContext } from 'node:test';

import { useManualTimers } from '../support/clock.ts';
import { STREAM } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually, openChat } from '../support/streams.ts';
import { sweep } from '../support/sweep.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  sendEvents,
  type Script,
  LAST,
  DONE,
} from '../support/upstream.ts';

const COUNTS = '"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}';
const USAGE = `data: {"choices":[],${COUNTS}}\n\n`;
const ON = 'stream_usage = true';

/** Starts a gateway that asks `p` for the usage of streams. */
async function start(t: TestContext, script: Script | string = answerWell) {
  const events: Script = (_, response) => sendEvents(response, script as string);
  const p = { script: typeof script === 'string' ? events : script, lines: ON };
  return scenario(t, { providers: { p } });
}

/** Writes the bytes in pieces, each as its own chunk. */
async function writeCut(response: ServerResponse, bytes: Buffer, places: readonly number[]) {
  for (const [index, from] of [0, ...places].entries()) {
    await new Promise((done) => response.write(bytes.subarray(from, places[index]), done));
  }
}

const NULLED = CHUNK.replace(/\}\n\n$/, ',"usage":null}\n\n');
const BOTH = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],${COUNTS}}\n\n`;
for (const [what, events, seen] of [
  ['a chunk that has choices too', CHUNK + BOTH + DONE, CHUNK + BOTH + DONE],
  ['a chunk without a usage', `data: {"choices":[]}\n\n${CHUNK}${LAST}${DONE}`, undefined],
  [
    'a chunk whose usage is null',
    `data: {"choices":[],"usage":null}\n\n${CHUNK}${LAST}${USAGE}${DONE}`,
    `data: {"choices":[],"usage":null}\n\n${CHUNK}${LAST}${DONE}`,
  ],
  [
    'a comment before it, and lines with carriage returns',
    `${CHUNK}${LAST}: a\r\n${USAGE.replaceAll('\n', '\r\n')}: b\n\n${DONE}`,
    `${CHUNK}${LAST}: a\r\n: b\n\n${DONE}`,
  ],
  [
    'choices that are null, over several lines, after a byte order mark',
    `\ufeffdata: {"choices":null,\ndata: ${COUNTS}}\n\n${CHUNK}${LAST}${DONE}`,
    `\ufeff${CHUNK}${LAST}${DONE}`,
  ],
  [
    'null as the usage of every other chunk',
    `${NULLED}${LAST}${USAGE}${DONE}`,
    `${NULLED}${LAST}${DONE}`,
  ],
  ['a usage in every chunk', `${BOTH}${USAGE}${BOTH}${USAGE}${DONE}`, `${BOTH}${BOTH}${DONE}`],
  ['no [DONE]', CHUNK + LAST + USAGE, CHUNK + LAST + DONE],
  ['no blank line behind it', CHUNK + LAST + USAGE.trimEnd(), CHUNK + LAST + DONE],
  ['a line feed behind it', `${CHUNK}${LAST}${USAGE.trimEnd()}\n`, CHUNK + LAST + DONE],
  ['a carriage return behind it', `${CHUNK}${LAST}${USAGE.trimEnd()}\r`, CHUNK + LAST + DONE],
  ['CR LF behind it', `${CHUNK}${LAST}${USAGE.trimEnd()}\r\n`, CHUNK + LAST + DONE],
  [
    'text that only quotes one',
    CHUNK.replace('"a"', JSON.stringify(USAGE)) + LAST + DONE,
    undefined,
  ],
  ...[
    '"latency_checkpoint":{"engine_ttft_ms":5}',
    '"sla_metrics":{"ttft_ms":5},"service_tier":null',
    '"timings":{"predicted_n":5}',
    '"x_groq":{"id":"r"}',
    '"citations":["http://x"],"error":null',
  ].map((own) => {
    const chunk = `data: {"choices":[],${own},${COUNTS}}\n\n`;
    return [own, CHUNK + LAST + chunk + DONE, CHUNK + LAST + DONE] as const;
  }),
] as const) {
  test(`only the chunk of usage is removed, from one piece and from nine: ${what}`, async (t) => {
    const bytes = Buffer.from(events);
    const { gateway, p } = await start(t);
    for (const pieces of [1, 9]) {
      const size = Math.ceil(bytes.length / pieces);
      const places = Array.from({ length: pieces - 1 }, (_, index) => (index + 1) * size);
      p.script = async (_, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        await writeCut(response, bytes, places);
        response.end();
      };
      assert.equal((await gateway.chat(STREAM)).text, seen ?? events);
    }
  });
}

const AZURE =
  'data: {"choices":[],"created":1,"id":"","latency_checkpoint":{"a_ms":5},' +
  `"object":"chat.completion.chunk",${COUNTS}}\n\n`;

test('the chunk of usage goes with its own line end, wherever the stream is cut', async (t) => {
  // A slow machine must not give up the wait for a late line feed.
  useManualTimers(t);
  const { gateway, p } = await start(t);
  for (const lineEnd of ['\n', '\r', '\r\n']) {
    const withEnds = (text: string) => text.replaceAll('\n', lineEnd);
    const before = withEnds(CHUNK + LAST);
    const rest = Buffer.from(withEnds(`${AZURE}: bye\n${DONE}`));
    const places = [...rest.keys()].slice(1);
    const each = places.filter((place) => place % sweep(1, 4) === 0).map((place) => [place]);
    const cuts = lineEnd === '\r\n' ? [places, ...each] : [places];
    for (const cut of cuts) {
      const { opened: seen, open: see } = createGate();
      p.script = async (request, response) => {
        await beginStream(before)(request, response);
        await seen;
        await writeCut(response, rest, cut);
        response.end();
      };
      const chat = openChat(gateway.port);
      // Wait, because pieces are joined until the client reads.
      await eventually(() => chat.text() === before, 'the first events');
      see();
      assert.equal(await chat.ended, before + withEnds(`: bye\n${DONE}`), `cut at ${cut.join()}`);
    }
  }
});

test('a chunk of usage alone is no answer, with or without stream_usage', async (t) => {
  const error = 'data: {"error":{"message":"busy","code":503}}\n\n';
  for (const lines of [ON, '']) {
    const { gateway, p } = await scenario(t, { providers: { p: { lines } } });
    for (const [events, status] of [
      [USAGE + error, 503],
      [USAGE + DONE, 502],
      [AZURE + DONE, 502],
      [USAGE, 502],
    ] as const) {
      p.script = (_, response) => sendEvents(response, events);
      assert.equal((await gateway.chat(STREAM)).status, status, events);
    }
    p.script = (_, response) => sendEvents(response, USAGE + CHUNK + LAST + DONE);
    const { text } = await gateway.chat(STREAM);
    assert.equal(text, (lines === '' ? USAGE : '') + CHUNK + LAST + DONE);
  }
});
