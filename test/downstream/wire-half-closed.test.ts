/**
 * Clients that close their sending side, such as `printf … | nc -N`, and clients that have left.
 */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import { chatBody, rawChat } from '../support/gateway.ts';
import { openRaw, statusesOf, watchServerSide } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { assertNoErrors, createGate, eventually, lineOf, linesOf } from '../support/streams.ts';
import { completion, sendJson } from '../support/upstream.ts';

const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';
const POST = 'POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n';
const MODELS = 'GET /v1/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer x\r\n\r\n';
const UNKNOWN = rawChat(chatBody({ model: 'nobody/m' }));
const TIMES = 50;

for (const [what, text, statuses] of [
  ['a chat without a key', `${POST}content-length: 5\r\n\r\nhello`, [401]],
  ['a chat for a provider that is not registered', UNKNOWN, [400]],
  ['a health check', HEALTH, [200]],
  ['a list of models', MODELS, [200]],
  ['a request without a Host', 'GET / HTTP/1.1\r\n\r\n', [400]],
  ['three pipelined requests', HEALTH + UNKNOWN + HEALTH, [200, 400, 200]],
  ['what is not HTTP', 'hello\r\n\r\n', [400]],
  ['a request and what is not HTTP', `${HEALTH}hello\r\n\r\n`, [200, 400]],
  ['half of a head', 'GET /hea', [400]],
  ['a request and half of a head', `${HEALTH}GET /hea`, [200, 400]],
  [
    'two requests and half of a body',
    `${HEALTH.repeat(2)}${POST}content-length: 5\r\n\r\nhe`,
    [200, 200, 400],
  ],
] as const) {
  test(`${what} is answered although its client half-closes at once, ${TIMES} times`, async (t) => {
    const { gateway } = await scenario(t);
    const replies = await Promise.all(
      Array.from({ length: TIMES }, async () => {
        const client = openRaw(t, gateway.port, { allowHalfOpen: true });
        client.socket.end(text);
        client.socket.once('end', () => client.socket.destroy());
        await client.closed;
        return statusesOf(client.text());
      }),
    );
    for (const reply of replies) assert.deepEqual(reply, statuses);
    assertNoErrors(gateway);
  });
}

for (const [what, more] of [
  ['', ''],
  [' behind half of a next request', 'GET /health HT'],
] as const) {
  test(`a client that half-closes${what} while a provider works has left`, async (t) => {
    const { opened, open } = createGate();
    t.after(open);
    const { gateway, p } = await scenario(t, { providers: { p: () => opened } });
    const { socket, closed, text } = openRaw(t, gateway.port, { allowHalfOpen: true });
    socket.write(rawChat(chatBody()));
    await eventually(() => p.requests.length === 1, 'the provider is asked');
    socket.end(more);
    socket.once('end', () => socket.destroy());
    await closed;
    await p.requests[0]!.closed;
    const { outcome } = await lineOf(gateway);
    assert.deepEqual([outcome, text(), gateway.lines('broken request')], ['client_closed', '', []]);
  });
}

test('a client that half-closes and reads no more of its stream has left', async (t) => {
  const part = Buffer.alloc(1_000_000, `data: ${'x'.repeat(90)}\n\n`);
  const { gateway, p } = await scenario(t, {
    // Longer than the test: only the half-close ends the stream.
    clientTimeLimits: { sendTimeoutMs: 600_000 },
    providers: {
      p: async ({ closed }, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        while (!response.destroyed) {
          if (!response.write(part)) await Promise.race([once(response, 'drain'), closed]);
        }
      },
    },
  });
  const { socket } = openRaw(t, gateway.port, { allowHalfOpen: true });
  const own = watchServerSide(t, socket);
  socket.pause();
  socket.write(rawChat(chatBody({ stream: true })));
  await eventually(() => own.socket !== undefined && own.socket.writableLength > 0, 'no room');
  socket.end();
  await eventually(() => own.socket!.readableEnded, 'the end of the sending side');
  assert.ok(own.socket!.destroyed);
  await p.requests[0]!.closed;
  assert.equal((await lineOf(gateway))['outcome'], 'client_closed');
});

test('a chat whose client has half-closed before its turn reaches no provider', async (t) => {
  const { opened, open } = createGate();
  t.after(open);
  const { gateway, p } = await scenario(t, {
    providers: {
      p: async ({ url }, response) => {
        if (url === '/v1/models') await opened;
        sendJson(response, url === '/v1/models' ? { data: [] } : completion());
      },
    },
  });
  const { socket, closed, text } = openRaw(t, gateway.port, { allowHalfOpen: true });
  const own = watchServerSide(t, socket);
  socket.end(MODELS + rawChat(chatBody()));
  await eventually(() => own.socket?.readableEnded === true, 'the end of the sending side');
  open();
  await eventually(() => text().includes('200 OK') || socket.destroyed, 'the list of models');
  assert.match(text(), /200 OK/);
  const [, line] = await linesOf(gateway, 2);
  socket.destroy();
  await closed;
  assert.equal(line?.['outcome'], 'client_closed');
  assert.deepEqual(
    p.requests.map(({ url }) => url),
    ['/v1/models'],
  );
});

test('an upload refused before its end is answered although its client half-closes', async (t) => {
  const { gateway } = await scenario(t, { clientTimeLimits: { lingerCheckMs: 10_000 } });
  for (let time = 0; time < TIMES; time += 1) {
    const { socket, closed, text } = openRaw(t, gateway.port, { allowHalfOpen: true });
    socket.end(`${POST}content-length: 5\r\n\r\nhe`);
    socket.once('end', () => socket.destroy());
    await closed;
    assert.deepEqual(statusesOf(text()), [401]);
  }
});
