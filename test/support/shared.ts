/** Creates a memory budget for a module under test. */

import { ByteBudget } from '../../src/lib/memory/byte-budget.ts';

export function newBudget(maxBufferedBytes = Infinity): ByteBudget {
  return new ByteBudget({ maxBufferedBytes, memoryBytes: Infinity });
}
