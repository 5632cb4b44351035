/** Several worker threads: what one gateway promises holds for all of them together. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { connect as connectTcp } from 'node:net';
import { join } from 'node:path';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { openFeed, type Feed } from '../support/feed.ts';
import { chatBody, providerToml, startGateway } from '../support/gateway.ts';
import { startHeldUpstream } from '../support/held-stream.ts';
import { buildOnce, emptyFolder } from '../support/process.ts';
import { parseMetrics } from '../support/exposition.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { createGate, eventually, openChat } from '../support/streams.ts';
import { CHUNK, completion, sendJson, startUpstream } from '../support/upstream.ts';
import { startWorkers, type WorkerProgram } from '../support/worker-program.ts';
import { ONLY_ONE_WORKER as skip } from '../support/workers.ts';

before(buildOnce);

const FULL = { WORKER_CLOCK: 'stopped' };
const BUCKET = 'requests_per_second = 1\nburst_capacity = 100\n';
const BUCKETS: Readonly<Record<string, string>> = {
  'all requests': `[rate_limit]\nenabled = true\n${BUCKET}`,
  'a client': `[clients.alice]\nkey = "alice-canary-1"\n${BUCKET}`,
  'a provider': `[rate_limit]\nenabled = true\n[rate_limit.providers.p]\n${BUCKET}`,
};
const toldIn = ({ events }: Feed) =>
  events.filter(({ name }) => name === 'requests').flatMap(({ data }) => data as unknown[]);
/** Reads the metrics of a program with an admin listener. */
const readMetrics = async ({ adminUrl }: WorkerProgram) =>
  parseMetrics(await (await fetch(adminUrl('/metrics'))).text());
/** Connections that send requests at the same time. */
const CONNECTIONS = 50;

describe('of 1,000 requests at once', { concurrency: 1, skip }, () => {
  for (const [what, limit] of Object.entries(BUCKETS)) {
    for (const workers of what === 'all requests' ? [1, 2, 4] : [2]) {
      test(`a bucket of 100 of ${what} lets exactly 100 pass with ${workers} workers`, async (t) => {
        const upstream = await startUpstream(t);
        const toml = `${limit}${providerToml(upstream)}`;
        const { connect } = await startWorkers(t, { toml, workers, env: FULL });
        const headers: Record<string, string> =
          what === 'a client' ? { authorization: 'Bearer alice-canary-1' } : {};
        const statuses: number[] = [];
        const threads = new Set<number>();
        const send = async () => {
          const client = connect();
          for (let round = 0; round < 1000 / CONNECTIONS; round += 1) {
            const { status, thread } = await client.chat(chatBody(), headers);
            statuses.push(status);
            threads.add(thread);
          }
        };
        await Promise.all(Array.from({ length: CONNECTIONS }, send));
        assert.equal(statuses.filter((status) => status === 200).length, 100);
        assert.equal(statuses.filter((status) => status === 429).length, 900);
        assert.equal(upstream.requests.length, 100);
        assert.equal(threads.size, workers);
      });
    }
  }

  // With one and with two: test/policy/wire-concurrency.test.ts, by itself and with TEST_WORKERS=2.
  test('a provider that takes eight never sees a ninth with 4 workers', async (t) => {
    const { upstream, finish } = await startHeldUpstream(t);
    const toml = providerToml(upstream, 'p', 'max_concurrent_requests = 8');
    const gateway = await startGateway(t, { toml, env: { GATEWAY_WORKERS: '4' } });
    const replies = Array.from({ length: 1000 }, async () => gateway.chat(chatBody()));
    await eventually(() => gateway.accessLines().length === 992, 'the others are refused');
    await eventually(() => upstream.requests.length === 8, 'the eight');
    finish();
    const statuses = (await Promise.all(replies)).map(({ status }) => status);
    assert.equal(statuses.filter((status) => status === 200).length, 8);
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });
});

test(
  'requests of all workers hold no more bytes than max_buffered_bytes, and free them',
  { skip },
  async (t) => {
    const { upstream, finish } = await startHeldUpstream(t);
    const toml = `[server]\nmax_buffered_bytes = 2097152\n${providerToml(upstream)}`;
    const { connect, connectToEach } = await startWorkers(t, { toml, workers: 2 });
    const clients = [...(await connectToEach()).values()];
    const body = chatBody({ x: 'x'.repeat(400_000) });
    const replies = Array.from({ length: 40 }, async (_, index) => {
      const client = index < 2 ? clients[index]! : connect();
      return client.chat(body);
    });
    let refused = 0;
    for (const reply of replies)
      void reply.then(({ status }) => (refused += Number(status === 429)));
    // Each holds its body until it is answered.
    await eventually(() => refused === 40 - upstream.requests.length, 'the others are refused');
    assert.ok(upstream.requests.length >= 1 && upstream.requests.length <= 5);
    finish();
    await Promise.all(replies);
    for (let round = 0; round < 10; round += 1) {
      assert.equal((await connect().chat(body)).status, 200);
    }
  },
);

describe('of two keys of which one is revoked', { concurrency: 1, skip }, () => {
  /** Two workers and their provider, for which the first key is revoked. */
  async function start(t: TestContext) {
    let refused = 0;
    const upstream = await startUpstream(t, ({ headers }, response) => {
      const isRevoked = headers.authorization === 'Bearer sk-revoked-canary';
      if (isRevoked) refused += 1;
      sendJson(response, isRevoked ? {} : completion(), { status: isRevoked ? 401 : 200 });
    });
    const provider = (id: string, first: string) =>
      `[providers.${id}]\nbase_url = "${upstream.baseUrl}"\napi_keys = ["${first}", "sk-good-canary"]\n`;
    const toml = provider('p', 'sk-revoked-canary') + provider('q', 'sk-first-canary');
    const program = await startWorkers(t, { toml, workers: 2, env: FULL });
    return { program, upstream, refusedCount: () => refused };
  }

  test('no worker asks with the one that another has found refused, also not one that starts later', async (t) => {
    const { program, upstream, refusedCount } = await start(t);
    const clients = await program.connectToEach();
    for (const client of clients.values()) {
      for (let round = 0; round < 5; round += 1) {
        assert.equal((await client.chat()).status, 200);
        await program.logged('key in cooldown');
        assert.equal(refusedCount(), 1);
      }
    }
    // The settings of the provider are the same: the key in cooldown on.
    await program.reload();
    await clients.get(1)!.inflict('exit');
    await program.logged('worker started');
    for (const client of (await program.connectToEach()).values()) {
      assert.equal((await client.chat()).status, 200);
      assert.equal(refusedCount(), 1);
    }
    assert.equal(program.lines('key in cooldown').length, 1);
    // The first key of another provider is not that key.
    for (const client of (await program.connectToEach()).values()) {
      assert.equal((await client.chat(chatBody({ model: 'q/m' }))).status, 200);
    }
    const { authorization } = upstream.requests.at(-1)!.headers;
    assert.equal(authorization, 'Bearer sk-first-canary');
  });

  test('of 1,000 requests those alone ask with it that were in flight together, and one line tells of its rest', async (t) => {
    const { program, refusedCount } = await start(t);
    const send = async () => {
      const client = program.connect();
      for (let round = 0; round < 1000 / CONNECTIONS; round += 1) {
        assert.equal((await client.chat()).status, 200);
      }
    };
    await Promise.all(Array.from({ length: CONNECTIONS }, send));
    assert.ok(refusedCount() >= 1 && refusedCount() <= CONNECTIONS, `${refusedCount()}`);
    assert.equal((await program.logged('request', 1000)).length, 1000);
    assert.equal(program.lines('key in cooldown').length, 1);
  });
});

test(
  'a provider that has failed in one worker is skipped by all, and asked again by all',
  { skip },
  async (t) => {
    let isDown = true;
    const p = await startUpstream(t, (_, response) =>
      sendJson(response, completion(), { status: isDown ? 503 : 200 }),
    );
    const q = await startUpstream(t);
    const toml = `[providers]\nfallback = ["q"]\n${providerToml(p)}${providerToml(q, 'q')}`;
    const program = await startWorkers(t, { toml, workers: 2 });
    const clients = await program.connectToEach();
    for (let count = 0; count < 3; count += 1) await clients.get(1)!.chat();
    const [opened] = await program.logged('breaker opened');
    assert.deepEqual([opened!['provider'], opened!['model']], ['p', 'm']);
    for (const client of clients.values()) assert.equal((await client.chat()).status, 200);
    assert.equal(p.requests.length, 3);
    // One that starts later knows it too.
    await clients.get(1)!.inflict('exit');
    await program.logged('worker started');
    for (const client of (await program.connectToEach()).values()) await client.chat();
    assert.equal(p.requests.length, 3);
    // With the same settings the circuit stays open over a reload; with others it is closed in all threads.
    await program.reload();
    const others = await program.connectToEach();
    for (const client of others.values()) await client.chat();
    assert.equal(p.requests.length, 3);
    isDown = false;
    await program.reload('[providers.p]\n', '[providers.p]\ndefault_model = "d"\n');
    for (const client of others.values()) await client.chat();
    assert.equal(p.requests.length, 5);
    assert.equal(program.lines('breaker opened').length, 1);
    assert.equal(program.lines('breaker closed').length, 1);
  },
);

describe('with several workers', { concurrency: 2, skip }, () => {
  for (const workers of [2, 4]) {
    test(`all ${workers} answer, and each connection stays with one`, async (t) => {
      const upstream = await startUpstream(t);
      const { connectToEach } = await startWorkers(t, { toml: providerToml(upstream), workers });
      const clients = await connectToEach();
      const numbers = Array.from({ length: workers }, (_, index) => index + 1);
      assert.deepEqual(new Set(clients.keys()), new Set(numbers));
      for (const [thread, client] of clients) {
        for (let round = 0; round < 5; round += 1) {
          assert.equal((await client.chat()).thread, thread);
        }
      }
    });
  }

  test('each fetches the list of models once, also while the main thread is stalled', async (t) => {
    const upstream = await startUpstream(t, (_, response) =>
      sendJson(response, { object: 'list', data: [{ id: 'one', object: 'model' }] }),
    );
    const toml = providerToml(upstream);
    const stall = join(emptyFolder(t), 'over');
    const env = { MAIN_STALL: stall };
    const program = await startWorkers(t, { toml, workers: 4, env });
    const { connectToEach, connect } = program;
    const clients = [...(await connectToEach()).values()];
    program.child.kill('SIGUSR2');
    await eventually(() => program.stderr().includes('is stalled'), 'the stall');
    const lists = await Promise.all(
      [...clients, ...Array.from({ length: 20 }, connect)].map(async (client) =>
        client.get('/v1/models'),
      ),
    );
    for (const { status, text } of lists) {
      assert.equal(status, 200);
      assert.match(text, /"p\/one"/);
    }
    writeFileSync(stall, '');
    assert.deepEqual(
      upstream.requests.map(({ url }) => url),
      Array<string>(4).fill('/v1/models'),
    );
  });

  for (const [whose, client] of Object.entries({
    'all models': '',
    'the models of a client': '[clients.c]\nkey = "client-canary-1"\nmodels = ["p/*"]\n',
  })) {
    test(`clients that do not read the list of ${whose} hold no copies of it`, async (t) => {
      const data = Array.from({ length: 100_000 }, (_, index) => ({ id: `model-${index}` }));
      const upstream = await startUpstream(t, (_, response) => sendJson(response, { data }));
      const toml = `[admin]\nport = 0\n${client}${providerToml(upstream)}`;
      const program = await startWorkers(t, { toml, workers: 2 });
      const residentBytes = async () =>
        (await readMetrics(program)).sum('process_resident_memory_bytes');
      const ask = async () => {
        const socket = connectTcp(program.port, '127.0.0.1');
        t.after(() => socket.destroy());
        socket.write(
          'GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer client-canary-1\r\n\r\n',
        );
        await once(socket, 'readable');
      };
      for (let count = 0; count < 5; count += 1) await ask();
      const beforeBytes = await residentBytes();
      for (let count = 0; count < 60; count += 1) await ask();
      // Copies would be of 7 MB each.
      assert.ok((await residentBytes()) - beforeBytes < 150_000_000);
    });
  }

  test('requests that finish while the main thread is stalled are counted, or said not to be', async (t) => {
    const stall = join(emptyFolder(t), 'over');
    const toml = '[admin]\nport = 0\n[providers.ollama]\nmodels = ["m"]\n';
    const env = { MAIN_STALL: stall };
    const program = await startWorkers(t, { toml, workers: 2, env });
    const countedBefore = (await readMetrics(program)).sum('gateway_requests_total');
    program.child.kill('SIGUSR2');
    await eventually(() => program.stderr().includes('is stalled'), 'the stall');
    const count = 12_000;
    const socket = connectTcp(program.port, '127.0.0.1');
    t.after(() => socket.destroy());
    socket.write('GET /v1/nothing HTTP/1.1\r\nhost: localhost\r\n\r\n'.repeat(count));
    let text = '';
    for await (const chunk of socket) {
      text += (chunk as Buffer).toString('latin1');
      if (text.split('HTTP/1.1 4').length > count) break;
    }
    writeFileSync(stall, '');
    const [line] = await program.logged('requests were not counted');
    assert.ok(Number(line!['requests']) > 0);
    await eventually(async () => {
      const { sum } = await readMetrics(program);
      const told = sum('gateway_requests_total') + sum('gateway_requests_uncounted_total');
      return told - countedBefore === count;
    }, 'each request is counted or said not to be');
    const stalled = await readMetrics(program);
    for (const client of (await program.connectToEach()).values()) await client.get('/v1/nothing');
    await eventually(async () => {
      const { sum } = await readMetrics(program);
      return sum('gateway_requests_total') - stalled.sum('gateway_requests_total') === 2;
    }, 'further requests of each worker are counted');
    const uncounted = program.lines('requests were not counted').map((one) => one['requests']);
    const total = (uncounted as number[]).reduce((sum, requests) => sum + requests);
    assert.equal(total, stalled.sum('gateway_requests_uncounted_total'), 'each is told of once');
  });

  test('metrics, readiness, the page and its feed tell of all of them', async (t) => {
    const { opened, open: finish } = createGate();
    const upstream = await startUpstream(t, async ({ body }, response) => {
      if (!body.includes('"stream":true')) return sendJson(response, completion());
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
      await opened;
      response.end('data: [DONE]\n\n');
    });
    const toml = `[admin]\nport = 0\n${providerToml(upstream, 'p', 'models = ["m"]')}`;
    const program = await startWorkers(t, { toml, workers: 2 });
    const metric = async (name: string) => {
      const { sum, types } = await readMetrics(program);
      assert.ok(types.has(`gateway_${name}`), name);
      return sum(`gateway_${name}`);
    };
    const feed = await openFeed(t, Number(program.adminUrl('/').port));
    const clients = [...(await program.connectToEach()).values()];
    for (const client of clients) {
      for (let round = 0; round < 10; round += 1) await client.chat();
    }
    const streams = clients.map(async (client) => client.chat(chatBody({ stream: true })));
    await eventually(() => upstream.requests.length >= 22, 'the streams are open');
    await eventually(async () => (await metric('open_streams')) === 2, 'two open streams');
    assert.equal(await metric('requests_in_flight'), 2);
    assert.equal((await fetch(program.adminUrl('/ready'))).status, 200);
    await feed.next('state', ({ figures }) => {
      return figures.gateway_requests_in_flight === 2 && figures.gateway_open_streams === 2;
    });
    finish();
    for (const { status } of await Promise.all(streams)) assert.equal(status, 200);
    await eventually(async () => (await metric('open_streams')) === 0, 'none');
    assert.equal(await metric('requests_in_flight'), 0);
    assert.equal(await metric('buffered_bytes'), 0);
    const total = (await readMetrics(program)).sum('gateway_requests_total', { outcome: 'ok' });
    assert.equal(total, 22);
    await eventually(() => toldIn(feed).length === 22, 'each request is in the feed once');
    if (OVER_FETCH) return;
    assert.equal(await metric('upstream_connections_made_total'), 2);
    // Each worker's first request made one, and its ten others used it again.
    assert.equal(await metric('upstream_connections_reused_total'), 20);
  });

  test('no line of the log is lost or cut, also at the end', async (t) => {
    const upstream = await startUpstream(t);
    const program = await startWorkers(t, { toml: providerToml(upstream), workers: 2 });
    const send = async (_: unknown, index: number) => {
      const client = program.connect();
      for (let round = 0; round < 10; round += 1) {
        await client.chat(chatBody(), { 'x-request-id': `request-${index}-${round}` });
      }
    };
    await Promise.all(Array.from({ length: 30 }, send));
    program.child.kill('SIGTERM');
    assert.equal(await program.exit, 0, program.stderr());
    const lines = program.lines();
    const ids = lines
      .filter(({ message }) => message === 'request')
      .map((line) => line['request_id']);
    assert.equal(new Set(ids).size, 300);
    assert.equal(ids.length, 300);
    assert.deepEqual(lines.at(-1)!['message'], 'stopped');
  });

  test('the log can be text', async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, {
      toml: `[logging]\nformat = "text"\n${providerToml(upstream)}`,
      env: { GATEWAY_WORKERS: '2' },
    });
    for (let round = 0; round < 10; round += 1) await gateway.chat(chatBody());
    assert.equal(gateway.log.length, 10);
    for (const line of gateway.log) assert.match(line, /^[\d:.]+ ok +200  [^\n]*\n$/);
  });
});

describe('a reload with several workers', { concurrency: 2, skip }, () => {
  const keys = (...names: string[]) =>
    names.map((name) => `[clients.${name}]\nkey = "${name}-canary-1"\n${BUCKET}`).join('');

  /** Blocks a worker for 1500 ms. */
  async function makeBusy(program: WorkerProgram, thread: number): Promise<void> {
    const client = (await program.connectToEach()).get(thread)!;
    void client.inflict('busy');
    await eventually(() => program.stderr().includes(`worker ${thread} is busy`), 'the block');
  }

  test('has reached all of them once the log says "reloaded", and buckets keep their tokens', async (t) => {
    const upstream = await startUpstream(t);
    const toml = keys('alice', 'bob') + providerToml(upstream);
    const program = await startWorkers(t, { toml, workers: 4, env: FULL });
    const clients = [...(await program.connectToEach()).values()];
    const ask = async (client: (typeof clients)[number], name: string) =>
      (await client.chat(chatBody(), { authorization: `Bearer ${name}-canary-1` })).status;
    for (const client of clients) {
      for (let round = 0; round < 10; round += 1) {
        assert.deepEqual([await ask(client, 'alice'), await ask(client, 'bob')], [200, 200]);
      }
    }
    const reloaded = program.reload(keys('alice'));
    // The kernel may make one signal of two.
    program.child.kill('SIGHUP');
    await reloaded;
    assert.deepEqual(
      await Promise.all(clients.map((client) => ask(client, 'alice'))),
      [401, 401, 401, 401],
    );
    let passed = 0;
    for (let round = 0; round < 70; round += 1) {
      if ((await ask(clients[round % 4]!, 'bob')) === 200) passed += 1;
    }
    assert.equal(passed, 60);
  });

  test('says "reloaded" only when a worker that was busy uses the settings too', async (t) => {
    const program = await startWorkers(t, { toml: keys('alice'), workers: 2 });
    const startedAtMs = Date.now();
    await makeBusy(program, 2);
    const { time } = await program.reload(keys('alice'), keys('alice', 'bob'));
    // The thread is blocked for 1500 ms.
    assert.ok(Date.parse(String(time)) - startedAtMs >= 1400, `${String(time)} ${startedAtMs}`);
  });

  test('is waited for 10 s: then the log names the worker that is late, which still uses the settings', async (t) => {
    const upstream = await startUpstream(t);
    const toml = keys('alice') + providerToml(upstream);
    const env = { MAIN_TIMERS: '{"10000":300}' };
    const program = await startWorkers(t, { toml, workers: 2, env });
    const clients = await program.connectToEach();
    await makeBusy(program, 2);
    await program.reload(keys('alice'), keys('bob'));
    const late = program.lines('worker is late');
    assert.deepEqual(
      late.map(({ level, worker }) => [level, worker]),
      [['warn', 2]],
    );
    const headers = { authorization: 'Bearer bob-canary-1' };
    for (const client of clients.values()) {
      assert.equal((await client.chat(chatBody(), headers)).status, 200);
    }
  });

  test('reaches a worker that is being replaced', async (t) => {
    const upstream = await startUpstream(t);
    const toml = keys('alice', 'bob') + providerToml(upstream);
    const env = { WORKER_SLOW_MS: '300' };
    const program = await startWorkers(t, { toml, workers: 2, env });
    const [first] = (await program.connectToEach()).values();
    await first!.inflict('exit');
    await program.logged('worker ended');
    const names = ['alice', 'one', 'two', 'three'];
    const reloads = names.slice(1).map(async (name, at) => {
      await sleep(at * 100);
      return program.reload(keys(names[at]!), keys(name));
    });
    await Promise.all(reloads);
    await program.logged('worker started');
    for (const client of (await program.connectToEach()).values()) {
      const { status } = await client.chat(chatBody(), {
        authorization: 'Bearer alice-canary-1',
      });
      assert.equal(status, 401);
    }
  });
});

describe('a drain with several workers', { concurrency: 2, skip }, () => {
  test('finishes the streams of all, counts those that were cut, and "stopped" is the last line', async (t) => {
    const { opened, open: finish } = createGate();
    const upstream = await startUpstream(t, async ({ body }, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
      if (body.includes('"model":"slow"')) return;
      await opened;
      response.end(
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
      );
    });
    const toml = `[server]\nshutdown_timeout = 2\n${providerToml(upstream)}`;
    const program = await startWorkers(t, { toml, workers: 2 });
    const clients = [...(await program.connectToEach()).values()];
    const others = [...(await program.connectToEach()).values()];
    const whole = clients.map(async (client) => client.chat(chatBody({ stream: true })));
    const cut = others.map(async (client) =>
      client.chat(chatBody({ stream: true, model: 'p/slow' })),
    );
    await eventually(() => upstream.requests.length === 4, 'the streams');
    program.child.kill('SIGTERM');
    assert.equal((await program.logged('draining'))[0]!['in_flight'], 4);
    finish();
    for (const { text } of await Promise.all(whole)) assert.match(text, /\[DONE\]\n\n$/);
    for (const { text } of await Promise.all(cut)) assert.match(text, /is shutting down/);
    assert.equal(await program.exit, 0, program.stderr());
    const { message, finished, cut: count } = program.lines().at(-1)!;
    assert.deepEqual([message, finished, count], ['stopped', 2, 2]);
  });

  test('ends at once with a second signal, and "stopped" is the last line', async (t) => {
    const { upstream } = await startHeldUpstream(t);
    const program = await startWorkers(t, { toml: providerToml(upstream), workers: 2 });
    const stream = openChat(program.port);
    await eventually(() => stream.text() === CHUNK, 'the first event');
    program.child.kill('SIGTERM');
    await program.logged('draining');
    program.child.kill('SIGINT');
    assert.equal(await program.exit, 1);
    assert.match(await stream.ended, /is shutting down/);
    const [request, stopped] = program.lines().slice(-2);
    assert.deepEqual([request!['message'], request!['outcome']], ['request', 'internal_error']);
    const { message, finished, cut } = stopped!;
    assert.deepEqual([message, finished, cut], ['stopped', 0, 1]);
  });
});
