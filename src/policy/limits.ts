/** Limits on requests in all, of each client and at each provider: those in flight, and token buckets. */

import type { BucketSettings, Config } from '../config/config.ts';
import { GatewayError, type Limit } from '../lib/errors.ts';
import { TokenBucket } from './token-bucket.ts';

/** A token bucket that a store keeps for several gateways. */
export interface StoredBucket {
  /** The same in each gateway for the same limit, such as `clients.alice`. */
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
type Slots = { name: string; limit: Limit; max: number; used: { inFlight: number } };

/** `local` is in the memory of this process. */
type Bucket = StoredBucket & { limit: Limit; local: TokenBucket };

export type Limits = ReturnType<typeof createLimits>;

/** What the limits of the next settings take over, by their names. */
interface LimitState {
  readonly used: Map<string, { inFlight: number }>;
  readonly buckets: Map<string, TokenBucket>;
}

/**
 * Creates the limits of the settings. What is in flight counts on after a reload, and buckets with the same settings keep
 * their tokens: `former` is the state of the limits before. Uses the buckets of the store as long as it answers.
 */
export function createLimits(
  { server, clients, providers, rateLimit }: Omit<Config, 'secrets'>,
  store?: RateLimitStore,
  former?: LimitState,
) {
  // A limit that is gone may come back while its requests are still in flight.
  const inUse = [...(former?.used ?? [])].filter(([, { inFlight }]) => inFlight > 0);
  const state: LimitState = { used: new Map(inUse), buckets: new Map() };
  const { enabled, global } = rateLimit;
  const slots = (name: string, limit: Limit, max: number): Slots => {
    const used = former?.used.get(name) ?? { inFlight: 0 };
    state.used.set(name, used);
    return { name, limit, max: max || Infinity, used };
  };
  /** None if there is no limit. `name` is that of its section in the settings. */
  const bucket = (name: string, limit: Limit, settings?: BucketSettings): readonly Bucket[] => {
    if (!settings?.requestsPerSecond) return [];
    const { requestsPerSecond, burstCapacity } = settings;
    const key = `${name} ${requestsPerSecond}/${burstCapacity}`;
    const kept = former?.buckets.get(key);
    const local = kept ?? new TokenBucket(requestsPerSecond, burstCapacity);
    state.buckets.set(key, local);
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
  return { ofClients, ofProviders, state: state as Readonly<LimitState> };
}

export type Limiter = ReturnType<typeof createLimiter>;

/** The limits that one request meets. A refusal is `rateLimit`. */
function createLimiter(
  slots: readonly Slots[],
  buckets: readonly Bucket[],
  store: RateLimitStore | undefined,
) {
  const takeLocally = (): GatewayError | undefined => {
    const nowMs = performance.now();
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
    /** Requests of this client, or at this provider, in flight. */
    get inFlight(): number {
      return slots.at(-1)!.used.inFlight;
    },
    /** Counts a request that is in flight until `releaseSlot`, or returns a refusal. */
    acquireSlot(): GatewayError | undefined {
      const full = slots.find(({ max, used }) => used.inFlight >= max);
      if (full) {
        const { limit, max, name, used } = full;
        const limitState = `${name}.max_concurrent_requests: ${used.inFlight} of ${max}`;
        // When one in flight will be over is not known.
        const details = { retryAfterSeconds: 1, limit, limitState };
        return new GatewayError('rateLimit', 'Too many requests at the same time', details);
      }
      for (const { used } of slots) used.inFlight += 1;
      return undefined;
    },
    releaseSlot: (): void => {
      for (const { used } of slots) used.inFlight -= 1;
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
