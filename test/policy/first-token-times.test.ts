/** The times of the targets of `balance = "fastest"`. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { FirstTokenTimes } from '../../src/policy/first-token-times.ts';
import { stopClock } from '../support/clock.ts';

test('the usual time is the median of the last five minutes', (t) => {
  const clock = stopClock(t);
  const times = new FirstTokenTimes();
  assert.deepEqual(times.state, { usualMs: Infinity, isBusy: false });
  for (const tookMs of [30, 10, 50]) times.add(tookMs);
  assert.equal(times.state.usualMs, 30);
  times.add(20);
  assert.equal(times.state.usualMs, 20);
  clock.nowMs += 300_000;
  assert.equal(times.state.usualMs, 20);
  times.add(70);
  clock.nowMs += 1;
  assert.equal(times.state.usualMs, 70);
});

test('a target is busy while two of its three newest times are ten times its usual time', (t) => {
  stopClock(t);
  const times = new FirstTokenTimes();
  for (let i = 0; i < 5; i += 1) times.add(10);
  const isBusyAfter = (tookMs: number) => {
    times.add(tookMs);
    return times.state.isBusy;
  };
  assert.deepEqual([100, 99, 100].map(isBusyAfter), [false, false, true]);
  assert.deepEqual([10, 10].map(isBusyAfter), [false, false]);
});

test('a wait in vain counts if it is longer than usual', (t) => {
  stopClock(t);
  const times = new FirstTokenTimes();
  times.addSilence(500);
  assert.equal(times.state.usualMs, Infinity);
  for (let i = 0; i < 5; i += 1) times.add(10);
  times.addSilence(10);
  for (const waitedMs of [200, 200]) times.addSilence(waitedMs);
  assert.deepEqual(times.state, { usualMs: 10, isBusy: true });
});

test('the 64 newest times count', (t) => {
  stopClock(t);
  const times = new FirstTokenTimes();
  for (let i = 0; i < 64; i += 1) times.add(1000);
  for (let i = 0; i < 32; i += 1) times.add(10);
  assert.equal(times.state.usualMs, 10);
});

test('a target is tried once in five minutes', (t) => {
  const clock = stopClock(t);
  const times = new FirstTokenTimes();
  assert.deepEqual([times.beginTrial(), times.beginTrial()], [true, false]);
  clock.nowMs += 299_999;
  assert.equal(times.beginTrial(), false);
  clock.nowMs += 1;
  assert.equal(times.beginTrial(), true);
});

test('a target under 100 ms is not busy', (t) => {
  stopClock(t);
  const times = new FirstTokenTimes();
  for (const tookMs of [0, 0, 0, 0, 99, 99, 99]) times.add(tookMs);
  assert.equal(times.state.isBusy, false);
});
