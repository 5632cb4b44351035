/** Keeps the rate limits of several gateways in a shared Redis or Valkey. */

import type { RateLimitStore } from '../policy/limiter.ts';
import type { RedisConnection, RedisConnectionOptions } from './redis-connection.ts';

const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5000;
/** The longest wait at the start. The connection may still succeed later. */
const START_WAIT_MS = 2000;

export type StoreConnection = Pick<RedisConnection, 'run'>;

/**
 * @param onState - called with the cause after a failed connection, and with undefined once a
 * connection is ready
 */
export function createRedisStore(
  onState: (cause: string | undefined) => void,
  open: (events: RedisConnectionOptions) => StoreConnection,
) {
  /** `fallbacks` counts how often `take` has returned undefined. */
  const state = { isAway: false, fallbacks: 0 };
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
    const onClosed = (cause: string, wasIdle: boolean) => {
      // Servers close idle connections, so the store is away only if the next connection fails too.
      const isFailure = !ready || !wasIdle;
      ready = undefined;
      onSettled();
      state.isAway ||= isFailure;
      if (isFailure) onState(cause);
      // A short connection does not reset the pause, because a connection that fails at its first
      // request would be opened again and again.
      if (performance.now() - openedAtMs > MAX_PAUSE_MS) pauseMs = MIN_PAUSE_MS;
      const jitter = 1 - Math.random() / 2;
      // An idle close is not logged, so the pause after it is short.
      setTimeout(connect, (isFailure ? pauseMs : MIN_PAUSE_MS) * jitter, () => {}).unref();
      pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
    };
    const connection = open({ onReady, onClosed });
  }

  return {
    state,
    /**
     * Connects again after each failure. Resolves when the first attempt has ended, or after 2 s.
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

function settledSoon(begin: (onSettled: () => void) => void): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, START_WAIT_MS);
    begin(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}
