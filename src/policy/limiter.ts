/**
 * Limits requests: the requests in flight by a count, the requests over time by token buckets and
 * calendar windows.
 */

import { GatewayError } from '../lib/errors.ts';
import { formatCost, LIMITS, type Limit, PERIODS, type WindowPeriod } from '../lib/limits.ts';
import type { TokenUsage } from '../protocol/usage.ts';
import type { CalendarWindow } from './calendar-window.ts';
import type { TokenBucket } from './token-bucket.ts';
import type { SlotQueue, Slots } from './waiting.ts';

/** A bucket of units, which are requests or a model's tokens. */
export interface StoredBucket {
  /** Identifies the limit in all gateways, such as `clients.alice`. */
  readonly name: string;
  /** Units refilled per period. */
  readonly rate: number;
  readonly periodSeconds: number;
  readonly capacity: number;
  /** Units per request. If 0, the bucket only has to be above zero. */
  readonly perRequest: number;
  /** Called with how many units the bucket lacks in the store, rounded up. */
  readonly onLack?: (units: number) => void;
}

export interface StoredWindow {
  readonly name: string;
  readonly capacity: number;
  /** Requests take nothing; the window only has to be below its capacity. */
  readonly perRequest: 0;
  /** Has the window's start and end, and gets the store's sums. */
  readonly local: CalendarWindow;
}

export type StoredLimit = StoredBucket | StoredWindow;

export type Taken = 'taken' | { readonly refusedBy: StoredLimit; readonly waitMs: number };

/** Buckets and windows that several gateways share. The methods never throw or reject. */
export interface RateLimitStore {
  /**
   * Takes a request's units from each bucket, or from none if a bucket refuses it. Resolves with
   * undefined if the store does not answer in time.
   */
  take(buckets: readonly StoredLimit[]): Promise<Taken | undefined>;
  /**
   * Takes the units from each bucket, also below zero; a negative number puts units back. Returns
   * false, and does nothing, while the store is away.
   */
  charge(units: number, buckets: readonly StoredLimit[]): boolean;
  /**
   * Connects, and reconnects after each failure. Resolves when it is connected or the first attempt
   * has failed.
   */
  connect(): Promise<void>;
}

/** Without a limit `max` is infinite, and requests are only counted. */
export type ConcurrencyLimit = {
  name: string;
  limit: Limit;
  max: number;
  used: Slots;
};

export type RefilledBucket = StoredBucket & {
  limit: Limit;
  local: TokenBucket;
  periodSeconds: keyof typeof PERIODS;
};

type LimitWindow = StoredWindow & {
  limit: Limit;
  counts: 'tokens' | 'cost';
  period: WindowPeriod;
};

/** A calendar window is a bucket that is full again at its end. Its units are tokens or a cost. */
export type Bucket = RefilledBucket | LimitWindow;

interface LimitLevel {
  readonly unit: 'requests' | 'tokens' | 'cost';
  readonly capacity: number;
  /** Whole requests or tokens left, or the cost, at least 0. */
  readonly remaining: number;
  /** Until the bucket is full, or until the window's end. */
  readonly resetMs: number;
}

/** The level that counts as above zero, for a bucket without units per request. */
const LEAST_LEVEL = 1e-6;
/** How old the store's sums of windows may be when figures are read. */
const FIGURES_AGE_MS = 5000;
/** A provider's larger count is wrong, and would lock the client out for years. */
export const MAX_ANSWER_TOKENS = 1e9;

/** The limits on a request. A refusal is the error `rateLimit`. */
export class Limiter {
  readonly countsUsage: boolean;
  readonly countsCost: boolean;
  readonly #concurrencyLimits: readonly ConcurrencyLimit[];
  readonly #buckets: readonly Bucket[];
  readonly #tenantBuckets: readonly Bucket[];
  readonly #tokenBuckets: readonly Bucket[];
  readonly #costBuckets: readonly Bucket[];
  readonly #windows: readonly Bucket[];
  #figuresReadAtMs = -Infinity;
  readonly #store: RateLimitStore | undefined;

  /**
   * The last of the `concurrencyLimits` is the client's or the provider's, or the server's for a
   * key without a client.
   */
  constructor(
    concurrencyLimits: readonly ConcurrencyLimit[],
    buckets: readonly Bucket[],
    store: RateLimitStore | undefined,
  ) {
    this.#concurrencyLimits = concurrencyLimits;
    this.#buckets = buckets;
    this.#tenantBuckets = buckets.filter(({ limit }) => LIMITS[limit].of === 'client');
    this.#tokenBuckets = buckets.filter((bucket) => unitOf(bucket) === 'tokens');
    this.#costBuckets = buckets.filter((bucket) => unitOf(bucket) === 'cost');
    this.#windows = buckets.filter(isWindow);
    this.#store = store;
    this.countsCost = this.#costBuckets.length > 0;
    this.countsUsage = this.countsCost || this.#tokenBuckets.length > 0;
  }

  get inFlight(): number {
    return this.#concurrencyLimits.at(-1)!.used.inFlight;
  }

  get queue(): SlotQueue | undefined {
    return this.#concurrencyLimits.at(-1)!.used.queue;
  }

  /** Takes a slot under each concurrency limit until `releaseSlot`, or returns the refusal. */
  acquireSlot(): GatewayError | undefined {
    const full = this.#concurrencyLimits.find(({ max, used }) => used.inFlight >= max);
    if (full) {
      const { limit, max, name, used } = full;
      const limitState = `${name}.max_concurrent_requests: ${used.inFlight} of ${max}`;
      // Nobody knows when a slot is released, so `Retry-After` is the least possible.
      const details = { retryAfterSeconds: 1, limit, limitState };
      return new GatewayError('rateLimit', 'Too many requests at the same time', details);
    }
    for (const { used } of this.#concurrencyLimits) used.inFlight += 1;
    return undefined;
  }

  /**
   * Releases the slot from `acquireSlot` or `queue`. Throws `internal` if no request is in flight.
   */
  releaseSlot(): void {
    if (this.inFlight <= 0) throw GatewayError.from(new Error('a slot is released twice'));
    for (const { used } of this.#concurrencyLimits) {
      used.inFlight -= 1;
      used.queue?.grant();
    }
  }

  /**
   * Takes a request's units from each bucket, or returns the refusal and takes none. Only a store
   * needs a wait.
   */
  takeRequest(): Promise<GatewayError | undefined> | GatewayError | undefined {
    if (this.#buckets.length === 0) return undefined;
    return this.#store ? this.#takeStored(this.#store) : this.#takeLocally();
  }

  /** Puts back the units from `takeRequest`, for an unsent request. */
  refundRequest(): void {
    const ofRequests = this.#buckets.filter((bucket) => unitOf(bucket) === 'requests');
    this.#charge(-1, ofRequests);
  }

  takeUsage(usage: TokenUsage | undefined, cost = 0): void {
    const { prompt_tokens = 0, completion_tokens = 0, total_tokens } = usage ?? {};
    // Some servers write a total of 0 beside their counts.
    const total = total_tokens || prompt_tokens + completion_tokens;
    if (total > 0) this.#charge(Math.min(total, MAX_ANSWER_TOKENS), this.#tokenBuckets);
    if (cost > 0) this.#charge(cost, this.#costBuckets);
  }

  /**
   * Returns how much is used of each window, and of each bucket per minute; `unit` is as `req/min`.
   * Asks the store for the sums of windows, because other gateways change them.
   */
  usedOfBuckets() {
    const nowMs = performance.now();
    if (this.#windows.length > 0 && nowMs - this.#figuresReadAtMs >= FIGURES_AGE_MS) {
      this.#figuresReadAtMs = nowMs;
      this.#store?.charge(0, this.#windows);
    }
    return this.#buckets.flatMap((bucket) => {
      const { limit, capacity } = bucket;
      const unit = unitOf(bucket).replace('requests', 'req');
      const used = usedOf(bucket, nowMs);
      if (isWindow(bucket)) return { limit, unit: `${unit}/${bucket.period}`, capacity, used };
      if (bucket.periodSeconds === 1) return [];
      return { limit, unit: `${unit}/${PERIODS[bucket.periodSeconds].short}`, capacity, used };
    });
  }

  /**
   * Returns the client's own limits without the global one, the one with the least left first. With
   * a store, the levels are those of its latest reply.
   */
  levelsOfTenant(): LimitLevel[] {
    const nowMs = performance.now();
    const levels = this.#tenantBuckets.map((bucket) => {
      const { capacity, local } = bucket;
      const unit = unitOf(bucket);
      const level = local.level(nowMs);
      const remaining = Math.max(0, unit === 'cost' ? level : Math.floor(level));
      return { unit, capacity, remaining, resetMs: local.resetMs(nowMs) };
    });
    return levels.toSorted((a, b) => a.remaining - b.remaining || b.resetMs - a.resetMs);
  }

  #takeLocally(): GatewayError | undefined {
    const nowMs = performance.now();
    const waits = this.#buckets.map(({ local, perRequest }) =>
      local.waitMs(Math.max(perRequest, LEAST_LEVEL), nowMs),
    );
    // The longest wait counts, because an earlier request would be refused again.
    const longestMs = Math.max(...waits);
    if (longestMs > 0) return limitError(this.#buckets[waits.indexOf(longestMs)]!, longestMs);
    for (const { local, perRequest } of this.#buckets) local.take(perRequest, nowMs);
    return undefined;
  }

  async #takeStored(store: RateLimitStore): Promise<GatewayError | undefined> {
    const taken = await store.take(this.#buckets);
    if (taken === undefined) return this.#takeLocally();
    if (taken === 'taken') return undefined;
    const refusing = this.#buckets.find(({ name }) => name === taken.refusedBy.name)!;
    return limitError(refusing, taken.waitMs);
  }

  #charge(units: number, charged: readonly Bucket[]): void {
    if (charged.length === 0) return;
    // If the store went away or came back after the units were taken, a refund reaches the wrong
    // bucket.
    if (this.#store?.charge(units, charged)) return;
    const nowMs = performance.now();
    for (const { local } of charged) local.take(units, nowMs);
  }
}

function isWindow(bucket: Bucket): bucket is LimitWindow {
  return 'period' in bucket;
}

function unitOf(bucket: Bucket): LimitLevel['unit'] {
  if (isWindow(bucket)) return bucket.counts;
  return bucket.perRequest > 0 ? 'requests' : 'tokens';
}

/** Returns the sum of a window, or the whole units that a bucket lacks. */
function usedOf(bucket: Bucket, nowMs: number): number {
  if (isWindow(bucket)) return bucket.local.current().used;
  const { capacity, local } = bucket;
  return Math.round(capacity - local.level(nowMs));
}

function describeRefill(bucket: Bucket): string {
  if (isWindow(bucket)) return `until ${new Date(bucket.local.current().endTime).toISOString()}`;
  return `refilled at ${bucket.rate} per ${PERIODS[bucket.periodSeconds].name}`;
}

function limitError(bucket: Bucket, waitMs: number): GatewayError {
  const { name, limit, capacity } = bucket;
  const unit = unitOf(bucket);
  // A store does not tell the levels of the global limit and of providers, so `local` may be full.
  const amount = Math.max(capacity, usedOf(bucket, performance.now()));
  const counted = unit === 'cost' ? '' : `${unit} `;
  const used = `${formatCost(amount)} of ${formatCost(capacity)} ${counted}used`;
  const limitState = `${name}: ${used}, ${describeRefill(bucket)}`;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  const details = { retryAfterSeconds, limit, limitState };
  // A bucket per second is named after its section, any other bucket after its setting.
  const isBySecond = !isWindow(bucket) && bucket.periodSeconds === 1;
  const setting = isBySecond ? `${name}.requests_per_second` : name;
  return new GatewayError('rateLimit', `Rate limit exceeded: ${setting}`, details);
}
