/** When providers and the lookups of their names are slow, each by itself or all together. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { Slowness } from '../../src/admin/slowness.ts';
import type { LookupReport } from '../../src/lib/name-lookup.ts';
import { stopClock } from '../support/clock.ts';

type Times = { newestMs?: number | undefined; formerMs?: number | undefined };
type ById<Value> = Readonly<Record<string, Value>>;

/** The providers `p` and `q` have a host each, and `p2` has the host of `p`. */
const hostsOf = (ids: string[]) => ids.map((id) => ({ id, host: `${id[0]}.test` }));

type Reports = ReturnType<Slowness['judge']>;

/** Returns the causes by provider, and that of all as `all`. */
const causesIn = (reports: Reports) =>
  Object.fromEntries(reports.flatMap(({ id = 'all', cause }) => (cause ? [[id, cause]] : [])));

const start = (t: TestContext) => {
  const clock = stopClock(t, 1_000_000);
  const slowness = new Slowness();
  const judge = (times: ById<{ first_token?: Times; connect?: Times }>) => {
    const timesOf = (id: string, time: 'first_token' | 'connect') => {
      return { newestMs: undefined, formerMs: undefined, ...times[id]![time] };
    };
    return causesIn(slowness.judge(hostsOf(Object.keys(times)), timesOf));
  };
  const firstTokens = (times: ById<readonly [newestMs?: number, formerMs?: number]>) =>
    judge(
      Object.fromEntries(
        Object.entries(times).map(([id, [newestMs, formerMs]]) => {
          return [id, { first_token: { newestMs, formerMs } }];
        }),
      ),
    );
  return { clock, slowness, judge, firstTokens };
};

test('a provider is slow from four times its usual first token down to twice', (t) => {
  const { firstTokens } = start(t);
  const judge = (...p: [newestMs?: number, formerMs?: number]) => firstTokens({ p })['p'];
  assert.equal(judge(), undefined);
  assert.equal(judge(1000), undefined, 'nothing to compare with');
  assert.equal(judge(799, 200), undefined);
  assert.equal(judge(800, 200), 'first token after 800 ms, 200 ms is usual');
  // A quarter of an hour of slow streams does not become usual.
  assert.equal(judge(800, 800), 'first token after 800 ms, 200 ms is usual');
  assert.equal(
    judge(400, 800),
    'first token after 400 ms, 800 ms at worst, 200 ms is usual',
    'an incident that ends now keeps its worst time',
  );
  assert.equal(judge(399, 800), undefined);
  assert.equal(judge(400, 200), undefined, 'it is slow no more');
  assert.equal(judge(800, 200), 'first token after 800 ms, 200 ms is usual');
  assert.equal(judge(undefined, 200), undefined, 'too few times are not slow');
  assert.equal(judge(400, 200), undefined, 'it is slow no more');
});

test('a slow provider that goes is not slow when it comes back', (t) => {
  const { firstTokens } = start(t);
  const isSlow = (newestMs: number) => 'p' in firstTokens({ p: [newestMs, 100] });
  assert.deepEqual([isSlow(500), isSlow(300)], [true, true]);
  firstTokens({});
  assert.equal(isSlow(300), false);
});

test('a provider is slow if its new connections take four times as long as usual', (t) => {
  const { judge } = start(t);
  const connect = (newestMs: number, formerMs?: number) =>
    judge({ p: { connect: { newestMs, formerMs } } })['p'];
  assert.equal(connect(99, 10), undefined, 'a few milliseconds more');
  assert.equal(connect(100, 10), 'every fourth connect takes at least 100 ms, 10 ms is usual');
  assert.equal(connect(49, 100), undefined);
  assert.equal(connect(4000), undefined, 'no usual time is assumed');
  const both = { newestMs: 8000, formerMs: 100 };
  assert.equal(
    judge({ q: { first_token: both, connect: both } })['q'],
    'first token after 8000 ms, 100 ms is usual, every fourth connect takes at least 8000 ms, 100 ms is usual',
  );
});

test('if all providers that are asked are slow, the machine is named once', (t) => {
  const { clock, firstTokens } = start(t);
  const slow = [800, 200] as const;
  const cause = 'first token after 800 ms, 200 ms is usual';
  assert.deepEqual(firstTokens({ p: slow, q: [200, 200] }), { p: cause }, 'one is not slow');
  assert.deepEqual(firstTokens({ p: slow, q: [399, 200] }), { p: cause }, 'one is hardly slower');
  assert.deepEqual(firstTokens({ p: slow, p2: slow }), { p: cause, p2: cause }, 'of one host');
  assert.deepEqual(firstTokens({ q: slow, q2: [400, 200] }), { q: cause }, 'of one host');
  assert.deepEqual(firstTokens({ p: slow, q: [] }), { p: cause }, 'one is not asked');
  const two = { p: slow, q: slow };
  assert.deepEqual(firstTokens({ ...two, r: [200, 200] }), { p: cause, q: cause }, 'two of three');
  assert.deepEqual(firstTokens({ ...two, r: [] }), { all: `p: ${cause}; q: ${cause}` });
  clock.nowMs += 60_000;
  firstTokens({ p: [200, 200], q: [200, 200] });
  const half = 'first token after 400 ms, 200 ms is usual';
  assert.deepEqual(firstTokens({ p: slow, q: [400, 200] }), { all: `p: ${cause}; q: ${half}` });
  assert.deepEqual(firstTokens({ p: slow, q: [200, 200] }), { all: `p: ${cause}` });
  clock.nowMs += 59_000;
  assert.deepEqual(firstTokens({ p: slow, q: [200, 200] }), { all: `p: ${cause}` });
  clock.nowMs += 1000;
  assert.deepEqual(firstTokens({ p: slow, q: [200, 200] }), { p: cause }, 'one recovers not');
  assert.deepEqual(firstTokens({ p: [200, 200], q: [200, 200] }), {});
  const five = Object.fromEntries(['p', 'q', 'r', 's', 't'].map((id) => [id, slow]));
  assert.match(firstTokens(five)['all']!, /^p: [^;]+; q: [^;]+; r: [^;]+; 2 more$/);
});

test('a name server that is slow for all names is named once, for one name the provider is', (t) => {
  const { clock, slowness } = start(t);
  const spellOf = (code?: string) => {
    const times = { beganAtMs: clock.nowMs - 9000, endedAtMs: clock.nowMs - 2000 };
    return { ...times, overMs: 6000, longestMs: 4049, code };
  };
  const slow = (code?: string) => ({ isRecent: true, isSlow: true, spell: spellOf(code) });
  const over = () => ({ isRecent: true, isSlow: false, spell: spellOf() });
  const quick = { isRecent: true, isSlow: false, spell: undefined };
  const judge = (reports: ById<LookupReport | undefined>) =>
    slowness.judgeLookups(hostsOf(Object.keys(reports)), (name) => reports[name[0]!]);
  const text = 'lookup of p.test takes up to 4.0 s, its last addresses are in use';
  const failed = 'lookup of q.test fails after 4.0 s (EAI_AGAIN), its last addresses are in use';
  const ofP = judge({ p: slow(), q: quick });
  assert.deepEqual(causesIn(ofP), { p: text });
  assert.equal(ofP[1]!.lateMs, 9000);
  assert.deepEqual(causesIn(judge({ p: slow(), q: undefined })), { p: text });
  const ofAll = judge({ p: slow(), q: slow('EAI_AGAIN'), r: { ...over(), isRecent: false } });
  assert.deepEqual(causesIn(ofAll), { all: `p: ${text}; q: ${failed}` });
  assert.deepEqual([ofAll[0]!.lateMs, ofAll[1]!.lateMs], [9000, 0]);
  const after = judge({ p: over(), q: over(), r: undefined });
  assert.deepEqual(causesIn(after), {});
  assert.deepEqual([after[0]!.lateMs, after[1]!.lateMs], [2000, 2000]);
});
