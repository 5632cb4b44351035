import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { describe, test, type TestContext } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { idle } from '../support/clock.ts';
import { chatBody, rawChat, triesOf } from '../support/gateway.ts';
import { createMemoryProbe } from '../support/memory.ts';
import {
  buildOnce,
  emptyFolder,
  type Program,
  SERVER,
  startCommand,
  untilServing,
} from '../support/process.ts';
import { scenario } from '../support/scenario.ts';
import { openRaw, sendRaw, statusesOf, watchServerSide, parseReplies } from '../support/raw.ts';
import { createGate, eventually, lineOf, linesOf } from '../support/streams.ts';
import { completion, sendJson, type Script } from '../support/upstream.ts';
import { responseClosed, startHttpServer } from '../support/http-server.ts';

const MIB = 1_048_576;

/** Starts a gateway whose provider answers after `release`, and a client on a raw connection. */
async function start(t: TestContext, server = '') {
  const { opened, open: release } = createGate();
  t.after(release);
  const { p: upstream, gateway } = await scenario(t, {
    server,
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
    firstAsked: async () =>
      eventually(() => {
        assert.ok(!client.socket.destroyed, 'the connection is closed');
        return upstream.requests.length === 1;
      }, 'the first request'),
  };
}

const chats = (count: number) =>
  Array.from({ length: count }, (_, index) => rawChat(chatBody({ model: `p/m${index}` })));
const HEALTH = 'GET /health HTTP/1.1\r\nhost: a\r\n\r\n';

/** Enough time for a wrong gateway to show its defect. */
const A_WHILE_MS = 100;

describe('a client that pipelines', { concurrency: 4 }, () => {
  test('more than 100 requests in one read has its connection closed', async (t) => {
    const { gateway, p } = await scenario(t);
    const { socket, closed, text } = openRaw(t, gateway.port);
    const own = watchServerSide(t, socket);
    socket.write('GET / HTTP/1.1\r\n\r\n'.repeat(3640));
    await closed;
    // The answered request, 100 waiting requests, and the first beyond the limit.
    assert.deepEqual([own.requests, text(), p.requests.length], [102, '', 0]);
    const [line, ...others] = gateway.lines('broken request');
    assert.equal(line?.['reason'], 'Invalid request: more than 100 pipelined requests wait');
    assert.deepEqual(others, []);
    assert.equal(gateway.accessLines().length, 1);
    assert.equal((await gateway.send('/health')).status, 200);
  });

  test('more than 100 requests behind a chat ends the chat with a refusal', async (t) => {
    const { gateway, upstream, socket, firstAsked, closed } = await start(t);
    socket.write(rawChat(chatBody()));
    await firstAsked();
    socket.write((HEALTH + rawChat(chatBody())).repeat(55));
    await closed;
    await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
    const { outcome, reason } = await lineOf(gateway);
    assert.deepEqual(
      [outcome, reason],
      ['refused', 'Invalid request: more than 100 pipelined requests wait'],
    );
    await upstream.requests[0]!.closed;
  });

  test('100 requests in one read gets an answer to each', async (t) => {
    const { gateway } = await scenario(t);
    const { socket, text } = openRaw(t, gateway.port);
    socket.write(HEALTH.repeat(101));
    await eventually(() => statusesOf(text()).length === 101, 'every answer');
  });

  test('300 chats of 1 KB gets an answer to each, but few are read at once', async (t) => {
    const { socket, release, firstAsked, text } = await start(t);
    const own = watchServerSide(t, socket);
    socket.write(rawChat(chatBody({ padding: 'x'.repeat(900) })).repeat(300));
    await firstAsked();
    await idle(A_WHILE_MS);
    assert.ok(own.requests < 80, `${own.requests} requests were parsed`);
    release();
    await eventually(() => statusesOf(text()).length === 300, 'every answer');
  });

  test('a body of 16 MiB keeps it until the answer before it is written', async (t) => {
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

  test('a broken body behind a chat gets both answers, and one log line', async (t) => {
    const { gateway, socket, release, firstAsked, text, closed } = await start(t);
    const head = rawChat({}, ['transfer-encoding: chunked'])
      .replace(/content-length: \d+\r\n/, '')
      .replace('{}', '');
    socket.write(`${rawChat(chatBody())}${head}5\r\nhello\r\n`);
    await firstAsked();
    socket.write('zz\r\n');
    await idle(A_WHILE_MS);
    release();
    await closed;
    assert.deepEqual(statusesOf(text()), [200, 400], text());
    assert.equal(gateway.lines('broken request').length, 1);
  });

  test('bytes that are not HTTP behind a chat is refused in a drain too', async (t) => {
    const { gateway, socket, release, firstAsked, text, closed } = await start(t);
    const own = watchServerSide(t, socket);
    const bytes = `${rawChat(chatBody())}hello\r\n\r\n`;
    socket.write(bytes);
    await firstAsked();
    await eventually(() => own.socket?.bytesRead === bytes.length, 'all bytes are read');
    const drained = gateway.drain(20_000);
    release();
    await drained;
    await closed;
    assert.deepEqual(statusesOf(text()), [200, 400]);
    const connections = parseReplies(text()).map(({ headers }) => headers['connection']);
    assert.deepEqual(connections, ['keep-alive', 'close']);
  });

  test('gets all its answers in a drain, with Connection: close on the last', async (t) => {
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

const SMALL_BUDGET = `max_buffered_bytes = ${MIB}\n`;
const LENGTH_HEADER = /content-length: \d+\r\n/;
/** A chat small enough for one read from a socket. */
const LONG_CHAT = rawChat(chatBody({ padding: 'x'.repeat(60_000) }));

test('bodies of waiting requests are dropped if they do not fit into memory', async (t) => {
  const { gateway, upstream, release } = await start(t, SMALL_BUDGET);
  const clients = Array.from({ length: 20 }, () => openRaw(t, gateway.port));
  const sides = clients.map(({ socket }) => watchServerSide(t, socket));
  for (const { socket } of clients) socket.write(rawChat(chatBody()));
  await eventually(() => upstream.requests.length === 20, 'the first requests');
  const held = createMemoryProbe('buffers');
  const before = held();
  for (const { socket } of clients) socket.write(LONG_CHAT.repeat(8));
  // Node 20 reads no further than the first waiting body.
  await eventually(() => sides.every(({ requests }) => requests >= 2), 'a second request of each');
  await eventually(() => held() - before < 2 * MIB, `${held() - before} bytes are held`);
  assert.ok(gateway.reservedBytes() > 15 * 60_000, `${gateway.reservedBytes()} are reserved`);
  release();
  const statuses = () => clients.map(({ text }) => statusesOf(text()));
  const isAnswered = (each: number[]) => each.length === 9;
  await eventually(() => statuses().every(isAnswered), 'every answer');
  assert.deepEqual([...new Set(statuses().map(([first]) => first))], [200]);
  assert.deepEqual(new Set(statuses().flat()), new Set([200, 429]));
  await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
});

test('short chunked bodies of waiting requests are counted with their length', async (t) => {
  const { gateway, socket, firstAsked, release, text } = await start(t, SMALL_BUDGET);
  const [head, body] = rawChat(chatBody()).split(LENGTH_HEADER) as [string, string];
  const json = body.slice(body.indexOf('{'));
  const size = json.length.toString(16);
  const chunked = `${head}transfer-encoding: chunked\r\n\r\n${size}\r\n${json}\r\n0\r\n\r\n`;
  socket.write(rawChat(chatBody()));
  await firstAsked();
  const before = gateway.reservedBytes();
  socket.write(chunked.repeat(8));
  const bytes = before + 8 * json.length;
  await eventually(() => gateway.reservedBytes() === bytes, 'the bodies are counted');
  release();
  await eventually(() => statusesOf(text()).length === 9, 'every answer');
  assert.deepEqual(new Set(statusesOf(text())), new Set([200]));
});

test('a client that leaves behind a waiting body is noticed at once', async (t) => {
  for (const padding of [1000, 60_000]) {
    for (const end of ['end', 'resetAndDestroy'] as const) {
      const { gateway, upstream, socket, firstAsked } = await start(t, SMALL_BUDGET);
      socket.write(rawChat(chatBody()));
      await firstAsked();
      const before = gateway.reservedBytes();
      socket.write(rawChat(chatBody({ padding: 'x'.repeat(padding) })));
      await eventually(() => gateway.reservedBytes() >= before + padding, 'the body is counted');
      socket[end]();
      await upstream.requests[0]!.closed;
      await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
    }
  }
});

test('a client that leaves behind a long waiting body is noticed when its answer is due', async (t) => {
  const hang: Script = () => {};
  const providers = { p: hang, q: hang };
  const { gateway, q } = await scenario(t, { server: 'timeout = 1\n', providers, fallback: ['q'] });
  const gone = ['resetAndDestroy', 'end'] as const;
  for (const end of gone) {
    const { socket } = openRaw(t, gateway.port);
    // More than node:http reads of a waiting body: the socket is not read, and its end is not seen.
    socket.write(rawChat(chatBody()) + rawChat(chatBody({ padding: 'x'.repeat(MIB) })));
    await eventually(() => gateway.reservedBytes() > 131_072, 'the waiting body is counted');
    socket[end]();
  }
  await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
  // Both tries have had their time limit.
  const late = gateway.accessLines().filter((line) => triesOf(line) === 'p:timeout q:timeout');
  assert.equal(late.length, gone.length);
  assert.equal(q.requests.length, gone.length);
});

test('a client that leaves behind a body without room is noticed at once', async (t) => {
  const { gateway, upstream, socket, firstAsked } = await start(t, SMALL_BUDGET);
  const { socket: other } = openRaw(t, gateway.port);
  socket.write(rawChat(chatBody()));
  await firstAsked();
  const upload = rawChat(chatBody({ padding: 'x'.repeat(MIB - 20_000) }));
  other.write(upload.slice(0, -1));
  await eventually(() => gateway.reservedBytes() > MIB - 20_000, 'the upload');
  const own = watchServerSide(t, socket);
  socket.write(LONG_CHAT);
  await eventually(() => own.requests === 1 && own.socket!.bytesRead > 60_000, 'the body is read');
  socket.end();
  await upstream.requests[0]!.closed;
  other.destroy();
  await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
});

test('a client that waits for 100 Continue gets none if its body had no room', async (t) => {
  const { gateway, socket, firstAsked, release, text } = await start(t, SMALL_BUDGET);
  const { socket: other } = openRaw(t, gateway.port);
  socket.write(rawChat(chatBody()));
  await firstAsked();
  const before = gateway.reservedBytes();
  other.write(rawChat(chatBody({ padding: 'x'.repeat(MIB - 20_000) })).slice(0, -1));
  await eventually(() => gateway.reservedBytes() > MIB - 20_000, 'the upload');
  const own = watchServerSide(t, socket);
  const upload = rawChat(chatBody({ padding: 'x'.repeat(60_000) }), ['expect: 100-continue']);
  socket.write(upload.slice(0, upload.indexOf('{')));
  await eventually(() => own.requests === 1, 'the second request');
  other.destroy();
  await eventually(() => gateway.reservedBytes() === before, 'there is room again');
  release();
  await eventually(() => statusesOf(text()).length === 2, 'both answers');
  assert.deepEqual(statusesOf(text()), [200, 429]);
});

test('a drain counts the answers that need no provider as finished', async (t) => {
  const { gateway, socket, firstAsked, text, closed } = await start(t);
  socket.write(`${rawChat(chatBody())}${HEALTH}${HEALTH}${rawChat(chatBody())}`);
  await firstAsked();
  const reason = new GatewayError('internal', 'The gateway is shutting down');
  assert.deepEqual(await gateway.drain(50, reason), { finished: 2, cut: 2 });
  await closed;
  assert.deepEqual(statusesOf(text()), [500, 503, 503, 500]);
});

test('a call that ends without an answer closes its connection', async (t) => {
  const port = await startHttpServer(t, async () => {});
  const { isClosed, text } = await sendRaw(port, HEALTH + HEALTH, { waitMs: 10_000 });
  assert.deepEqual([isClosed, text], [true, '']);
});

test('a response that has closed refers to its call no more', async (t) => {
  const counts: number[] = [];
  const port = await startHttpServer(t, async ({ reply, response }) => {
    counts.push(response.listenerCount('close'));
    await reply.send(200, {}, 'x');
    await responseClosed({ reply });
    counts.push(response.listenerCount('close'));
  });
  const { socket, text } = openRaw(t, port);
  socket.write(HEALTH + HEALTH);
  await eventually(() => statusesOf(text()).length === 2, 'both answers');
  await eventually(() => counts.length === 4, 'both have closed');
  assert.deepEqual(counts, [1, 0, 1, 0]);
});

test('a request behind an answer with Connection: close does not begin', async (t) => {
  const { opened, open } = createGate();
  let calls = 0;
  const port = await startHttpServer(t, async ({ reply }) => {
    calls += 1;
    reply.beginStream(200, { connection: 'close' });
    reply.write(Buffer.from('first'));
    await opened;
    reply.end();
    await responseClosed({ reply });
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

test('a stream whose client left before its comments begin starts no timer', async (t) => {
  const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
  const started = await new Promise<number>((resolve) => {
    void startHttpServer(t, async ({ reply }) => {
      await responseClosed({ reply });
      const before = timers();
      reply.keepAlive(60_000);
      resolve(timers() - before);
    }).then((port) => {
      const { socket } = openRaw(t, port);
      const own = watchServerSide(t, socket);
      socket.write(HEALTH);
      void eventually(() => own.requests === 1, 'the request').then(() => socket.resetAndDestroy());
    });
  });
  assert.equal(started, 0);
});

test('a waiting pipelined request takes less than 1 KB more than in node:http', async (t) => {
  const { gateway, release } = await start(t);
  const server = createServer(() => {}).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close().closeAllConnections());
  const { port } = server.address() as AddressInfo;
  const held = createMemoryProbe();
  const bytesOf = async (to: number, first: string) => {
    const clients = Array.from({ length: 20 }, () => openRaw(t, to).socket);
    const sides = clients.map((client) => watchServerSide(t, client));
    const write = async (text: string, count: number) => {
      for (const client of clients) client.write(text);
      const isRead = () => sides.every(({ requests }) => requests === count);
      await eventually(isRead, `${count} requests on each connection`);
    };
    await write(first, 1);
    await idle(A_WHILE_MS);
    const before = held();
    await write(HEALTH.repeat(90), 91);
    const bytes = held() - before;
    // Reset, so no waiting request begins.
    for (const client of clients) client.resetAndDestroy();
    return bytes;
  };
  const twice = async (to: number, first: string) => [
    await bytesOf(to, first),
    await bytesOf(to, first),
  ];
  // A collection in between may free the garbage of other tests, which makes a value too small. The
  // first request of each kind compiles code, which makes a value too large.
  const plainBytes = Math.max(...(await twice(port, HEALTH)));
  const ownBytes = Math.min(...(await twice(gateway.port, rawChat(chatBody()))));
  // A request that has begun would take 4 KB more.
  assert.ok(ownBytes < plainBytes + 1800 * 1000, `${ownBytes} bytes, plain ${plainBytes}`);
  // While so many requests wait, the gateway notices a departed client at its next answer.
  release();
  await linesOf(gateway, 40);
});

/** A server refusing each request at once, as the gateway does without a key. */
const PLAIN_SERVER = `
const server = require('node:http').createServer({ requireHostHeader: false }, (_, response) => {
  response.writeHead(401, { 'content-type': 'application/json' }).end('{"error":{}}');
});
server.listen(0, '127.0.0.1', () => console.error('listening http://a:' + server.address().port + '/v1'));
`;

test(
  '30 clients with 3,640 pipelined requests each cost no more memory than in node:http',
  { skip: process.platform !== 'linux' && 'reads /proc' },
  async (t) => {
    await buildOnce();
    const peakBytes = async (program: Program) => {
      const { child, port } = await untilServing(program);
      const peak = () => {
        const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
        return Number(/VmHWM:\s+(\d+)/.exec(status)![1]) * 1024;
      };
      const before = peak();
      const clients = Array.from({ length: 30 }, () => openRaw(t, port));
      for (const { socket } of clients) socket.write('GET / HTTP/1.1\r\n\r\n'.repeat(3640));
      const isOver = ({ socket, text }: (typeof clients)[number]) =>
        socket.closed || statusesOf(text()).length === 3640;
      await eventually(() => clients.every(isOver), 'each connection is closed or answered');
      assert.equal(child.exitCode, null);
      return peak() - before;
    };
    const node = [process.execPath, '--max-old-space-size=192'];
    const plain = await peakBytes(startCommand(t, [...node, '-e', PLAIN_SERVER]));
    const env = { GATEWAY_PORT: '0', OPENAI_API_KEY: 'sk-canary' };
    const toml = { 'gateway.toml': '[server.auth]\nkeys = ["client-key-canary"]\n' };
    const cwd = emptyFolder(t, toml);
    const own = await peakBytes(startCommand(t, [...node, SERVER], { env, cwd }));
    assert.ok(own < plain * 1.2, `${own} bytes, plain ${plain}`);
  },
);
