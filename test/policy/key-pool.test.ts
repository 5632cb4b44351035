/** The records of a provider's keys. For their effects on requests, see wire-keys.test.ts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { Secret } from '../../src/lib/secret.ts';
import { KeyPool } from '../../src/policy/key-pool.ts';
import { stopClock } from '../support/clock.ts';

/** Returns a pool with this number of keys. */
function poolOf(count: number): KeyPool {
  const apiKeys = Array.from({ length: count }, (_, at) => new Secret(`key-${at}`));
  const provider = { id: 'p', digest: 'd', apiKeys, keyAffinity: false };
  return new KeyPool(provider, { log() {}, isEnabled: () => false });
}

const refusal = (status: number) => new GatewayError('api', '', { status, scope: 'key' });
const limited = (retryAfterSeconds: number) =>
  new GatewayError('rateLimit', '', { retryAfterSeconds, limit: 'upstream' });

test('of three refused keys each is accepted again by its own success', () => {
  const pool = poolOf(3);
  for (const key of [0, 1, 2]) pool.recordFailure(key, refusal(401));
  for (const [accepted, key] of [2, 0, 1].entries()) {
    assert.deepEqual([pool.accepted, pool.inCooldown], [accepted, 3 - accepted]);
    pool.recordSuccess(key, pool.cooldownOf(key));
  }
  assert.deepEqual([pool.accepted, pool.inCooldown], [3, 0]);
});

test('a success after the end of a cooldown says nothing about the other keys', (t) => {
  const clock = stopClock(t);
  const pool = poolOf(3);
  pool.recordFailure(0, refusal(403));
  clock.nowMs += 30_000;
  pool.recordFailure(1, refusal(403));
  clock.nowMs += 31_000;
  pool.recordSuccess(0, pool.cooldownOf(0));
  assert.equal(pool.inCooldown, 1);
  pool.recordSuccess(2, pool.cooldownOf(2));
  assert.equal(pool.inCooldown, 1);
});

test('of three keys at their limits a request tries the one that is free first, and no other', (t) => {
  const clock = stopClock(t);
  const pool = poolOf(3);
  for (const [key, seconds] of [30, 10, 20].entries()) pool.recordFailure(key, limited(seconds));
  for (let count = 0; count < 2; count += 1) assert.deepEqual([...pool.keysToTry()], [1]);
  clock.nowMs += 10_000;
  assert.deepEqual([...pool.keysToTry()], [1]);
  clock.nowMs += 10_000;
  assert.deepEqual(new Set(pool.keysToTry()), new Set([1, 2]));
});

test('a request that belongs to one organisation is sent with one key, also in cooldown', () => {
  const pool = poolOf(3);
  const history = { client: 'a', promptCacheKey: undefined, affinity: 'organisation' } as const;
  const keys = () => [...pool.keysToTry({ headers: {}, history })];
  const [own = assert.fail()] = keys();
  assert.deepEqual(keys(), [own]);
  pool.recordFailure(own, limited(60));
  assert.deepEqual(keys(), [own]);
});

test('a success asked for before a longer cooldown began does not end it', () => {
  const apiKeys = ['a', 'b'].map((text) => new Secret(text));
  const provider = { id: 'p', digest: 'd', apiKeys, keyAffinity: false };
  const pool = new KeyPool(provider, { log() {}, isEnabled: () => false });
  const refuse = (retryAfterSeconds: number) =>
    pool.recordFailure(
      0,
      new GatewayError('rateLimit', '', { retryAfterSeconds, limit: 'upstream' }),
    );
  refuse(60);
  const before = pool.cooldownOf(0);
  refuse(120);
  assert.equal(pool.accepted, 2, 'a 429 is no refusal');
  pool.recordSuccess(0, before);
  assert.equal(pool.inCooldown, 1);
  pool.recordSuccess(0, pool.cooldownOf(0));
  assert.equal(pool.inCooldown, 0);
});

test('the refused keys are named when they change, until each has worked again', () => {
  const apiKeys = ['a', 'b'].map((text) => new Secret(text));
  const provider = { id: 'p', digest: 'd', apiKeys, keyAffinity: false };
  const told: unknown[] = [];
  const onRefused = (...refused: unknown[]) => told.push(refused);
  const pool = new KeyPool(provider, { log() {}, isEnabled: () => false }, onRefused);
  for (const key of [0, 1]) {
    pool.recordFailure(key, new GatewayError('api', '', { status: 401, scope: 'key' }));
  }
  // This stream was asked for before the key was revoked.
  pool.recordSuccess(1, undefined);
  pool.recordSuccess(1, pool.cooldownOf(1));
  pool.recordSuccess(0, pool.cooldownOf(0));
  const one = '1 of 2 keys, the others are used: key 1: 401';
  const both = '2 of 2 keys, none is left: key 1: 401, key 2: 401';
  assert.deepEqual(told, [[one], [both], [one], [undefined]]);
});
