import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test, type TestContext } from 'node:test';

import { stopClock } from '../support/clock.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { openRaw } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { eventually } from '../support/streams.ts';
import { answerWell, failWith, type Script } from '../support/upstream.ts';

/** A clock that stands still, but for the 150 ms that each provider takes: `p`, which fails, and its fallback `q`. */
async function start(t: TestContext) {
  const clock = stopClock(t);
  const late =
    (script: Script): Script =>
    (...exchange) => {
      clock.nowMs += 150;
      return script(...exchange);
    };
  const providers = { p: late(failWith(503)), q: late(answerWell) };
  return { ...(await scenario(t, { providers, fallback: ['q'] })), clock };
}

test('Server-Timing tells the time that providers took from the time that the gateway took', async (t) => {
  const { gateway } = await start(t);
  const { headers } = await gateway.chat(chatBody());
  // Both attempts.
  assert.equal(headers['server-timing'], 'gateway;dur=0.0, upstream;dur=300.0');
});

test('Server-Timing of a refused chat completion has no upstream, and other answers have no Server-Timing', async (t) => {
  const { gateway } = await start(t);
  const refused = await gateway.chat(chatBody({ model: 'acme/m' }));
  assert.equal(refused.headers['server-timing'], 'gateway;dur=0.0');
  for (const path of ['/health', '/v1/models', '/nothing']) {
    assert.equal((await gateway.send(path)).headers['server-timing'], undefined);
  }
});

test('the upload of a request counts for neither', async (t) => {
  const { gateway, clock } = await start(t);
  const { socket, text } = openRaw(t, gateway.port);
  const request = rawChat(chatBody(), ['expect: 100-continue']);
  socket.write(request.slice(0, -50));
  // The gateway says so when it begins to read the body.
  await once(socket, 'data');
  clock.nowMs += 1000;
  socket.write(request.slice(-50));
  await eventually(() => text().includes('\r\nserver-timing:'), 'the answer');
  assert.match(text(), /\r\nserver-timing: gateway;dur=0\.0, upstream;dur=300\.0\r\n/);
});
