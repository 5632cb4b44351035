import assert from 'node:assert/strict';
import { test } from 'node:test';

import { TokenBucket } from '../../src/policy/token-bucket.ts';
import { withRandom, type Random } from '../support/random.ts';

const DAY_MS = 86_400_000;

/** Far below a token, and above floating point loss. */
const SLACK = 1e-5;

/** Takes a token and returns 0, or returns the milliseconds until the next token. */
function takeOne(bucket: TokenBucket, nowMs: number): number {
  const waitMs = bucket.waitMs(1, nowMs);
  if (waitMs === 0) bucket.take(1, nowMs);
  return waitMs;
}

/** The simplest bucket with the same promises: a number and a clock. */
class Model {
  units: number;
  #latestMs: number;
  readonly #perMs: number;
  readonly #capacity: number;

  constructor(perSecond: number, capacity: number, nowMs: number) {
    this.#perMs = perSecond / 1000;
    this.#capacity = capacity;
    this.units = capacity;
    this.#latestMs = nowMs;
  }

  advance(nowMs: number): void {
    this.units = Math.min(this.#capacity, this.units + (nowMs - this.#latestMs) * this.#perMs);
    this.#latestMs = nowMs;
  }
}

function step(random: Random, perSecond: number): number {
  const interval = 1000 / perSecond;
  const steps = [0, 0, interval, interval * random.next(), 10 * interval, 1000];
  return random.oneIn(40) ? DAY_MS : random.pick(steps);
}

test('a bucket behaves like its model', async () => {
  await withRandom((random) => {
    for (let run = 0; run < 300; run += 1) {
      const perSecond = random.pick([1, 2, 3, 7, 60, 1000, random.integer(1, 500)]);
      const capacity = random.pick([1, 2, 5, 100, random.integer(1, 50)]);
      let nowMs = random.pick([0, 1e-3, 12_345.678, 1e9]);
      const bucket = new TokenBucket(perSecond, capacity);
      const model = new Model(perSecond, capacity, nowMs);
      for (let i = 0; i < 200; i += 1) {
        nowMs += step(random, perSecond);
        model.advance(nowMs);
        if (random.oneIn(10)) {
          bucket.take(-1, nowMs);
          model.units = Math.min(capacity, model.units + 1);
          continue;
        }
        const about = `run ${run}, step ${i}: ${perSecond}/s, ${capacity}, ${model.units} units`;
        const waitMs = takeOne(bucket, nowMs);
        assert.ok(Number.isFinite(waitMs) && waitMs >= 0, about);
        // If the fraction decides, both results are right.
        const isClear = Math.abs(model.units - 1) > SLACK;
        if (isClear) assert.equal(waitMs === 0, model.units >= 1, about);
        if (waitMs === 0) {
          model.units -= 1;
          continue;
        }
        const expectedMs = ((1 - model.units) * 1000) / perSecond;
        assert.ok(Math.abs(waitMs - expectedMs) <= SLACK * 1000 + 1e-9, `${about}: ${waitMs}`);
      }
    }
  });
});

test('a bucket may fall below zero, and must refill first', () => {
  const bucket = new TokenBucket(10, 100);
  bucket.take(150, 0);
  assert.equal(bucket.level(0), -50);
  assert.equal(bucket.waitMs(1, 0), 5100);
  assert.equal(bucket.level(4000), -10);
  assert.equal(bucket.waitMs(1, 5100), 0);
  assert.equal(bucket.level(DAY_MS), 100);
});

test('units are taken from the level at that time, however long nobody has read it', () => {
  const bucket = new TokenBucket(10, 100);
  bucket.take(50, 0);
  bucket.take(80, DAY_MS);
  assert.equal(bucket.level(DAY_MS), 20);
  assert.equal(bucket.level(DAY_MS + 1000), 30);
});

test('all of 100,000 takes at the rate of the refill pass, and half of twice as many', () => {
  const admit = (perSecond: number, everyMs: number) => {
    const bucket = new TokenBucket(perSecond, 2);
    let admitted = 0;
    for (let i = 1; i <= 1e5; i += 1) if (takeOne(bucket, i * everyMs) === 0) admitted += 1;
    return admitted;
  };
  for (const perSecond of [1, 3, 7, 1000, 999_983]) {
    assert.ok(admit(perSecond, 1000 / perSecond) >= 1e5 - 1, `${perSecond}/s`);
  }
  const half = admit(1000, 0.5);
  assert.ok(Math.abs(half - 5e4) <= 3, `${half}`);
});
