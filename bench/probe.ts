/**
 * Preload for a contender. At each SIGUSR2 it writes the event loop's delays and the bytes
 * allocated on the heap since the last, and with --expose-gc the bytes in use.
 */

import { writeSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { GCProfiler } from 'node:v8';

const RESOLUTION_MS = 1;
const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
let isOn = false;
let collections = new GCProfiler();
let usedBefore = 0;

/** Returns the heap's growth plus the bytes freed by collections. */
function countAllocated(): number {
  let bytes = process.memoryUsage().heapUsed - usedBefore;
  for (const { beforeGC, afterGC } of collections.stop()?.statistics ?? []) {
    bytes += beforeGC.heapStatistics.usedHeapSize - afterGC.heapStatistics.usedHeapSize;
  }
  return bytes;
}

process.on('SIGUSR2', () => {
  // The histogram has the intervals of its own timer.
  const delayMs = (nanoseconds: number) => Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS);
  const p99 = isOn ? delayMs(histogram.percentile(99)) : null;
  const max = isOn ? delayMs(histogram.max) : null;
  const allocatedBytes = countAllocated();
  globalThis.gc?.();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  const heldBytes = heapUsed + arrayBuffers;
  writeSync(3, JSON.stringify({ p99, max, heldBytes, allocatedBytes }));
  histogram.reset();
  if (!isOn) isOn = histogram.enable();
  collections = new GCProfiler();
  collections.start();
  usedBefore = process.memoryUsage().heapUsed;
});
