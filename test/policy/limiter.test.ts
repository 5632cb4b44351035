/** A limiter's slots. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { type ConcurrencyLimit, Limiter } from '../../src/policy/limiter.ts';

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
