/** Shared memory for parts that a test makes by itself, in its own thread. */

import { ByteBudget } from '../../src/lib/byte-budget.ts';
import { ONLY_THREAD, SharedMemory } from '../../src/lib/shared-memory.ts';

export function newMemory(): SharedMemory {
  return new SharedMemory(ONLY_THREAD);
}

export function newBudget(maxBufferedBytes = Infinity): ByteBudget {
  return new ByteBudget({ maxBufferedBytes, memoryBytes: Infinity }, newMemory());
}
