/** Gateways that share their rate limits in a real Redis or Valkey. */

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { before } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import { providerToml } from '../support/gateway.ts';
import { buildOnce } from '../support/process.ts';
import { startRedis, type RedisServer } from '../support/redis-server.ts';
import {
  answerChat,
  AWAY,
  chat,
  countPassed,
  PASSWORD,
  programWaiting,
  startReplica,
  storeUrl,
  testWithRedis,
  type Chat,
  type Replica,
} from '../support/replicas.ts';
import { eventually } from '../support/streams.ts';
import { modelOf } from '../support/scenario.ts';
import {
  completion,
  completionEvents,
  DONE,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

before(buildOnce);

/** A limit for replies beyond any machine's delays. */
const ENDLESS_MS = 60_000;
const PREFIX = 'inference-gateway';
const ALICE = 'alice-key-0123456789';
const CAROL = 'carol-key-0123456789';
const DAVE = 'dave-key-0123456789';
const PER_TOKEN = 1_000_000n;
/** Longer than any test. */
const LONG_SECONDS = 900;

/** Returns the store's clock in microseconds. */
async function readClock(redis: RedisServer): Promise<bigint> {
  const [, , seconds, , microseconds] = (await redis.command('TIME')).split('\r\n');
  return BigInt(seconds!) * 1_000_000n + BigInt(microseconds!);
}

/** Creates a bucket with this many tokens missing. Returns the time. */
async function seed(
  redis: RedisServer,
  key: string,
  lacking: number,
  perToken = PER_TOKEN,
): Promise<bigint> {
  const now = await readClock(redis);
  assert.equal(await redis.command('SET', key, `${BigInt(lacking) * perToken} ${now}`), '+OK\r\n');
  return now;
}

async function readBucket(redis: RedisServer, key: string) {
  const [, text] = (await redis.command('GET', key)).split('\r\n');
  const [lack, since] = text!.split(' ').map(BigInt) as [bigint, bigint];
  return { lack, since };
}

const LACKING = 50;

/**
 * Creates a bucket with 50 tokens missing, so it is never full and loses no time. Returns its
 * check.
 */
async function startBucket(redis: RedisServer, name: string, burst: number) {
  const key = `${PREFIX}:${name}:1/${burst}`;
  const startedAt = await seed(redis, key, LACKING);
  return {
    /** Checks that accepted requests took each token, from the start and from the refill. */
    async assertEmptiedBy(passed: number) {
      const { lack, since } = await readBucket(redis, key);
      const refilled = since - startedAt;
      const taken = lack - BigInt(LACKING) * PER_TOKEN + refilled;
      assert.equal(BigInt(passed) * PER_TOKEN, taken, `${name}: ${passed} passed`);
      assert.ok(lack > BigInt(burst - 1) * PER_TOKEN, `${name}: a token is left`);
      assert.ok(passed >= burst - LACKING, `${name}: ${passed} passed`);
    },
  };
}

const sum = (numbers: readonly number[]) => numbers.reduce((all, one) => all + one, 0);

testWithRedis(
  'two gateways with one store let exactly as many of 4,000 requests pass as fit',
  async (t, redis) => {
    const upstream = await startUpstream(t, answerChat);
    const toml = [
      `[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 550`,
      storeUrl(redis),
      '[rate_limit.providers.q]\nrequests_per_second = 1\nburst_capacity = 150',
      `[clients.alice]\nkey = "${ALICE}"\nrequests_per_second = 1\nburst_capacity = 150`,
      `[clients.carol]\nkey = "${CAROL}"`,
      providerToml(upstream),
      providerToml(upstream, 'q'),
    ].join('\n');
    const script = await programWaiting(t, ENDLESS_MS);
    const gateways = [await startReplica(t, toml, script), await startReplica(t, toml, script)];
    const ports = gateways.map(({ port }) => port);
    const [ofAll, ofAlice, ofQ] = [
      await startBucket(redis, 'rate_limit', 550),
      await startBucket(redis, 'clients.alice', 150),
      await startBucket(redis, 'rate_limit.providers.q', 150),
    ];

    const passedOf = async (options: Chat, count: number) => {
      // Each gateway passes one first: on a busy machine, one gateway alone may take all the rest.
      for (const port of ports) assert.equal((await chat(port, options)).status, 200);
      const streams = Array.from({ length: count - 50 }, (_, at) => at % 9 === 0);
      const passed = await countPassed(
        ports,
        streams.map((stream) => ({ ...options, stream })),
      );
      // Ends with a refusal, so no token is left.
      let more = 0;
      while ((await chat(ports[more % 2]!, options)).status === 200) more += 1;
      return ports.length + sum(passed) + more;
    };
    const [alice, q] = await Promise.all([
      passedOf({ token: ALICE }, 1000),
      passedOf({ token: CAROL, model: 'q/m' }, 1000),
    ]);
    await ofAlice.assertEmptiedBy(alice);
    await ofQ.assertEmptiedBy(q);
    const others = await passedOf({ token: CAROL }, 2000);
    await ofAll.assertEmptiedBy(alice + q + others);
    // Requests for model lists are not counted.
    const asked = upstream.requests.filter(({ method }) => method === 'POST');
    assert.equal(asked.length, alice + q + others);
    for (const { metrics } of gateways) {
      assert.equal((await metrics()).sum('gateway_rate_limit_store_fallbacks_total'), 0);
    }
  },
);

/** Answers with the usage in the model's name. */
const answerCounted: Script = (request, response) => {
  if (request.method !== 'POST') return sendJson(response, { data: [] });
  const tokens = Number(modelOf(request));
  const usage = { prompt_tokens: tokens, total_tokens: tokens };
  if (!request.body.includes('"stream":true'))
    return sendJson(response, { ...completion(), usage });
  const last = `data: ${JSON.stringify({ choices: [], usage })}\n\n${DONE}`;
  return sendEvents(response, completionEvents().replace(DONE, last));
};

/**
 * Two clients with limits of different kinds, in the order of the keys. `lacking` tokens are missing
 * at first, so no bucket is ever full.
 */
const COUNTED = [
  { limit: 'clients.alice.tokens_per_minute', rate: 60_000, seconds: 60, lacking: 30_000 },
  { limit: 'clients.dave.requests_per_minute', rate: 2000, seconds: 60, lacking: 1000 },
].map((one, at) => ({ ...one, key: [ALICE, DAVE][at]! }));
const ANSWER_TOKENS = 700;
const countedToml = (upstream: { readonly baseUrl: string }) =>
  COUNTED.map(({ key, limit, rate }) => {
    const [, name, setting] = limit.split('.');
    return `[clients.${name}]\nkey = "${key}"\n${setting} = ${rate}\n`;
  }).join('') + providerToml(upstream, 'p', 'stream_usage = true');

/**
 * Sends `count` requests in sequence, and more until one is refused. Returns how many passed, and
 * the refusal.
 */
async function sendCounted(ports: readonly number[], token: string, count: number) {
  for (let sent = 1, passed = 0; ; sent += 1) {
    // Change the gateway now and then.
    const port = ports[Math.floor(sent / 50) % ports.length]!;
    const stream = sent % 9 === 0;
    const reply = await chat(port, { model: `p/${ANSWER_TOKENS}`, token, stream });
    if (reply.status === 200) passed += 1;
    else if (sent >= count) return { passed, reply };
    else assert.equal(reply.status, 429, reply.text);
  }
}

testWithRedis(
  'two gateways let as many of 3,000 requests pass as two clients may send',
  async (t, redis) => {
    const upstream = await startUpstream(t, answerCounted);
    const toml = `[rate_limit]\n${storeUrl(redis)}\n${countedToml(upstream)}`;
    const script = await programWaiting(t, ENDLESS_MS);
    const gateways = await Promise.all([1, 2].map(() => startReplica(t, toml, script)));
    const ports = gateways.map(({ port }) => port);
    const refused = COUNTED.map(async ({ key: token, limit, rate, seconds, lacking }) => {
      const key = `${PREFIX}:${limit}:${rate}/${rate}/${seconds}`;
      const perToken = BigInt(seconds) * PER_TOKEN;
      const startedAt = await seed(redis, key, lacking, perToken);
      const { passed, reply } = await sendCounted(ports, token, 1500);
      const { lack, since } = await readBucket(redis, key);
      const used = limit.includes('requests') ? passed : passed * ANSWER_TOKENS;
      const refilled = (since - startedAt) * BigInt(rate);
      const taken = lack - BigInt(lacking) * perToken + refilled;
      const about = `${limit}: ${passed} passed, ${lack / perToken} lack`;
      assert.ok(Math.abs(Number(BigInt(used) * perToken - taken)) < 0.01 * Number(perToken), about);
      assert.ok(lack > BigInt(rate - 1) * perToken, about);
      assert.ok(lack <= BigInt(rate + ANSWER_TOKENS) * perToken, about);
      const after = JSON.parse(reply.text) as { error: { message: string; retry_after: number } };
      assert.equal(after.error.message, `Rate limit exceeded: ${limit}`);
      // The test moves the store's time, not its own.
      const [port = 0] = ports;
      const ask = async (passedSeconds: number) => {
        const then = (await readClock(redis)) - BigInt(passedSeconds) * 1_000_000n;
        await redis.command('SET', key, `${lack} ${then}`);
        return (await chat(port, { model: `p/${ANSWER_TOKENS}`, token })).status;
      };
      const seconds429 = after.error.retry_after;
      if (seconds429 > 1) assert.equal(await ask(seconds429 - 2), 429, about);
      assert.equal(await ask(seconds429), 200, about);
      return lack / perToken;
    });
    await Promise.all(refused);
    for (const { metrics } of gateways) {
      const { sum: figure } = await metrics();
      assert.equal(figure('gateway_rate_limit_store_fallbacks_total'), 0);
    }
  },
);

const DAY_MS = 86_400_000;
const msUntilMidnight = () => DAY_MS - (Date.now() % DAY_MS);

/** Waits for the next day if the test might not end on this one. */
async function beginDay(): Promise<void> {
  if (msUntilMidnight() < 120_000) await sleep(msUntilMidnight());
}

/** The settings of Carol's windows. An answer of 700 tokens costs 0.7. */
const windowToml = (upstream: { readonly baseUrl: string }, more: string) => {
  const prices = 'input_price_per_million = 1000, output_price_per_million = 1000';
  const lines = `stream_usage = true\nmodel_details."700" = { ${prices} }`;
  const client = `[clients.carol]\nkey = "${CAROL}"\nunpriced = "allow"\n${more}\n`;
  return client + providerToml(upstream, 'p', lines);
};
const dayKey = () =>
  `${PREFIX}:clients.carol.tokens_per_day:${new Date().toISOString().slice(0, 10)}`;
const costKey = () =>
  `${PREFIX}:clients.carol.cost_per_month:${new Date().toISOString().slice(0, 7)}`;
const readSum = async (redis: RedisServer, key: string) =>
  Number((await redis.command('GET', key)).split('\r\n')[1]);
const figureOf = async ({ metrics }: Replica, limit: string) =>
  (await metrics()).sum('gateway_limit_used', { limit });

testWithRedis(
  'two gateways share the sums of a day and a month, which outlive a restart',
  async (t, redis) => {
    await beginDay();
    const upstream = await startUpstream(t, answerCounted);
    const limits = 'tokens_per_day = 100_000\ncost_per_month = 1000';
    const toml = `[rate_limit]\n${storeUrl(redis)}\n${windowToml(upstream, limits)}`;
    const script = await programWaiting(t, ENDLESS_MS);
    const gateways = await Promise.all([1, 2].map(() => startReplica(t, toml, script)));
    const ports = gateways.map(({ port }) => port);
    const { passed, reply } = await sendCounted(ports, CAROL, 150);
    // The tokens of an answer are told after it, so the next request may be in time.
    assert.ok(passed >= 143 && passed <= 145, String(passed));
    const sums = [await readSum(redis, dayKey()), await readSum(redis, costKey())];
    assert.deepEqual(sums, [passed * 700, Number((passed * 0.7).toFixed(10))]);
    const after = JSON.parse(reply.text) as { error: { message: string; retry_after: number } };
    assert.equal(after.error.message, 'Rate limit exceeded: clients.carol.tokens_per_day');
    assert.ok(Math.abs(after.error.retry_after - msUntilMidnight() / 1000) < 60);
    assert.equal(reply.headers['x-should-retry'], 'false');
    const lifeMs = Number((await redis.command('PTTL', dayKey())).slice(1));
    assert.ok(Math.abs(lifeMs - msUntilMidnight() - 3_600_000) < 60_000, String(lifeMs));
    const assertFigures = async (replica: Replica) => {
      for (const [at, limit] of ['client_tokens_per_day', 'client_cost_per_month'].entries()) {
        await eventually(async () => (await figureOf(replica, limit)) === sums[at], limit);
      }
    };
    for (const gateway of gateways) await assertFigures(gateway);
    for (const gateway of gateways) assert.equal(await signalled(gateway), 0);
    const other = await startReplica(t, toml.replace('100_000', '100_100'), script);
    // The figures come from the store before any request of the client.
    await assertFigures(other);
    assert.equal((await chat(other.port, { model: 'p/1', token: CAROL })).status, 429);
    const raised = await startReplica(t, toml.replace('100_000', '110_000'), script);
    assert.equal((await chat(raised.port, { model: 'p/1', token: CAROL })).status, 200);
    assert.deepEqual(raised.lines('incident'), []);
  },
);

testWithRedis(
  'a client sees what two gateways have left of its limit, and while the store is away too',
  async (t, redis) => {
    const upstream = await startUpstream(t, answerChat);
    const lines = 'requests_per_second = 1\nburst_capacity = 1000\nrequests_per_minute = 5000';
    const client = `[clients.alice]\nkey = "${ALICE}"\n${lines}\n`;
    const toml = `[rate_limit]\n${storeUrl(redis)}\n${client}${providerToml(upstream)}`;
    const script = await programWaiting(t, ENDLESS_MS);
    const [first, second] = await Promise.all([1, 2].map(() => startReplica(t, toml, script)));
    const left = async ({ port }: Replica) => {
      const { headers } = await chat(port, { token: ALICE });
      assert.equal(headers['x-ratelimit-limit-requests'], '1000');
      return Number(headers['x-ratelimit-remaining-requests']);
    };
    const lacking = 600;
    await seed(redis, `${PREFIX}:clients.alice:1/1000`, lacking);
    const levels = [];
    for (const gateway of [first!, second!, second!, first!]) levels.push(await left(gateway));
    // Each request takes one, and one comes back each second.
    for (const [sent, level] of levels.entries()) {
      assert.ok(level >= 399 - sent && level < 450, String(levels));
    }
    await redis.kill();
    await eventually(() => first!.lines(AWAY).length === 1, 'the outage');
    const level = await left(first!);
    assert.ok(level > 390 && level < 500, String(level));
  },
);

testWithRedis(
  'while the store is away, the window of a day goes on from its last answer',
  async (t, redis) => {
    const upstream = await startUpstream(t, answerCounted);
    await beginDay();
    const limits = windowToml(upstream, 'tokens_per_day = 1_000_000');
    const toml = `[rate_limit]\n${storeUrl(redis)}\n${limits}`;
    const replica = await startReplica(t, toml, await programWaiting(t, ENDLESS_MS));
    const ask = async (tokens: number) =>
      (await chat(replica.port, { model: `p/${tokens}`, token: CAROL })).status;
    assert.equal(await ask(1), 200);
    await redis.command('SET', dayKey(), '999000');
    assert.equal(await ask(1), 200);
    await redis.kill();
    await eventually(() => replica.lines(AWAY).length === 1, 'the outage');
    assert.equal(await ask(2000), 200);
    assert.equal(await ask(1), 429);
  },
);

/** The settings for a store and a global bucket with one token per second. */
function limitToml(redis: RedisServer, burst: number, prefix = PREFIX): string {
  const limit = `[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = ${burst}`;
  return `${limit}\nprefix = "${prefix}"\n${storeUrl(redis)}\n`;
}

/** Empties a bucket for a quarter of an hour. */
async function empty(redis: RedisServer, bucket: string, burst: number): Promise<void> {
  await seed(redis, `${bucket}:1/${burst}`, LONG_SECONDS + burst);
}

/** Whether the store's bucket has refused. A local bucket would not ask for so long a wait. */
async function isRefusedForLong(port: number, options: Chat = {}): Promise<boolean> {
  const { status, headers } = await chat(port, options);
  return status === 429 && Number(headers['retry-after']) > LONG_SECONDS / 2;
}

testWithRedis(
  'gateways share a bucket if store, prefix and limits are the same',
  async (t, redis) => {
    const script = await programWaiting(t, ENDLESS_MS);
    const upstream = await startUpstream(t, answerChat);
    const start = (burst: number, prefix?: string) =>
      startReplica(t, limitToml(redis, burst, prefix) + providerToml(upstream), script);
    const [first, second, otherLimit, otherPrefix] = await Promise.all([
      start(5),
      start(5),
      start(6),
      start(5, 'other'),
    ]);
    await empty(redis, `${PREFIX}:rate_limit`, 5);
    assert.ok(await isRefusedForLong(first.port));
    assert.ok(await isRefusedForLong(second.port));
    for (const { port } of [otherLimit, otherPrefix]) {
      for (let i = 0; i < 5; i += 1) assert.equal((await chat(port)).status, 200);
    }
    await empty(redis, 'other:rate_limit', 5);
    assert.ok(await isRefusedForLong(otherPrefix.port));
    assert.equal((await chat(otherLimit.port)).status, 200);
  },
);

testWithRedis(
  "a request that a provider's limit refuses takes none of the client's, with or without store",
  async (t, redis) => {
    const script = await programWaiting(t, ENDLESS_MS);
    const upstream = await startUpstream(t, answerChat);
    const toml = [
      `[rate_limit]\nenabled = true\n${storeUrl(redis)}`,
      '[rate_limit.providers.p]\nrequests_per_second = 1\nburst_capacity = 1',
      `[clients.alice]\nkey = "${ALICE}"\nrequests_per_second = 1\nburst_capacity = 10`,
      providerToml(upstream),
      providerToml(upstream, 'q'),
    ].join('\n');
    const { port, lines } = await startReplica(t, toml, script);
    await empty(redis, `${PREFIX}:rate_limit.providers.p`, 1);
    for (let i = 0; i < 20; i += 1) assert.ok(await isRefusedForLong(port, { token: ALICE }));
    const askQ = async () => (await chat(port, { token: ALICE, model: 'q/m' })).status;
    for (let i = 0; i < 5; i += 1) assert.equal(await askQ(), 200);

    await redis.kill();
    await eventually(() => lines('incident').length === 1, 'the outage');
    // Whenever this bucket has a token again, so has the client's bucket.
    const statuses = new Set<number>();
    for (let i = 0; i < 20; i += 1) statuses.add((await chat(port, { token: ALICE })).status);
    assert.deepEqual([...statuses], [200, 429]);
    for (let i = 0; i < 4; i += 1) assert.equal(await askQ(), 200);
  },
);

const signalled = async ({ child, exit }: Replica) => {
  child.kill('SIGTERM');
  return await exit;
};

testWithRedis(
  'a reload changes limits in the store, but another store needs a restart',
  async (t, redis) => {
    const other = await startRedis(t, { password: 'other-canary-5647382910' });
    const script = await programWaiting(t, ENDLESS_MS);
    const upstream = await startUpstream(t, answerChat);
    const provider = providerToml(upstream);
    const replica = await startReplica(t, limitToml(redis, 5) + provider, script);
    const { port, child, lines, settingsFile, stdout, stderr, admin } = replica;
    const adminToml = '[admin]\nport = 0\n';
    const reload = async (toml: string) => {
      const earlier = lines('reloaded').length;
      writeFileSync(settingsFile, toml + provider + adminToml);
      child.kill('SIGHUP');
      await eventually(() => lines('reloaded').length > earlier, 'the reload');
    };
    await empty(redis, `${PREFIX}:rate_limit`, 5);
    await empty(redis, 'moved:rate_limit', 7);
    await empty(other, `${PREFIX}:rate_limit`, 7);
    assert.ok(await isRefusedForLong(port));
    await reload(limitToml(redis, 6));
    assert.equal((await chat(port)).status, 200);
    assert.deepEqual(lines('restart needed'), []);

    const elsewhere = limitToml(redis, 7, 'moved').replace(
      storeUrl(redis),
      storeUrl(other, 'other-canary-5647382910'),
    );
    await reload(elsewhere);
    const [line] = lines('restart needed');
    assert.deepEqual(line!['settings'], ['rate_limit.store', 'rate_limit.prefix']);
    assert.equal((await chat(port)).status, 200);
    await empty(redis, `${PREFIX}:rate_limit`, 7);
    assert.ok(await isRefusedForLong(port));
    // The limit goes, and the connection stays.
    await reload(`[rate_limit]\n${storeUrl(redis)}\n`);
    assert.equal((await chat(port)).status, 200);
    await reload(limitToml(redis, 7));
    assert.ok(await isRefusedForLong(port));
    assert.deepEqual(lines('incident'), []);
    const printed = stdout() + stderr() + (await admin('/metrics'));
    for (const secret of [PASSWORD, 'other-canary', 'redis:']) {
      assert.ok(!printed.includes(secret), printed);
    }
    assert.equal(await signalled(replica), 0);
  },
);
