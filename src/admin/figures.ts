/** Figures that are read when somebody asks: those of the running parts, and of the process. */

import { monitorEventLoopDelay } from 'node:perf_hooks';

import type { ConnectionFigures, LoopDelay } from '../lib/shared-memory.ts';
import type { CircuitReport } from '../policy/circuit-breaker.ts';

/** Of the running parts. Each is cheap to read. */
export interface Figures {
  /** Where clients of the public port connect to, with `/v1`. */
  url(): string;
  /** There is a thread that accepts connections. */
  isServing(): boolean;
  isDraining(): boolean;
  inFlight(): number;
  openStreams(): number;
  bufferedBytes(): number;
  droppedLogLines(): number;
  /** Finished requests that the main thread was not told of. */
  uncountedRequests(): number;
  /** Files and connections that could not be opened for want of descriptors or ports. */
  exhaustions(): number;
  /** To providers. Undefined if the transport does not know them. */
  connections(): ConnectionFigures | undefined;
  /** Of the store of rate limits, if there is one. */
  store(): StoreFigures | undefined;
  /** Of each worker thread. */
  loopDelays(): readonly LoopDelay[];
  /** The circuits that are not closed. */
  circuits(): readonly CircuitReport[];
  lastReload(): ReloadFigures;
}

export interface StoreFigures {
  /** Of a thread at least. */
  readonly isAway: boolean;
  /** Decisions of rate limits that were made without it. */
  readonly fallbacks: number;
}

/** Of the latest time that settings were read: with SIGHUP, else at start. */
export interface ReloadFigures {
  readonly isSuccessful: boolean;
  /** When settings were last read that are in use, in milliseconds since the epoch. */
  readonly succeededAtMs: number;
}

export interface ProcessFigures {
  readonly cpuSeconds: number;
  readonly rssBytes: number;
  /** Since this reader's histogram was cleared; of the thread whose event loop was the latest. */
  readonly loopDelayMs: LoopDelay;
}

const RESOLUTION_MS = 20;

let residentBytes = 0;

/** Linux tells it in a file. If no more files can be opened, returns what was read last. */
function readResidentBytes(): number {
  try {
    residentBytes = process.memoryUsage.rss();
  } catch {
    // A limit of the system, which `ExhaustionLog` reports.
  }
  return residentBytes;
}

/** When the process started, in milliseconds since the epoch. */
export const STARTED_AT_MS = performance.timeOrigin;

/**
 * Returns a function for one reader of the delays of this thread's event loop, which is watched from now on. A read
 * clears the histogram if it is at least `windowMs` old: with 0, each read tells of the time since the one before.
 */
export function createLoopWatch(windowMs: number): () => LoopDelay {
  const delays = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  delays.enable();
  let clearedAtMs = performance.now();
  // It measures the time between two ticks in nanoseconds, and NaN before the first.
  const delayMs = (nanoseconds: number) => Math.max(0, nanoseconds / 1e6 - RESOLUTION_MS) || 0;
  return () => {
    const delay = {
      mean: delayMs(delays.mean),
      p99: delayMs(delays.percentile(99)),
      max: delayMs(delays.max),
    };
    if (performance.now() - clearedAtMs >= windowMs) {
      delays.reset();
      clearedAtMs = performance.now();
    }
    return delay;
  };
}

/** Returns a function for one reader. */
export function createProcessFigures(windowMs: number, figures: Figures): () => ProcessFigures {
  const readOwn = createLoopWatch(windowMs);
  return () => {
    const { user, system } = process.cpuUsage();
    const all = [readOwn(), ...figures.loopDelays()];
    const latest = (name: keyof LoopDelay) => Math.max(...all.map((delay) => delay[name]));
    return {
      cpuSeconds: (user + system) / 1e6,
      rssBytes: readResidentBytes(),
      loopDelayMs: { mean: latest('mean'), p99: latest('p99'), max: latest('max') },
    };
  };
}
