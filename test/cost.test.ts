/** What a request costs, in counts that do not depend on how busy the machine is (scripts/cost.ts). */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { countCosts, rowsOf } from '../scripts/cost.ts';
import { OVER_FETCH } from './support/transport.ts';

test(
  'a request, a stream and an event allocate, keep and run no more than their budgets',
  { skip: OVER_FETCH },
  async () => {
    const costs = await countCosts();
    const missed = rowsOf(costs).filter(([, value, , budget = Infinity]) => !(value <= budget));
    assert.deepEqual(missed, [], `${JSON.stringify(costs.top, null, 1)} allocate most`);
  },
);
