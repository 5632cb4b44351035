import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * Returns a function that collects garbage and tells how many bytes the process holds, on and off the heap, on the heap
 * alone, or in Buffers alone.
 */
export function createMemoryProbe(what: 'all' | 'heap' | 'buffers' = 'all'): () => number {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  return () => {
    collect();
    const { arrayBuffers, heapUsed } = process.memoryUsage();
    return { all: arrayBuffers + heapUsed, heap: heapUsed, buffers: arrayBuffers }[what];
  };
}
