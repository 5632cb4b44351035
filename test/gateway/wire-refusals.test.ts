/** The lines about requests that a limit refuses (docs/log.md). */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { replaceNow, useManualTimers } from '../support/clock.ts';
import { chatBody, EACH_REFUSAL } from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { failWith } from '../support/upstream.ts';
import { linesOf } from '../support/streams.ts';

const MINUTE_MS = 60_000;
const LIMIT = 'requests_per_minute = 1';
const REASON = 'client_requests_per_minute';

/** Starts clients `a` and `b`, whose first requests are answered, and whose others are refused. */
async function start(t: TestContext, settings: ScenarioSettings<'p'> = {}) {
  const timers = useManualTimers(t);
  let nowMs = 1000;
  replaceNow(t, () => nowMs);
  const clients = { a: `key = "a"\n${LIMIT}`, b: `key = "b"\n${LIMIT}` };
  const { gateway } = await scenario(t, { clients, env: EACH_REFUSAL, ...settings });
  let asked = 0;
  return {
    gateway,
    passMinute: () => {
      // A bit less, so that no request is allowed meanwhile.
      nowMs += MINUTE_MS - 1;
      timers.advance(MINUTE_MS);
    },
    ask: async (client: string, count: number) => {
      const headers = { authorization: `Bearer ${client}` };
      for (let at = 0; at < count; at += 1) await gateway.chat(chatBody(), { headers });
      asked += count;
      await linesOf(gateway, asked);
    },
    /** Returns the clients and the levels of the access lines of refused requests. */
    refused: () =>
      gateway
        .accessLines()
        .filter(({ status }) => status === 429)
        .map(({ client, level }) => `${String(client)} ${String(level)}`),
    sums: () =>
      gateway
        .lines('requests refused')
        .map(({ client, reason, refused, level }) => [level, client, reason, refused]),
  };
}

test('of the requests that a limit refuses, the first is logged at once, and a sum each minute', async (t) => {
  const { ask, gateway, passMinute, refused, sums } = await start(t);
  await ask('a', 6);
  await ask('b', 2);
  const minute = ['a warn', ...Array<string>(4).fill('a debug'), 'b warn'];
  assert.deepEqual([refused(), sums()], [minute, []]);
  passMinute();
  assert.deepEqual(sums(), [['warn', 'a', REASON, 5]]);
  await ask('a', 2);
  assert.equal(sums().length, 1);
  passMinute();
  assert.deepEqual(sums()[1], ['warn', 'a', REASON, 7]);
  const [first, second] = gateway.lines('requests refused');
  const [{ time, limit } = assert.fail()] = gateway.accessLines().filter((one) => one['limit']);
  assert.ok(String(first!['since']) <= String(time));
  assert.deepEqual([second!['since'], second!['limit']], [first!['since'], limit]);
  passMinute();
  await ask('a', 2);
  assert.equal(refused().at(-1), 'a warn', 'the minute before was quiet');
  passMinute();
  assert.equal(sums().length, 2);
});

test('a refusal a minute after the latest one is the first again', async (t) => {
  const { ask, passMinute, refused, sums } = await start(t);
  let nowMs = 1000;
  replaceNow(t, () => nowMs);
  await ask('a', 3);
  passMinute();
  nowMs += MINUTE_MS - 1;
  await ask('a', 1);
  nowMs += 1000;
  await ask('a', 2);
  passMinute();
  assert.deepEqual(
    sums().map(([, , , count]) => count),
    [2, 4],
  );
  // The minute under way has begun less than a minute after the latest refusal.
  nowMs += MINUTE_MS;
  await ask('a', 3);
  const lines = ['a warn', 'a debug', 'a debug', 'a debug', 'a warn', 'a debug'];
  assert.deepEqual(refused(), lines);
  passMinute();
  assert.deepEqual(sums()[2], ['warn', 'a', REASON, 2]);
  await ask('a', 1);
  assert.deepEqual(refused(), [...lines, 'a debug']);
  passMinute();
  assert.deepEqual(sums()[3], ['warn', 'a', REASON, 3]);
  nowMs += MINUTE_MS;
  await ask('a', 2);
  assert.equal(refused().at(-1), 'a warn');
  passMinute();
  assert.equal(sums().length, 4);
});

test('the sum of a minute that is not over is logged when the gateway stops', async (t) => {
  const { ask, gateway, sums } = await start(t);
  await ask('a', 4);
  await gateway.drain();
  assert.deepEqual(sums(), [['warn', 'a', REASON, 3]]);
});

test('a limit without a client has a sum of its own', async (t) => {
  const more = '[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 1\n';
  const { ask, gateway, passMinute, sums } = await start(t, {
    clients: {},
    server: 'auth.keys = ["shared"]',
    more,
  });
  await ask('shared', 4);
  passMinute();
  assert.deepEqual(sums(), [['warn', undefined, 'global', 3]]);
  assert.match(String(gateway.lines('requests refused')[0]!['limit']), /^rate_limit: 1 of 1/);
});

test('a request that also failed at a provider keeps its line', async (t) => {
  const timers = useManualTimers(t);
  const { gateway } = await scenario<string>(t, {
    env: EACH_REFUSAL,
    fallback: ['q'],
    providers: {
      p: { script: () => {}, lines: 'max_concurrent_requests = 1' },
      q: failWith(400),
    },
  });
  const held = gateway.chat(chatBody()).catch(() => {});
  for (let at = 0; at < 3; at += 1) await gateway.chat(chatBody());
  await linesOf(gateway, 3);
  timers.advance(MINUTE_MS);
  await gateway.drain();
  await held;
  const limited = gateway.accessLines().filter(({ status }) => status === 429);
  assert.deepEqual(
    limited.map(({ level, reason }) => `${String(level)} ${String(reason)}`),
    Array<string>(3).fill('warn provider_concurrency'),
  );
  assert.deepEqual(gateway.lines('requests refused'), []);
});

test('a sum comes before the end of the minute once 40 other lines have come', async (t) => {
  const { ask, gateway, sums } = await start(t);
  let nowMs = 1000;
  replaceNow(t, () => nowMs);
  await ask('a', 2);
  nowMs += 2000;
  await ask('a', 1);
  assert.deepEqual(sums(), []);
  await ask('b', 40);
  nowMs -= 1;
  await ask('a', 1);
  assert.equal(sums().filter(([, client]) => client === 'a').length, 0, 'too soon');
  nowMs += 1;
  await ask('a', 1);
  assert.deepEqual(
    sums().filter(([, client]) => client === 'a'),
    [['warn', 'a', REASON, 4]],
  );
  assert.ok(gateway.lines('requests refused').length < 4);
});
