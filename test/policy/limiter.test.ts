/** A limiter's slots. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import {
  type ConcurrencyLimit,
  Limiter,
  type RateLimitStore,
  type RefilledBucket,
} from '../../src/policy/limiter.ts';
import { CalendarWindow } from '../../src/policy/calendar-window.ts';
import { TokenBucket } from '../../src/policy/token-bucket.ts';
import { replaceNow } from '../support/clock.ts';

function slotOf(name: string, max: number): ConcurrencyLimit {
  return { name, limit: 'client_concurrency', max, used: { inFlight: 0, queue: undefined } };
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
  const bucketOf = (
    limit: RefilledBucket['limit'],
    periodSeconds: RefilledBucket['periodSeconds'],
  ): RefilledBucket => {
    const name = `clients.alice.${limit}`;
    const local = new TokenBucket(1, 5);
    return { name, limit, rate: 5, periodSeconds, capacity: 5, perRequest: 1, local };
  };
  const buckets = [
    bucketOf('global', 1),
    bucketOf('client_requests_per_minute', 60),
    bucketOf('client_tokens_per_minute', 60),
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

test("figures ask the store for a window's sum, at most every five seconds", (t) => {
  let nowMs = 1000;
  replaceNow(t, () => nowMs);
  const charged: unknown[] = [];
  const store: RateLimitStore = {
    take: async () => 'taken',
    charge(tokens, buckets) {
      charged.push([tokens, ...buckets.map(({ name }) => name)]);
      return true;
    },
    connect: async () => {},
  };
  const name = 'clients.alice.tokens_per_day';
  const limit = 'client_tokens_per_day';
  const local = new CalendarWindow('day', 5);
  const own = { counts: 'tokens', period: 'day', capacity: 5, perRequest: 0 } as const;
  const limiter = new Limiter([slotOf('server', 2)], [{ ...own, name, limit, local }], store);
  for (nowMs of [1000, 5999, 6000, 6001]) limiter.usedOfBuckets();
  assert.deepEqual(charged, [
    [0, name],
    [0, name],
  ]);
});
