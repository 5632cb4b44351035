/** The axis of time of the page's charts. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';

import { ROOT } from '../support/process.ts';

// A module of the page, whose types nobody needs here.
const { roundTop } = (await import(join(ROOT, 'src/admin/page/charts.js'))) as {
  roundTop: (value: number) => number;
};

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
