/** A gateway of two workers whose store of rate limits, a real Redis or Valkey, fails while requests are under way. */

import assert from 'node:assert/strict';
import { before, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { openFeed } from './support/feed.ts';
import { providerToml, startGateway } from './support/gateway.ts';
import { createMemoryProbe } from './support/memory.ts';
import { buildOnce, emptyFolder, freePort, runProgram } from './support/process.ts';
import { isRedisMissing, startRedis, type RedisServer } from './support/redis-server.ts';
import {
  answerChat,
  chat,
  countPassed,
  PASSWORD,
  programWaiting,
  startLoad,
  startReplica,
  storeUrl,
  WORKERS,
  type Load,
  type Replica,
} from './support/replicas.ts';
import { eventually } from './support/streams.ts';
import { startUpstream } from './support/upstream.ts';

before(buildOnce);

const LONG = { timeout: 90_000 };
/** A reply is late after this time: a busy machine does not make it so, and tests can wait for it. */
const PATIENT_MS = 2000;
const AWAY = 'rate limit store away';
const BACK = 'rate limit store back';
/** Limits that nothing reaches, so that each request asks the store twice. */
const WIDE = 'requests_per_second = 1000000\nburst_capacity = 1000000\n';

function wideToml(store: string, { baseUrl }: { readonly baseUrl: string }): string {
  const limits = `[rate_limit]\nenabled = true\n${WIDE}${store}\n[rate_limit.providers.p]\n${WIDE}`;
  return `[server]\nshutdown_timeout = 600\n${limits}${providerToml({ baseUrl })}`;
}

async function start(t: TestContext, redis: Pick<RedisServer, 'port'>, script?: string) {
  const upstream = await startUpstream(t, answerChat);
  return startReplica(t, wideToml(storeUrl(redis), upstream), { script });
}

async function readStore({ metrics }: Replica): Promise<{ up: number; fallbacks: number }> {
  const { sum } = await metrics();
  return {
    up: sum('gateway_rate_limit_store_up'),
    fallbacks: sum('gateway_rate_limit_store_fallbacks_total'),
  };
}

/** Nothing that it has printed, logged or answered shows the URL of the store or its password. */
async function assertSecretKept(t: TestContext, { stdout, stderr, admin, adminPort }: Replica) {
  const feed = await openFeed(t, adminPort);
  const events = [await feed.next('settings'), await feed.next('state')];
  feed.close();
  const shown = [stdout(), stderr(), JSON.stringify(events)];
  for (const path of ['/', '/metrics', '/ready']) shown.push(await admin(path));
  assert.match(shown.join(), /\["rate_limit.store","\[secret\]"\]/);
  for (const text of shown) assert.ok(!/redis:|store-password/i.test(text), text);
}

interface Outage {
  readonly name: string;
  readonly begin: (redis: RedisServer) => Promise<unknown>;
  readonly end: (redis: RedisServer) => Promise<unknown>;
  readonly cause: RegExp;
}

const OUTAGES: readonly Outage[] = [
  {
    name: 'killed, and started again empty',
    begin: (redis) => redis.kill(),
    end: (redis) => redis.restart(),
    cause: /^(?:the connection was closed|.*(?:ECONN|EPIPE).*)$/,
  },
  {
    name: 'frozen',
    begin: async (redis) => redis.freeze(),
    end: async (redis) => redis.thaw(),
    cause: /^no answer in 2000 ms$/,
  },
  {
    name: 'full',
    begin: (redis) => redis.fill(),
    end: (redis) => redis.unfill(),
    cause: /^EVALSHA: .*OOM/,
  },
  {
    name: 'a read-only replica',
    begin: async (redis) => redis.command('REPLICAOF', '127.0.0.1', String(await freePort())),
    end: (redis) => redis.command('REPLICAOF', 'NO', 'ONE'),
    cause: /^EVALSHA: .*(?:READONLY|read only)/,
  },
];

/** Every worker has requests in each state, and so learns of it. */
async function passThrough({ begin, end, cause }: Outage, context: OutageContext): Promise<void> {
  const { redis, replica, load } = context;
  const earlier = replica.lines(AWAY).length;
  const { fallbacks } = await readStore(replica);
  await begin(redis);
  await load.rounds();
  const during = await readStore(replica);
  assert.equal(during.up, 0);
  assert.ok(during.fallbacks > fallbacks, `${during.fallbacks} fallbacks`);
  assert.equal(replica.lines(AWAY).length, earlier + 1);
  assert.match(replica.lines(AWAY).at(-1)!['cause'] as string, cause);
  assert.equal(replica.lines(BACK).length, earlier);
  await end(redis);
  await eventually(async () => (await readStore(replica)).up === 1, 'the store is back');
  await load.rounds();
  const { fallbacks: after } = await readStore(replica);
  await load.rounds();
  assert.deepEqual(await readStore(replica), { up: 1, fallbacks: after });
  const messages = replica.lines(AWAY, BACK).map(({ message }) => message);
  assert.deepEqual(messages.slice(2 * earlier), [AWAY, BACK]);
}

interface OutageContext {
  readonly redis: RedisServer;
  readonly replica: Replica;
  readonly load: Load;
}

for (const outage of OUTAGES) {
  test(
    `store ${outage.name} under load, twice: no request fails, the log and the metrics tell of each outage once`,
    LONG,
    async (t) => {
      if (isRedisMissing(t)) return;
      const redis = await startRedis(t, { password: PASSWORD });
      const replica = await start(t, redis, await programWaiting(t, PATIENT_MS));
      const load = startLoad(t, replica.port);
      await load.rounds();
      assert.deepEqual(await readStore(replica), { up: 1, fallbacks: 0 });
      for (let i = 0; i < 2; i += 1) await passThrough(outage, { redis, replica, load });
      await load.stop();
      assert.deepEqual(load.faults, []);
      assert.equal((await replica.metrics()).sum('gateway_requests_in_flight'), 0);
      // The one that asks is the last.
      const clients = async () => (await redis.command('CLIENT', 'LIST')).match(/\bid=/g)!.length;
      await eventually(async () => (await clients()) === WORKERS + 1, 'no other connection');
      await assertSecretKept(t, replica);
      replica.child.kill('SIGTERM');
      assert.equal(await replica.exit, 0);
    },
  );
}

test('scripts flushed under load: nothing is limited without the store', LONG, async (t) => {
  if (isRedisMissing(t)) return;
  const redis = await startRedis(t, { password: PASSWORD });
  const replica = await start(t, redis, await programWaiting(t, PATIENT_MS));
  const load = startLoad(t, replica.port);
  for (let i = 0; i < 5; i += 1) {
    await load.rounds();
    await redis.command('SCRIPT', 'FLUSH');
  }
  await load.rounds();
  await load.stop();
  assert.deepEqual(load.faults, []);
  assert.deepEqual(await readStore(replica), { up: 1, fallbacks: 0 });
  assert.deepEqual(replica.lines(AWAY), []);
});

test('store that always answers later than 50 ms: no request fails', LONG, async (t) => {
  if (isRedisMissing(t)) return;
  const redis = await startRedis(t, { password: PASSWORD });
  const replica = await start(t, redis);
  const load = startLoad(t, replica.port);
  await load.rounds();
  redis.freeze();
  await load.rounds();
  await load.stop();
  assert.deepEqual(load.faults, []);
  assert.equal(replica.lines(AWAY).at(-1)!['cause'], 'no answer in 50 ms');
});

test('while the store is away no request waits for it', LONG, async (t) => {
  if (isRedisMissing(t)) return;
  const redis = await startRedis(t, { password: PASSWORD });
  const upstream = await startUpstream(t, answerChat);
  const script = await programWaiting(t, PATIENT_MS);
  const limited = await startReplica(t, wideToml(storeUrl(redis), upstream), { script });
  const without = await startReplica(t, wideToml('', upstream), { script });
  redis.freeze();
  // Over so many connections that each worker learns of it.
  await countPassed(
    [limited.port],
    Array.from({ length: 100 }, () => ({})),
  );
  const timeOf = async ({ port }: Replica) => {
    const startMs = performance.now();
    assert.equal((await chat(port)).status, 200);
    return performance.now() - startMs;
  };
  let differenceMs = 0;
  const REQUESTS = 30;
  for (let i = 0; i < REQUESTS; i += 1) {
    // Some while it tries to connect, and some between.
    await sleep(200);
    differenceMs += (await timeOf(limited)) - (await timeOf(without));
  }
  assert.equal((await readStore(limited)).up, 0);
  assert.ok(differenceMs < (REQUESTS * PATIENT_MS) / 8, `${differenceMs} ms longer`);
});

test('while the store is away the buckets of the process limit', async (t) => {
  if (isRedisMissing(t)) return;
  const redis = await startRedis(t, { password: PASSWORD });
  const upstream = await startUpstream(t, answerChat);
  const limit = `[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 20\n`;
  const toml = limit + storeUrl(redis) + '\n' + providerToml(upstream);
  const { port, lines } = await startReplica(t, toml);
  await redis.kill();
  await eventually(() => lines(AWAY).length === 1, 'the outage');
  const startMs = performance.now();
  const chats = Array.from({ length: 300 }, () => ({}));
  const [passed = 0] = await countPassed([port], chats);
  const refilled = Math.ceil((performance.now() - startMs) / 1000);
  assert.ok(passed >= 20 && passed <= 20 + refilled, `${passed} passed`);
});

interface Start extends Omit<Outage, 'begin'> {
  readonly password?: string;
  readonly begin?: (redis: RedisServer) => unknown;
}

const STARTS: readonly Start[] = [
  {
    name: 'that is not there',
    begin: (redis) => redis.kill(),
    end: (redis) => redis.restart(),
    cause: /ECONNREFUSED/,
  },
  {
    name: 'that is frozen',
    begin: (redis) => redis.freeze(),
    end: async (redis) => redis.thaw(),
    cause: /^no answer in 2000 ms$/,
  },
  {
    name: 'that has another password',
    password: 'another',
    end: (redis) => redis.command('CONFIG', 'SET', 'requirepass', PASSWORD),
    cause: /^AUTH: WRONGPASS$/,
  },
];

for (const { name, password = PASSWORD, begin, end, cause } of STARTS) {
  test(`a gateway starts with a store ${name}, and uses it when it can`, LONG, async (t) => {
    if (isRedisMissing(t)) return;
    const redis = await startRedis(t, { password });
    await begin?.(redis);
    const replica = await start(t, redis, await programWaiting(t, PATIENT_MS));
    const load = startLoad(t, replica.port);
    await load.rounds();
    assert.equal((await readStore(replica)).up, 0);
    const [line, ...others] = replica.lines(AWAY, BACK);
    assert.equal(line!['message'], AWAY);
    assert.match(line!['cause'] as string, cause);
    assert.deepEqual(others, []);
    await end(redis);
    await eventually(async () => (await readStore(replica)).up === 1, 'the store is there');
    await load.rounds();
    const { fallbacks } = await readStore(replica);
    await load.rounds();
    assert.equal((await readStore(replica)).fallbacks, fallbacks);
    await load.stop();
    assert.deepEqual(load.faults, []);
    assert.deepEqual(
      replica.lines(AWAY, BACK).map(({ message }) => message),
      [AWAY, BACK],
    );
    await assertSecretKept(t, replica);
  });
}

test('a drain ends the process whether the store is there, frozen or gone', LONG, async (t) => {
  if (isRedisMissing(t)) return;
  const states: ((redis: RedisServer) => unknown)[] = [
    () => {},
    (redis: RedisServer) => redis.freeze(),
    (redis: RedisServer) => redis.kill(),
  ];
  for (const enter of states) {
    const redis = await startRedis(t, { password: PASSWORD });
    const { child, exit, port, stderr } = await start(t, redis);
    assert.equal((await chat(port)).status, 200);
    await enter(redis);
    assert.equal((await chat(port)).status, 200);
    child.kill('SIGTERM');
    assert.equal(await exit, 0, stderr());
  }
});

test('a start that fails ends the process, with a store as without', async (t) => {
  if (isRedisMissing(t)) return;
  const redis = await startRedis(t, { password: PASSWORD });
  const { port } = await start(t, redis);
  const toml = wideToml(storeUrl(redis), await startUpstream(t));
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const args = ['--host', '127.0.0.1', '--port', String(port), '--workers', String(WORKERS)];
  const { code, stderr } = await runProgram(t, args, { cwd });
  assert.equal(code, 1);
  assert.match(stderr, /port \d+ is already in use/);
  assert.ok(!stderr.includes(PASSWORD));
});

test('--check shows no part of the URL of a store, right or wrong', async (t) => {
  for (const url of [`redis://:${PASSWORD}@127.0.0.1:1/0`, `redis://:${PASSWORD}@127.0.0.1:x`]) {
    const cwd = emptyFolder(t, { 'gateway.toml': `[rate_limit]\nstore = "${url}"\n` });
    for (const args of [['--check=offline'], ['--check=offline', '--json']]) {
      const { stdout, stderr } = await runProgram(t, args, { cwd });
      assert.match(stdout + stderr, url.endsWith('/0') ? /\[secret\]/ : /rate_limit\.store/);
      assert.ok(!(stdout + stderr).includes(PASSWORD), stdout + stderr);
    }
  }
});

test('requests during outages of the store leave nothing in memory', LONG, async (t) => {
  if (isRedisMissing(t)) return;
  const redis = await startRedis(t, { password: PASSWORD });
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: wideToml(storeUrl(redis), upstream) });
  const ask = async (count: number) => {
    const chats = Array.from({ length: count }, () => ({}));
    assert.deepEqual(await countPassed([gateway.port], chats), [count]);
    gateway.log.length = 0;
    upstream.requests.length = 0;
  };
  const outages = async (count: number) => {
    redis.freeze();
    await ask(count);
    redis.thaw();
    await ask(count);
    await redis.kill();
    await ask(count);
    await redis.restart();
    await ask(count);
  };
  const measure = createMemoryProbe();
  // The first rounds compile.
  for (let round = 0; round < 3; round += 1) await outages(150);
  const held = measure();
  for (let round = 0; round < 5; round += 1) await outages(150);
  const grown = measure() - held;
  // 700 bytes for each of 3,000 requests.
  assert.ok(grown < 2_100_000, `grown by ${grown} bytes`);
});
