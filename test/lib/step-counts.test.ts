/** Counts for the latest time steps. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { StepCounts } from '../../src/lib/step-counts.ts';

test('the counts of a step are gone when it is no longer among the latest', () => {
  const counts = new StepCounts(3, 2);
  const sums = (step: number, steps?: number) => [...counts.sums(step, steps)];
  for (const step of [0, 5, 5, 6]) counts.add(step, 1);
  assert.deepEqual(
    [sums(6), sums(6, 1), sums(5)],
    [
      [0, 3],
      [0, 1],
      [0, 2],
    ],
  );
  counts.add(2, 1, -1);
  counts.add(5, 1, -1);
  assert.deepEqual(
    [sums(6), sums(8)],
    [
      [0, 2],
      [0, 1],
    ],
  );
  counts.add(8, 0);
  assert.deepEqual(
    [sums(8), sums(20)],
    [
      [1, 1],
      [0, 0],
    ],
  );
});
