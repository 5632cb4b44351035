/** The time limit of an upstream request while it waits for the client. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Deadline } from '../../src/lib/cancellation.ts';
import { stopClock, useManualTimers } from '../support/clock.ts';

test('of each suspension so much counts at most: many short ones end the limit, a long one does not', (t) => {
  const clock = stopClock(t);
  useManualTimers(t);
  const reason = new Error('no event in time');
  const deadline = new Deadline();
  deadline.arm(1000, () => reason);
  const suspend = (ms: number) => {
    deadline.suspend();
    clock.nowMs += ms;
    deadline.resume(100);
  };
  suspend(60_000);
  assert.equal(deadline.reason, undefined);
  for (let count = 0; count < 89; count += 1) suspend(10);
  assert.equal(deadline.reason, undefined);
  suspend(10);
  assert.equal(deadline.reason, reason);
});

test('a limit whose timer ran out during a suspension goes on with another', (t) => {
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  const reason = new Error('no event in time');
  const deadline = new Deadline();
  deadline.arm(1000, () => reason);
  deadline.suspend();
  // A timer may be early by a millisecond.
  clock.nowMs += 999;
  timers.advance(1000);
  deadline.resume(1000);
  assert.equal(deadline.reason, undefined);
  timers.advance(1);
  assert.equal(deadline.reason, reason);
});

test('a limit beyond what setTimeout can wait for, which would pass at once, ends after 25 days', (t) => {
  const timers = useManualTimers(t);
  new Deadline().arm(2 ** 31, () => new Error('no event in time'));
  assert.deepEqual(timers.running(Infinity), [2 ** 31 - 1]);
});
