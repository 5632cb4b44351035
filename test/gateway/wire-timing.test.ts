import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, providerToml, startGateway } from '../support/gateway.ts';
import { completion, sendJson, startUpstream } from '../support/upstream.ts';

const DELAY_MS = 150;
/** A timer may fire a millisecond early. */
const LEAST_MS = DELAY_MS - 2;

/** The durations of a `Server-Timing` header, in milliseconds. */
function durationsOf(header: unknown): Record<string, number> {
  assert.match(String(header), /^\w+;dur=\d+\.\d(?:, \w+;dur=\d+\.\d)*$/);
  const pairs = String(header)
    .split(', ')
    .map((metric) => metric.split(';dur='));
  return Object.fromEntries(pairs.map(([name, ms]) => [name, Number(ms)]));
}

test('Server-Timing tells the time that providers took from the time that the gateway took', async (t) => {
  const p = await startUpstream(t, async (_, response) => {
    await sleep(DELAY_MS);
    sendJson(response, {}, { status: 503 });
  });
  const q = await startUpstream(t, async (_, response) => {
    await sleep(DELAY_MS);
    sendJson(response, completion());
  });
  const providers = providerToml(p) + providerToml(q, 'q', 'default_model = "d"');
  const gateway = await startGateway(t, { toml: `[providers]\nfallback = ["q"]\n${providers}` });
  const startedAtMs = performance.now();
  const { headers } = await gateway.chat(chatBody());
  const elapsedMs = performance.now() - startedAtMs;
  const { upstream = 0, gateway: own = -1, ...others } = durationsOf(headers['server-timing']);
  // Both attempts.
  assert.ok(upstream >= 2 * LEAST_MS, `upstream ${upstream}`);
  assert.ok(own >= 0 && own + upstream <= elapsedMs + 0.1, `gateway ${own} of ${elapsedMs}`);
  assert.deepEqual(others, {});
});

test('Server-Timing of a refused chat completion has no upstream, and other answers have no Server-Timing', async (t) => {
  const gateway = await startGateway(t, {});
  const refused = await gateway.chat(chatBody({ model: 'acme/m' }));
  assert.deepEqual(Object.keys(durationsOf(refused.headers['server-timing'])), ['gateway']);
  for (const path of ['/health', '/v1/models', '/nothing']) {
    assert.equal((await gateway.send(path)).headers['server-timing'], undefined);
  }
});

test('the upload of a request counts for neither', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const socket = connect(gateway.port, '127.0.0.1');
  const body = JSON.stringify(chatBody());
  const head = `host: x\r\nauthorization: Bearer x\r\ncontent-type: application/json\r\nconnection: close`;
  socket.write(
    `POST /v1/chat/completions HTTP/1.1\r\n${head}\r\ncontent-length: ${body.length}\r\n\r\n${body.slice(0, 9)}`,
  );
  await sleep(DELAY_MS);
  const startedAtMs = performance.now();
  socket.write(body.slice(9));
  const text = (await socket.setEncoding('latin1').toArray()).join('');
  const elapsedMs = performance.now() - startedAtMs;
  const spent = durationsOf(/\r\nserver-timing: (.*)\r\n/.exec(text)?.[1]);
  assert.ok(spent['gateway']! + spent['upstream']! <= elapsedMs + 0.1, JSON.stringify(spent));
});
