/** A gateway whose store of rate limits, a real Redis or Valkey, is away: what it does meanwhile, at its start and in its drain. */

import assert from 'node:assert/strict';
import { before, describe, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { providerToml } from '../support/gateway.ts';
import { buildOnce, emptyFolder, runProgram } from '../support/process.ts';
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

testWithRedis('while the store is away no request waits for it', async (t, redis) => {
  const upstream = await startUpstream(t, answerChat);
  const script = await programWaiting(t, PATIENT_MS);
  const limited = await startReplica(t, wideToml(storeUrl(redis), upstream), script);
  const without = await startReplica(t, wideToml('', upstream), script);
  redis.freeze();
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

testWithRedis('while the store is away the buckets of the process limit', async (t, redis) => {
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

interface Start {
  readonly name: string;
  readonly end: (redis: RedisServer) => unknown;
  readonly cause: RegExp;
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
    cause: /: no answer in 2000 ms$/,
  },
  {
    name: 'that has another password',
    password: 'another',
    end: (redis) => redis.command('CONFIG', 'SET', 'requirepass', PASSWORD),
    cause: /: AUTH: WRONGPASS$/,
  },
];

describe('a start in an outage', { concurrency: 2 }, () => {
  for (const { name, password = PASSWORD, begin, end, cause } of STARTS) {
    const title = `a gateway starts with a store ${name}, and uses it when it can`;
    const body = async (t: TestContext, redis: RedisServer) => {
      await begin?.(redis);
      const replica = await startWithStore(t, redis, await programWaiting(t, PATIENT_MS));
      const load = startLoad(t, replica.port);
      await load.rounds();
      assert.equal((await readStore(replica)).up, 0);
      await eventually(() => replica.lines(AWAY).length > 0, 'the line');
      const [line, ...others] = replica.lines(AWAY, BACK);
      assert.equal(line!['message'], AWAY);
      assert.match(line!['cause'] as string, cause);
      assert.deepEqual(others, []);
      await end(redis);
      await untilStoreIs(1, replica);
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
    };
    testWithRedis(title, body, password);
  }
});

const STATES: Readonly<Record<string, (redis: RedisServer) => unknown>> = {
  there: () => {},
  frozen: (redis) => redis.freeze(),
  gone: (redis) => redis.kill(),
};
for (const [state, enter] of Object.entries(STATES)) {
  testWithRedis(`a drain ends the process if the store is ${state}`, async (t, redis) => {
    const { child, exit, port, stderr } = await startWithStore(t, redis);
    assert.equal((await chat(port)).status, 200);
    await enter(redis);
    assert.equal((await chat(port)).status, 200);
    child.kill('SIGTERM');
    assert.equal(await exit, 0, stderr());
  });
}

testWithRedis('a start that fails ends the process, with a store as without', async (t, redis) => {
  const { port } = await startWithStore(t, redis);
  const toml = wideToml(storeUrl(redis), await startUpstream(t));
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const args = ['--host', '127.0.0.1', '--port', String(port)];
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
