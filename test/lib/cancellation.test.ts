/** An upstream request's time limit while it waits for the client. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { Deadline } from '../../src/lib/cancellation.ts';
import { stopClock, useManualTimers } from '../support/clock.ts';

const REASON = new Error('no event in time');

function start(t: TestContext) {
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  const deadline = new Deadline();
  deadline.arm(1000, () => REASON);
  return { clock, timers, deadline };
}

test('many short suspensions end the limit, but a long one does not', (t) => {
  const { clock, deadline } = start(t);
  for (const ms of [60_000, ...Array<number>(90).fill(10)]) {
    assert.equal(deadline.reason, undefined);
    deadline.suspend();
    clock.nowMs += ms;
    deadline.resume(100);
  }
  assert.equal(deadline.reason, REASON);
});

test('a limit whose timer fired during a suspension goes on with another', (t) => {
  const { clock, timers, deadline } = start(t);
  deadline.suspend();
  // A timer may be early by a millisecond.
  clock.nowMs += 999;
  timers.advance(1000);
  deadline.resume(1000);
  assert.equal(deadline.reason, undefined);
  timers.advance(1);
  assert.equal(deadline.reason, REASON);
});

test('a limit that is armed again is no longer suspended', (t) => {
  const { timers, deadline } = start(t);
  deadline.suspend();
  deadline.arm(1000, () => REASON);
  timers.advance(1000);
  assert.equal(deadline.reason, REASON);
});

test('a limit that is armed again has its newest time and reason', (t) => {
  const { clock, timers, deadline } = start(t);
  const reasons = [500, 500, 2000, 300].map((ms) => ({ ms, reason: new Error(`no ${ms}`) }));
  for (const { ms, reason } of reasons) {
    deadline.arm(ms, () => reason);
    timers.advance(ms - 1);
    clock.nowMs += ms - 1;
    assert.equal(deadline.reason, undefined);
  }
  timers.advance(1);
  assert.equal(deadline.reason, reasons.at(-1)!.reason);
});

test('a limit beyond the range of setTimeout ends after 25 days, and not at once', (t) => {
  const { timers, deadline } = start(t);
  deadline.arm(2 ** 31, () => REASON);
  assert.ok(timers.running(Infinity).includes(2 ** 31 - 1));
});
