/** A budget for parts that a test makes by itself. */

import { ByteBudget } from '../../src/lib/byte-budget.ts';

export function newBudget(maxBufferedBytes = Infinity): ByteBudget {
  return new ByteBudget({ maxBufferedBytes, memoryBytes: Infinity });
}
