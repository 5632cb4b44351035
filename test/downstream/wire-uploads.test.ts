/** Request bodies on their way to a provider, over both transports. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import {
  createServer as createHttpServer,
  type IncomingMessage,
  type ServerResponse,
} from 'node:http';
import { connect, createServer } from 'node:net';
import { describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { discardBody } from '../../src/downstream/request-body.ts';
import { Cancellation } from '../../src/lib/cancellation.ts';
import { sendByFetch } from '../../src/upstream/connections/fetch-transport.ts';
import { TransportError } from '../../src/upstream/connections/network-error.ts';
import {
  fixedHeaders,
  type UpstreamResponse,
} from '../../src/upstream/connections/upstream-request.ts';
import { type ByteSink, readAll, readEach } from '../../src/lib/memory/byte-source.ts';
import { nextTurn as nextBodyTurn, onNextTurn } from '../../src/lib/memory/turns.ts';
import { ConnectionPool, sendByHttp1 } from '../../src/upstream/connections/http1-transport.ts';
import { idle } from '../support/clock.ts';
import { startBlackHole } from '../support/fault-proxy.ts';
import { chatBody, providerToml, rawChat, startGateway } from '../support/gateway.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { openRaw, sendRaw } from '../support/raw.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually, openChat } from '../support/streams.ts';
import { LEFT_TO_SWEEPS, sweep } from '../support/sweep.ts';
import {
  beginStream,
  CHUNK,
  completionEvents,
  failWith,
  type ReceivedRequest,
  sendJson,
  startUpstream,
} from '../support/upstream.ts';
import { listen } from '../support/listen.ts';

const KIB = 1024;
const fixed = fixedHeaders('http://p', {});
const MIB = 1_048_576;
const TRANSPORTS = sweep<readonly ('auto' | 'fetch')[]>(['auto', 'fetch'], ['auto']);

/** Sends a POST with this body over the gateway's own connections. */
async function sendOwn(
  t: TestContext,
  origin: string,
  body: readonly Buffer[],
  connectTimeoutMs?: number,
): Promise<UpstreamResponse> {
  const connections = new ConnectionPool(connectTimeoutMs);
  t.after(() => connections.close());
  const request = { method: 'POST', origin, path: '/', fixed, headers: [], body } as const;
  return sendByHttp1(request, new Cancellation(), connections, {});
}

test('waiting bodies have their turns in order, a few in each', async () => {
  const { counts, add } = countPerTurn();
  const order: number[] = [];
  const wait = async (body: number) => {
    await nextBodyTurn();
    add();
    order.push(body);
  };
  const bodies = Array.from({ length: 41 }, (_, at) => at);
  await Promise.all(bodies.map(wait));
  assert.deepEqual(order, bodies);
  assert.ok(counts.most <= 8, `${counts.most} in one turn`);
  await new Promise<void>((resolve) => onNextTurn(() => onNextTurn(resolve)));
});

for (const transport of ['auto', 'fetch']) {
  test(`a redirect is not followed, GATEWAY_UPSTREAM=${transport}`, async (t) => {
    const elsewhere = await startUpstream(t);
    const { gateway, p } = await scenario(t, { env: { GATEWAY_UPSTREAM: transport } });
    for (const status of [301, 302, 303, 307, 308]) {
      p.script = failWith(status, { headers: { location: `${elsewhere.baseUrl}/x` } });
      for (const stream of [false, true]) {
        const reply = await gateway.chat(chatBody({ stream }));
        assert.equal(reply.status, 502);
        assert.match(reply.text, new RegExp(`"Provider error: unexpected status ${status}"`));
      }
    }
    assert.deepEqual((await gateway.send('/v1/models')).json().data, []);
    assert.equal(p.requests.length, 11);
    assert.equal(elsewhere.requests.length, 0);
  });
}

for (const transport of TRANSPORTS) {
  describe(`request bodies, GATEWAY_UPSTREAM=${transport}`, () => {
    const env = { GATEWAY_UPSTREAM: transport };

    test('a body of any length arrives once and whole, with its Content-Length', async (t) => {
      const { gateway, p } = await scenario(t, { env });
      for (const bytes of [1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 200_000, 4 * MIB]) {
        const body = JSON.stringify(chatBody({ pad: 'x'.repeat(bytes), tail: 'ü' }));
        const reply = await gateway.chat(body);
        assert.equal(reply.status, 200, reply.text);
        const request = p.requests.at(-1)!;
        assert.equal(request.body.toString(), body.replace('"p/m"', '"m"'));
        assert.equal(request.headers['content-length'], `${Buffer.byteLength(body) - 2}`);
        assert.equal(request.headers['transfer-encoding'], undefined);
      }
      for (const status of [307, 401, 407, 413, 421, 500]) {
        p.requests.length = 0;
        p.script = failWith(status, { headers: { location: '/elsewhere' } });
        const reply = await gateway.chat(chatBody({ pad: 'x'.repeat(MIB) }));
        // Over fetch, a provider's 407 looks like a proxy's.
        const isUnexpected = status === 307 || (status === 407 && transport === 'fetch');
        assert.equal(reply.status, isUnexpected ? 502 : status);
        const unexpected = `Provider error: unexpected status ${status}`;
        if (isUnexpected) assert.equal(reply.json().error.message, unexpected);
        assert.equal(p.requests.length, 1);
      }
    });

    for (const [bytes, count] of [
      [8 * MIB, 5],
      [60_000, 40],
      // Below 4 KiB, the limit for bodies sent whole. On Node 26, 330 bytes of each reply stay.
      [3900, 400],
    ] as const) {
      test(
        `${count} open streams hold nothing of their requests of ${bytes} bytes`,
        { timeout: 60_000, skip: count !== 40 && LEFT_TO_SWEEPS },
        async (t) => {
          const held = createMemoryProbe('buffers');
          const upstream = await startCountingUpstream(t);
          const gateway = await startGateway(t, { env, toml: providerToml(upstream) });
          const request = Buffer.from(rawChat(chatBody({ stream: true, pad: 'x'.repeat(bytes) })));
          const openStream = async () => {
            const socket = connect(gateway.port, '127.0.0.1').on('error', () => {});
            t.after(() => socket.destroy());
            socket.write(request);
            await once(socket, 'data');
          };
          await openStream();
          const before = held();
          for (let opened = 0; opened < count; opened += 1) await openStream();
          assert.equal(upstream.count(), count + 1);
          await eventually(() => held() - before < (count * bytes) / 10, 'they are released');
          assert.equal(gateway.reservedBytes(), 0);
        },
      );
    }

    test('an open stream keeps no text of its request, failed tries or events', async (t) => {
      // For gateway, client and provider together. If a stream kept its request, it would take 58
      // KB more.
      const maxStreamBytes = env.GATEWAY_UPSTREAM === 'fetch' ? 90_000 : 70_000;
      const heldBytes = createMemoryProbe('heap');
      const long = 'x'.repeat(60_000);
      const choices = [{ index: 0, delta: { content: 'a' } }];
      const eventOf = (members: object) => `data: ${JSON.stringify({ choices, ...members })}\n\n`;
      const usage = { total_tokens: 1 };
      /** Events by the prompt's first letter. */
      const events: Readonly<Record<string, string>> = {
        l: eventOf({ usage: { ...usage, x: long.slice(0, 15_000) } }),
        b: eventOf({ usage }) + eventOf({ x: long }),
      };
      const letterOf = ({ body }: ReceivedRequest) => /"content":"(.)/.exec(body.toString())![1]!;
      const { gateway } = await scenario(t, {
        env,
        providers: {
          p: (_, response) =>
            sendJson(response, { error: { message: `overloaded${long}` } }, { status: 500 }),
          q: {
            lines: 'stream_usage = true',
            script: (request, response) =>
              beginStream(events[letterOf(request)]!)(request, response),
          },
        },
        fallback: ['q'],
      });
      /** Opens streams with this prompt. Returns a function to read the heap's growth for each. */
      const open = async (content: string) => {
        const chat = {
          model: 'p/a-model-whose-name-is-long',
          stream: true,
          stream_options: { include_usage: null },
          prompt_cache_key: 'session-0123456789',
          messages: [{ role: 'user', content }],
        };
        const before = heldBytes();
        for (let at = 0; at < 100; at += 1) {
          const socket = connect(gateway.port, '127.0.0.1').on('error', () => {});
          t.after(() => socket.destroy());
          socket.write(rawChat(chat));
          await once(socket, 'data');
        }
        return () => (heldBytes() - before) / 100;
      };
      // The first streams compile the code.
      await open(`l${long}`);
      for (const prompt of [`long usage ${long}`, `behind usage ${long}`]) {
        const growth = await open(prompt);
        // A busy machine takes its time to send the requests and to free them.
        await eventually(() => growth() < maxStreamBytes, 'no stream keeps 60 KB');
      }
    });

    test('bodies of clients that left are dropped while the connection still hangs', async (t) => {
      // A server without TLS, so the handshake never completes.
      const upstream = await listen(t, createServer());
      const baseUrl = upstream.baseUrl.replace('http:', 'https:');
      const gateway = await startGateway(t, { env, toml: providerToml({ baseUrl }) });
      const held = createMemoryProbe('buffers');
      const before = held();
      const body = chatBody({ pad: 'x'.repeat(60_000) });
      const clients = Array.from({ length: 30 }, () => openChat(gateway.port, body));
      // fetch of Node 26.12 makes a single connection until the first handshake is over.
      await eventually(() => upstream.sockets.size > 0, 'the provider is asked');
      await eventually(() => gateway.reservedBytes() > 30 * 60_000, 'every body is held');
      for (const client of clients) client.leave();
      await eventually(() => gateway.reservedBytes() === 0, 'nothing is reserved');
      // Another thread frees Buffers. undici itself drops the requests only after 10 s.
      const isDropped = () => held() - before < 30 * 20_000;
      for (let turns = 0; turns < 160 && !isDropped(); turns += 1) await sleep(50);
      assert.ok(isDropped());
    });

    test('a body whose stream begins early is held until all of it is sent', async (t) => {
      const gate = createGate();
      const whole = createHash('sha256');
      let receivedBytes = 0;
      const upstream = createHttpServer((request, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(CHUNK);
        void gate.opened.then(() => {
          request.on('data', (chunk: Buffer) => {
            whole.update(chunk);
            receivedBytes += chunk.length;
          });
          request.on('end', () => response.end(completionEvents()));
        });
      });
      const { baseUrl } = await listen(t, upstream);
      const gateway = await startGateway(t, { env, toml: providerToml({ baseUrl }) });
      // More than the network holds.
      const body = chatBody({ stream: true, pad: 'xyz'.repeat(5 * MIB) });
      const stream = openChat(gateway.port, body);
      await eventually(() => stream.text() !== '', 'the stream begins');
      assert.equal(gateway.reservedBytes(), JSON.stringify(body).length);
      gate.open();
      assert.equal(await stream.ended, CHUNK + completionEvents());
      const forwarded = JSON.stringify({ ...body, model: 'm' });
      assert.equal(receivedBytes, forwarded.length);
      assert.equal(whole.digest('hex'), createHash('sha256').update(forwarded).digest('hex'));
      assert.equal(gateway.reservedBytes(), 0);
    });

    test('a header value with spaces around it counts without them', async (t) => {
      const answers = [
        'HTTP/1.1 429 No\r\nretry-after: \t 5 \t\r\ncontent-length: 2\r\n\r\n{}',
        'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding:   identity  \r\n' +
          'content-length: 14\r\n\r\n{"choices":[]}',
      ];
      const upstream = await startRawUpstream(t, ({ socket }) => socket.write(answers.shift()!));
      const gateway = await startGateway(t, { env, toml: providerToml(upstream) });
      const refused = await gateway.chat(chatBody());
      assert.deepEqual([refused.status, refused.headers['retry-after']], [429, '5']);
      assert.equal((await gateway.chat(chatBody())).status, 200);
    });
  });
}

/**
 * Starts a provider that drops the bodies, and answers each whole request with one event of a
 * stream, which it leaves open.
 */
async function startCountingUpstream(t: TestContext) {
  let count = 0;
  const answer =
    'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n' +
    '17\r\ndata: {"choices":[1]}\n\n\r\n';
  const server = createServer((socket) => {
    let head = '';
    let missing = Infinity;
    socket.on('data', (chunk: Buffer) => {
      missing -= chunk.length;
      if (missing === Infinity) {
        head += chunk.toString('latin1');
        const headEnd = head.indexOf('\r\n\r\n');
        if (headEnd < 0) return;
        const length = Number(/\r\ncontent-length: *(\d+)/i.exec(head)![1]);
        missing = length - (head.length - headEnd - 4);
        head = '';
      }
      if (missing > 0) return;
      missing = Infinity;
      count += 1;
      socket.write(answer);
    });
  });
  return { ...(await listen(t, server)), count: () => count };
}

describe('connecting, over own connections', () => {
  test('a connection made while the event loop was busy is not too late', async (t) => {
    const upstream = await startUpstream(t);
    const reply = sendOwn(t, new URL(upstream.baseUrl).origin, [Buffer.from('{}')], 200);
    const busyUntil = performance.now() + 400;
    while (performance.now() < busyUntil);
    assert.equal((await reply).status, 200);
  });

  test('a cancelled upload to a provider that does not accept is released', async (t) => {
    const { port } = await startBlackHole(t);
    const collect = createMemoryProbe();
    // A long limit, so its end does not release the body.
    const connections = new ConnectionPool(3_600_000);
    t.after(() => connections.close());
    const cancellation = new Cancellation();
    const send = () => {
      const body = Buffer.alloc(32 * MIB);
      const request = { method: 'POST', path: '/', fixed, headers: [], body: [body] } as const;
      const origin = `http://127.0.0.1:${port}`;
      const sent = sendByHttp1({ ...request, origin }, cancellation, connections, {});
      return { sent, body: new WeakRef(body) };
    };
    const { sent, body } = send();
    const rejected = assert.rejects(sent, /cancelled/);
    cancellation.cancel(new Error('cancelled'));
    await rejected;
    const isReleased = () => {
      collect();
      return body.deref() === undefined;
    };
    await eventually(isReleased, 'the body is released');
  });
});

test('fetch fails with the reason of the cancellation, and with the network error', async () => {
  const cancellation = new Cancellation();
  const request = {
    method: 'GET',
    origin: 'http://127.0.0.2:2',
    path: '/',
    fixed,
    headers: [],
  } as const;
  await assert.rejects(sendByFetch(request, cancellation), TransportError);
  cancellation.cancel(new Error('left'));
  await assert.rejects(sendByFetch(request, cancellation), /^Error: left$/);
});

/** Returns `count` chunks of a chunked body, without its end. */
const inChunks = (count: number, bytes: number) =>
  `${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n`.repeat(count);

/** Counts chunks, and the most in one event loop turn. */
function countPerTurn() {
  const counts = { all: 0, most: 0 };
  let ofTurn = 0;
  const add = () => {
    if (ofTurn === 0) setImmediate(() => (ofTurn = 0));
    counts.all += 1;
    ofTurn += 1;
    counts.most = Math.max(counts.most, ofTurn);
  };
  return { counts, add };
}

test('a body in tiny chunks is refused if more than a thousand are below 16 B', async (t) => {
  const { gateway } = await scenario(t);
  const [head = ''] = rawChat({}, ['connection: close']).split('\r\n\r\n');
  const [begin = '', end = ''] = JSON.stringify(chatBody({ pad: '|' })).split('|');
  const framed = (text: string) => `${text.length.toString(16)}\r\n${text}\r\n`;
  for (const [chunks, bytes, status] of [
    [990, 1, 200],
    [1010, 1, 400],
    [20_000, 15, 400],
    [20_000, 17, 200],
  ] as const) {
    const reply = await sendRaw(
      gateway.port,
      `${head.replace('content-length: 2', 'transfer-encoding: chunked')}\r\n\r\n` +
        `${framed(begin)}${inChunks(chunks, bytes)}${framed(end)}0\r\n\r\n`,
      { waitMs: 10_000 },
    );
    assert.equal(reply.status, status, reply.text);
    if (status === 400) assert.match(reply.body, /: the request body comes in too small chunks"/);
  }
});

test('a connection whose body in tiny chunks was refused takes the next request', async (t) => {
  const { gateway } = await scenario(t);
  const [head = ''] = rawChat({}).split('\r\n\r\n');
  const { socket, text } = openRaw(t, gateway.port);
  const chunked = head.replace('content-length: 2', 'transfer-encoding: chunked');
  socket.write(`${chunked}\r\n\r\n${inChunks(1500, 1)}0\r\n\r\n`);
  await eventually(() => text().includes('too small chunks'), 'it is refused');
  assert.match(text(), /^connection: keep-alive\r$/im);
  socket.write(rawChat(chatBody()));
  await eventually(() => text().includes('HTTP/1.1 200'), 'the next request is answered');
});

/** Begins a chunked upload to a node:http server, which reads it as the gateway does. */
async function uploadInTurns(t: TestContext, body: string): Promise<IncomingMessage> {
  const server = createHttpServer({ highWaterMark: 64 * KIB });
  const { port } = await listen(t, server);
  const client = connect(port, '127.0.0.1');
  client.on('error', () => {});
  client.write(`POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n${body}`);
  const [request, response] = (await once(server, 'request')) as [IncomingMessage, ServerResponse];
  discardBody(request);
  response.end();
  return request;
}

test('a turn takes a thousand tiny chunks of an upload, and reads no more before', async (t) => {
  const request = await uploadInTurns(t, `${inChunks(20_000, 17)}0\r\n\r\n`);
  const { counts, add } = countPerTurn();
  let mostBytes = 0;
  request.on('data', () => {
    add();
    mostBytes = Math.max(mostBytes, request.readableLength);
  });
  await once(request, 'end');
  assert.ok(counts.all >= 20_000);
  assert.ok(counts.most < 1100, `${counts.most} chunks in one turn`);
  // One read of 64 KiB has 2850 such chunks.
  assert.ok(mostBytes <= 2850 * 17, `${mostBytes} bytes`);
});

test('an upload in chunks of one byte is not read to its end, even if discarded', async (t) => {
  const request = await uploadInTurns(t, `${inChunks(100_000, 1)}0\r\n\r\n`);
  const { counts, add } = countPerTurn();
  request.on('data', add);
  await eventually(() => counts.all > 1000, 'more chunks than may be that small');
  await idle(200);
  // One read of 64 KiB has 10,922 such chunks, and a second may be under way.
  assert.ok(counts.all < 22_000, `${counts.all} chunks`);
  assert.equal(request.readableLength, 0);
});

test('a turn takes a thousand chunks of one byte of an answer', async (t) => {
  const upstream = await startRawUpstream(t, ({ socket }) =>
    socket.write(
      `HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n${inChunks(20_000, 1)}0\r\n\r\n`,
    ),
  );
  const reply = await sendOwn(t, new URL(upstream.baseUrl).origin, []);
  const { counts, add } = countPerTurn();
  await readEach(reply.body, () => {
    add();
    return true;
  });
  assert.ok(counts.all > 10_000, `${counts.all} chunks`);
  assert.ok(counts.most < 1100, `${counts.most} chunks in one turn`);
});

const MANY = 40;
const LONG_TEXT = 'x'.repeat(512 * KIB);

/** Counts how many bodies get a chunk in the same turn, once each has had its first turns. */
function countBodiesPerTurn() {
  const bytes = new Map<unknown, number>();
  const begun = new Set<unknown>();
  const ofTurn = new Set<unknown>();
  const counts = { most: 0 };
  const add = (body: unknown, { length }: Buffer) => {
    bytes.set(body, (bytes.get(body) ?? 0) + length);
    if (bytes.get(body)! > 256 * KIB) begun.add(body);
    if (begun.size < MANY) return;
    if (ofTurn.size === 0) setImmediate(() => ofTurn.clear());
    counts.most = Math.max(counts.most, ofTurn.add(body).size);
  };
  return { counts, add };
}

/** Reads all bodies, and checks how many get a chunk in the same turn. */
async function assertFewPerTurn<T>(
  bodies: readonly T[],
  read: (body: T, onChunk: (chunk: Buffer) => void) => Promise<unknown>,
): Promise<void> {
  const { counts, add } = countBodiesPerTurn();
  await Promise.all(bodies.map((body) => read(body, (chunk) => add(body, chunk))));
  assert.ok(counts.most > 0 && counts.most < MANY / 2, `${counts.most} bodies in one turn`);
}

test('a turn takes chunks of a few answers when many have begun', async (t) => {
  const upstream = await startRawUpstream(t, ({ socket }) => socket.write(rawResponse(LONG_TEXT)));
  const { origin } = new URL(upstream.baseUrl);
  const replies = await Promise.all(Array.from({ length: MANY }, () => sendOwn(t, origin, [])));
  await assertFewPerTurn(replies, async ({ body }, onChunk) =>
    readEach(body, (chunk) => {
      onChunk(chunk);
      return true;
    }),
  );
});

test('a turn takes chunks of a few uploads when many have begun', async (t) => {
  const requests = await Promise.all(
    Array.from({ length: MANY }, () => uploadInTurns(t, `80000\r\n${LONG_TEXT}\r\n0\r\n\r\n`)),
  );
  await assertFewPerTurn(requests, (request, onChunk) => once(request.on('data', onChunk), 'end'));
});

test('readAll rejects a body that is longer than allowed', async () => {
  const body = {
    start(sink: ByteSink) {
      if (sink.write(Buffer.from('abc')) && sink.write(Buffer.from('def'))) sink.end();
    },
    resume() {},
  };
  assert.equal(String(await readAll(body, 6)), 'abcdef');
  assert.equal(await readAll(body, 5), undefined);
});
