/** Limits requests: the requests in flight by a count, the requests over time by token buckets. */

import { GatewayError } from '../lib/errors.ts';
import { LIMITS, type Limit, PERIODS } from '../lib/limits.ts';
import type { TokenUsage } from '../protocol/usage.ts';
import type { TokenBucket } from './token-bucket.ts';

/** A token bucket that several gateways share in a store. */
export interface StoredBucket {
  /** Identifies the limit in all gateways, such as `clients.alice`. */
  readonly name: string;
  /** Tokens refilled per period. */
  readonly rate: number;
  readonly periodSeconds: number;
  readonly capacity: number;
  /** Tokens per request. If 0, the bucket only has to be above zero. */
  readonly perRequest: number;
  /**
   * Called with how many tokens the bucket lacks in the store, rounded up. Only clients' buckets
   * have it.
   */
  readonly onLack?: (tokens: number) => void;
}

export type Taken = 'taken' | { readonly refusedBy: StoredBucket; readonly waitMs: number };

/** Buckets that several gateways share. The methods never throw or reject. */
export interface RateLimitStore {
  /**
   * Takes a request's tokens from each bucket, or from none if a bucket refuses it. Resolves with
   * undefined if the store does not answer in time.
   */
  take(buckets: readonly StoredBucket[]): Promise<Taken | undefined>;
  /**
   * Takes the tokens from each bucket, also below zero; a negative number puts tokens back. Returns
   * false, and does nothing, while the store is away.
   */
  charge(tokens: number, buckets: readonly StoredBucket[]): boolean;
  /**
   * Connects, and reconnects after each failure. Resolves when it is connected or the first attempt
   * has failed.
   */
  connect(): Promise<void>;
}

/**
 * A limit on requests in flight. Without a limit `max` is infinite, and requests are only counted.
 */
export type ConcurrencyLimit = {
  name: string;
  limit: Limit;
  max: number;
  used: { inFlight: number };
};

/** A limiter's bucket. `local` is its counterpart in this process's memory. */
export type Bucket = StoredBucket & {
  limit: Limit;
  local: TokenBucket;
  periodSeconds: keyof typeof PERIODS;
};

/** What is left of a limit. */
interface LimitLevel {
  readonly unit: 'requests' | 'tokens';
  /** The bucket's capacity. */
  readonly limit: number;
  /** Whole requests or tokens left, at least 0. */
  readonly remaining: number;
  /** Milliseconds until the bucket is full. */
  readonly resetMs: number;
}

/** The level that counts as above zero, for a bucket without tokens per request. */
const LEAST_TOKENS = 1e-6;
/**
 * The most tokens charged for an answer: a provider's larger count is wrong, and would lock the
 * client out for years.
 */
export const MAX_ANSWER_TOKENS = 1e9;

/** The limits on a request. A refusal is the error `rateLimit`. */
export class Limiter {
  /** True if a bucket counts the tokens of answers, so that `takeTokens` is needed. */
  readonly countsUsage: boolean;
  readonly #concurrencyLimits: readonly ConcurrencyLimit[];
  readonly #buckets: readonly Bucket[];
  /** The client's buckets, without the global bucket. */
  readonly #ofTenant: readonly Bucket[];
  /** Buckets that count requests. */
  readonly #ofRequests: readonly Bucket[];
  /** Buckets that count the tokens of answers. */
  readonly #ofTokens: readonly Bucket[];
  readonly #store: RateLimitStore | undefined;

  /**
   * The last of the `concurrencyLimits` is the client's or the provider's, or the server's for a
   * key without a client. Without `store`, buckets count only this process's requests.
   */
  constructor(
    concurrencyLimits: readonly ConcurrencyLimit[],
    buckets: readonly Bucket[],
    store: RateLimitStore | undefined,
  ) {
    this.#concurrencyLimits = concurrencyLimits;
    this.#buckets = buckets;
    this.#ofTenant = buckets.filter(({ limit }) => LIMITS[limit].of === 'client');
    this.#ofRequests = buckets.filter(({ perRequest }) => perRequest > 0);
    this.#ofTokens = buckets.filter(({ perRequest }) => perRequest === 0);
    this.#store = store;
    this.countsUsage = this.#ofTokens.length > 0;
  }

  /** Requests in flight under the last concurrency limit: from this client, or to this provider. */
  get inFlight(): number {
    return this.#concurrencyLimits.at(-1)!.used.inFlight;
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

  /** Releases the slot from `acquireSlot`. Throws `internal` if no request is in flight. */
  releaseSlot(): void {
    if (this.inFlight <= 0) throw GatewayError.from(new Error('a slot is released twice'));
    for (const { used } of this.#concurrencyLimits) used.inFlight -= 1;
  }

  /** Takes a request's tokens from each bucket, or returns the refusal and takes none. */
  takeRequest(): Promise<GatewayError | undefined> | GatewayError | undefined {
    if (this.#buckets.length === 0) return undefined;
    return this.#store ? this.#takeStored(this.#store) : this.#takeLocally();
  }

  /** Puts back the tokens from `takeRequest`, for an unsent request. */
  refundRequest(): void {
    this.#charge(-1, this.#ofRequests);
  }

  /** Takes an answer's tokens from the buckets that count them. */
  takeTokens(usage: TokenUsage | undefined): void {
    const { prompt_tokens = 0, completion_tokens = 0, total_tokens } = usage ?? {};
    // Some servers write a total of 0 beside their counts.
    const total = total_tokens || prompt_tokens + completion_tokens;
    if (total > 0) this.#charge(Math.min(total, MAX_ANSWER_TOKENS), this.#ofTokens);
  }

  /** Returns the used tokens of each bucket per minute and per day; `unit` is as `req/min`. */
  usedOfBuckets() {
    const nowMs = performance.now();
    const longer = this.#buckets.filter(({ periodSeconds }) => periodSeconds > 1);
    return longer.map((bucket) => {
      const { limit, capacity, local, periodSeconds } = bucket;
      const unit = `${unitOf(bucket).replace('requests', 'req')}/${PERIODS[periodSeconds].short}`;
      return { limit, unit, capacity, used: Math.round(capacity - local.level(nowMs)) };
    });
  }

  /**
   * Returns the client's own limits without the global one, the one with the least left first, and
   * of two that are used up the one that is full later. With a store, the levels are those of its
   * latest reply.
   */
  levelsOfTenant(): LimitLevel[] {
    const nowMs = performance.now();
    const levels = this.#ofTenant.map((bucket) => {
      const { capacity: limit, local } = bucket;
      const remaining = Math.max(0, Math.floor(local.level(nowMs)));
      return { unit: unitOf(bucket), limit, remaining, resetMs: local.waitMs(limit, nowMs) };
    });
    return levels.toSorted((a, b) => a.remaining - b.remaining || b.resetMs - a.resetMs);
  }

  #takeLocally(): GatewayError | undefined {
    const nowMs = performance.now();
    const waits = this.#buckets.map(({ local, perRequest }) =>
      local.waitMs(Math.max(perRequest, LEAST_TOKENS), nowMs),
    );
    // The longest wait counts, because an earlier request would be refused again.
    const longestMs = Math.max(...waits);
    if (longestMs > 0) return refuse(this.#buckets[waits.indexOf(longestMs)]!, longestMs);
    for (const { local, perRequest } of this.#buckets) local.take(perRequest, nowMs);
    return undefined;
  }

  async #takeStored(store: RateLimitStore): Promise<GatewayError | undefined> {
    const taken = await store.take(this.#buckets);
    if (taken === undefined) return this.#takeLocally();
    if (taken === 'taken') return undefined;
    const refusing = this.#buckets.find(({ name }) => name === taken.refusedBy.name)!;
    return refuse(refusing, taken.waitMs);
  }

  #charge(tokens: number, charged: readonly Bucket[]): void {
    if (charged.length === 0) return;
    // If the store went away or came back after the tokens were taken, a refund reaches the wrong
    // bucket.
    if (this.#store?.charge(tokens, charged)) return;
    const nowMs = performance.now();
    for (const { local } of charged) local.take(tokens, nowMs);
  }
}

function unitOf({ perRequest }: Bucket): LimitLevel['unit'] {
  return perRequest > 0 ? 'requests' : 'tokens';
}

function refuse(bucket: Bucket, waitMs: number): GatewayError {
  const { name, limit, rate, periodSeconds, capacity } = bucket;
  const refill = `refilled at ${rate} per ${PERIODS[periodSeconds].name}`;
  const used = `${capacity} of ${capacity} ${unitOf(bucket)} used`;
  const limitState = `${name}: ${used}, ${refill}`;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  const details = { retryAfterSeconds, limit, limitState };
  // A bucket per second is named after its section, any other bucket after its setting.
  const setting = periodSeconds > 1 ? name : `${name}.requests_per_second`;
  return new GatewayError('rateLimit', `Rate limit exceeded: ${setting}`, details);
}
