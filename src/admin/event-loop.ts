/** How late the event loop is. */

import { monitorEventLoopDelay } from 'node:perf_hooks';

const RESOLUTION_MS = 20;

/** Delays of the event loop, in milliseconds. */
export type LoopDelay = Readonly<Record<'mean' | 'p99' | 'max', number>>;

/**
 * Returns a function for one reader of the delays of the event loop, which is watched from now on. A read clears the
 * histogram if it is at least `windowMs` old: with 0, each read covers the time since the one before.
 */
export function createLoopWatch(windowMs: number): () => LoopDelay {
  const delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  delays.enable();
  let clearedAtMs = performance.now();
  // It measures the time between two ticks in nanoseconds, and NaN before the first.
  const delayMs = (nanoseconds: number) => Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS) || 0;
  return () => {
    const [mean, p99, max] = [delays.mean, delays.percentile(99), delays.max].map(delayMs);
    if (performance.now() - clearedAtMs >= windowMs) {
      delays.reset();
      clearedAtMs = performance.now();
    }
    return { mean, p99, max } as LoopDelay;
  };
}
