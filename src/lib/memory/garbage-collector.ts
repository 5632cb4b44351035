/**
 * Starts V8's garbage collector and bounds its young generation. V8 itself would wait too long with
 * a collection, because Buffers lie outside its heap: the Buffers of a single burst may fill a
 * container's memory.
 */

import { PerformanceObserver } from 'node:perf_hooks';
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** From this size on, a larger young generation saves no CPU time. */
const YOUNG_BYTES = 16_777_216;

setFlagsFromString('--expose-gc');

/** Collects all garbage now, or with `{ type: 'minor' }` only young objects. */
export const collectGarbage = runInNewContext('gc') as (options?: { type: 'minor' }) => void;

/**
 * V8 doubles its young generation while many streams begin, to 64 MiB on Node 24, and never gives
 * that memory back.
 */
export function limitYoungGeneration(): void {
  const observer = new PerformanceObserver(() => {
    const young = getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space');
    if (!young || young.space_size < YOUNG_BYTES) return;
    setFlagsFromString('--semi-space-growth-factor=1');
    observer.disconnect();
  });
  observer.observe({ entryTypes: ['gc'] });
}
