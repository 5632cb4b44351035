/** The store of rate limits of a world, in the place of `src/store/connection.ts`: one that goes and comes, and is sometimes late. */

import type { StoredBucket, Taken } from '../../src/policy/limiter.ts';
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

  /** Takes what a request takes of each bucket, or of none; or so many `tokens` of each in any case, or puts them back. */
  run(buckets: readonly StoredBucket[], tokens?: number): Taken {
    const levels = buckets.map((bucket) => this.#level(bucket));
    const isShort = ({ tokens: left }: Level, { perRequest }: StoredBucket) =>
      perRequest > 0 ? left < perRequest : left <= 0;
    const short =
      tokens === undefined ? levels.findIndex((level, at) => isShort(level, buckets[at]!)) : -1;
    const refusedBy = buckets[short];
    const names = buckets.map(({ name }) => name).join(', ');
    const text = `${tokens ?? 'ask'} of ${names}: ${refusedBy ? 'refused' : 'OK'}`;
    this.#events.push({ atMs: this.#clock.nowMs, kind: 'token', text });
    if (refusedBy) {
      const { perRequest, periodSeconds, rate } = refusedBy;
      const waitMs = ((perRequest - levels[short]!.tokens) / rate) * periodSeconds * 1000;
      return { refusedBy, waitMs };
    }
    for (const [index, level] of levels.entries()) {
      const { capacity, perRequest } = buckets[index]!;
      level.tokens = Math.min(capacity, level.tokens - (tokens ?? perRequest));
    }
    return 'taken';
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

  run(buckets: readonly StoredBucket[], tokens?: number): Promise<Taken | undefined> {
    return new Promise((resolve) => {
      if (this.#isEnded) return resolve(undefined);
      const { latencyMs } = this.#store;
      this.#pending.add(resolve);
      const taken = this.#store.run(buckets, tokens);
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
