/** A limiter's slots. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import {
  type Bucket,
  type ConcurrencyLimit,
  Limiter,
  type RateLimitStore,
} from '../../src/policy/limiter.ts';
import { TokenBucket } from '../../src/policy/token-bucket.ts';

function slotOf(name: string, max: number): ConcurrencyLimit {
  return { name, limit: 'client_concurrency', max, used: { inFlight: 0 } };
}

test('a slot that is released twice throws, and changes no count', () => {
  const server = slotOf('server', 2);
  const limiter = new Limiter([server, slotOf('clients.alice', 1)], [], undefined);
  // Another client's request is in flight, so only alice's count is at 0.
  server.used.inFlight = 1;
  assert.equal(limiter.acquireSlot(), undefined);
  limiter.releaseSlot();
  assert.throws(
    () => limiter.releaseSlot(),
    (thrown) => thrown instanceof GatewayError && thrown.kind === 'internal',
  );
  assert.deepEqual([server.used.inFlight, limiter.inFlight], [1, 0]);
});

test('of three buckets in a store the refusing one is named, with its own wait', async () => {
  const bucketOf = (limit: Bucket['limit'], periodSeconds: Bucket['periodSeconds']): Bucket => {
    const name = `clients.alice.${limit}`;
    const local = new TokenBucket(1, 5);
    return { name, limit, rate: 5, periodSeconds, capacity: 5, perRequest: 1, local };
  };
  const buckets = [
    bucketOf('global', 1),
    bucketOf('client_requests_per_minute', 60),
    bucketOf('client_tokens_per_day', 86_400),
  ];
  for (const [at, bucket] of buckets.entries()) {
    const store: RateLimitStore = {
      take: async () => ({ refusedBy: { ...bucket }, waitMs: 1001 * at }),
      charge: () => true,
      connect: async () => {},
    };
    const refusal = await new Limiter([slotOf('server', 2)], buckets, store).takeRequest();
    assert.equal(refusal!.details.limit, bucket.limit);
    assert.equal(refusal!.details.retryAfterSeconds, [1, 2, 3][at]);
  }
});
