/** The rate limits of several gateways in one Redis or Valkey. */

import type { StoreSettings } from '../config/config.ts';
import type { Logger } from '../lib/log.ts';
import type { RateLimitStore } from '../policy/rate-limit-store.ts';
import { Connection } from './connection.ts';
import { parseAnswer } from './script.ts';

/** A request waits no longer for the store. */
const ANSWER_MS = 50;
const MIN_PAUSE_MS = 100;
const MAX_PAUSE_MS = 5000;

export interface RedisStore extends RateLimitStore {
  /** There is no working connection: `take` returns undefined at once. */
  readonly isAway: boolean;
  /** How often `take` has returned undefined. */
  readonly fallbacks: number;
}

interface RedisStoreOptions {
  readonly logger: Logger;
  /** One cell that the threads of the process share: how many of their stores are away. */
  readonly awayThreads?: Int32Array;
  /** Limit for each reply, in milliseconds. */
  readonly answerMs?: number;
}

/** Connects, and again after each failure, until `end` is called. Logs when the first thread's store is away and when none is any more. */
export function createRedisStore(
  settings: StoreSettings,
  { logger, awayThreads = new Int32Array(1), answerMs = ANSWER_MS }: RedisStoreOptions,
): RedisStore {
  let fallbacks = 0;
  let isAway = true;
  /** This store counts in `awayThreads`. Not before the first failure: a store that connects is not told to be back. */
  let isCounted = false;
  let isEnded = false;
  let pauseMs = MIN_PAUSE_MS;
  let retry: NodeJS.Timeout | undefined;
  let connection = connect();

  function connect(): Connection {
    const openedAtMs = performance.now();
    const onReady = () => {
      isAway = false;
      if (isCounted && Atomics.sub(awayThreads, 0, 1) === 1) {
        logger.log('info', 'rate limit store back');
      }
      isCounted = false;
    };
    const onEnd = (cause: string) => {
      isAway = true;
      if (isEnded) return;
      if (!isCounted && Atomics.add(awayThreads, 0, 1) === 0) {
        logger.log('warn', 'rate limit store away', { cause });
      }
      isCounted = true;
      // Not after each success: a store that fails with the first request would be asked, and the log told, all the time.
      if (performance.now() - openedAtMs > MAX_PAUSE_MS) pauseMs = MIN_PAUSE_MS;
      const jitter = 1 - Math.random() / 2;
      retry = setTimeout(() => (connection = connect()), pauseMs * jitter).unref();
      pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
    };
    return new Connection(settings, { answerMs, onReady, onEnd });
  }

  return {
    get isAway() {
      return isAway;
    },
    get fallbacks() {
      return fallbacks;
    },
    async take(buckets) {
      const answer = isAway ? undefined : await connection.run(1, buckets);
      const taken = answer === undefined ? undefined : parseAnswer(answer, buckets);
      if (answer !== undefined && !taken) connection.end('the script gives a wrong answer');
      if (!taken) fallbacks += 1;
      return taken;
    },
    refund(buckets) {
      if (!isAway) void connection.run(-1, buckets);
    },
    end() {
      isEnded = true;
      clearTimeout(retry);
      connection.end('the gateway ends');
      if (isCounted) Atomics.sub(awayThreads, 0, 1);
      isCounted = false;
    },
  };
}
