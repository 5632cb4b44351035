/** A rate limit store under test, and its changes of state. */

import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import type { StoreSettings } from '../../src/config/config.ts';
import type { LogFacts } from '../../src/lib/log.ts';
import type { RateLimitStore, StoredBucket } from '../../src/policy/limiter.ts';
import { RedisConnection } from '../../src/store/redis-connection.ts';
import { createRedisStore } from '../../src/store/redis-store.ts';

/** A long limit for replies, because a busy machine delays them. */
const PATIENT_MS = 10_000;

export const AWAY = 'away';
export const BACK = 'back';

export interface LogLine {
  readonly message: string;
  readonly facts: LogFacts | undefined;
}

interface StoreOptions {
  readonly answerMs?: number;
  /** Gets a line for each change of state. */
  readonly lines?: LogLine[];
}

export type TestStore = ReturnType<typeof createStore>;

/**
 * Creates a store until the test ends. It waits ten seconds for replies unless `answerMs` is given.
 */
export function createStore(
  t: TestContext,
  settings: Partial<StoreSettings>,
  { answerMs = PATIENT_MS, lines = [] }: StoreOptions = {},
) {
  let isAway = true;
  let isClosed = false;
  let connection: RedisConnection | undefined;
  // Only a change is recorded, because an outage has many failures.
  let isKnownAway = false;
  const onState = (cause: string | undefined) => {
    const facts = cause === undefined ? undefined : { cause };
    if (isKnownAway === (facts !== undefined)) return;
    isKnownAway = !isKnownAway;
    lines.push({ message: facts ? AWAY : BACK, facts });
  };
  const store = createRedisStore(onState, ({ onReady, onClosed }) => {
    if (isClosed) return connection!;
    connection = new RedisConnection(storeSettings(settings), {
      answerMs,
      onReady() {
        isAway = false;
        onReady();
      },
      onClosed(...reasons) {
        isAway = true;
        if (!isClosed) onClosed(...reasons);
      },
    });
    return connection;
  });
  const observed = {
    ...store,
    /** Whether the store has no ready connection. */
    get isAway() {
      return isAway;
    },
    /** Closes the store's connection. */
    close() {
      isClosed = true;
      connection?.close('the test ends');
    },
  };
  t.after(() => observed.close());
  const started = store.connect();
  const { state } = store;
  const told: readonly LogLine[] = lines;
  return {
    store: observed,
    /** Resolves when a gateway would go on with its start. */
    started,
    lines: told,
    isAway: () => state.isAway,
    fallbacks: () => state.fallbacks,
  };
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

export function bucket(name: string, capacity: number, rate = 1): StoredBucket {
  return { name, rate, periodSeconds: 1, capacity, perRequest: 1 };
}

/** Waits until `isTrue` returns true, or fails once the process has run for fifteen seconds. */
export async function until(isTrue: () => boolean): Promise<void> {
  for (let waits = 0; !isTrue(); waits += 1) {
    if (waits === 3000) throw new Error(`waited in vain for ${isTrue.toString()}`);
    await sleep(5);
  }
}

/** Calls `take` `times` times at once, and returns how often it succeeded. */
export async function countTaken(
  store: RateLimitStore,
  buckets: readonly StoredBucket[],
  times: number,
): Promise<number> {
  const results = await Promise.all(Array.from({ length: times }, () => store.take(buckets)));
  return results.filter((result) => result === 'taken').length;
}

/** Whether `take` returns undefined in the same event loop turn. */
export async function refusesAtOnce(store: RateLimitStore): Promise<boolean> {
  const later = new Promise<string>((resolve) => {
    setImmediate(() => resolve('later'));
  });
  return (await Promise.race([store.take([bucket('at-once', 1)]), later])) === undefined;
}
