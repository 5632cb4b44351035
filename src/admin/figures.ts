/** Figures that are read when somebody asks: those of the running parts, and of the process. */

import { readdirSync, readFileSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';

import type { ConnectionFigures, LoopDelay } from '../lib/shared-memory.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';

/** Of the running parts. Each is cheap to read. */
export interface Figures {
  /** The base URL for clients of the public port, with `/v1`. */
  url(): string;
  /** There is a thread that accepts connections. */
  isServing(): boolean;
  isDraining(): boolean;
  inFlight(): number;
  /** Of `clients.<name>` or `providers.<id>`. */
  inFlightOf(section: string): number;
  openStreams(): number;
  bufferedBytes(): number;
  droppedLogLines(): number;
  /** Finished requests that did not reach the main thread. */
  uncountedRequests(): number;
  /** Files and connections that could not be opened for want of descriptors or ports. */
  exhaustions(): number;
  /** To providers. Undefined if the transport does not know them. */
  connections(): ConnectionFigures | undefined;
  /** Of the store of rate limits, if there is one: a thread at least is without it; decisions made without it. */
  store(): { readonly isAway: boolean; readonly fallbacks: number } | undefined;
  /** Of each worker thread. */
  loopDelays(): readonly LoopDelay[];
  /** The circuits that are not closed. */
  circuits(): readonly CircuitReport[];
  /** Of each provider with several keys: how many are in cooldown. */
  keysInCooldown(): readonly (readonly [provider: string, count: number])[];
  /** Whether the latest fetch of a provider's list of models succeeded; undefined before the first. */
  isModelListUp(provider: string): boolean | undefined;
  /** Threads that accept connections. */
  serving(): number;
  /** Of the latest time that settings were read; when those in use were, in milliseconds since the epoch. */
  lastReload(): { readonly isSuccessful: boolean; readonly succeededAtMs: number };
}

const RESOLUTION_MS = 20;
/** When the process started, in milliseconds since the epoch. */
export const STARTED_AT_MS = performance.timeOrigin;

let rssBytes = 0;

/** Returns the CPU time and the resident memory of the process. */
export function readProcess() {
  const { user, system } = process.cpuUsage();
  try {
    rssBytes = process.memoryUsage.rss();
  } catch {
    // Linux has it in a file: without descriptors the value before stays.
  }
  return { cpuSeconds: (user + system) / 1e6, rssBytes };
}

/** Returns the open descriptors of the process and their limit; undefined where the system does not say, and without a free one. */
export function readDescriptors(): { readonly open?: number; readonly max?: number } {
  try {
    // Reading the list takes one itself.
    const open = readdirSync('/proc/self/fd').length - 1;
    const [, max] =
      /^Max open files\s+(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? [];
    return max === undefined ? { open } : { open, max: Number(max) };
  } catch {
    return {};
  }
}

/**
 * Returns a function for one reader of the delays of this thread's event loop, which is watched from now on, and of
 * other threads: the longest count. A read clears the histogram if it is at least `windowMs` old: with 0, each read
 * covers the time since the one before.
 */
export function createLoopWatch(
  windowMs: number,
  others: () => readonly LoopDelay[] = () => [],
): () => LoopDelay {
  const delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  delays.enable();
  let clearedAtMs = performance.now();
  // It measures the time between two ticks in nanoseconds, and NaN before the first.
  const delayMs = (nanoseconds: number) => Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS) || 0;
  return () => {
    const [mean, p99, max] = [delays.mean, delays.percentile(99), delays.max].map(delayMs);
    const all = [{ mean, p99, max } as LoopDelay, ...others()];
    if (performance.now() - clearedAtMs >= windowMs) {
      delays.reset();
      clearedAtMs = performance.now();
    }
    const longest = (name: keyof LoopDelay) => Math.max(...all.map((delay) => delay[name]));
    return { mean: longest('mean'), p99: longest('p99'), max: longest('max') };
  };
}
