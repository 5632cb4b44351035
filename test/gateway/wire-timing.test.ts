import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, startGateway, rawChat } from '../support/gateway.ts';
import { answerWell, failWith, type Script } from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';

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
  const late =
    (script: Script): Script =>
    async (...exchange) => {
      await sleep(DELAY_MS);
      return script(...exchange);
    };
  const providers = { p: late(failWith(503)), q: late(answerWell) };
  const { gateway } = await scenario(t, { providers, fallback: ['q'] });
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
  const { gateway } = await scenario(t);
  const socket = connect(gateway.port, '127.0.0.1');
  const request = rawChat(chatBody(), ['connection: close']);
  socket.write(request.slice(0, -50));
  await sleep(DELAY_MS);
  const startedAtMs = performance.now();
  socket.write(request.slice(-50));
  const text = (await socket.setEncoding('latin1').toArray()).join('');
  const elapsedMs = performance.now() - startedAtMs;
  const spent = durationsOf(/\r\nserver-timing: (.*)\r\n/.exec(text)?.[1]);
  assert.ok(spent['gateway']! + spent['upstream']! <= elapsedMs + 0.1, JSON.stringify(spent));
});
