/**
 * A world's rate limit store, which replaces `src/store/redis-connection.ts`. It comes and goes,
 * and is sometimes late.
 */

import type { StoredBucket, StoredLimit, StoredWindow, Taken } from '../../src/policy/limiter.ts';
import type { RedisConnectionOptions } from '../../src/store/redis-connection.ts';
import type { Random } from '../support/random.ts';
import type { Clock } from './clock.ts';
import type { History, StoreAsk } from './history.ts';

/** The real connection's limit for a reply. */
const ANSWER_MS = 50;
const CONNECT_MS = 1.3;
/** At less than this level, a bucket counts as empty. */
const LEAST_TOKENS = 1e-6;

interface Level {
  tokens: number;
  atMs: number;
}

export class Store {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #events: History['events'];
  readonly #levels = new Map<string, Level>();
  /** Each window's sum by its key. */
  readonly #sums = new Map<string, number>();
  readonly #open = new Set<StoreConnection>();
  isUp = true;

  constructor(clock: Clock, random: Random, history: History) {
    this.#clock = clock;
    this.#random = random;
    this.#events = history.events;
  }

  connect(events: RedisConnectionOptions): StoreConnection {
    const connection = new StoreConnection(this, this.#clock, events);
    this.#open.add(connection);
    this.#clock.after(CONNECT_MS, () => (this.isUp ? connection.begin() : connection.end(false)));
    return connection;
  }

  /** Starts the store, or stops it and closes all connections. */
  set(isUp: boolean): void {
    this.isUp = isUp;
    if (!isUp) for (const connection of this.#open) connection.end(true);
  }

  closed(connection: StoreConnection): void {
    this.#open.delete(connection);
  }

  get latencyMs(): number {
    return this.#random.oneIn(40) ? ANSWER_MS + 10 : 0.2 + this.#random.next();
  }

  /**
   * Takes a request's tokens from all buckets, or from none. With `tokens`, takes this number from
   * each bucket in any case, or puts it back.
   */
  run(buckets: readonly StoredLimit[], tokens?: number): StoreAsk {
    const waits = buckets.map((bucket) => {
      if (!isBucket(bucket)) {
        const isUsedUp = this.usedOf(bucket) >= bucket.capacity && tokens === undefined;
        return isUsedUp ? endOf(bucket) - Date.now() : 0;
      }
      const { perRequest, periodSeconds, rate } = bucket;
      const { tokens: left } = this.#level(bucket);
      const needed = tokens === undefined ? Math.max(perRequest, LEAST_TOKENS) : -Infinity;
      return Math.max(0, ((needed - left) / rate) * periodSeconds * 1000);
    });
    const longestMs = Math.max(...waits);
    const refusedForMs = longestMs > 0 ? longestMs : undefined;
    const refusedBy = buckets[waits.indexOf(longestMs)]!;
    const ask: StoreAsk = { buckets, tokens, refusedBy, refusedForMs };
    this.record({ kind: 'store asked', ask });
    for (const bucket of buckets) {
      const taken = refusedForMs === undefined ? (tokens ?? bucket.perRequest) : 0;
      if (isBucket(bucket)) {
        const level = this.#level(bucket);
        level.tokens = Math.min(bucket.capacity, level.tokens - taken);
      } else this.#sums.set(keyOf(bucket), this.usedOf(bucket) + taken);
    }
    return ask;
  }

  /** Returns how many tokens each bucket lacks, rounded up, and each window's sum. */
  lacksOf(buckets: readonly StoredLimit[]): number[] {
    return buckets.map((bucket) =>
      isBucket(bucket)
        ? Math.ceil(bucket.capacity - this.#level(bucket).tokens)
        : this.usedOf(bucket),
    );
  }

  usedOf(window: StoredWindow): number {
    return this.#sums.get(keyOf(window)) ?? 0;
  }

  record(event: { kind: 'store asked'; ask: StoreAsk } | { kind: 'store'; isUp: boolean }): void {
    this.#events.push({ atMs: this.#clock.nowMs, ...event });
  }

  #level({ name, rate, periodSeconds, capacity }: StoredBucket): Level {
    const key = `${name} ${rate} ${capacity}`;
    const { nowMs } = this.#clock;
    const level = this.#levels.get(key) ?? { tokens: capacity, atMs: nowMs };
    const refilled = level.tokens + ((nowMs - level.atMs) / 1000 / periodSeconds) * rate;
    level.tokens = Math.min(capacity, refilled);
    level.atMs = nowMs;
    this.#levels.set(key, level);
    return level;
  }
}

const isBucket = (limit: StoredLimit): limit is StoredBucket => 'rate' in limit;
const keyOf = ({ name, local }: StoredWindow) => `${name} ${local.name}`;
const endOf = ({ local }: StoredWindow) => local.current().endTime;

class StoreConnection {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #events: RedisConnectionOptions;
  readonly #pending = new Set<(taken: undefined) => void>();
  #isEnded = false;

  constructor(store: Store, clock: Clock, events: RedisConnectionOptions) {
    this.#store = store;
    this.#clock = clock;
    this.#events = events;
  }

  run(buckets: readonly StoredLimit[], tokens?: number): Promise<Taken | undefined> {
    const askedTime = Date.now();
    return new Promise((resolve) => {
      if (this.#isEnded) return resolve(undefined);
      const { latencyMs } = this.#store;
      this.#pending.add(resolve);
      const ask = this.#store.run(buckets, tokens);
      const lacks = this.#store.lacksOf(buckets);
      const { refusedBy, refusedForMs } = ask;
      const taken: Taken =
        refusedForMs === undefined ? 'taken' : { refusedBy, waitMs: refusedForMs };
      return this.#clock.after(Math.min(latencyMs, ANSWER_MS), () => {
        if (!this.#pending.delete(resolve)) return;
        if (latencyMs <= ANSWER_MS) {
          ask.toldAtMs = this.#clock.nowMs;
          for (const [index, lack] of lacks.entries()) {
            const bucket = buckets[index]!;
            if (isBucket(bucket)) bucket.onLack?.(lack);
            else bucket.local.set(lack, askedTime);
          }
          return resolve(taken);
        }
        resolve(undefined);
        this.end(false);
      });
    });
  }

  begin(): void {
    this.#store.record({ kind: 'store', isUp: true });
    this.#events.onReady();
  }

  end(wasIdle: boolean): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#store.closed(this);
    this.#store.record({ kind: 'store', isUp: false });
    const isIdle = wasIdle && this.#pending.size === 0;
    for (const resolve of this.#pending) resolve(undefined);
    this.#pending.clear();
    this.#events.onClosed('the store is gone', isIdle);
  }
}
