/** Limits on requests in all, of each client and at each provider: those in flight, and token buckets. */

import type { BucketSettings, Config } from '../config/config.ts';
import { GatewayError, type Limit } from '../lib/errors.ts';
import { type SharedCounter, type SharedMemory, sharedNowMs } from '../lib/shared-memory.ts';

const NS_PER_MS = 1e6;

/** A token bucket that a store keeps for several gateways. */
export interface StoredBucket {
  /** The same in each thread and each replica for the same limit, such as `clients.alice`. */
  readonly name: string;
  readonly requestsPerSecond: number;
  readonly burstCapacity: number;
}

export type Taken = 'taken' | { readonly refusedBy: StoredBucket; readonly waitMs: number };

/** Never rejects or throws. */
export interface RateLimitStore {
  /** Takes a token of each bucket, or of none. Undefined if the store does not say so in time. */
  take(buckets: readonly StoredBucket[]): Promise<Taken | undefined>;
  /** Puts a token back into each. Returns false, and does nothing, if the store is away. */
  refund(buckets: readonly StoredBucket[]): boolean;
  /** Connects, and again after each failure. Resolves when it is connected or the first attempt has failed. */
  connect(): Promise<void>;
}

/** A limit on requests in flight. Without a limit, `max` is infinite and they are counted only. */
type Slots = { name: string; limit: Limit; max: number; inFlight: SharedCounter };

/** `local` is in the memory of this process. */
type Bucket = StoredBucket & { limit: Limit; local: ReturnType<typeof createTokenBucket> };

export type Limits = ReturnType<typeof createLimits>;

/**
 * Finds the counters and buckets of the settings in `memory`: over a reload what is in flight counts on, and buckets with
 * the same settings keep their tokens. Uses the buckets of the store as long as it answers.
 */
export function createLimits(
  { server, clients, providers, rateLimit }: Omit<Config, 'secrets'>,
  memory: SharedMemory,
  store?: RateLimitStore,
) {
  const { enabled, global } = rateLimit;
  const slots = (name: string, limit: Limit, max: number): Slots => {
    return { name, limit, max: max || Infinity, inFlight: memory.inFlightCounter(name) };
  };
  /** None if there is no limit. `name` is that of its section in the settings. */
  const bucket = (name: string, limit: Limit, settings?: BucketSettings): readonly Bucket[] => {
    if (!settings?.requestsPerSecond) return [];
    const { requestsPerSecond, burstCapacity } = settings;
    const block = memory.block(`bucket: ${name} ${requestsPerSecond}/${burstCapacity}`, 8);
    const local = createTokenBucket(requestsPerSecond, burstCapacity, block);
    return [{ name, limit, requestsPerSecond, burstCapacity, local }];
  };
  const inServer = slots('server', 'server_concurrency', server.maxConcurrentRequests);
  const ofAll = bucket('rate_limit', 'global', enabled ? global : undefined);
  /** By the client's name; by undefined that of requests without a client. */
  const ofClients = new Map<string | undefined, Limiter>();
  ofClients.set(undefined, createLimiter([inServer], ofAll, store));
  for (const { name, limit, maxConcurrentRequests } of clients) {
    const own = slots(`clients.${name}`, 'client_concurrency', maxConcurrentRequests);
    // A client's own bucket does not depend on `rate_limit.enabled`.
    const buckets = [...bucket(`clients.${name}`, 'client', limit), ...ofAll];
    ofClients.set(name, createLimiter([inServer, own], buckets, store));
  }
  /** By the provider's id. */
  const ofProviders = new Map<string, Limiter>();
  for (const { id, maxConcurrentRequests } of providers.registered) {
    const own = slots(`providers.${id}`, 'provider_concurrency', maxConcurrentRequests);
    const limit = enabled ? rateLimit.providers.get(id) : undefined;
    const buckets = bucket(`rate_limit.providers.${id}`, 'provider', limit);
    ofProviders.set(id, createLimiter([own], buckets, store));
  }
  return { ofClients, ofProviders };
}

type Limiter = ReturnType<typeof createLimiter>;

/** The limits that one request meets. A refusal is `rateLimit`. */
function createLimiter(
  slots: readonly Slots[],
  buckets: readonly Bucket[],
  store: RateLimitStore | undefined,
) {
  const takeLocally = (): GatewayError | undefined => {
    const nowMs = sharedNowMs();
    for (const [index, bucket] of buckets.entries()) {
      const waitMs = bucket.local.take(nowMs);
      if (waitMs === 0) continue;
      for (const taken of buckets.slice(0, index)) taken.local.refund();
      return refuse(bucket, waitMs);
    }
    return undefined;
  };
  const takeStored = async (): Promise<GatewayError | undefined> => {
    const taken = await store!.take(buckets);
    if (taken === undefined) return takeLocally();
    if (taken === 'taken') return undefined;
    const refusing = buckets.find(({ name }) => name === taken.refusedBy.name)!;
    return refuse(refusing, taken.waitMs);
  };
  return {
    /** Requests of this client, or at this provider, in flight in all threads. */
    get inFlight(): number {
      return slots.at(-1)!.inFlight.value;
    },
    /** Counts a request that is in flight until `releaseSlot`, or returns a refusal. */
    acquireSlot(): GatewayError | undefined {
      for (const [index, { inFlight, limit, max, name }] of slots.entries()) {
        if (inFlight.addWithin(1, max)) continue;
        for (const begun of slots.slice(0, index)) begun.inFlight.add(-1);
        const limitState = `${name}.max_concurrent_requests: ${inFlight.value} of ${max}`;
        // When one in flight will be over is not known.
        const details = { retryAfterSeconds: 1, limit, limitState };
        return new GatewayError('rateLimit', 'Too many requests at the same time', details);
      }
      return undefined;
    },
    releaseSlot(): void {
      for (const { inFlight } of slots) inFlight.add(-1);
    },
    /** Takes a token of each bucket; or of none, and returns a refusal. Only with a store there is something to wait for. */
    takeTokens() {
      if (buckets.length === 0) return undefined;
      return store ? takeStored() : takeLocally();
    },
    /** Puts the tokens back if another limit refuses the request. */
    refundTokens(): void {
      if (buckets.length === 0) return;
      // If the store went away or came back meanwhile, one token is put back in the wrong place.
      if (!store?.refund(buckets)) for (const { local } of buckets) local.refund();
    },
  };
}

function refuse(bucket: Bucket, waitMs: number): GatewayError {
  const { name, limit, requestsPerSecond, burstCapacity } = bucket;
  const limitState = `${name}: no token left of ${burstCapacity}, ${requestsPerSecond} come each second`;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  const details = { retryAfterSeconds, limit, limitState };
  return new GatewayError('rateLimit', 'Rate limit exceeded', details);
}

/**
 * A token bucket in one cell of shared memory, which holds the time at which it is full again, as GCRA does with its
 * theoretical arrival time: a token taken moves it forward by the time that one token takes. Threads may take at the same
 * time: each token is taken once. Times are in milliseconds of `sharedNowMs()`. `block` has 8 bytes; filled with zeros it
 * is a full bucket. `tokensPerSecond` and `capacity` are whole and above zero.
 */
export function createTokenBucket(
  tokensPerSecond: number,
  capacity: number,
  block: SharedArrayBuffer,
) {
  // In nanoseconds, and a whole number: sums of them are exact.
  const perToken = BigInt(Math.floor((1000 * NS_PER_MS) / tokensPerSecond));
  const perBucket = perToken * BigInt(capacity);
  const cell = new BigInt64Array(block);
  return {
    /** Takes a token and returns 0; or takes none and returns the milliseconds until the next one. */
    take(nowMs: number): number {
      const now = BigInt(Math.floor(nowMs * NS_PER_MS));
      for (;;) {
        const fullAt = Atomics.load(cell, 0);
        const next = (fullAt > now ? fullAt : now) + perToken;
        const wait = next - now - perBucket;
        if (wait > 0n) return Number(wait) / NS_PER_MS;
        if (Atomics.compareExchange(cell, 0, fullAt, next) === fullAt) return 0;
      }
    },
    /** Puts one token back. */
    refund: () => void Atomics.sub(cell, 0, perToken),
  };
}
