import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/**
 * Returns a function that collects garbage and returns the process's bytes in use: all bytes, on
 * the heap only, or in Buffers only.
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
