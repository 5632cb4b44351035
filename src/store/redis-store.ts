/** The rate limits of several gateways in one Redis or Valkey. */

import type { RateLimitStore } from '../policy/limiter.ts';
import type { RedisConnection, RedisConnectionOptions } from './redis-connection.ts';

const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5000;
/** The start of the gateway waits no longer for its first connection, which may still succeed. */
const START_WAIT_MS = 2000;

export type StoreConnection = Pick<RedisConnection, 'run'>;

/**
 * Creates the store, which connects by `open`; nothing connects yet. `onState` takes why a
 * connection failed, or undefined when one works.
 */
export function createRedisStore(
  onState: (cause: string | undefined) => void,
  open: (events: RedisConnectionOptions) => StoreConnection,
) {
  /** `fallbacks`: how often `take` has returned undefined since the start. */
  const state = { isAway: false, fallbacks: 0 };
  /** Undefined while no connection works: `take` returns undefined at once then. */
  let ready: StoreConnection | undefined;
  let pauseMs = MIN_PAUSE_MS;

  function connect(onSettled: () => void): void {
    const openedAtMs = performance.now();
    const onReady = () => {
      ready = connection;
      onState(undefined);
      state.isAway = false;
      onSettled();
    };
    const onEnd = (cause: string, wasIdle: boolean) => {
      // A server may close a connection that is not used: it is away if another one fails too.
      const isFailure = !ready || !wasIdle;
      ready = undefined;
      onSettled();
      state.isAway ||= isFailure;
      if (isFailure) onState(cause);
      // Only after a long connection: one that fails with the first request would be opened again
      // and again.
      if (performance.now() - openedAtMs > MAX_PAUSE_MS) pauseMs = MIN_PAUSE_MS;
      const jitter = 1 - Math.random() / 2;
      // Without a failure nothing is logged, and requests are limited without the store: not for
      // long.
      setTimeout(connect, (isFailure ? pauseMs : MIN_PAUSE_MS) * jitter, () => {}).unref();
      pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
    };
    const connection = open({ onReady, onEnd });
  }

  return {
    state,
    /**
     * Connects, and again after each failure. Resolves after the first attempt, or before it has
     * ended after 2 s.
     */
    connect: () => settledSoon(connect),
    async take(buckets) {
      const taken = await ready?.run(buckets);
      if (!taken) state.fallbacks += 1;
      return taken;
    },
    charge(tokens, buckets) {
      void ready?.run(buckets, tokens);
      return ready !== undefined;
    },
  } satisfies RateLimitStore & { state: object };
}

/** Resolves when `begin` calls `onSettled`, or after 2 s. */
function settledSoon(begin: (onSettled: () => void) => void): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, START_WAIT_MS);
    begin(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}
