/** The rate limits of several gateways in one Redis or Valkey. */

import type { Logger } from '../lib/log.ts';
import type { SharedMemory } from '../lib/shared-memory.ts';
import type { RateLimitStore } from '../policy/limits.ts';
import type { Connection, ConnectionOptions } from './connection.ts';

const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5000;

/** Of all threads: how many stores are away, and how often `take` has returned undefined since the start. */
export function storeCounters(memory: SharedMemory) {
  return {
    away: memory.inFlightCounter('stores away'),
    fallbacks: memory.totalCounter('limited without store'),
  };
}

/**
 * Creates the store of one thread, which connects by `open`; nothing connects yet. It logs when the first thread's store is away and when none is
 * any more. Once each: a thread that ends while its store is away leaves it to another to log that it is back.
 */
export function createRedisStore(
  logger: Logger,
  memory: SharedMemory,
  open: (events: ConnectionOptions) => Connection,
): RateLimitStore {
  const { away, fallbacks } = storeCounters(memory);
  /** 1: the log says that the store is away. */
  const logged = new Int32Array(memory.block('store logged away', Int32Array.BYTES_PER_ELEMENT));
  /** Undefined while no connection works: `take` returns undefined at once then. */
  let ready: Connection | undefined;
  let pauseMs = MIN_PAUSE_MS;

  function connect(onSettled: () => void): void {
    const openedAtMs = performance.now();
    const onReady = () => {
      ready = connection;
      if (away.own > 0) away.add(-1);
      const isBack = away.value === 0 && Atomics.exchange(logged, 0, 0) === 1;
      if (isBack) logger.log('info', 'rate limit store back');
      onSettled();
    };
    const onEnd = (cause: string, wasIdle: boolean) => {
      // A server may close a connection that is not used: it is away if another one fails too.
      const isFailure = !ready || !wasIdle;
      ready = undefined;
      onSettled();
      if (isFailure) {
        if (away.own === 0) away.add(1);
        const isNews = Atomics.exchange(logged, 0, 1) === 0;
        if (isNews) logger.log('warn', 'rate limit store away', { cause });
      }
      // Only after a long connection: one that fails with the first request would be opened again and again.
      if (performance.now() - openedAtMs > MAX_PAUSE_MS) pauseMs = MIN_PAUSE_MS;
      const jitter = 1 - Math.random() / 2;
      // Without a failure nothing is logged, and requests are limited without the store: not for long.
      setTimeout(connect, (isFailure ? pauseMs : MIN_PAUSE_MS) * jitter, () => {}).unref();
      pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
    };
    const connection = open({ onReady, onEnd });
  }

  return {
    connect: () => new Promise((resolve) => connect(resolve)),
    async take(buckets) {
      const taken = await ready?.run(1, buckets);
      if (!taken) fallbacks.add(1);
      return taken;
    },
    refund(buckets) {
      void ready?.run(-1, buckets);
      return ready !== undefined;
    },
  };
}
