import assert from 'node:assert/strict';
import dns, { type LookupAddress } from 'node:dns';
import { after, test, type TestContext } from 'node:test';

import { replaceNow, useManualTimers } from '../support/clock.ts';

type Answer = (error: Error | null, addresses?: LookupAddress[]) => void;

/** The lookups that the system has not answered, the oldest first. */
const asked: { readonly name: string; readonly family: number; readonly answer: Answer }[] = [];

// The module takes the system's lookup when it is loaded, so this file has a process of its own.
const real = dns.lookup;
const fake = (name: string, { family = 0 }: { family?: number }, answer: Answer) =>
  asked.push({ name, family, answer });
Object.assign(dns, { lookup: fake });
after(() => Object.assign(dns, { lookup: real }));
const { isLookupAwaited, lookup, lookupsOf } = await import('../../src/lib/name-lookup.ts');

const SLOW_MS = 1000;
const address = (last: number) => [{ address: `192.0.2.${last}`, family: 4 }];

let names = 0;

/** Returns functions for a name that no other test uses. */
function start(t: TestContext) {
  const timers = useManualTimers(t);
  let nowMs = 0;
  replaceNow(t, () => nowMs);
  const name = `host-${(names += 1)}`;
  /** The results so far: an address, or an error's message. */
  const results: string[] = [];
  return {
    name,
    results,
    timers,
    pass: (ms: number) => {
      nowMs += ms;
      timers.advance(ms);
    },
    ask: (family = 0) =>
      lookup(name, { family, all: false }, (error, found) =>
        results.push(error?.message ?? (found as string)),
      ),
    /** Answers the oldest lookup. */
    answer: (...args: Parameters<Answer>) => asked.shift()!.answer(...args),
  };
}

test('callers at the same time share a lookup, and later callers get one of their own', (t) => {
  const { answer, ask, name, results } = start(t);
  ask();
  ask();
  assert.equal(asked.length, 1);
  assert.equal(isLookupAwaited(name), true);
  answer(null, address(1));
  assert.equal(isLookupAwaited(name), false);
  ask();
  answer(null, address(2));
  assert.deepEqual(results, ['192.0.2.1', '192.0.2.1', '192.0.2.2']);
});

test('a lookup that was answered in time makes no later lookup slow', (t) => {
  const { answer, ask, results, timers } = start(t);
  for (const last of [1, 2, 3]) {
    ask();
    answer(null, address(last));
    timers.advance(SLOW_MS);
  }
  assert.deepEqual(results, ['192.0.2.1', '192.0.2.2', '192.0.2.3']);
});

test('a slow lookup is answered with the last addresses, each time', async (t) => {
  const { answer, ask, results, timers } = start(t);
  ask();
  answer(null, address(1));
  for (const [former, last] of [
    [1, 2],
    [2, 3],
  ] as const) {
    results.length = 0;
    ask();
    timers.advance(SLOW_MS - 1);
    assert.deepEqual(results, []);
    timers.advance(1);
    assert.deepEqual(results, [`192.0.2.${former}`]);
    ask();
    await new Promise((resolve) => process.nextTick(resolve));
    assert.deepEqual(results, [`192.0.2.${former}`, `192.0.2.${former}`]);
    assert.equal(asked.length, 1);
    answer(null, address(last));
  }
});

test('a failed lookup does not forget the addresses of the last good lookup', (t) => {
  const { answer, ask, results, timers } = start(t);
  ask();
  answer(null, address(1));
  ask();
  answer(new Error('not found'));
  ask();
  timers.advance(SLOW_MS);
  assert.deepEqual(results, ['192.0.2.1', 'not found', '192.0.2.1']);
  answer(null, address(2));
});

test('a slow lookup without former addresses is waited for', (t) => {
  const { answer, ask, results, timers } = start(t);
  ask();
  timers.advance(10 * SLOW_MS);
  assert.deepEqual(results, []);
  answer(null, address(1));
  assert.deepEqual(results, ['192.0.2.1']);
});

test('each address family has a lookup of its own', (t) => {
  const { answer, ask, results } = start(t);
  ask(4);
  ask(6);
  assert.deepEqual(
    asked.map(({ family }) => family),
    [4, 6],
  );
  answer(null, address(4));
  answer(null, [{ address: '2001:db8::6', family: 6 }]);
  assert.deepEqual(results, ['192.0.2.4', '2001:db8::6']);
});

test('a lookup that throws is an error, and the next one is tried', (t) => {
  const { answer, ask, results } = start(t);
  const { push } = asked;
  asked.push = () => {
    throw new Error('denied');
  };
  ask();
  asked.push = push;
  ask();
  answer(null, address(1));
  assert.deepEqual(results, ['denied', '192.0.2.1']);
});

const FOUR_SECONDS = 4000;

test('two lookups of 4 s are a slow name server, until lookups are in time', (t) => {
  const { answer, ask, name, pass } = start(t);
  assert.equal(lookupsOf(name), undefined);
  const look = (ms: number, error: Error | null = null) => {
    ask();
    pass(ms);
    answer(error, error ? undefined : address(1));
    return lookupsOf(name)!;
  };
  assert.equal(look(FOUR_SECONDS).isSlow, false, 'a single lost packet');
  pass(1000);
  ask();
  pass(SLOW_MS + 1999);
  assert.equal(lookupsOf(name)!.isSlow, false);
  pass(1);
  assert.equal(lookupsOf(name)!.isSlow, true, 'the second lookup runs still');
  pass(1000);
  const failure = Object.assign(new Error('getaddrinfo EAI_AGAIN'), { code: 'EAI_AGAIN' });
  answer(failure);
  const failed = {
    beganAtMs: 0,
    endedAtMs: 9000,
    overMs: 6000,
    longestMs: 4000,
    code: 'EAI_AGAIN',
  };
  assert.deepEqual(lookupsOf(name), { isRecent: true, isSlow: true, spell: failed });
  const { code, longestMs } = look(FOUR_SECONDS + 500).spell!;
  assert.deepEqual([code, longestMs], [undefined, FOUR_SECONDS + 500]);
  pass(20_000);
  assert.equal(lookupsOf(name)!.isSlow, true, 'none was in time');
  assert.deepEqual([look(10).isSlow, lookupsOf(name)!.spell!.endedAtMs], [false, 13_500]);
  pass(1000);
  look(FOUR_SECONDS);
  assert.equal(look(10).isSlow, false, 'the spell is another');
  assert.equal(lookupsOf(name)!.spell!.beganAtMs, 34_510);
});

test('slow lookups go on for 15 s after one in time, and are forgotten after a minute', (t) => {
  const { answer, ask, name, pass } = start(t);
  const look = (ms: number) => {
    ask();
    pass(ms);
    answer(null, address(1));
  };
  look(10);
  look(10 * SLOW_MS);
  look(10);
  pass(14_989);
  assert.equal(lookupsOf(name)!.isSlow, true);
  pass(1);
  assert.equal(lookupsOf(name)!.isSlow, false);
  look(10 * SLOW_MS);
  pass(59_999);
  assert.deepEqual([lookupsOf(name)!.isSlow, lookupsOf(name)!.isRecent], [true, true]);
  pass(1);
  assert.deepEqual([lookupsOf(name)!.isSlow, lookupsOf(name)!.isRecent], [false, false]);
});

test('slow lookups are no fault of their own without last addresses', (t) => {
  const { answer, ask, name, pass, results } = start(t);
  ask();
  pass(70_000);
  assert.equal(lookupsOf(name)!.isSlow, false);
  answer(new Error('not found'));
  assert.equal(lookupsOf(name)!.isSlow, false);
  ask();
  answer(null, address(1));
  assert.deepEqual(results, ['not found', '192.0.2.1']);
  assert.equal(lookupsOf(name)!.isSlow, true);
});

test('nobody waits for a slow lookup once the last addresses are used', (t) => {
  const { answer, ask, name, pass } = start(t);
  ask();
  answer(null, address(1));
  ask();
  assert.equal(isLookupAwaited(name), true);
  pass(SLOW_MS);
  assert.equal(isLookupAwaited(name), false);
  answer(null, address(1));
});

test('a thousand names are known, and the oldest is forgotten', (t) => {
  useManualTimers(t);
  const many = Array.from({ length: 1001 }, (_, index) => `many-${index}`);
  for (const name of many) lookup(name, {}, () => {});
  assert.deepEqual(many.map(isLookupAwaited).indexOf(true), 1);
  for (const { answer } of asked.splice(0)) answer(null, address(1));
});
