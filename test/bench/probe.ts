/**
 * Preloaded into a contender: each SIGUSR2 makes it write the event loop's delays since the one before,
 * and with --expose-gc the bytes that it holds.
 */

import { writeSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';

const RESOLUTION_MS = 1;
const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
let isOn = false;

process.on('SIGUSR2', () => {
  // It holds the intervals between its own timer's turns.
  const delayMs = (nanoseconds: number) => Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS);
  const p99 = isOn ? delayMs(histogram.percentile(99)) : null;
  const max = isOn ? delayMs(histogram.max) : null;
  globalThis.gc?.();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  writeSync(3, JSON.stringify({ p99, max, heldBytes: heapUsed + arrayBuffers }));
  histogram.reset();
  if (!isOn) isOn = histogram.enable();
});
