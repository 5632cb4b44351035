/** Clocks for tests on machines of any speed, and timers that the test fires. */

import { availableParallelism, loadavg } from 'node:os';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

const TICK_MS = 20;
// The real timers, also in tests with `useManualTimers`.
const { setInterval, clearInterval } = globalThis;

/**
 * Returns a stopwatch that counts only while the process runs: a turn of the event loop counts 20
 * ms at most. An upper limit measured with it holds on a busy machine.
 */
export function startStopwatch(t: TestContext): () => number {
  let ticks = 0;
  const timer = setInterval(() => (ticks += 1), TICK_MS);
  t.after(() => clearInterval(timer));
  return () => ticks * TICK_MS;
}

/** Calls `callback` after `ms` on the stopwatch. The returned function cancels the call. */
export function setPatientTimeout(callback: () => void, ms: number): () => void {
  const timer = countTicks(callback, ms, () => TICK_MS);
  return () => clearInterval(timer);
}

/**
 * Calls `callback` after `ms`, as `setPatientTimeout` does, but counts less of a tick the more
 * processes wait for a core: the awaited child process then gets as small a part of the time. The
 * limit is against hangs only, and lets the process end before.
 */
export function setHangLimit(callback: () => void, ms: number): () => void {
  // In a run that ends with the first failed test, hangs are to be expected.
  const cores = process.env['TEST_BAIL'] ? Infinity : availableParallelism();
  const timer = countTicks(callback, ms, () => TICK_MS * Math.min(1, cores / loadavg()[0]!));
  timer.unref();
  return () => clearInterval(timer);
}

function countTicks(callback: () => void, ms: number, tickMs: () => number): NodeJS.Timeout {
  let leftMs = ms;
  const timer = setInterval(() => {
    leftMs -= tickMs();
    if (leftMs > 0) return;
    clearInterval(timer);
    callback();
  }, TICK_MS);
  return timer;
}

/** Waits for `ms` on the stopwatch. */
export async function idle(ms: number): Promise<void> {
  await new Promise<void>((resolve) => {
    setPatientTimeout(resolve, ms);
  });
}

/** Waits until a value has not changed while the process ran for `ms`, and returns it. */
export async function untilSteady<T>(read: () => T, ms = 300): Promise<T> {
  let last = read();
  for (let steadyMs = 0; steadyMs < ms; steadyMs += TICK_MS) {
    await sleep(TICK_MS);
    const now = read();
    if (now !== last) steadyMs = 0;
    last = now;
  }
  return last;
}

/** The options of tests with `atSomeScale`, which may need all scales. */
export const ALL_SCALES = { timeout: 600_000 };

/**
 * Calls `check` with the scales 1, 3 and 9 until it passes. `check` multiplies the time limits
 * under test, and all times compared with them. A real defect fails at each scale, but the delays
 * of a busy machine do not grow with it.
 */
export async function atSomeScale(check: (scale: number) => Promise<void>): Promise<void> {
  let failure: unknown;
  for (const scale of [1, 3, 9]) {
    try {
      return await check(scale);
    } catch (error) {
      failure = error;
    }
  }
  throw failure;
}

/** For each replaced clock, its first method and the replacements, the latest last. */
const stacks = new Map<object, (() => number)[]>();

/**
 * Replaces `performance.now` until the test ends. A test may replace it twice, and so may
 * simultaneous tests. Node's own mocks are undone in creation order, which would leave the first
 * replacement in place.
 */
export function replaceNow(t: TestContext, now: () => number): void {
  replace(t, performance, 'now', now);
}

/**
 * Replaces `performance.now` by `nowMs`, which only the test changes, so no wait ends early.
 * `Date.now` passes with it.
 */
export function stopClock(t: TestContext, nowMs = 1000): { nowMs: number } {
  const clock = { nowMs };
  const zeroMs = Date.now() - nowMs;
  replaceNow(t, () => clock.nowMs);
  replaceDate(t, () => zeroMs + clock.nowMs);
  return clock;
}

/** Replaces `Date.now` until the test ends. */
export function replaceDate(t: TestContext, now: () => number): void {
  replace(t, Date, 'now', now);
}

/** Replaces `Math.random` until the test ends. */
export function replaceRandom(t: TestContext, random: () => number): void {
  replace(t, Math, 'random', random);
}

/** Returns a function that moves `performance.now()` on by some milliseconds, until the test ends. */
export function moveStopwatch(t: TestContext): (ms: number) => void {
  const now = performance.now.bind(performance);
  let passedMs = 0;
  t.mock.method(performance, 'now', () => now() + passedMs);
  return (ms) => {
    passedMs += ms;
  };
}

/** Replaces one method of `object` until the test ends. */
function replace<K extends 'now' | 'random'>(
  t: TestContext,
  object: Record<K, () => number>,
  name: K,
  method: () => number,
): void {
  const stack = stacks.get(object) ?? [object[name]];
  stacks.set(object, stack);
  stack.push(method);
  object[name] = method;
  t.after(() => {
    stack.splice(stack.lastIndexOf(method), 1);
    object[name] = stack.at(-1)!;
    if (stack.length === 1) stacks.delete(object);
  });
}

interface Scheduled {
  readonly callback: (...args: unknown[]) => void;
  readonly ms: number | undefined;
  readonly args: unknown[];
}

interface ManualTimer {
  readonly callback: (...args: unknown[]) => void;
  readonly args: unknown[];
  readonly ms: number;
  readonly isRepeated: boolean;
  dueMs: number;
}

export interface ManualTimers {
  /** Lets `ms` pass, and calls the due timers in order. */
  advance(ms: number): void;
  /**
   * The delays of running timeouts. Delays above `maxMs` are left out: they belong to whole
   * attempts, or to undici.
   */
  running(maxMs?: number): number[];
  /** The delays of running intervals. */
  repeating(): number[];
  /** How often a timer of `ms` was started or refreshed. */
  started(ms: number): number;
}

/** The timers of each test with `useManualTimers`. */
export const manualTimers = new WeakMap<TestContext, ManualTimers>();

/**
 * In tests, the delay from a failed stream's error event to its connection's end. No other timer
 * has this delay. `useManualTimers` leaves it to the real clock, so failed streams end without
 * `advance`.
 */
export const FAILED_STREAM_MS = 1.5;

/**
 * Makes `setTimeout` and `setInterval` wait for `advance` until the test ends. Call it before
 * anything is started that stops when the test ends. Other test files share the process, so a test
 * looks for the expected timer, and never compares all timers. Socket timers and
 * `node:timers/promises` keep the real time. (The mock timers of node:test ignore `refresh`.)
 */
export function useManualTimers(t: TestContext): ManualTimers {
  // Mocks are undone in creation order, so a second mock would leave the first in place for the
  // tests behind this test, whose timers would never fire.
  const former = manualTimers.get(t);
  if (former) return former;
  let nowMs = 0;
  const started = new Map<number, number>();
  const timers = new Set<ManualTimer>();
  const create = (isRepeated: boolean, { callback, ms = 0, args }: Scheduled) => {
    const timer: ManualTimer = { callback, args, ms, isRepeated, dueMs: 0 };
    const handle = {
      ref: () => handle,
      unref: () => handle,
      refresh() {
        started.set(ms, (started.get(ms) ?? 0) + 1);
        timer.dueMs = nowMs + ms;
        timers.add(timer);
        return handle;
      },
      cancel: () => timers.delete(timer),
    };
    return handle.refresh();
  };
  const { clearTimeout: clearReal, setTimeout: setReal } = globalThis;
  const scheduler =
    (isRepeated: boolean) =>
    (callback: ManualTimer['callback'], ms?: number, ...args: unknown[]) =>
      ms === FAILED_STREAM_MS
        ? setReal(callback, ms, ...args)
        : create(isRepeated, { callback, ms, args });
  const clear = (handle?: Partial<ReturnType<typeof create>> & NodeJS.Timeout) =>
    handle?.cancel ? handle.cancel() : clearReal(handle);
  const mocks = [
    t.mock.method(globalThis, 'setTimeout', scheduler(false) as unknown as typeof setTimeout),
    t.mock.method(globalThis, 'setInterval', scheduler(true) as unknown as typeof setInterval),
    t.mock.method(globalThis, 'clearTimeout', clear as unknown as typeof clearTimeout),
    t.mock.method(globalThis, 'clearInterval', clear as unknown as typeof clearInterval),
  ];
  t.after(() => mocks.forEach(({ mock }) => mock.restore()));
  const manual: ManualTimers = {
    advance(ms) {
      // Each mock keeps its calls, and with them their timers.
      for (const { mock } of mocks) mock.resetCalls();
      const untilMs = nowMs + ms;
      for (;;) {
        const [next] = [...timers].toSorted((a, b) => a.dueMs - b.dueMs);
        if (!next || next.dueMs > untilMs) break;
        nowMs = next.dueMs;
        if (next.isRepeated) next.dueMs += Math.max(1, next.ms);
        else timers.delete(next);
        next.callback(...next.args);
      }
      nowMs = untilMs;
    },
    running: (maxMs = 30_000) =>
      [...timers].filter(({ ms, isRepeated }) => !isRepeated && ms <= maxMs).map(({ ms }) => ms),
    repeating: () => [...timers].filter(({ isRepeated }) => isRepeated).map(({ ms }) => ms),
    started: (ms) => started.get(ms) ?? 0,
  };
  manualTimers.set(t, manual);
  return manual;
}
