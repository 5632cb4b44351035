/** The axis of time of the page's charts. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';

import { ROOT } from '../support/process.ts';

type View = { now: string; step: number; steps: Record<number, { time: number }> };

// A module of the page, whose types nobody needs here.
const { placeOf, roundTop, timesOf } = (await import(join(ROOT, 'src/admin/page/charts.js'))) as {
  placeOf: (time: string, times: number[]) => number;
  roundTop: (value: number) => number;
  timesOf: (view: View, first: number) => number[];
};

const NOW_MS = Date.parse('2026-11-22T10:15:34.000Z');
const LAST = 1000;
const FIRST = LAST - 89;
const iso = (ms: number) => new Date(ms).toISOString();

test('the top of a chart is a round number that no value exceeds', () => {
  const cases = [
    [1, 1],
    [1.1, 1.5],
    [5, 5],
    [5.1, 10],
    [161, 200],
    [1210, 1500],
    [0.7, 1],
  ] as const;
  for (const [value, top] of cases) assert.equal(roundTop(value), top, String(value));
});

test('steps without requests have times too, and a gap after the last data moves them', () => {
  const view = { now: iso(NOW_MS), step: LAST, steps: {} };
  const begin = Date.parse('2026-11-22T10:15:30.000Z');
  const times = timesOf(view, FIRST);
  assert.equal(times.length, 90);
  assert.equal(times.at(-1), begin);
  assert.equal(times[0], begin - 890_000);
  assert.equal(timesOf(view, FIRST + 3).at(-1), begin + 30_000);
});

test('a step keeps the time that was noted for it when the clock is set', () => {
  const begin = Date.parse('2026-11-22T10:15:30.000Z');
  const noted = begin - 20_000 + 3_600_000;
  const view = { now: iso(NOW_MS), step: LAST, steps: { [LAST - 2]: { time: noted } } };
  const times = timesOf(view, FIRST);
  assert.deepEqual(times.slice(-4), [noted - 10_000, noted, begin - 10_000, begin]);
  // An incident of that hour stands beside the requests of that hour.
  assert.equal(placeOf(iso(noted + 5000), times), 87.5 / 90);
  assert.equal(placeOf(iso(begin + 5000), times), 89.5 / 90);
});

test('a time before the axis is at its begin, and one after it at its end', () => {
  const times = timesOf({ now: iso(NOW_MS), step: LAST, steps: {} }, FIRST);
  assert.equal(placeOf(iso(NOW_MS - 3_600_000), times), 0);
  assert.equal(placeOf(iso(NOW_MS + 3_600_000), times), 1);
});
