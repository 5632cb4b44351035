/** Whole gateways on a virtual clock; `npm run test:worlds -- COUNT` runs more of them. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { generate } from './generate.ts';
import { runWorld } from './world.ts';

test('in every world each request has one whole answer and one access line', async () => {
  for (let seed = 1; seed <= 100; seed += 1) {
    const { exchanges } = await runWorld(generate(seed));
    for (const { answer, lines } of exchanges) {
      assert.equal(answer?.end, 'whole');
      assert.equal(lines.length, 1);
    }
  }
});
