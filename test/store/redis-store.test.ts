/** The rate limits in a real Redis or Valkey. */

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { test, type TestContext } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { Secret } from '../../src/lib/secret.ts';
import { CalendarWindow } from '../../src/policy/calendar-window.ts';
import type { StoredBucket, StoredWindow } from '../../src/policy/limiter.ts';
import { encodeCommand, scriptArguments } from '../../src/store/redis-connection.ts';
import { atSomeScale } from '../support/clock.ts';
import { withRandom, type Random } from '../support/random.ts';
import {
  isRedisMissing,
  REDIS_SERVERS,
  startRedis,
  type RedisServer,
} from '../support/redis-server.ts';
import {
  AWAY,
  BACK,
  bucket,
  countTaken,
  createStore,
  refusesAtOnce,
  until,
  type LogLine,
  type TestStore,
} from '../support/redis-store.ts';

interface Started extends TestStore {
  readonly t: TestContext;
  readonly program: string;
  readonly redis: RedisServer;
  readonly port: number;
}

/** Defines a test for each installed server, with a connected store. */
function testEach(title: string, body: (started: Started) => Promise<void>): void {
  if (REDIS_SERVERS.length === 0) void test(title, (t) => void isRedisMissing(t));
  for (const program of REDIS_SERVERS) {
    void test(`${program}: ${title}`, { timeout: 100_000 }, async (t) => {
      const redis = await startRedis(t, { program });
      const { port } = redis;
      const started = createStore(t, { port });
      await until(() => !started.store.isAway);
      await body({ ...started, t, program, redis, port });
    });
  }
}

const linesOf = (lines: readonly LogLine[]) => lines.map(({ message }) => message);
const causeOf = (lines: readonly LogLine[]) => lines[0]!.facts!['cause'] as string;

testEach('a full bucket of n lets exactly n pass over several connections', async ({ t, port }) => {
  const started = [1, 2, 3].map(() => createStore(t, { port }));
  const stores = started.map(({ store }) => store);
  await until(() => stores.every(({ isAway }) => !isAway));
  for (const burst of [1, 2, 3, 7, 100, 1000]) {
    const one = bucket(`exact-${burst}`, burst);
    const startMs = performance.now();
    const counts = stores.map((store) => countTaken(store, [one], burst + 50));
    const taken = (await Promise.all(counts)).reduce((sum, count) => sum + count);
    const refilled = Math.ceil((performance.now() - startMs) / 1000);
    assert.ok(taken >= burst && taken <= burst + refilled, `${taken} of ${burst}`);
  }
  for (const { fallbacks } of started) assert.equal(fallbacks(), 0);
});

testEach('a token is taken of each bucket, or of none', async ({ store }) => {
  const [client, global] = [bucket('clients.a', 1000), bucket('rate_limit', 2)];
  const own = bucket('clients.b', 1);
  // All at once, so nothing is refilled in between.
  const buckets = [[client, global], [own, global], [client, global], [own, global], [own]];
  const taken = await Promise.all(buckets.map((some) => store.take(some)));
  const refusals = taken.map((one) => (typeof one === 'object' ? one.refusedBy.name : one));
  const both = 'clients.b';
  assert.deepEqual(refusals, ['taken', 'taken', 'rate_limit', both, both]);
  for (const one of taken) {
    if (typeof one === 'object') assert.ok(one.waitMs > 0 && one.waitMs <= 1000, `${one.waitMs}`);
  }
  const more = await countTaken(store, [client, global], 500);
  const left = await countTaken(store, [client], 1100);
  assert.ok(left >= 999 - more, `${left} and ${more}`);
});

function windowOf(name: string, capacity: number, period: 'day' | 'month' = 'day'): StoredWindow {
  return { name, capacity, perRequest: 0, local: new CalendarWindow(period, capacity) };
}

testEach(
  'the sum of a window is shared, and refuses from its limit on',
  async ({ store, redis }) => {
    const [one, other] = [windowOf('clients.a.cost', 1), windowOf('clients.a.cost', 1)];
    const key = `gateway-test:clients.a.cost:${one.local.name}`;
    const limits = [one, bucket('beside', 9)];
    assert.equal(await store.take(limits), 'taken');
    // No sum is written before something was used.
    assert.equal(await redis.command('EXISTS', key), ':0\r\n');
    for (let i = 0; i < 9; i += 1) store.charge(0.1, [one]);
    assert.equal(await store.take([other]), 'taken');
    assert.equal(other.local.sum.used, 0.9);
    store.charge(0.1, [other]);
    const refused = await store.take(limits);
    assert.ok(typeof refused === 'object' && refused.refusedBy === one);
    assert.ok(Math.abs(refused.waitMs - one.local.resetMs()) < 5000);
    assert.equal(one.local.sum.used, 1);
    assert.equal(await store.take([windowOf('clients.a.cost', 1.05)]), 'taken');
    const lifeMs = Number((await redis.command('PTTL', key)).slice(1));
    assert.ok(Math.abs(lifeMs - one.local.resetMs() - 3_600_000) < 5000, String(lifeMs));
  },
);

testEach('days, months and clients have sums of their own in the store', async ({ store }) => {
  const all = [windowOf('a', 5), windowOf('a', 5, 'month'), windowOf('b', 5)];
  store.charge(5, [all[0]!]);
  store.charge(1e12, [all[1]!]);
  assert.notEqual(await store.take([all[1]!]), 'taken');
  assert.equal(await store.take([all[2]!]), 'taken');
  store.charge(0, all);
  await store.take(all);
  assert.deepEqual(
    all.map(({ local }) => local.sum.used),
    [5, 1e12, 0],
  );
});

testEach('a refund puts a token back into each bucket, up to its capacity', async ({ store }) => {
  const buckets = [bucket('a', 2), bucket('b', 3)];
  for (let i = 0; i < 5; i += 1) store.charge(-1, buckets);
  assert.equal(await countTaken(store, buckets, 2), 2);
  assert.equal(typeof (await store.take(buckets)), 'object');
  store.charge(-1, buckets);
  assert.equal(await store.take(buckets), 'taken');
});

testEach(
  'a bucket that lacks more than an age can refill keeps refusing, with its true wait',
  async ({ store, lines }) => {
    const day = { ...bucket('day', 1), periodSeconds: 86_400, perRequest: 0 };
    for (let i = 0; i < 200; i += 1) store.charge(1e9, [day]);
    const taken = await store.take([day]);
    assert.ok(
      typeof taken === 'object' && taken.waitMs > 199 * 1e9 * 86_400_000,
      JSON.stringify(lines),
    );
    assert.deepEqual(lines, []);
  },
);

testEach(
  'a key has the prefix, name and limits, and expires when its bucket is full',
  async ({ t, redis }) => {
    const { store } = createStore(t, { port: redis.port, prefix: 'pre:fix', database: 3 });
    await until(() => !store.isAway);
    const run = "redis.call('SELECT', 3) return redis.call(unpack(ARGV))";
    const select = async (...command: string[]) => redis.command('EVAL', run, '0', ...command);
    const [slow, quick] = [bucket('clients.é', 100), bucket('quick', 5, 1_000_000)];
    assert.equal(await countTaken(store, [slow], 90), 90);
    const ttlMs = Number((await select('PTTL', 'pre:fix:clients.é:1/100')).slice(1));
    assert.ok(ttlMs > 0 && ttlMs <= 90_001, `${ttlMs}`);
    await store.take([quick]);
    while ((await select('DBSIZE')) !== ':1\r\n');
    // Other limits make another bucket.
    assert.equal(await countTaken(store, [bucket('clients.é', 90)], 90), 90);
    assert.equal(await redis.command('DBSIZE'), ':0\r\n');
  },
);

testEach(
  'a name and a password are sent, and a wrong password is not logged',
  async ({ t, program }) => {
    const commands = ['+auth', '+select', '+eval', '+time', '+get', '+set'];
    const acl = ['--user', 'gateway', 'on', '>user-password', '~gw:*', ...commands];
    const { port } = await startRedis(t, { program, password: 'right-password', args: acl });
    const take = async (username: string | undefined, password: string) => {
      const settings = {
        port,
        username,
        password: new Secret(password),
        prefix: 'gw',
        database: 1,
      };
      const { store, lines } = createStore(t, settings);
      await until(() => !store.isAway || lines.length > 0);
      return lines.length > 0 ? causeOf(lines) : store.take([bucket(password, 1)]);
    };
    assert.equal(await take(undefined, 'right-password'), 'taken');
    assert.equal(await take('gateway', 'user-password'), 'taken');
    const refused = await take(undefined, 'wrong');
    assert.match(JSON.stringify(refused), /^"AUTH: WRONGPASS"$/);
    const { store, lines } = createStore(t, { port });
    await until(() => lines.length > 0);
    assert.match(causeOf(lines), /^EVAL: NOAUTH /);
    assert.equal(store.isAway, true);
  },
);

testEach(
  'an idle connection that the server closes is replaced without a log line',
  async ({ redis, store, lines }) => {
    // As the server's setting `timeout` does to unused connections.
    const closed = await redis.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    assert.equal(closed, ':1\r\n');
    await until(() => store.isAway);
    await until(() => !store.isAway);
    assert.equal(await store.take([bucket('idle', 1)]), 'taken');
    assert.deepEqual(lines, []);
  },
);

for (const how of ['killed and restarted', 'frozen'] as const) {
  testEach(
    `${how}: takes fall back together, later takes at once, and the log has two lines`,
    async ({ t, redis, port }) => {
      const answerMs = how === 'frozen' ? 1000 : undefined;
      const { store, lines, fallbacks, isAway } = createStore(
        t,
        { port },
        { ...(answerMs && { answerMs }) },
      );
      await until(() => !store.isAway);
      for (let outage = 0; outage < 2; outage += 1) {
        const [earlier, before] = [lines.length, fallbacks()];
        assert.equal(await store.take([bucket(`a${outage}`, 1)]), 'taken');
        // The server does not answer these commands before it dies.
        redis.freeze();
        const pending = [1, 2, 3].map(() => store.take([bucket('a', 1)]));
        store.charge(-1, [bucket('a', 1)]);
        if (!answerMs) await redis.kill();
        assert.deepEqual(await Promise.all(pending), [undefined, undefined, undefined]);
        assert.ok(store.isAway);
        assert.ok(await refusesAtOnce(store));
        assert.ok(isAway());
        assert.equal(fallbacks() - before, 4);
        store.charge(-1, [bucket('a', 1)]);
        if (answerMs) redis.thaw();
        else await redis.restart();
        await until(() => !store.isAway);
        assert.equal(await store.take([bucket(`b${outage}`, 1)]), 'taken');
        assert.ok(!isAway());
        assert.deepEqual(linesOf(lines.slice(earlier)), [AWAY, BACK]);
        if (answerMs) assert.equal(causeOf(lines), 'no answer in 1000 ms');
        assert.equal(fallbacks() - before, 4);
      }
    },
  );
}

testEach('full: the store is away until it can write again', async ({ t, redis, store, lines }) => {
  await redis.fill();
  assert.equal(await store.take([bucket('a', 1)]), undefined);
  assert.ok(await refusesAtOnce(store));
  assert.match(causeOf(lines), /OOM/);
  // A new connection alone does not end the outage.
  const { store: other, lines: otherLines } = createStore(t, { port: redis.port });
  await until(() => otherLines.length > 0);
  assert.equal(other.isAway, true);
  await redis.unfill();
  await until(() => !store.isAway && !other.isAway);
  assert.equal(await store.take([bucket('a', 1)]), 'taken');
  for (const log of [lines, otherLines]) assert.deepEqual(linesOf(log), [AWAY, BACK]);
});

testEach('a reply that came while the event loop was busy is in time', async ({ t, port }) => {
  await atSomeScale(async (scale) => {
    const { store } = createStore(t, { port }, { answerMs: 50 * scale });
    await until(() => !store.isAway);
    // After an immediate, timers run before sockets are read.
    await nextTurn();
    const taken = store.take([bucket(`busy-${scale}`, 1)]);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200 * scale);
    assert.equal(await taken, 'taken');
  });
});

/**
 * The script with the test's clock in its last two arguments. Its answer also has each key's
 * expiry.
 */
const CLOCKED = [
  ["redis.call('TIME')", '{ARGV[#ARGV - 1], ARGV[#ARGV]}'],
  ["'PX', expiryMs)", "'PX', expiryMs + 1e9) lacks[i] = string.format('%.0f', expiryMs)"],
  ['status_reply(answer)', "status_reply(answer .. ';' .. table.concat(lacks, ' '))"],
].reduce((script, [text = '', other = '']) => {
  assert.equal(script.split(text).length, 2, text);
  return script.replace(text, () => other);
}, scriptArguments([], '')[0]!);

/**
 * The simplest exact bucket with the same promises. A token has as many parts as its period has
 * microseconds.
 */
class Model {
  readonly bucket: StoredBucket;
  parts: bigint;
  readonly capacity: bigint;
  readonly rate: bigint;
  readonly token: bigint;
  /** A request's needed parts: a millionth token if it takes none. */
  readonly needed: bigint;
  #nowUs = 0n;

  constructor(one: StoredBucket) {
    this.bucket = one;
    this.rate = BigInt(one.rate);
    this.token = BigInt(one.periodSeconds) * 1_000_000n;
    this.needed = one.perRequest > 0 ? this.token : this.token / 1_000_000n;
    this.capacity = BigInt(one.capacity) * this.token;
    this.parts = this.capacity;
  }

  /** Advances the time. A step backwards counts as no time. */
  advance(nowUs: bigint): void {
    const passedUs = nowUs > this.#nowUs ? nowUs - this.#nowUs : 0n;
    this.add(passedUs * this.rate);
    this.#nowUs = nowUs;
  }

  readonly add = (parts: bigint): void => {
    const sum = this.parts + parts;
    this.parts = sum < this.capacity ? sum : this.capacity;
  };

  /** Returns the microseconds until the bucket has these parts, rounded up. */
  waitUs(parts: bigint): bigint {
    const lacking = parts - this.parts;
    return lacking > 0n ? (lacking + this.rate - 1n) / this.rate : 0n;
  }
}

/** Returns a function that sends a command and returns its reply without the first character. */
function openClient(t: TestContext, port: number) {
  const socket = connect(port, '127.0.0.1').setNoDelay(true);
  t.after(() => socket.destroy());
  let unread = '';
  const waiting: ((text: string) => void)[] = [];
  socket.on('data', (chunk: Buffer) => {
    const lines = (unread + chunk.toString()).split('\r\n');
    unread = lines.pop()!;
    for (const line of lines) waiting.shift()!(line.slice(1));
  });
  return async (...args: string[]) =>
    new Promise<string>((resolve) => {
      waiting.push(resolve);
      socket.write(encodeCommand(args));
    });
}

function randomBucket(random: Random, name: string): StoredBucket {
  const number = () => random.pick([1, 2, 3, 7, 1000, 999_983, 1_000_000, random.integer(1, 1e6)]);
  const burst = random.oneIn(3) ? number() : random.integer(1, 8);
  if (random.oneIn(2)) return bucket(name, burst, number());
  // Small enough for exact doubles.
  const small = bucket(name, random.integer(1, 1000), random.integer(1, 1e6));
  return { ...small, periodSeconds: random.pick([60, 86_400]), perRequest: random.integer(0, 1) };
}

testEach('the script behaves like an exact model, whatever the clock does', async ({ t, port }) => {
  const send = openClient(t, port);
  await withRandom(async (random) => {
    for (let run = 0; run < 60; run += 1) {
      const models = ['a', 'b', 'c']
        .slice(random.integer(0, 2))
        .map((name) => new Model(randomBucket(random, name)));
      let nowUs = BigInt(random.integer(1, 4e9)) * 1_000_000n + BigInt(random.integer(0, 999_999));
      for (let i = 0; i < 100; i += 1) {
        const { rate } = random.pick(models);
        const steps = [0n, 0n, 1n, 1_000_000n / rate, -7n, -3_600_000_000n];
        nowUs += random.pick([...steps, BigInt(random.integer(0, 3e6))]);
        if (random.oneIn(50)) nowUs += BigInt(random.integer(0, 1e12));
        for (const model of models) model.advance(nowUs);
        /** Tokens taken in any case, or put back. */
        const tokens = random.oneIn(6) ? random.pick([-1, -1, 1, 7, 999]) : undefined;
        const time = [String(nowUs / 1_000_000n), String(nowUs % 1_000_000n)];
        const buckets = models.map((model) => model.bucket);
        const [, ...args] = scriptArguments(buckets, `run-${run}`, tokens);
        const about = `run ${run}, step ${i}, ${tokens}: ${JSON.stringify(buckets)}`;

        const waits = models.map((model) => model.waitUs(model.needed));
        const longest = waits.reduce((most, wait) => (wait > most ? wait : most), 0n);
        const isRefused = tokens === undefined && longest > 0n;
        for (const { add, bucket: one, token } of isRefused ? [] : models) {
          add(BigInt(tokens ?? one.perRequest) * -token);
        }
        const [answer = '', expiries = ''] = (await send('EVAL', CLOCKED, ...args, ...time)).split(
          ';',
        );
        const lacks = models.map(
          ({ capacity, parts, token }) => Number(capacity - parts) / Number(token),
        );
        const told = answer
          .split(' ')
          .slice(isRefused ? 2 : 1)
          .map(Number);
        assert.equal(told.length, lacks.length, about);
        for (const [at, lack] of lacks.entries()) assert.equal(told[at], Math.ceil(lack), about);
        const position = waits.indexOf(longest) + 1;
        const expected = isRefused ? `${position} ${longest}` : 'OK';
        assert.equal(answer.split(' ', isRefused ? 2 : 1).join(' '), expected, about);
        // The key must outlive its bucket's refill, but not by long.
        for (const [index, expiryMs] of expiries.split(' ').entries()) {
          const lateUs = BigInt(expiryMs) * 1000n - models[index]!.waitUs(models[index]!.capacity);
          assert.ok(lateUs >= 1000n && lateUs <= 2000n, `${about}: expires ${lateUs} us late`);
        }
      }
    }
  });
});
