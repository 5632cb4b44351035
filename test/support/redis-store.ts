/** A store of rate limits under test, and what it logs. */

import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import type { StoreSettings } from '../../src/config/config.ts';
import type { LogFacts } from '../../src/lib/log.ts';
import type { SharedMemory } from '../../src/lib/shared-memory.ts';
import type { StoredBucket } from '../../src/policy/rate-limit-store.ts';
import { createRedisStore, storeCounters, type RedisStore } from '../../src/store/redis-store.ts';
import { newMemory } from './shared.ts';

/** For replies that come when the machine gets to it. */
const PATIENT_MS = 10_000;

export interface LogLine {
  readonly level: string;
  readonly message: string;
  readonly facts: LogFacts | undefined;
}

export interface TestStore {
  readonly store: RedisStore;
  readonly lines: readonly LogLine[];
  /** Of all stores with the same memory. */
  readonly away: () => number;
  readonly fallbacks: () => number;
}

interface StoreOptions {
  readonly answerMs?: number | undefined;
  readonly memory?: SharedMemory;
  /** Where several stores log to. */
  readonly lines?: LogLine[];
}

/** Creates one for the length of a test, which waits for replies for ten seconds; `answerMs: undefined` is its own limit. */
export function createStore(
  t: TestContext,
  settings: Partial<StoreSettings>,
  { lines = [], memory = newMemory(), ...options }: StoreOptions = {},
): TestStore {
  const answerMs = 'answerMs' in options ? options.answerMs : PATIENT_MS;
  const store = createRedisStore(storeSettings(settings), {
    logger: {
      log: (level, message, facts) => void lines.push({ level, message, facts }),
      isEnabled: () => true,
    },
    memory,
    ...(answerMs === undefined ? {} : { answerMs }),
  });
  t.after(() => store.end());
  void store.connect();
  const { away, fallbacks } = storeCounters(memory);
  return { store, lines, away: () => away.value, fallbacks: () => fallbacks.value };
}

export function storeSettings(settings: Partial<StoreSettings>): StoreSettings {
  return {
    host: '127.0.0.1',
    port: 6379,
    isTls: false,
    username: undefined,
    password: undefined,
    database: 0,
    prefix: 'gateway-test',
    ...settings,
  };
}

export function bucket(name: string, burstCapacity: number, requestsPerSecond = 1): StoredBucket {
  return { name, requestsPerSecond, burstCapacity };
}

/** Waits until it is true, or fails after fifteen seconds of the process's own time. */
export async function until(isTrue: () => boolean): Promise<void> {
  for (let waits = 0; !isTrue(); waits += 1) {
    if (waits === 3000) throw new Error(`waited in vain for ${isTrue.toString()}`);
    await sleep(5);
  }
}

/** How often `take` succeeded of so many at the same time. */
export async function countTaken(
  store: RedisStore,
  buckets: readonly StoredBucket[],
  times: number,
): Promise<number> {
  const results = await Promise.all(Array.from({ length: times }, () => store.take(buckets)));
  return results.filter((result) => result === 'taken').length;
}

/** Whether `take` returns undefined without waiting for anything. */
export async function refusesAtOnce(store: RedisStore): Promise<boolean> {
  const later = new Promise<string>((resolve) => {
    setImmediate(() => resolve('later'));
  });
  return (await Promise.race([store.take([bucket('at-once', 1)]), later])) === undefined;
}
