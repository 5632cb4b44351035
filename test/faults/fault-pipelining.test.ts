import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { idle } from '../support/clock.ts';
import { chatBody, rawChat } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { openRaw, sendRaw, statusesOf, watchServerSide, parseReplies } from '../support/raw.ts';
import { createGate, eventually, lineOf } from '../support/streams.ts';
import { completion, sendJson } from '../support/upstream.ts';
import { startHttpServer } from '../support/http-server.ts';

const MIB = 1_048_576;

/** A gateway whose provider answers when `release` has been called, and a client that writes its requests itself. */
async function start(t: TestContext) {
  const { opened, open: release } = createGate();
  let active = 0;
  let mostActive = 0;
  const { p: upstream, gateway } = await scenario(t, {
    providers: {
      p: async ({ body }, response) => {
        active += 1;
        mostActive = Math.max(mostActive, active);
        await opened;
        const { model } = JSON.parse(body.toString()) as { model: string };
        sendJson(response, completion(model));
        active -= 1;
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
    mostActive: () => mostActive,
  };
}

const chats = (count: number) =>
  Array.from({ length: count }, (_, index) => rawChat(chatBody({ model: `p/m${index}` })));
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';

/** Long enough for the gateway to do what it must not. */
const A_WHILE_MS = 100;

describe('a client that pipelines', { concurrency: 4 }, () => {
  test('100 chats has one at a time upstream, and gets the answers in order', async (t) => {
    const { upstream, socket, release, text, mostActive, firstAsked } = await start(t);
    socket.write(chats(100).join(''));
    await firstAsked();
    await idle(A_WHILE_MS);
    assert.equal(upstream.requests.length, 1);
    release();
    await eventually(() => text().match(/"choices"/g)?.length === 100, 'every answer');
    const models = parseReplies(text()).map(({ body }) => /"content":"m(\d+)"/.exec(body)?.[1]);
    assert.deepEqual(models, Object.keys(models));
    assert.equal(mostActive(), 1);
  });

  test('10,000 chats makes the gateway hold only the first few hundred of them', async (t) => {
    const { gateway, socket, firstAsked } = await start(t);
    const own = watchServerSide(t, socket);
    socket.write(chats(10_000).join(''));
    await firstAsked();
    await idle(A_WHILE_MS);
    assert.ok(own.requests < 500, `${own.requests} requests were parsed`);
    assert.equal((await gateway.send('/health')).status, 200);
  });

  test('a chat with Expect: 100-continue is not asked for its body before the answer before it', async (t) => {
    const { socket, release, text, firstAsked } = await start(t);
    const body = JSON.stringify(chatBody({ model: 'p/second' }));
    const head = rawChat(chatBody({ model: 'p/second' }), ['expect: 100-continue']);
    socket.write(rawChat(chatBody()) + head.slice(0, -body.length));
    await firstAsked();
    await idle(A_WHILE_MS);
    assert.equal(text(), '');
    release();
    await eventually(() => text().includes('100 Continue'), 'the second body is asked for');
    socket.write(body);
    await eventually(() => text().includes('"second"'), 'the second answer');
    assert.deepEqual(statusesOf(text()), [200, 100, 200]);
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

  test('HEAD and HTTP/1.0 requests behind a chat gets each answer in its turn', async (t) => {
    const { socket, release, firstAsked, text, closed } = await start(t);
    const head = HEALTH.replace('GET', 'HEAD');
    const last = HEALTH.replace('HTTP/1.1', 'HTTP/1.0');
    const kept = last.replace('host: a', 'connection: keep-alive');
    socket.write(rawChat(chatBody()) + head + kept + last);
    await firstAsked();
    assert.equal(text(), '');
    release();
    await closed;
    assert.equal(text().match(/HTTP\/1\.1 200/g)?.length, 4, text());
    assert.equal(text().match(/\{"status":"healthy"/g)?.length, 2, text());
  });

  test('garbage behind two chats gets both answers, the second with Connection: close', async (t) => {
    const { socket, release, firstAsked, text, closed } = await start(t);
    socket.write(`${chats(2).join('')}canary\r\n\r\n`);
    await firstAsked();
    release();
    await closed;
    const replies = parseReplies(text());
    const ends = replies.map(({ status, headers }) => `${status} ${headers['connection']}`);
    assert.deepEqual(ends, ['200 keep-alive', '200 close']);
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

  test('and leaves during the first request cancels it, and none of the others begins', async (t) => {
    const { gateway, upstream, socket, firstAsked } = await start(t);
    socket.write(chats(3).join(''));
    await firstAsked();
    socket.destroy();
    assert.equal((await lineOf(gateway))['outcome'], 'client_closed');
    await upstream.requests[0]!.closed;
    await idle(A_WHILE_MS);
    assert.equal(upstream.requests.length, 1);
    assert.equal(gateway.accessLines().length, 1);
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
