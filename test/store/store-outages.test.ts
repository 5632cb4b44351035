/** A gateway whose store of rate limits, a real Redis or Valkey, fails while requests are under way. */

import assert from 'node:assert/strict';
import { before, describe } from 'node:test';

import { buildOnce, freePort } from '../support/process.ts';
import type { RedisServer } from '../support/redis-server.ts';
import {
  assertSecretKept,
  AWAY,
  BACK,
  PATIENT_MS,
  programWaiting,
  readStore,
  startLoad,
  startWithStore,
  testWithRedis,
  untilStoreIs,
  type Load,
  type Replica,
} from '../support/replicas.ts';
import { eventually } from '../support/streams.ts';

before(buildOnce);

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
    cause: /: (?:the connection was closed|This socket has been ended.*|.*(?:ECONN|EPIPE).*)$/,
  },
  {
    name: 'frozen',
    begin: async (redis) => redis.freeze(),
    end: async (redis) => redis.thaw(),
    cause: /: no answer in 2000 ms$/,
  },
  {
    name: 'full',
    begin: (redis) => redis.fill(),
    end: (redis) => redis.unfill(),
    cause: /: EVAL: .*OOM/,
  },
  {
    name: 'a read-only replica',
    begin: async (redis) => redis.command('REPLICAOF', '127.0.0.1', String(await freePort())),
    end: (redis) => redis.command('REPLICAOF', 'NO', 'ONE'),
    cause: /: EVAL: .*(?:READONLY|read only)/,
  },
];

/** There are requests in each state. */
async function passThrough({ begin, end, cause }: Outage, context: OutageContext): Promise<void> {
  const { redis, replica, load } = context;
  const earlier = replica.lines(AWAY).length;
  const { fallbacks } = await readStore(replica);
  await begin(redis);
  await untilStoreIs(0, replica);
  await load.rounds();
  const during = await readStore(replica);
  assert.equal(during.up, 0);
  assert.ok(during.fallbacks > fallbacks, `${during.fallbacks} fallbacks`);
  const told = () => replica.lines(AWAY).length;
  // The log tells of one in a minute, with its latest cause.
  if (earlier === 0) {
    await eventually(() => told() === 1, 'the incident');
    assert.match(replica.lines(AWAY)[0]!['cause'] as string, cause);
  }
  assert.equal(replica.lines(BACK).length, earlier);
  await end(redis);
  await untilStoreIs(1, replica);
  await load.rounds();
  const { fallbacks: after } = await readStore(replica);
  await load.rounds();
  assert.deepEqual(await readStore(replica), { up: 1, fallbacks: after });
  const messages = replica.lines(AWAY, BACK).map(({ message }) => message);
  assert.deepEqual(messages, [AWAY, BACK]);
}

interface OutageContext {
  readonly redis: RedisServer;
  readonly replica: Replica;
  readonly load: Load;
}

describe('an outage under load', { concurrency: 2 }, () => {
  for (const outage of OUTAGES) {
    testWithRedis(
      `store ${outage.name} under load, twice: no request fails, the metrics tell of each outage, and the log of one in a minute`,
      async (t, redis) => {
        const replica = await startWithStore(t, redis, await programWaiting(t, PATIENT_MS));
        const load = startLoad(t, replica.port);
        await load.rounds();
        assert.deepEqual(await readStore(replica), { up: 1, fallbacks: 0 });
        for (let i = 0; i < 2; i += 1) await passThrough(outage, { redis, replica, load });
        await load.stop();
        assert.deepEqual(load.faults, []);
        assert.equal((await replica.metrics()).sum('gateway_requests_in_flight'), 0);
        // The one that asks is the last.
        const clients = async () => (await redis.command('CLIENT', 'LIST')).match(/\bid=/g)!.length;
        await eventually(async () => (await clients()) === 2, 'no other connection');
        await assertSecretKept(t, replica);
        replica.child.kill('SIGTERM');
        assert.equal(await replica.exit, 0);
      },
    );
  }
});

testWithRedis(
  'scripts flushed under load: nothing is limited without the store',
  async (t, redis) => {
    const replica = await startWithStore(t, redis, await programWaiting(t, PATIENT_MS));
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
  },
);

testWithRedis('store that always answers later than 50 ms: no request fails', async (t, redis) => {
  const replica = await startWithStore(t, redis);
  const load = startLoad(t, replica.port);
  await load.rounds();
  redis.freeze();
  await load.rounds();
  await load.stop();
  assert.deepEqual(load.faults, []);
  await eventually(() => replica.lines(AWAY).length > 0, 'the incident');
  assert.match(String(replica.lines(AWAY).at(-1)!['cause']), /: no answer in 50 ms$/);
});
