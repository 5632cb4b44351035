/** The times of the targets of `balance = "fastest"`. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { type ErrorDetails, GatewayError } from '../../src/lib/errors.ts';
import { FirstTokenTimes } from '../../src/policy/first-token-times.ts';
import { stopClock } from '../support/clock.ts';

function start(t: TestContext) {
  const clock = stopClock(t, 1_000_000);
  const times = new FirstTokenTimes();
  /** Begins a stream whose first token has taken so long since its request was sent. */
  const begin = (tookMs: number) => {
    const sentAtMs = clock.nowMs - tookMs;
    const asked = { beganAtMs: sentAtMs - 7, sentAtMs, decidedAtMs: clock.nowMs };
    const attempt = { ...asked, hasAnswer: true, failure: undefined };
    times.add(attempt);
    return attempt;
  };
  const add = (...tookMs: number[]) => tookMs.forEach(begin);
  /** Ends a stream with a failure, before its answer has begun or later. */
  const fail = (details: ErrorDetails = {}, begun?: ReturnType<typeof begin>) => {
    const failure = new GatewayError('provider', 'x', details);
    const asked = { beganAtMs: clock.nowMs, sentAtMs: undefined, decidedAtMs: clock.nowMs };
    times.recordEnd({ hasAnswer: false, ...asked, ...begun, failure });
  };
  const leave = (waitedMs: number) => {
    const asked = { beganAtMs: clock.nowMs - waitedMs, sentAtMs: undefined };
    times.addSilence({ ...asked, decidedAtMs: undefined, hasAnswer: false, failure: undefined });
  };
  return { add, begin, clock, fail, leave, times };
}

const NONE = { usualMs: Infinity, isKnown: false, isBusy: false };

test('the usual time is the median of the last five minutes', (t) => {
  const { add, clock, times } = start(t);
  assert.deepEqual(times.state, NONE);
  add(30, 10, 50);
  assert.equal(times.state.usualMs, 30);
  add(20);
  assert.equal(times.state.usualMs, 20);
  clock.nowMs += 300_000;
  assert.equal(times.state.usualMs, 20);
  add(70);
  clock.nowMs += 1;
  assert.equal(times.state.usualMs, 70);
});

test('a target is known with three times in the last five minutes', (t) => {
  const { add, clock, times } = start(t);
  add(10, 10);
  assert.equal(times.state.isKnown, false);
  clock.nowMs += 1;
  add(10);
  assert.equal(times.state.isKnown, true);
  clock.nowMs += 300_000;
  assert.equal(times.state.isKnown, false);
});

test('a target is busy while two of its three newest times are ten times its usual time', (t) => {
  const { add, times } = start(t);
  add(10, 10, 10, 10, 10);
  const isBusyAfter = (tookMs: number) => {
    add(tookMs);
    return times.state.isBusy;
  };
  assert.deepEqual([100, 99, 100].map(isBusyAfter), [false, false, true]);
  assert.deepEqual([10, 10].map(isBusyAfter), [false, false]);
});

test('a failure counts as slower than every time', (t) => {
  const { add, fail, times } = start(t);
  add(10, 20);
  fail();
  assert.deepEqual(times.state, { usualMs: 20, isKnown: true, isBusy: false });
  fail();
  assert.deepEqual(times.state, { usualMs: 20, isKnown: true, isBusy: true });
  for (let i = 0; i < 2; i += 1) fail();
  assert.equal(times.state.usualMs, Infinity);
  add(10, 10);
  assert.equal(times.state.isBusy, false, 'two of the three newest are good');
});

test('a target that has only failed is busy, but not before its third failure', (t) => {
  const { fail, times } = start(t);
  for (let i = 0; i < 2; i += 1) fail();
  assert.deepEqual(times.state, NONE);
  fail();
  assert.deepEqual(times.state, { usualMs: Infinity, isKnown: true, isBusy: true });
});

test('a stream that breaks counts as one failure, and has no time', (t) => {
  const { add, begin, clock, fail, times } = start(t);
  add(30);
  clock.nowMs += 1;
  const broken = begin(10);
  clock.nowMs += 1;
  add(20);
  clock.nowMs += 250_000;
  fail({ problem: 'cut' }, broken);
  assert.equal(times.state.usualMs, 30, 'of 30, 20 and the failure');
  clock.nowMs += 60_000;
  assert.deepEqual(times.state, { ...NONE, usualMs: Infinity }, 'the failure is the newest');
  add(5, 5);
  assert.deepEqual(times.state, { usualMs: 5, isKnown: true, isBusy: false });
});

test('a failure of the client or of the gateway does not count', (t) => {
  const { add, fail, times } = start(t);
  add(10, 20);
  fail({ scope: 'client' });
  fail({ scope: 'gateway' });
  fail({ scope: 'client', problem: 'policy' });
  times.recordEnd({
    beganAtMs: 0,
    sentAtMs: 0,
    decidedAtMs: 9,
    hasAnswer: true,
    failure: undefined,
  });
  assert.deepEqual(times.state, { usualMs: 10, isKnown: false, isBusy: false });
});

test('a wait until the client has left counts if it is longer than usual', (t) => {
  const { add, leave, times } = start(t);
  add(10, 10, 10, 10, 10);
  leave(10);
  for (const waitedMs of [200, 200]) leave(waitedMs);
  assert.deepEqual(times.state, { usualMs: 10, isKnown: true, isBusy: true });
});

test('shorter waits end the first three, and no more of them are kept', (t) => {
  const { add, leave, times } = start(t);
  for (let i = 0; i < 3; i += 1) leave(500);
  assert.deepEqual(times.state, { usualMs: Infinity, isKnown: true, isBusy: false });
  add(10);
  for (let i = 0; i < 100; i += 1) leave(1);
  assert.equal(times.state.usualMs, 10);
});

test('the 64 newest times count', (t) => {
  const { add, times } = start(t);
  add(...Array<number>(64).fill(1000));
  add(...Array<number>(32).fill(10));
  assert.equal(times.state.usualMs, 10);
});

test('a target under 100 ms is not busy', (t) => {
  const { add, times } = start(t);
  add(0, 0, 0, 0, 99, 99, 99);
  assert.equal(times.state.isBusy, false);
});
