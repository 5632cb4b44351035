/** The rate limits of named clients, beside the global one and those of providers. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { replaceNow } from '../support/clock.ts';
import { assertError, assertLimited, NOT_FOUND } from '../support/errors.ts';
import { parseMetrics } from '../support/exposition.ts';
import { chatBody } from '../support/gateway.ts';
import { linesOf } from '../support/streams.ts';
import { scenario } from '../support/scenario.ts';

// The gateway's clock stands still unless a test moves it: how fast a machine is decides nothing.
let nowMs = 1000;

const bucket = (burst: number, rps = 1) =>
  `requests_per_second = ${rps}\nburst_capacity = ${burst}\n`;

/** Clients `a` (keys `a` and `a2`) and `b` with these lines, a key `shared` without a client, providers `p` and `q`. */
async function start(
  t: TestContext,
  { a = '', b = '', more = '' }: { a?: string; b?: string; more?: string },
) {
  replaceNow(t, () => nowMs);
  const { gateway, asked } = await scenario(t, {
    server: 'auth.keys = ["shared"]',
    clients: { a: `keys = ["a", "a2"]\n${a}`, b: `key = "b"\n${b}` },
    providers: { p: {}, q: {} },
    more,
  });
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } });
  return {
    gateway,
    asked,
    as,
    /** Statuses of chat completions, one after the other, each as `<key> <model>`. */
    statuses: async (...requests: readonly string[]) => {
      const found: number[] = [];
      for (const request of requests) {
        const [key = '', model = 'p/m'] = request.split(' ');
        found.push((await gateway.chat(chatBody({ model }), as(key))).status);
      }
      return found;
    },
    /** The `reason` of each 429 so far. */
    reasons: async (lines: number) => {
      await linesOf(gateway, lines);
      const limited = gateway.accessLines().filter(({ status }) => status === 429);
      return [...new Set(limited.map(({ reason }) => reason))];
    },
  };
}

const RATE_LIMITS = {
  'without [rate_limit]': '',
  'with [rate_limit] enabled = false': `[rate_limit]\nenabled = false\n${bucket(1)}`,
  'with [rate_limit] enabled = true': '[rate_limit]\nenabled = true\n',
};
for (const [what, more] of Object.entries(RATE_LIMITS)) {
  test(`a client\u2019s limit holds for all of its keys and for nobody else, ${what}`, async (t) => {
    const { gateway, asked, as, statuses } = await start(t, { a: bucket(2), more });
    assert.deepEqual(await statuses('a', 'a2', 'a', 'a2'), [200, 200, 429, 429]);
    assertLimited(await gateway.chat(chatBody(), as('a')));
    assert.equal((await gateway.send('/v1/models', as('a2'))).status, 429);
    assert.equal((await gateway.send('/health', as('a'))).status, 200);
    assert.deepEqual(await statuses('b', 'b', 'b'), [200, 200, 200]);
    assert.deepEqual(await statuses('shared', 'shared', 'shared'), [200, 200, 200]);
    assert.deepEqual(asked(), [8, 0]);
    nowMs += 1000;
    assert.deepEqual(await statuses('a2', 'a'), [200, 429]);
  });
}

test('two clients have a bucket each', async (t) => {
  const { statuses } = await start(t, { a: bucket(1), b: bucket(2) });
  assert.deepEqual(await statuses('a', 'a', 'b', 'b', 'b'), [200, 429, 200, 200, 429]);
});

test('what a client\u2019s limit refuses takes nothing of the global one', async (t) => {
  const more = `[rate_limit]\nenabled = true\n${bucket(2)}`;
  const { statuses, reasons } = await start(t, { a: bucket(1), more });
  assert.deepEqual(await statuses('a', 'a', 'a', 'a'), [200, 429, 429, 429]);
  assert.deepEqual(await reasons(4), ['client']);
  assert.deepEqual(await statuses('b', 'b'), [200, 429]);
  assert.deepEqual(await reasons(6), ['client', 'global']);
});

test('what the global limit refuses takes nothing of the client\u2019s', async (t) => {
  const more = `[rate_limit]\nenabled = true\n${bucket(1, 10)}`;
  const { statuses, reasons } = await start(t, { a: bucket(1), more });
  assert.deepEqual(await statuses('shared', 'a', 'a', 'a'), [200, 429, 429, 429]);
  assert.deepEqual(await reasons(4), ['global']);
  // A tenth of a second fills the global bucket, and not the client's.
  nowMs += 100;
  assert.deepEqual(await statuses('a'), [200]);
});

test('what a provider\u2019s limit refuses takes nothing of the client\u2019s and the global one', async (t) => {
  const limits = `[rate_limit]\nenabled = true\n${bucket(2)}[rate_limit.providers.p]\n${bucket(1)}`;
  const { statuses, reasons } = await start(t, { a: bucket(2), more: limits });
  assert.deepEqual(await statuses('a', 'a', 'a', 'a'), [200, 429, 429, 429]);
  assert.deepEqual(await reasons(4), ['provider']);
  assert.deepEqual(await statuses('a q/m', 'a q/m'), [200, 429]);
});

test('a model that a client may not name takes nothing of its provider\u2019s limit, but a request of its own', async (t) => {
  const limits = `[rate_limit]\nenabled = true\n[rate_limit.providers.p]\n${bucket(1)}`;
  const a = `models = ["q/*"]\n${bucket(3)}`;
  const { gateway, as, statuses } = await start(t, { a, more: limits });
  assertError(await gateway.chat(chatBody(), as('a')), NOT_FOUND);
  assert.deepEqual(await statuses('a p/x', 'b', 'b'), [404, 200, 429]);
  assert.deepEqual(await statuses('a', 'a'), [404, 429]);
});

test('a wrong key takes nothing of any limit', async (t) => {
  const more = `[rate_limit]\nenabled = true\n${bucket(1)}`;
  const { statuses } = await start(t, { a: bucket(1), more });
  assert.deepEqual(await statuses('A', 'wrong', 'a'), [401, 401, 200]);
});

test('what clients\u2019 limits refuse is counted apart', async (t) => {
  const { gateway, statuses } = await start(t, { a: bucket(1), more: '[admin]\nport = 0\n' });
  assert.deepEqual(await statuses('a', 'a', 'a'), [200, 429, 429]);
  await linesOf(gateway, 3);
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_refusals_total', { reason: 'client', client: 'a' }), 2);
  assert.equal(sum('gateway_requests_total', { client: 'a', outcome: 'rate_limited' }), 2);
});
