/**
 * Virtual time: replaces the process's timers, clocks and random numbers while a world runs. No
 * real time passes.
 */

import http from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import type { Server } from 'node:http';
import timersPromises from 'node:timers/promises';

import type { Random } from '../support/random.ts';

/** When a year, and with it a month and a day, begins in each world. */
export const MIDNIGHT_MS = 4_000;
/** The wall clock's time when a world begins. */
const EPOCH_MS = Date.UTC(2026, 0, 1) - MIDNIGHT_MS;
/** Returns the wall clock's time, in whole milliseconds. */
export const wallClockMs = (worldMs: number) => EPOCH_MS + Math.floor(worldMs);
const MAX_TIMER_MS = 2 ** 31 - 1;
/** After this many steps, a world counts as endless. */
const MAX_STEPS = 400_000;

/** Runs the callbacks of process.nextTick and promises, as Node does after each callback. */
const { _tickCallback: runTicks } = process as unknown as { _tickCallback: () => void };

class Timer {
  dueMs = 0;
  isActive = true;
  isCleared = false;
  readonly #clock: Clock;
  readonly ms: number;
  readonly isRepeated: boolean;
  readonly run: () => void;
  /** Whether the world has started it, and not the gateway. */
  readonly isWorlds: boolean;

  constructor(clock: Clock, ms: number, run: () => void, kind: 'once' | 'repeated' | 'worlds') {
    this.#clock = clock;
    this.ms = ms;
    this.run = run;
    this.isRepeated = kind === 'repeated';
    this.isWorlds = kind === 'worlds';
    this.refresh();
  }

  refresh(): this {
    if (this.isCleared) return this;
    this.isActive = true;
    this.dueMs = this.#clock.nowMs + this.ms;
    this.#clock.schedule(this);
    return this;
  }

  clear(): void {
    this.isActive = false;
    this.isCleared = true;
  }

  ref = () => this;
  unref = () => this;
  hasRef = () => true;
}

export class Clock {
  nowMs = 1000;
  /** Timers in reverse order: the last fires next. A refreshed timer is there twice. */
  readonly #queue: { readonly dueMs: number; readonly timer: Timer }[] = [];
  #immediates: (() => void)[] = [];

  /** Calls `run` after `ms` virtual milliseconds, on the world's behalf. */
  after(ms: number, run: () => void): void {
    void new Timer(this, ms, run, 'worlds');
  }

  /** The gateway's running timers, as texts. */
  running(): string[] {
    const timers = new Set(this.#queue.map(({ timer }) => timer));
    return [...timers]
      .filter(({ isActive, isWorlds }) => isActive && !isWorlds)
      .map(({ isRepeated, ms }) => `${isRepeated ? 'every' : 'in'} ${ms} ms`);
  }

  /** Runs everything that is due, and jumps to the next timer when nothing is, until `isOver`. */
  run(isOver: () => boolean): void {
    for (let steps = 0; steps < MAX_STEPS; steps += 1) {
      runTicks();
      if (this.#immediates.length > 0) {
        const immediates = this.#immediates;
        this.#immediates = [];
        for (const immediate of immediates) {
          immediate();
          runTicks();
        }
        continue;
      }
      if (isOver()) return;
      const next = this.#next();
      if (!next) throw new Error('the world stands still: no timer is left');
      this.nowMs = Math.max(this.nowMs, next.dueMs);
      if (next.isRepeated) next.refresh();
      else next.isActive = false;
      next.run();
    }
    throw new Error('the world does not end');
  }

  #next(): Timer | undefined {
    for (;;) {
      const next = this.#queue.pop();
      if (!next) return undefined;
      if (next.timer.isActive && next.timer.dueMs === next.dueMs) return next.timer;
    }
  }

  /** Inserts a timer behind all timers with the same time. */
  schedule(timer: Timer): void {
    const { dueMs } = timer;
    let [low, high] = [0, this.#queue.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#queue[middle]!.dueMs > dueMs) low = middle + 1;
      else high = middle;
    }
    this.#queue.splice(low, 0, { dueMs, timer });
  }

  /** Replaces the process's clock, until the returned function is called. */
  install(random: Random, onServer: (server: Server) => void): () => void {
    replaceGlobals();
    current = { clock: this, random, onServer };
    return () => (current = undefined);
  }

  start(
    kind: 'once' | 'repeated',
    callback: (...args: unknown[]) => void,
    ms = 1,
    args: unknown[] = [],
  ): Timer {
    // As in Node, an invalid delay becomes 1 ms.
    const validMs = ms >= 1 && ms <= MAX_TIMER_MS ? ms : 1;
    return new Timer(this, validMs, () => callback(...args), kind);
  }

  sleep(ms: number, value: unknown, signal: AbortSignal | undefined): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const timer = new Timer(this, Math.max(1, ms), () => resolve(value), 'once');
      const abort = () => {
        timer.clear();
        reject(signal!.reason as Error);
      };
      if (signal?.aborted) abort();
      else signal?.addEventListener('abort', abort);
    });
  }

  immediately(run: () => void): void {
    this.#immediates.push(run);
  }
}

type Callback = (...args: unknown[]) => void;

/** The running world. Without one, the process's own clock is used. */
let current:
  | { readonly clock: Clock; readonly random: Random; readonly onServer: (server: Server) => void }
  | undefined;
let isReplaced = false;

/**
 * Replaces the globals once for all worlds, because `syncBuiltinESMExports` costs as much as a
 * request.
 */
function replaceGlobals(): void {
  if (isReplaced) return;
  isReplaced = true;
  const real = { setTimeout, setInterval, clearTimeout, clearInterval, setImmediate };
  const sleeps = { ...timersPromises };
  const now = performance.now.bind(performance);
  const date = Date.now;
  const mathRandom = Math.random;
  const { createServer } = http;
  const clear = (clearReal: (timer: NodeJS.Timeout | undefined) => void) => (timer: unknown) => {
    if (timer instanceof Timer) timer.clear();
    else clearReal(timer as NodeJS.Timeout | undefined);
  };
  Object.assign(globalThis, {
    setTimeout: (run: Callback, ms?: number, ...args: unknown[]) =>
      current?.clock.start('once', run, ms, args) ?? real.setTimeout(run, ms, ...args),
    setInterval: (run: Callback, ms?: number, ...args: unknown[]) =>
      current?.clock.start('repeated', run, ms, args) ?? real.setInterval(run, ms, ...args),
    clearTimeout: clear(clearTimeout),
    clearInterval: clear(clearInterval),
    setImmediate: (run: Callback, ...args: unknown[]) =>
      current ? current.clock.immediately(() => run(...args)) : real.setImmediate(run, ...args),
  });
  Object.assign(timersPromises, {
    setTimeout: (ms: number, value?: unknown, options: { signal?: AbortSignal } = {}) =>
      current?.clock.sleep(ms, value, options.signal) ?? sleeps.setTimeout(ms, value, options),
    setImmediate: (value?: unknown) =>
      current
        ? new Promise<void>((resolve) => current!.clock.immediately(resolve))
        : sleeps.setImmediate(value),
  });
  performance.now = () => current?.clock.nowMs ?? now();
  const { timeOrigin } = performance;
  Object.defineProperty(performance, 'timeOrigin', {
    get: () => (current ? EPOCH_MS : timeOrigin),
  });
  Date.now = () => (current ? wallClockMs(current.clock.nowMs) : date());
  Math.random = () => (current ? current.random.next() : mathRandom());
  http.createServer = ((...args: Parameters<typeof createServer>) => {
    const server = createServer(...args);
    current?.onServer(server);
    return server;
  }) as typeof createServer;
  syncBuiltinESMExports();
}
