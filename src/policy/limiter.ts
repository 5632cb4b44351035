/** The limits that one request meets: slots of those in flight, and token buckets. */

import { GatewayError, type Limit } from '../lib/errors.ts';
import type { TokenUsage } from '../openai/usage.ts';
import type { TokenBucket } from './token-bucket.ts';

/** A token bucket that a store keeps for several gateways. */
export interface StoredBucket {
  /** The same in each gateway for the same limit, such as `clients.alice`. */
  readonly name: string;
  /** The tokens that come back in each period. */
  readonly rate: number;
  readonly periodSeconds: number;
  readonly capacity: number;
  /** The tokens that a request takes; if none, the bucket has to be above zero. */
  readonly perRequest: number;
  /**
   * Takes what the bucket lacks, as the store tells it; only if the period is longer than a second.
   */
  readonly onLack?: (tokens: number) => void;
}

export type Taken = 'taken' | { readonly refusedBy: StoredBucket; readonly waitMs: number };

/** Never rejects or throws. */
export interface RateLimitStore {
  /**
   * Takes what a request takes of each bucket, or of none. Undefined if the store does not say so
   * in time.
   */
  take(buckets: readonly StoredBucket[]): Promise<Taken | undefined>;
  /**
   * Takes so many tokens of each, also below zero; puts them back if negative. Returns false, and
   * does nothing, if it is away.
   */
  charge(tokens: number, buckets: readonly StoredBucket[]): boolean;
  /**
   * Connects, and again after each failure. Resolves when it is connected or the first attempt has
   * failed.
   */
  connect(): Promise<void>;
}

/** A limit on requests in flight. Without a limit, `max` is infinite and they are counted only. */
export type ConcurrencyLimit = {
  name: string;
  limit: Limit;
  max: number;
  used: { inFlight: number };
};

/** `local` is in the memory of this process. */
export type Bucket = StoredBucket & {
  limit: Limit;
  local: TokenBucket;
  periodSeconds: keyof typeof PERIOD_NAMES;
};

const PERIOD_NAMES = { 1: 'second', 60: 'minute', 86_400: 'day' } as const;
/** Above zero, for a bucket of which a request takes nothing. */
const LEAST_TOKENS = 1e-6;
/** What a provider counts beyond it is no count: a client would be refused for years. */
const MAX_ANSWER_TOKENS = 1e9;

/** The limits that one request meets. A refusal is `rateLimit`. */
export class Limiter {
  /** The tokens of answers are to be told to `takeTokens`. */
  readonly countsUsage: boolean;
  readonly #slots: readonly ConcurrencyLimit[];
  readonly #buckets: readonly Bucket[];
  /** The buckets that a request takes of, and those that the tokens of answers are taken of. */
  readonly #ofRequests: readonly Bucket[];
  readonly #ofTokens: readonly Bucket[];
  readonly #store: RateLimitStore | undefined;

  /** The last slot is the client's or the provider's. Without a store only this process counts. */
  constructor(
    slots: readonly ConcurrencyLimit[],
    buckets: readonly Bucket[],
    store: RateLimitStore | undefined,
  ) {
    this.#slots = slots;
    this.#buckets = buckets;
    this.#ofRequests = buckets.filter(({ perRequest }) => perRequest > 0);
    this.#ofTokens = buckets.filter(({ perRequest }) => perRequest === 0);
    this.#store = store;
    this.countsUsage = this.#ofTokens.length > 0;
  }

  /** Requests of this client, or at this provider, in flight. */
  get inFlight(): number {
    return this.#slots.at(-1)!.used.inFlight;
  }

  /** Counts a request that is in flight until `releaseSlot`, or returns a refusal. */
  acquireSlot(): GatewayError | undefined {
    const full = this.#slots.find(({ max, used }) => used.inFlight >= max);
    if (full) {
      const { limit, max, name, used } = full;
      const limitState = `${name}.max_concurrent_requests: ${used.inFlight} of ${max}`;
      // When one in flight will be over is not known.
      const details = { retryAfterSeconds: 1, limit, limitState };
      return new GatewayError('rateLimit', 'Too many requests at the same time', details);
    }
    for (const { used } of this.#slots) used.inFlight += 1;
    return undefined;
  }

  /** Ends what `acquireSlot` has counted. Throws `internal` if no request is in flight. */
  releaseSlot(): void {
    if (this.inFlight <= 0) throw GatewayError.from(new Error('a slot is released twice'));
    for (const { used } of this.#slots) used.inFlight -= 1;
  }

  /** Takes what a request takes of each bucket; or of none, and returns a refusal. */
  takeRequest(): Promise<GatewayError | undefined> | GatewayError | undefined {
    if (this.#buckets.length === 0) return undefined;
    return this.#store ? this.#takeStored(this.#store) : this.#takeLocally();
  }

  /** Gives back what `takeRequest` took: the request was not sent. */
  refundRequest(): void {
    this.#charge(-1, this.#ofRequests);
  }

  /** Takes the tokens that an answer has used. */
  takeTokens(usage: TokenUsage | undefined): void {
    const { prompt_tokens = 0, completion_tokens = 0, total_tokens } = usage ?? {};
    const total = total_tokens ?? prompt_tokens + completion_tokens;
    if (total > 0) this.#charge(Math.min(total, MAX_ANSWER_TOKENS), this.#ofTokens);
  }

  /** Returns what is used up of each bucket that is refilled by the minute or the day. */
  usedOfBuckets() {
    const nowMs = performance.now();
    const longer = this.#buckets.filter(({ periodSeconds }) => periodSeconds > 1);
    return longer.map(({ limit, capacity, local }) => {
      return { limit, capacity, used: Math.round(capacity - local.level(nowMs)) };
    });
  }

  #takeLocally(): GatewayError | undefined {
    const nowMs = performance.now();
    const waits = this.#buckets.map(({ local, perRequest }) =>
      local.waitMs(Math.max(perRequest, LEAST_TOKENS), nowMs),
    );
    // Before the longest wait is over, a request would be refused again.
    const longestMs = Math.max(...waits);
    if (longestMs > 0) return refuse(this.#buckets[waits.indexOf(longestMs)]!, longestMs);
    for (const { local, perRequest } of this.#buckets) local.take(perRequest);
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
    // If the store went away or came back meanwhile, they are put or taken in the wrong place.
    if (!this.#store?.charge(tokens, charged)) for (const { local } of charged) local.take(tokens);
  }
}

function refuse(bucket: Bucket, waitMs: number): GatewayError {
  const { name, limit, rate, periodSeconds, capacity } = bucket;
  const refill = `${rate} come each ${PERIOD_NAMES[periodSeconds]}`;
  const limitState = `${name}: no token left of ${capacity}, ${refill}`;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  const details = { retryAfterSeconds, limit, limitState };
  const which = periodSeconds > 1 ? `: ${name}` : '';
  return new GatewayError('rateLimit', `Rate limit exceeded${which}`, details);
}
