import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Tries } from '../../src/incidents/tries.ts';

/** Returns how many failures in a row are counted, if a try of the last minute has succeeded. */
function rowOf(tries: Tries, nowMs: number): number {
  // Five in a row are a row. The failures that are added show how many were counted.
  for (let added = 0; added <= 5; added += 1) {
    if (tries.hasRow(nowMs)) return 5 - added;
    tries.addFailure(nowMs, undefined);
  }
  return 0;
}

/** Tries with a success that does not break, and so many failures in a row since. */
function failing(count: number): Tries {
  const tries = new Tries();
  tries.addGood(0);
  for (let failed = 0; failed < count; failed += 1) tries.addFailure(1, undefined);
  return tries;
}

test('a success ends the row of failures', () => {
  const tries = failing(4);
  assert.equal(rowOf(failing(4), 2), 4);
  tries.addGood(2);
  assert.equal(rowOf(tries, 3), 0);
});

test('the row before a stream goes on when the stream breaks, each time', () => {
  for (const [breaks, row] of [
    [1, 2],
    [2, 3],
    [3, 4],
  ] as const) {
    const tries = failing(1);
    for (let round = 1; round <= breaks; round += 1) {
      tries.addGood(10 * round);
      tries.addFailure(10 * round + 5, 10 * round);
    }
    assert.equal(rowOf(tries, 100), row, `${breaks} breaks`);
  }
});

test('the row before a stream does not go on if another try has succeeded since', () => {
  const tries = failing(3);
  tries.addGood(10);
  tries.addFailure(15, undefined);
  tries.addGood(20);
  tries.addFailure(30, 10);
  assert.equal(rowOf(tries, 40), 1);
});

test('the row before two streams of the same moment goes on once', () => {
  const tries = failing(0);
  tries.addGood(10);
  tries.addFailure(10, undefined);
  tries.addGood(10);
  tries.addFailure(20, 10);
  tries.addFailure(21, 10);
  assert.equal(rowOf(tries, 30), 3);
});

test('a stream that breaks is no success of the last minute', () => {
  const tries = new Tries();
  for (const beganMs of [10, 20, 30]) {
    tries.addGood(beganMs);
    tries.addFailure(beganMs + 5, beganMs);
  }
  assert.equal(tries.hasRow(40), true, 'three in a row without a success');
  assert.equal(tries.isRecovered(40), false);
});
