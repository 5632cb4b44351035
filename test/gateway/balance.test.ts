/** The order of a balanced alias's targets. For whole requests, see wire-balance.test.ts. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import type { AliasSettings } from '../../src/config/config.ts';
import { Balance } from '../../src/gateway/balance.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import type { Affinity } from '../../src/protocol/model-request.ts';
import { FirstTokenTimes } from '../../src/policy/first-token-times.ts';
import { type SessionSource, rankedFor } from '../../src/policy/affinity.ts';
import { stopClock } from '../support/clock.ts';

interface Given {
  /** Requests in flight by provider. */
  readonly inFlight?: Readonly<Record<string, number>>;
  /** Providers whose circuit is open. */
  readonly open?: readonly string[];
  /** Providers with `key_affinity`. */
  readonly affinity?: readonly string[];
  readonly weights?: Readonly<Record<string, number>>;
  readonly balance?: AliasSettings['balance'];
  /** Times of first tokens by provider. */
  readonly times?: Readonly<Record<string, readonly number[]>>;
  readonly stream?: boolean;
}

/** Adds the time of a stream; Infinity is a failure. */
function add(times: FirstTokenTimes, nowMs: number, tookMs: number): void {
  const isFailure = tookMs === Infinity;
  const failure = isFailure ? new GatewayError('provider', 'x') : undefined;
  const asked = { beganAtMs: nowMs - (isFailure ? 0 : tookMs), sentAtMs: undefined };
  const attempt = { ...asked, decidedAtMs: nowMs, hasAnswer: !isFailure, failure };
  if (isFailure) times.recordEnd(attempt);
  else times.add(attempt);
}

/** Returns a function for the order of the providers `a`, `b` and `c` at a request. */
function balancer(t: TestContext, given: Given) {
  const { inFlight = {}, open = [], affinity = [], weights, stream = true } = given;
  const clock = stopClock(t);
  const ids = ['a', 'b', 'c'];
  const timesOf = (id: string) => {
    const times = new FirstTokenTimes();
    for (const tookMs of given.times?.[id] ?? []) add(times, clock.nowMs, tookMs);
    return times;
  };
  const targets = ids.map((id) => ({
    name: `${id}/m`,
    provider: { keyAffinity: affinity.includes(id), limiter: { inFlight: inFlight[id] ?? 0 } },
    isCircuitOpen: open.includes(id),
    times: timesOf(id),
  }));
  const shares = weights && Object.entries(weights).map(([id, share]) => [`${id}/m`, share]);
  const alias = {
    balance: given.balance,
    weights: shares && new Map(shares as [string, number][]),
  } as unknown as AliasSettings;
  const balance = new Balance(alias, new Map());
  return (session?: string, own?: Affinity) => {
    clock.nowMs += 1;
    const headers = session ? { 'x-session-id': session } : {};
    const caller = { headers, history: { affinity: own } } as SessionSource;
    const indices = balance.order(targets, caller, stream);
    return [...new Set(indices)].map((index) => ids[index]).join('');
  };
}

test('the provider with the fewest requests in flight comes first', (t) => {
  const next = balancer(t, { inFlight: { a: 2, b: 1, c: 0 } });
  assert.deepEqual([next(), next()], ['cba', 'cba']);
});

test('equally busy providers come first in turn', (t) => {
  const next = balancer(t, {});
  assert.deepEqual([next(), next(), next(), next()], ['abc', 'bca', 'cab', 'abc']);
  const busy = balancer(t, { inFlight: { b: 1 } });
  assert.deepEqual([busy(), busy(), busy()], ['acb', 'cab', 'acb']);
});

test('providers with an open circuit come last', (t) => {
  const next = balancer(t, { inFlight: { b: 3, c: 4 }, open: ['a'] });
  assert.equal(next(), 'bca');
});

test('weights draw the first provider smoothly, and the others follow in order', (t) => {
  const next = balancer(t, { weights: { a: 5, b: 1, c: 1 }, inFlight: { a: 9 } });
  const firsts = Array.from({ length: 14 }, () => next());
  const round = ['abc', 'abc', 'bac', 'abc', 'cab', 'abc', 'abc'];
  assert.deepEqual(firsts, [...round, ...round]);
  const without = balancer(t, { weights: { a: 0, b: 1, c: 0 } });
  assert.deepEqual([without(), without()], ['bac', 'bac']);
});

test('a request with an affinity goes where its session goes, whatever the settings say', (t) => {
  const sessions = ['one', 'two', 'three', 'four', 'five', 'six', undefined];
  const settings = [{}, { inFlight: { a: 1, b: 2 } }, { weights: { a: 1, b: 1, c: 1 } }];
  for (const given of settings) {
    const next = balancer(t, given);
    for (const session of sessions) {
      const [first] = next(session, 'session');
      assert.equal(next(session, 'session')[0], first);
      assert.equal(next(session, 'organisation')[0], first);
      // Another organisation cannot answer while the circuit is open.
      const rests = balancer(t, { ...given, open: [first!] });
      assert.equal(rests(session, 'organisation')[0], first);
    }
  }
});

test('a session stays with its provider if all providers have affinity', (t) => {
  const names = ['a/m', 'b/m', 'c/m'];
  const orderOf = (session: string, shares?: ReadonlyMap<string, number>) =>
    rankedFor(session, names, shares)
      .map((index) => 'abc'[index])
      .join('');
  const affinity = ['a', 'b', 'c'];
  const next = balancer(t, { affinity, inFlight: { a: 3, b: 1 } });
  const weighted = balancer(t, { affinity, weights: { a: 1, b: 5, c: 1 } });
  const shares = new Map([
    ['a/m', 1],
    ['b/m', 5],
    ['c/m', 1],
  ]);
  for (let index = 0; index < 30; index += 1) {
    const session = `session ${index}`;
    assert.equal(next(session), orderOf(session));
    assert.equal(weighted(session)[0], orderOf(session, shares)[0]);
  }
  const away = balancer(t, { affinity, open: ['b'] });
  for (const session of ['1', '2', '3', '4', '5', '6']) {
    assert.equal(away(session), `${orderOf(session).replace('b', '')}b`);
  }
  // Without a session, or if a provider lacks affinity, the order is by requests in flight.
  assert.equal(next(), 'cba');
  const partly = balancer(t, { affinity: ['a', 'b'], inFlight: { a: 2, b: 1 } });
  for (const session of ['1', '2', '3']) assert.equal(partly(session), 'cba');
});

const FAST = { balance: 'fastest' } as const;
const take = (next: () => string, count: number) => Array.from({ length: count }, () => next());

/** The same time three times, which makes a target known. */
const thrice = (tookMs: number) => [tookMs, tookMs, tookMs];
const firsts = (orders: readonly string[]) => orders.map(([first]) => first).join('');

test('the fastest target comes first, and one stream in twenty asks another first', (t) => {
  const next = balancer(t, { ...FAST, times: { a: thrice(30), b: thrice(10), c: thrice(20) } });
  const orders = take(next, 60);
  assert.deepEqual(new Set(orders.filter((_, index) => (index + 1) % 20 > 0)), new Set(['bca']));
  assert.deepEqual([orders[19], orders[39], orders[59]], ['abc', 'cba', 'abc']);
  const equal = balancer(t, { ...FAST, times: { a: thrice(10), b: thrice(10), c: thrice(10) } });
  assert.deepEqual(new Set(take(equal, 19)), new Set(['abc']));
});

test('targets take turns until each has three times', (t) => {
  const cold = { a: [900, 10], b: thrice(20), c: thrice(30) };
  const next = balancer(t, { ...FAST, times: cold });
  assert.deepEqual(take(next, 4), ['abc', 'bac', 'cab', 'abc']);
  const none = balancer(t, FAST);
  assert.equal(firsts(take(none, 40)), 'abc'.repeat(14).slice(0, 40));
  const open = balancer(t, { ...FAST, times: cold, open: ['b'] });
  assert.deepEqual(take(open, 3), ['acb', 'cab', 'acb']);
  const known = balancer(t, { ...FAST, times: cold, open: ['a'] });
  assert.equal(firsts(take(known, 3)), 'bbb', 'an open circuit takes no turn');
});

test('a target that fails takes no turn once it has failed three times', (t) => {
  const next = balancer(t, { ...FAST, times: { a: thrice(Infinity), b: [20], c: [30] } });
  assert.deepEqual(take(next, 4), ['bca', 'cba', 'bca', 'cba']);
  const begun = balancer(t, { ...FAST, times: { a: [Infinity, Infinity], b: [20], c: [30] } });
  assert.equal(firsts(take(begun, 3)), 'abc');
});

test('a target that fails at once comes behind, whatever its times were', (t) => {
  const fast = Array<number>(64).fill(1);
  const times = { a: [...fast, Infinity, Infinity], b: thrice(50), c: thrice(60) };
  const orders = take(balancer(t, { ...FAST, times }), 40);
  assert.deepEqual(firsts(orders), `${'b'.repeat(19)}a${'b'.repeat(19)}c`);
  const mostly = { a: [...fast.slice(0, 4), ...Array<number>(7).fill(Infinity), 1, 1] };
  assert.equal(balancer(t, { ...FAST, times: { ...times, ...mostly } })(), 'bca');
});

test('a request for a complete answer tries no other target', (t) => {
  const next = balancer(t, { ...FAST, stream: false, times: { c: [20] } });
  assert.deepEqual(new Set(take(next, 40)), new Set(['cab']));
});

test('a busy target comes behind the others, and an open circuit last', (t) => {
  const slow = [1, 1, 1, 1, 100, 100, 100];
  const times = { a: slow, b: thrice(50), c: thrice(60) };
  assert.equal(balancer(t, { ...FAST, times })(), 'bca');
  const open = balancer(t, { ...FAST, times, open: ['b'] });
  const orders = take(open, 40);
  assert.deepEqual([orders[0], orders[19], orders[39]], ['cab', 'acb', 'acb']);
  const busy = balancer(t, { ...FAST, times: { a: slow, b: slow, c: slow } });
  assert.equal(busy(), 'abc');
});

test('a session has its target, whatever the times', (t) => {
  const affinity = ['a', 'b', 'c'];
  const names = affinity.map((id) => `${id}/m`);
  const expected = rankedFor('s', names).map((index) => affinity[index]!);
  const times = { a: [1], b: [2], c: [3], [expected[0]!]: [1, 1, 1, 1, 100, 100, 100] };
  const next = balancer(t, { ...FAST, affinity, times });
  assert.deepEqual(new Set(take(() => next('s'), 40)), new Set([expected.join('')]));
});
