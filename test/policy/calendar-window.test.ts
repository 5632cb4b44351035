/** Calendar windows on a clock that the test sets. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { CalendarWindow } from '../../src/policy/calendar-window.ts';
import { replaceDate } from '../support/clock.ts';

const DAY_MS = 86_400_000;

/** Stops the clock. The returned function sets it, to a time in UTC. */
function stopDate(t: TestContext, at: string): (at: string) => void {
  let now = Date.parse(at);
  replaceDate(t, () => now);
  return (next) => {
    now = Date.parse(next);
  };
}

const ENDS = [
  ['day', '2026-11-29T00:00:00Z', '2026-11-29', '2026-11-30'],
  ['day', '2026-11-29T23:59:59.999Z', '2026-11-29', '2026-11-30'],
  ['day', '2026-12-31T12:00:00Z', '2026-12-31', '2027-01-01'],
  ['day', '2028-02-28T12:00:00Z', '2028-02-28', '2028-02-29'],
  ['day', '2028-02-29T12:00:00Z', '2028-02-29', '2028-03-01'],
  ['day', '2027-02-28T12:00:00Z', '2027-02-28', '2027-03-01'],
  ['month', '2026-11-01T00:00:00Z', '2026-11', '2026-12-01'],
  ['month', '2026-11-30T23:59:59.999Z', '2026-11', '2026-12-01'],
  ['month', '2026-12-31T23:59:59.999Z', '2026-12', '2027-01-01'],
  ['month', '2028-02-29T00:00:00Z', '2028-02', '2028-03-01'],
  ['month', '2027-02-28T00:00:00Z', '2027-02', '2027-03-01'],
  ['month', '2100-02-28T00:00:00Z', '2100-02', '2100-03-01'],
] as const;
for (const [period, at, name, end] of ENDS) {
  test(`at ${at} the ${period} is ${name}, and ends at ${end}`, (t) => {
    stopDate(t, at);
    const window = new CalendarWindow(period, 10);
    assert.equal(window.name, name);
    assert.equal(window.resetMs(), Date.parse(end) - Date.parse(at));
    assert.equal(window.waitMs(), 0);
    window.take(10);
    assert.equal(window.waitMs(), Date.parse(end) - Date.parse(at));
  });
}

test('a day follows UTC where the clocks change', (t) => {
  const { TZ } = process.env;
  process.env['TZ'] = 'America/New_York';
  t.after(() => (TZ === undefined ? delete process.env['TZ'] : (process.env['TZ'] = TZ)));
  stopDate(t, '2026-03-08T00:00:00Z');
  assert.equal(new CalendarWindow('day', 1).resetMs(), DAY_MS);
  assert.equal(new CalendarWindow('month', 1).name, '2026-03');
});

test('a window refuses from its number on, and is new after its end', (t) => {
  const set = stopDate(t, '2026-11-29T23:59:59Z');
  const window = new CalendarWindow('day', 10);
  window.take(9);
  assert.deepEqual([window.level(), window.waitMs()], [1, 0]);
  window.take(5);
  assert.deepEqual([window.level(), window.waitMs()], [-4, 1000]);
  set('2026-11-29T23:59:59.999Z');
  assert.equal(window.waitMs(), 1);
  set('2026-11-30T00:00:00Z');
  assert.deepEqual([window.level(), window.waitMs(), window.resetMs()], [10, 0, DAY_MS]);
  window.take(10);
  // Several windows may pass without a request.
  set('2027-03-01T00:00:00Z');
  assert.equal(window.level(), 10);
});

test('the sum of costs has no float noise', (t) => {
  stopDate(t, '2026-11-29T12:00:00Z');
  const window = new CalendarWindow('month', 1);
  for (const left of [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]) {
    assert.equal(window.level(), left);
    assert.equal(window.waitMs(), 0);
    window.take(0.1);
  }
  assert.equal(window.sum.used, 1);
  assert.notEqual(window.waitMs(), 0);
});

test('a clock that is set back keeps the sum, and a window ends on the clock of the day', (t) => {
  const set = stopDate(t, '2030-06-15T12:00:00Z');
  const window = new CalendarWindow('month', 10);
  window.take(10);
  // Within the window nothing changes.
  set('2030-06-01T00:00:00Z');
  assert.equal(window.waitMs(), 30 * DAY_MS);
  // The clock was years ahead: the client waits for the end of this month, and not of that.
  set('2026-11-29T00:00:00Z');
  assert.deepEqual([window.level(), window.waitMs()], [0, 2 * DAY_MS]);
  set('2026-12-01T00:00:00Z');
  assert.deepEqual([window.level(), window.name], [10, '2026-12']);
});

test("a store's sum of an earlier window is left aside", (t) => {
  const set = stopDate(t, '2026-11-29T23:59:59Z');
  const window = new CalendarWindow('day', 10);
  const askedTime = Date.now();
  window.set(7, askedTime);
  assert.equal(window.level(), 3);
  set('2026-11-30T00:00:00Z');
  window.take(1);
  window.set(8, askedTime);
  assert.equal(window.level(), 9);
});

test('windows with other limits share a sum, so that a new limit forgets nothing', (t) => {
  const set = stopDate(t, '2026-11-29T12:00:00Z');
  const former = new CalendarWindow('day', 10);
  former.take(8);
  const next = new CalendarWindow('day', 20, former.sum);
  former.take(4);
  assert.deepEqual([former.level(), next.level()], [-2, 8]);
  set('2026-11-30T12:00:00Z');
  assert.deepEqual([next.level(), former.level()], [20, 10]);
});
