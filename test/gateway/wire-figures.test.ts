/** The figures of line, headers and metrics, each against the clock of the test. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { stopClock } from '../support/clock.ts';
import { parseMetrics } from '../support/exposition.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { openRaw, parseReplies } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { eventually, lineOf, linesOf } from '../support/streams.ts';
import {
  beginStream,
  CHUNK,
  completion,
  failWith,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const ADMIN = '[admin]\nport = 0\n';
const LONG = 'y'.repeat(16_000_000);

test('a stream from the third provider has the times of all its tries', async (t) => {
  const clock = stopClock(t);
  /** Runs the script when so much time has passed. */
  const after =
    (ms: number, script: Script): Script =>
    (request, response) => {
      clock.nowMs += ms;
      return script(request, response);
    };
  let end = () => {};
  const streams: Script = async (request, response) => {
    await beginStream(CHUNK)(request, response);
    end = () => void response.end('data: [DONE]\n\n');
  };
  const { gateway } = await scenario(t, {
    providers: {
      p: after(100, failWith(503)),
      q: after(200, failWith(429)),
      r: after(400, streams),
    },
    fallback: ['q', 'r'],
    more: `${ADMIN}[logging]\nverbose = true\n`,
  });
  const { socket, text } = openRaw(t, gateway.port);
  const bytes = rawChat(chatBody({ stream: true }));
  socket.write(bytes.slice(0, -5));
  await eventually(() => gateway.reservedBytes() > 0, 'the upload');
  clock.nowMs += 50;
  socket.write(bytes.slice(-5));
  await eventually(() => text().includes('Hel') || text().includes('data:'), 'the first token');
  clock.nowMs += 3000;
  end();
  const line = await lineOf(gateway);
  const { bytes: sentBytes, duration_ms, first_byte_ms, provider } = line;
  assert.equal(line['request_bytes'], bytes.length - bytes.indexOf('\r\n\r\n') - 4);
  assert.deepEqual([provider, first_byte_ms, duration_ms], ['r', 750, 3750]);
  const tries = line['tries'] as { provider: string; duration_ms: number }[];
  assert.deepEqual(
    tries.map((one) => [one.provider, one.duration_ms]),
    [
      ['p', 100],
      ['q', 200],
      ['r', 400],
    ],
  );
  await eventually(() => text().endsWith('0\r\n\r\n'), 'the end');
  const [reply] = parseReplies(text());
  assert.equal(sentBytes, reply!.body.length);
  assert.equal(reply!.headers['server-timing'], 'gateway;dur=0.0, upstream;dur=700.0');
  assert.equal(reply!.headers['x-gateway-tries'], '3');
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_processing_seconds_count'), 1);
  assert.equal(sum('gateway_processing_seconds_sum'), 0);
  assert.equal(sum('gen_ai_server_request_duration_seconds_sum'), 3.75);
  assert.equal(sum('gen_ai_server_time_to_first_token_seconds_sum'), 0.75);
});

test('an answer that its client reads late has its first byte at the provider\u2019s answer', async (t) => {
  const clock = stopClock(t);
  const { gateway } = await scenario(t, {
    providers: {
      p: (_, response) => {
        clock.nowMs += 300;
        sendJson(response, { choices: [], x: LONG });
      },
    },
    more: ADMIN,
  });
  const { socket } = openRaw(t, gateway.port);
  socket.pause();
  socket.write(rawChat(chatBody()));
  const read = async () => parseMetrics((await gateway.admin('/metrics')).text).sum;
  const isAtProvider = async () => (await read())('gateway_provider_requests_in_flight') === 1;
  await eventually(async () => clock.nowMs > 1000 && !(await isAtProvider()), 'the whole answer');
  clock.nowMs += 7000;
  socket.resume();
  const { first_byte_ms, duration_ms, tries } = await lineOf(gateway);
  assert.deepEqual([first_byte_ms, duration_ms], [300, 7300]);
  assert.deepEqual(
    (tries as { duration_ms: number }[]).map((one) => one.duration_ms),
    [300],
  );
  const sum = await read();
  assert.equal(sum('gateway_processing_seconds_sum'), 0);
  assert.equal(sum('gen_ai_server_request_duration_seconds_sum'), 7.3);
});

test('the line has the model and the id of the try whose answer or error the client got', async (t) => {
  const ids = ['p', 'q', 'r'];
  const { gateway, q } = await scenario(t, {
    providers: Object.fromEntries(
      ids.map((id) => [
        id,
        {
          script: failWith(503, { headers: { 'x-request-id': `of-${id}` } }),
          lines: `default_model = "model-of-${id}"`,
        },
      ]),
    ),
    fallback: ids,
  });
  const told = async (count: number) => {
    const lines = await linesOf(gateway, count);
    const { provider, upstream_model, upstream_request_id } = lines.at(-1)!;
    return [provider, upstream_model, upstream_request_id];
  };
  await gateway.chat(chatBody({ model: 'p' }));
  assert.deepEqual(await told(1), ['p', 'model-of-p', 'of-p'], 'all have failed');
  q!.script = (_, response) =>
    sendJson(response, completion(), { headers: { 'x-request-id': 'of-q' } });
  await gateway.chat(chatBody({ model: 'p' }));
  assert.deepEqual(await told(2), ['q', 'model-of-q', 'of-q']);
  await gateway.send('/v1/models');
  await told(3);
  assert.equal(gateway.accessLines()[2]!['finish_reason'], undefined, 'it is no completion');
});

test('an answer to HEAD has the length of its body, and its line no bytes', async (t) => {
  const { gateway } = await scenario(t, { more: '[logging]\nlevel = "debug"\n' });
  for (const method of ['GET', 'HEAD', 'GET']) await gateway.send('/health', { method });
  const lines = await linesOf(gateway, 3);
  const [bytes] = lines.map((line) => line['bytes']);
  assert.ok(Number(bytes) > 0);
  assert.deepEqual(
    lines.map((line) => line['bytes']),
    [bytes, 0, bytes],
  );
});

test('a request that was refused unread is no processed request', async (t) => {
  const { gateway } = await scenario(t, { more: ADMIN });
  await gateway.chat('{}', { headers: { authorization: undefined } });
  await gateway.chat('no JSON');
  await gateway.send('/v1/models');
  await gateway.send('/nothing');
  const sum = async () => parseMetrics((await gateway.admin('/metrics')).text).sum;
  const before = (await sum())('gateway_processing_seconds_count');
  await gateway.chat(chatBody());
  await eventually(
    async () => (await sum())('gateway_processing_seconds_count') === before + 1,
    'the answer',
  );
  assert.equal(before, 1, 'the body that is no JSON was read');
});
