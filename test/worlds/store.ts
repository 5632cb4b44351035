/** The store of rate limits of a world, in the place of `src/store/connection.ts`: one that goes and comes, and is sometimes late. */

import type { StoredBucket, Taken } from '../../src/policy/limits.ts';
import type { ConnectionOptions } from '../../src/store/connection.ts';
import type { Random } from '../support/random.ts';
import type { Clock } from './clock.ts';
import type { History } from './history.ts';

/** The limit of the real connection for a reply. */
const ANSWER_MS = 50;
const CONNECT_MS = 1.3;

interface Level {
  tokens: number;
  atMs: number;
}

export class Store {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #events: History['events'];
  readonly #levels = new Map<string, Level>();
  readonly #open = new Set<StoreConnection>();
  isUp = true;

  constructor(clock: Clock, random: Random, history: History) {
    this.#clock = clock;
    this.#random = random;
    this.#events = history.events;
  }

  connect(events: ConnectionOptions): StoreConnection {
    const connection = new StoreConnection(this, this.#clock, events);
    this.#open.add(connection);
    this.#clock.after(CONNECT_MS, () => (this.isUp ? events.onReady() : connection.end(false)));
    return connection;
  }

  /** It goes, with all connections, or comes. */
  set(isUp: boolean): void {
    this.isUp = isUp;
    this.#events.push({ atMs: this.#clock.nowMs, kind: 'store', isUp });
    if (!isUp) for (const connection of this.#open) connection.end(true);
  }

  closed(connection: StoreConnection): void {
    this.#open.delete(connection);
  }

  get latencyMs(): number {
    return this.#random.oneIn(40) ? ANSWER_MS + 10 : 0.2 + this.#random.next();
  }

  /** Takes a token of each bucket, or of none; or puts them back. */
  run(tokens: 1 | -1, buckets: readonly StoredBucket[]): Taken {
    const levels = buckets.map((bucket) => this.#level(bucket));
    const short = levels.findIndex((level) => tokens > 0 && level.tokens < 1);
    const refusedBy = buckets[short];
    const text = `${tokens} of ${buckets.map(({ name }) => name).join(', ')}: ${refusedBy ? 'refused' : 'OK'}`;
    this.#events.push({ atMs: this.#clock.nowMs, kind: 'token', text });
    if (refusedBy) {
      const waitMs = ((1 - levels[short]!.tokens) / refusedBy.requestsPerSecond) * 1000;
      return { refusedBy, waitMs };
    }
    for (const [index, level] of levels.entries()) {
      level.tokens = Math.min(buckets[index]!.burstCapacity, level.tokens - tokens);
    }
    return 'taken';
  }

  #level({ name, requestsPerSecond, burstCapacity }: StoredBucket): Level {
    const key = `${name} ${requestsPerSecond} ${burstCapacity}`;
    const { nowMs } = this.#clock;
    const level = this.#levels.get(key) ?? { tokens: burstCapacity, atMs: nowMs };
    const refilled = level.tokens + ((nowMs - level.atMs) / 1000) * requestsPerSecond;
    level.tokens = Math.min(burstCapacity, refilled);
    level.atMs = nowMs;
    this.#levels.set(key, level);
    return level;
  }
}

class StoreConnection {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #events: ConnectionOptions;
  readonly #pending = new Set<(taken: undefined) => void>();
  #isEnded = false;

  constructor(store: Store, clock: Clock, events: ConnectionOptions) {
    this.#store = store;
    this.#clock = clock;
    this.#events = events;
  }

  run(tokens: 1 | -1, buckets: readonly StoredBucket[]): Promise<Taken | undefined> {
    return new Promise((resolve) => {
      if (this.#isEnded) return resolve(undefined);
      const { latencyMs } = this.#store;
      this.#pending.add(resolve);
      const taken = this.#store.run(tokens, buckets);
      return this.#clock.after(Math.min(latencyMs, ANSWER_MS), () => {
        if (!this.#pending.delete(resolve)) return;
        if (latencyMs <= ANSWER_MS) return resolve(taken);
        resolve(undefined);
        this.end(false);
      });
    });
  }

  end(wasIdle: boolean): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#store.closed(this);
    const isIdle = wasIdle && this.#pending.size === 0;
    for (const resolve of this.#pending) resolve(undefined);
    this.#pending.clear();
    this.#events.onEnd('the store is gone', isIdle);
  }
}
