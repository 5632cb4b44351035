/** Time for tests that hold on a machine of any speed: time as the process gets to run, and timers set off by hand. */

import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

const TICK_MS = 20;
// Not those of `useManualTimers`.
const { setInterval, clearInterval } = globalThis;

/**
 * Returns a stopwatch that stands still while the process does not run: each turn of the event loop counts
 * for 20 ms at most. An upper limit by it holds where the machine is busy with something else.
 */
export function startStopwatch(t: TestContext): () => number {
  let ticks = 0;
  const timer = setInterval(() => (ticks += 1), TICK_MS);
  t.after(() => clearInterval(timer));
  return () => ticks * TICK_MS;
}

/**
 * Calls back after so long by the same reckoning, unless the returned function is called before. The process may end meanwhile
 * if `keepsAlive` is false.
 */
export function setPatientTimeout(
  callback: () => void,
  ms: number,
  { keepsAlive = true } = {},
): () => void {
  let leftMs = ms;
  const timer = setInterval(() => {
    leftMs -= TICK_MS;
    if (leftMs > 0) return;
    clearInterval(timer);
    callback();
  }, TICK_MS);
  if (!keepsAlive) timer.unref();
  return () => clearInterval(timer);
}

/** Waits for so long by the same reckoning. */
export async function idle(ms: number): Promise<void> {
  await new Promise<void>((resolve) => {
    setPatientTimeout(resolve, ms);
  });
}

/** Waits until a value has stayed the same for `ms` of the process's own time, and returns it. */
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

/** A limit of its own for a test that goes through all scales. */
export const ALL_SCALES = { timeout: 600_000 };

/**
 * Calls `check` with 1, 3 and 9 until it passes: it makes the time limits under test that many times as long,
 * and whatever has to stay below them too. What is wrong is wrong at every scale, while the delays
 * of a busy machine stay as they are.
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

/** What is in place of each clock, the latest last, and what was there before. */
const stacks = new Map<object, (() => number)[]>();

/**
 * Until the test ends, `performance.now` is this function. A test may replace it twice, and tests that run at the same
 * time may too: Node's own mocks are undone in the order of their making, and would leave the first one in place.
 */
export function replaceNow(t: TestContext, now: () => number): void {
  replace(t, performance, 'now', now);
}

/** Until the test ends, `performance.now` is `nowMs`, which the test may change: a slow machine ends no wait. */
export function stopClock(t: TestContext, nowMs = 1000): { nowMs: number } {
  const clock = { nowMs };
  replaceNow(t, () => clock.nowMs);
  return clock;
}

/** The same for `Date.now`. */
export function replaceDate(t: TestContext, now: () => number): void {
  replace(t, Date, 'now', now);
}

/** The same for `Math.random`. */
export function replaceRandom(t: TestContext, random: () => number): void {
  replace(t, Math, 'random', random);
}

/** `object` has one method that is replaced. */
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
  /** Lets this much time pass, and calls back whatever is due by then, in order. */
  advance(ms: number): void;
  /** The delays that are running, without those that are repeated, up to `maxMs`: longer ones are the limits of whole attempts, and undici's own. */
  running(maxMs?: number): number[];
  /** The delays of those that are repeated. */
  repeating(): number[];
  /** How often a timer of `ms` was started, or started anew. */
  started(ms: number): number;
}

/** Of the tests that have them. */
export const manualTimers = new WeakMap<TestContext, ManualTimers>();

/**
 * Between the error event of a failed stream and the end of its connection in tests. No other timer has this delay, because
 * `useManualTimers` leaves this one to the real clock: the connection of a failed stream ends without `advance`.
 */
export const FAILED_STREAM_MS = 1.5;

/**
 * Until the test ends `setTimeout` and `setInterval` wait for `advance` instead of time. Other test files share the process,
 * so a test looks for the timer that it expects, and never for "exactly this one" among all that are running. Node's own timers, those of
 * sockets and of `node:timers/promises`, go on as they are. To be called before anything is started that is
 * stopped when the test ends. (node:test has such timers too; theirs ignore `refresh`.)
 */
export function useManualTimers(t: TestContext): ManualTimers {
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
      // They keep each timer.
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
