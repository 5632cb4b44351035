/** Ways of leaving on real sockets. In the worlds, clients leave in every phase of a request. */

import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { test } from 'node:test';

import { chatBody, rawChat } from '../support/gateway.ts';
import { openRaw } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { assertNoErrors, eventually, lineOf } from '../support/streams.ts';
import { beginStream, CHUNK } from '../support/upstream.ts';

const WAYS: Record<string, (client: Socket) => unknown> = {
  closing: (client) => client.end(),
  'a reset': (client) => client.resetAndDestroy(),
  'closing behind half of a next request': (client) => client.end('GET /health HT'),
};

for (const [how, leave] of Object.entries(WAYS)) {
  test(`a client that leaves inside an event by ${how} cancels everything quietly`, async (t) => {
    const script = beginStream(CHUNK + CHUNK.slice(0, 20));
    const { gateway, p } = await scenario(t, { providers: { p: script } });
    const { socket, text } = openRaw(t, gateway.port);
    socket.write(rawChat(chatBody({ stream: true })));
    await eventually(() => text().includes('"content":"a"'), 'the first event');
    leave(socket);
    const { level, outcome } = await lineOf(gateway);
    assert.deepEqual([level, outcome], ['info', 'client_closed']);
    await p.requests[0]!.closed;
    assert.equal(gateway.reservedBytes(), 0);
    assertNoErrors(gateway);
  });
}

test('a client that resets its connection inside its body has left', async (t) => {
  const { gateway, p } = await scenario(t);
  const { socket } = openRaw(t, gateway.port);
  socket.write(rawChat(chatBody()).slice(0, -10));
  await eventually(() => gateway.reservedBytes() > 0, 'the body has begun');
  socket.resetAndDestroy();
  const { level, outcome } = await lineOf(gateway);
  assert.deepEqual([level, outcome, p.requests.length], ['info', 'client_closed', 0]);
});
