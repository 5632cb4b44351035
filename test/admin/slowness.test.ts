/** When a provider is slow. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Slowness } from '../../src/admin/slowness.ts';

test('a provider is slow at four times the former median of first tokens, until it is below twice', () => {
  const slowness = new Slowness();
  const judge = (newestMs?: number, formerMs?: number) =>
    slowness.causeOf('p', { newestMs, formerMs });
  assert.equal(judge(), undefined);
  assert.equal(judge(1000), undefined, 'nothing to compare with');
  assert.equal(judge(799, 200), undefined);
  assert.equal(judge(800, 200), 'first token after 800 ms, 200 ms before');
  assert.equal(slowness.causeOf('q', { newestMs: 800, formerMs: 800 }), undefined);
  // A quarter of an hour of slow streams does not become usual.
  assert.equal(judge(800, 800), 'first token after 800 ms, 200 ms before');
  assert.equal(judge(400, 800), 'first token after 400 ms, 200 ms before');
  assert.equal(judge(399, 800), undefined);
  assert.equal(judge(400, 200), undefined, 'it is slow no more');
  assert.equal(judge(0, 0), undefined, 'no time is not slow');
});
