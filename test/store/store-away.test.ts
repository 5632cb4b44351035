/** A gateway whose store, a real Redis or Valkey, fails under load, at the start and in a drain. */

import assert from 'node:assert/strict';
import { before, describe } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { buildOnce, emptyFolder, freePort, runProgram } from '../support/process.ts';
import type { RedisServer } from '../support/redis-server.ts';
import {
  answerChat,
  assertSecretKept,
  AWAY,
  BACK,
  chat,
  countPassed,
  PASSWORD,
  PATIENT_MS,
  programWaiting,
  readStore,
  startLoad,
  startReplica,
  startWithStore,
  storeUrl,
  testWithRedis,
  untilStoreIs,
  wideToml,
  type Replica,
} from '../support/replicas.ts';
import { eventually } from '../support/streams.ts';
import { startUpstream } from '../support/upstream.ts';

before(buildOnce);

interface Outage {
  readonly begin: (redis: RedisServer) => unknown;
  readonly end: (redis: RedisServer) => unknown;
  readonly cause: RegExp;
  /** The store's password, if it differs from the settings. */
  readonly password?: string;
}

const FROZEN: Outage = {
  begin: (redis) => redis.freeze(),
  end: (redis) => redis.thaw(),
  cause: /: no answer in 2000 ms$/,
};
const OUTAGES: Readonly<Record<string, Outage>> = {
  'killed, and started again empty': {
    begin: (redis) => redis.kill(),
    end: (redis) => redis.restart(),
    cause:
      /(?:^|: )(?:the connection was closed|This socket has been ended.*|.*(?:ECONN|EPIPE).*)$/,
  },
  frozen: FROZEN,
  full: {
    begin: (redis) => redis.fill(),
    end: (redis) => redis.unfill(),
    cause: /: EVAL: .*OOM/,
  },
  'a read-only replica': {
    begin: async (redis) => redis.command('REPLICAOF', '127.0.0.1', String(await freePort())),
    end: (redis) => redis.command('REPLICAOF', 'NO', 'ONE'),
    cause: /: EVAL: .*(?:READONLY|read only)/,
  },
};
const AT_START: Readonly<Record<string, Outage>> = {
  'is not there': { ...OUTAGES['killed, and started again empty']!, cause: /ECONNREFUSED/ },
  'is frozen': FROZEN,
  'has another password': {
    begin: () => {},
    password: 'another',
    end: (redis) => redis.command('CONFIG', 'SET', 'requirepass', PASSWORD),
    cause: /: AUTH: WRONGPASS$/,
  },
};

const messagesOf = (replica: Replica) =>
  replica.lines(AWAY, BACK).map(({ message }) => message as string);

/** Ends the outage, and checks that all limits use the store again. */
async function assertBack(
  { end }: Outage,
  redis: RedisServer,
  replica: Replica,
  load: ReturnType<typeof startLoad>,
): Promise<void> {
  await end(redis);
  await untilStoreIs(1, replica);
  await load.rounds();
  const { fallbacks } = await readStore(replica);
  await load.rounds();
  assert.deepEqual(await readStore(replica), { up: 1, fallbacks });
  await eventually(() => messagesOf(replica).at(-1) === BACK, 'the line of its end');
  // Under load both lines are repeated.
  const turns = messagesOf(replica).filter((message, at, all) => message !== all[at - 1]);
  const outages = Array.from({ length: turns.length / 2 }, () => [AWAY, BACK]);
  assert.deepEqual(turns, outages.flat());
}

describe('an outage', { concurrency: 2 }, () => {
  for (const [name, outage] of Object.entries(OUTAGES)) {
    testWithRedis(
      `under load of a store that is ${name} fails no request, and is logged with its end`,
      async (t, redis) => {
        const replica = await startWithStore(t, redis, await programWaiting(t, PATIENT_MS));
        const load = startLoad(t, replica.port);
        await load.rounds();
        // Losing all scripts is no outage.
        await redis.command('SCRIPT', 'FLUSH');
        await load.rounds();
        assert.deepEqual(await readStore(replica), { up: 1, fallbacks: 0 });
        for (const earlier of [0, 1]) {
          const { fallbacks } = await readStore(replica);
          await outage.begin(redis);
          await untilStoreIs(0, replica);
          await load.rounds();
          const during = await readStore(replica);
          assert.equal(during.up, 0);
          assert.ok(during.fallbacks > fallbacks, `${during.fallbacks} fallbacks`);
          if (earlier === 0) {
            await eventually(() => messagesOf(replica).length === 1, 'the incident');
            assert.match(replica.lines(AWAY)[0]!['cause'] as string, outage.cause);
          }
          await assertBack(outage, redis, replica, load);
        }
        await load.stop();
        assert.deepEqual(load.faults, []);
        assert.equal((await replica.metrics()).sum('gateway_requests_in_flight'), 0);
        // The command itself has the other connection.
        const clients = async () => (await redis.command('CLIENT', 'LIST')).match(/\bid=/g)!.length;
        await eventually(async () => (await clients()) === 2, 'no other connection');
        await assertSecretKept(t, replica);
        replica.child.kill('SIGTERM');
        assert.equal(await replica.exit, 0);
      },
    );
  }

  for (const [name, outage] of Object.entries(AT_START)) {
    testWithRedis(
      `at the start, of a store that ${name}, does not keep the gateway from serving`,
      async (t, redis) => {
        await outage.begin(redis);
        const replica = await startWithStore(t, redis, await programWaiting(t, PATIENT_MS));
        const load = startLoad(t, replica.port);
        await load.rounds();
        assert.equal((await readStore(replica)).up, 0);
        await eventually(() => messagesOf(replica).length > 0, 'the line');
        assert.deepEqual(messagesOf(replica), [AWAY]);
        assert.match(replica.lines(AWAY)[0]!['cause'] as string, outage.cause);
        await assertBack(outage, redis, replica, load);
        await load.stop();
        assert.deepEqual(load.faults, []);
        await assertSecretKept(t, replica);
      },
      outage.password,
    );
  }

  for (const state of ['there', 'frozen', 'gone']) {
    testWithRedis(`in a drain does not delay its end: a store is ${state}`, async (t, redis) => {
      const { child, exit, port, lines, stderr } = await startWithStore(t, redis);
      assert.equal((await chat(port)).status, 200);
      if (state === 'frozen') redis.freeze();
      if (state === 'gone') await redis.kill();
      assert.equal((await chat(port)).status, 200);
      if (state === 'frozen') {
        await eventually(() => lines(AWAY).length > 0, 'the incident');
        assert.match(String(lines(AWAY).at(-1)!['cause']), /: no answer in 50 ms$/);
      }
      child.kill('SIGTERM');
      assert.equal(await exit, 0, stderr());
    });
  }
});

testWithRedis(
  'while the store is away no request waits for it, and local buckets limit',
  async (t, redis) => {
    const upstream = await startUpstream(t, answerChat);
    const script = await programWaiting(t, PATIENT_MS);
    const bucket =
      '[clients.alice]\nkey = "alice-key"\nrequests_per_second = 1\nburst_capacity = 20\n';
    const toml = wideToml(storeUrl(redis), upstream) + bucket;
    const other = '[clients.bob]\nkey = "bob-key"\n';
    const limited = await startReplica(t, toml + other, script);
    const without = await startReplica(t, wideToml('', upstream) + other, script);
    const options = { token: 'bob-key' };
    redis.freeze();
    await countPassed(
      [limited.port],
      Array.from({ length: 100 }, () => options),
    );
    const timeOf = async ({ port }: Replica) => {
      const startMs = performance.now();
      assert.equal((await chat(port, options)).status, 200);
      return performance.now() - startMs;
    };
    let differenceMs = 0;
    const REQUESTS = 30;
    for (let i = 0; i < REQUESTS; i += 1) {
      // Some requests come during an attempt to connect, and some between attempts.
      await sleep(200);
      differenceMs += (await timeOf(limited)) - (await timeOf(without));
    }
    assert.equal((await readStore(limited)).up, 0);
    assert.ok(differenceMs < (REQUESTS * PATIENT_MS) / 8, `${differenceMs} ms longer`);
    const startMs = performance.now();
    const chats = Array.from({ length: 300 }, () => ({ token: 'alice-key' }));
    const [passed = 0] = await countPassed([limited.port], chats);
    const refilled = Math.ceil((performance.now() - startMs) / 1000);
    assert.ok(passed >= 20 && passed <= 20 + refilled, `${passed} passed`);
  },
);

testWithRedis('a failed start ends the process, with or without a store', async (t, redis) => {
  const { port } = await startWithStore(t, redis);
  const toml = wideToml(storeUrl(redis), await startUpstream(t));
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const args = ['--host', '127.0.0.1', '--port', String(port)];
  const { code, stderr } = await runProgram(t, args, { cwd });
  assert.equal(code, 1);
  assert.match(stderr, /address already in use/);
  assert.ok(!stderr.includes(PASSWORD));
});
