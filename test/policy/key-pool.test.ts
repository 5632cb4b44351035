/** The records of a provider's keys. For their effects on requests, see wire-keys.test.ts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { Secret } from '../../src/lib/secret.ts';
import { KeyPool } from '../../src/policy/key-pool.ts';

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
  assert.deepEqual(told, [['key 1: 401'], ['key 1: 401, key 2: 401'], ['key 1: 401'], [undefined]]);
});
