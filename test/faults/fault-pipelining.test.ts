import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { idle } from '../support/clock.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { openRaw, sendRaw, statusesOf, watchServerSide, parseReplies } from '../support/raw.ts';
import { createGate, eventually } from '../support/streams.ts';
import { completion, sendJson } from '../support/upstream.ts';
import { startHttpServer } from '../support/http-server.ts';

const MIB = 1_048_576;

/** A gateway whose provider answers when `release` has been called, and a client that writes its requests itself. */
async function start(t: TestContext) {
  const { opened, open: release } = createGate();
  const { p: upstream, gateway } = await scenario(t, {
    providers: {
      p: async ({ body }, response) => {
        await opened;
        const { model } = JSON.parse(body.toString()) as { model: string };
        sendJson(response, completion(model));
      },
    },
  });
  const client = openRaw(t, gateway.port);
  return {
    upstream,
    gateway,
    ...client,
    release,
    firstAsked: async () => eventually(() => upstream.requests.length === 1, 'the first request'),
  };
}

const chats = (count: number) =>
  Array.from({ length: count }, (_, index) => rawChat(chatBody({ model: `p/m${index}` })));
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';

/** Long enough for the gateway to do what it must not. */
const A_WHILE_MS = 100;

describe('a client that pipelines', { concurrency: 4 }, () => {
  test('10,000 chats makes the gateway hold only the first few hundred of them', async (t) => {
    const { gateway, socket, firstAsked } = await start(t);
    const own = watchServerSide(t, socket);
    socket.write(chats(10_000).join(''));
    await firstAsked();
    await idle(A_WHILE_MS);
    assert.ok(own.requests < 500, `${own.requests} requests were parsed`);
    assert.equal((await gateway.send('/health')).status, 200);
  });

  test('a body of 16 MiB waits on its own side until the answer before it is written', async (t) => {
    const { socket, release, text, firstAsked } = await start(t);
    const large = rawChat(chatBody({ model: 'p/large', padding: 'x'.repeat(16 * MIB) }));
    socket.write(rawChat(chatBody()) + large);
    await firstAsked();
    await idle(A_WHILE_MS);
    assert.ok(socket.writableLength > 0, 'the body was read');
    release();
    await eventually(() => text().includes('"large"'), 'the second answer');
    assert.equal(parseReplies(text()).length, 2);
  });

  test('a broken body behind a chat gets the answer of the chat and none for the broken one', async (t) => {
    const { socket, release, firstAsked, text, closed } = await start(t);
    const head = rawChat({}, ['transfer-encoding: chunked'])
      .replace(/content-length: \d+\r\n/, '')
      .replace('{}', '');
    socket.write(`${rawChat(chatBody())}${head}5\r\nhello\r\n`);
    await firstAsked();
    socket.write('zz\r\n');
    await idle(A_WHILE_MS);
    release();
    await closed;
    assert.deepEqual(statusesOf(text()), [200], text());
  });

  test('gets an answer to each of its requests in a drain, an error after its deadline, and Connection: close on the last', async (t) => {
    for (const status of [200, 500]) {
      const { gateway, upstream, socket, release, firstAsked, text, closed } = await start(t);
      socket.write(chats(20).join(''));
      await firstAsked();
      const drained = gateway.drain(status === 200 ? 20_000 : 50);
      if (status === 200) release();
      await drained;
      await closed;
      const replies = parseReplies(text());
      assert.deepEqual([...new Set(replies.map((one) => one.status))], [status]);
      assert.equal(replies.length, 20);
      assert.equal(upstream.requests.length, status === 200 ? 20 : 1);
      const connections = replies.map(({ headers }) => headers['connection']);
      assert.equal(connections.pop(), 'close');
      if (status === 200) assert.deepEqual([...new Set(connections)], ['keep-alive']);
    }
  });
});

test('a call that ends without an answer closes its connection', async (t) => {
  const port = await startHttpServer(t, async () => {});
  const { isClosed, text } = await sendRaw(port, HEALTH + HEALTH, { waitMs: 10_000 });
  assert.deepEqual([isClosed, text], [true, '']);
});

test('a request behind an answer that said Connection: close does not begin', async (t) => {
  const { opened, open } = createGate();
  let calls = 0;
  const port = await startHttpServer(t, async ({ reply }) => {
    calls += 1;
    reply.beginStream(200, { connection: 'close' });
    reply.write(Buffer.from('first'));
    await opened;
    reply.end();
    await reply.closed;
  });
  const { socket, text, closed } = openRaw(t, port);
  const own = watchServerSide(t, socket);
  socket.write(HEALTH);
  await eventually(() => text().includes('first'), 'the answer has begun');
  socket.write(HEALTH);
  await eventually(() => own.requests === 2, 'the second request');
  open();
  await closed;
  assert.equal(calls, 1);
});

test('a stream whose client has left before its comments begin starts no timer', async (t) => {
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
  const started = await new Promise<number>((resolve) => {
    void startHttpServer(t, async ({ reply }) => {
      await reply.closed;
      const before = timers();
      reply.keepAlive(60_000);
      resolve(timers() - before);
    }).then((port) => {
      const { socket } = openRaw(t, port);
      const own = watchServerSide(t, socket);
      socket.write(HEALTH);
      void eventually(() => own.requests === 1, 'the request').then(() => socket.destroy());
    });
  });
  assert.equal(started, 0);
});
