/** Limits on requests in all, of each client and at each provider: those in flight, and token buckets. */

import type { BucketSettings, ClientSettings, Config } from '../config/config.ts';
import type { TokenUsage } from '../request/usage.ts';
import { GatewayError, type Limit } from '../lib/errors.ts';
import { TokenBucket } from './token-bucket.ts';

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
  /** Takes what the bucket lacks, as the store tells it; only if the period is longer than a second. */
  readonly onLack?: (tokens: number) => void;
}

export type Taken = 'taken' | { readonly refusedBy: StoredBucket; readonly waitMs: number };

/** Never rejects or throws. */
export interface RateLimitStore {
  /** Takes what a request takes of each bucket, or of none. Undefined if the store does not say so in time. */
  take(buckets: readonly StoredBucket[]): Promise<Taken | undefined>;
  /** Takes so many tokens of each, also below zero; puts them back if negative. Returns false, and does nothing, if it is away. */
  charge(tokens: number, buckets: readonly StoredBucket[]): boolean;
  /** Connects, and again after each failure. Resolves when it is connected or the first attempt has failed. */
  connect(): Promise<void>;
}

/** A limit on requests in flight. Without a limit, `max` is infinite and they are counted only. */
type Slots = { name: string; limit: Limit; max: number; used: { inFlight: number } };

/** `local` is in the memory of this process. */
type Bucket = StoredBucket & { limit: Limit; local: TokenBucket };

const PERIOD_NAMES: Readonly<Record<number, string>> = { 1: 'second', 60: 'minute', 86_400: 'day' };
/** Above zero, for a bucket of which a request takes nothing. */
const LEAST_TOKENS = 1e-6;
/** What a provider counts beyond it is no count: a client would be refused for years. */
const MAX_ANSWER_TOKENS = 1e9;

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
  /** None if there is no limit. Its name is that of its section in the settings, or of the setting. */
  const bucket = (settings: Omit<Bucket, 'local'>): readonly Bucket[] => {
    const { name, rate, periodSeconds, capacity } = settings;
    if (rate === 0) return [];
    const key = `${name} ${rate}/${capacity}`;
    const kept = former?.buckets.get(key);
    const local = kept ?? new TokenBucket(rate / periodSeconds, capacity);
    state.buckets.set(key, local);
    // So that it goes on from there while the store is away, and the page shows it.
    const onLack = (lack: number) => local.take(local.level(performance.now()) - (capacity - lack));
    return [{ ...settings, local, ...(periodSeconds > 1 && { onLack }) }];
  };
  const bySecond = (name: string, limit: Limit, settings?: BucketSettings) => {
    const { requestsPerSecond: rate = 0, burstCapacity: capacity = 1 } = settings ?? {};
    return bucket({ name, limit, rate, periodSeconds: 1, capacity, perRequest: 1 });
  };
  const ofClient = (client: string, limits: ClientSettings['limit']) => {
    const rows = [
      ['requests_per_minute', limits.requestsPerMinute, 60, 1],
      ['tokens_per_minute', limits.tokensPerMinute, 60, 0],
      ['tokens_per_day', limits.tokensPerDay, 86_400, 0],
    ] as const;
    return rows.flatMap(([key, rate, periodSeconds, perRequest]) => {
      const [name, limit] = [`clients.${client}.${key}`, `client_${key}`] as const;
      return bucket({ name, limit, rate, periodSeconds, capacity: rate, perRequest });
    });
  };
  const inServer = slots('server', 'server_concurrency', server.maxConcurrentRequests);
  const ofAll = bySecond('rate_limit', 'global', enabled ? global : undefined);
  /** By the client's name; by undefined that of requests without a client. */
  const ofClients = new Map<string | undefined, Limiter>();
  ofClients.set(undefined, createLimiter([inServer], ofAll, store));
  for (const { name, limit, maxConcurrentRequests } of clients) {
    const own = slots(`clients.${name}`, 'client_concurrency', maxConcurrentRequests);
    // A client's own buckets do not depend on `rate_limit.enabled`.
    const bySeconds = bySecond(`clients.${name}`, 'client', limit);
    const buckets = [...bySeconds, ...ofClient(name, limit), ...ofAll];
    ofClients.set(name, createLimiter([inServer, own], buckets, store));
  }
  /** By the provider's id. */
  const ofProviders = new Map<string, Limiter>();
  for (const { id, maxConcurrentRequests } of providers.registered) {
    const own = slots(`providers.${id}`, 'provider_concurrency', maxConcurrentRequests);
    const limit = enabled ? rateLimit.providers.get(id) : undefined;
    const buckets = bySecond(`rate_limit.providers.${id}`, 'provider', limit);
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
  const ofRequests = buckets.filter(({ perRequest }) => perRequest > 0);
  const ofTokens = buckets.filter(({ perRequest }) => perRequest === 0);
  const takeLocally = (): GatewayError | undefined => {
    const nowMs = performance.now();
    const waits = buckets.map(({ local, perRequest }) =>
      local.waitMs(Math.max(perRequest, LEAST_TOKENS), nowMs),
    );
    // Before the longest wait is over, a request would be refused again.
    const longestMs = Math.max(...waits);
    if (longestMs > 0) return refuse(buckets[waits.indexOf(longestMs)]!, longestMs);
    for (const { local, perRequest } of buckets) local.take(perRequest);
    return undefined;
  };
  const takeStored = async (): Promise<GatewayError | undefined> => {
    const taken = await store!.take(buckets);
    if (taken === undefined) return takeLocally();
    if (taken === 'taken') return undefined;
    const refusing = buckets.find(({ name }) => name === taken.refusedBy.name)!;
    return refuse(refusing, taken.waitMs);
  };
  const charge = (tokens: number, charged: readonly Bucket[]): void => {
    if (charged.length === 0) return;
    // If the store went away or came back meanwhile, they are put or taken in the wrong place.
    if (!store?.charge(tokens, charged)) for (const { local } of charged) local.take(tokens);
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
    /** Takes what a request takes of each bucket; or of none, and returns a refusal. Only with a store there is something to wait for. */
    takeTokens() {
      if (buckets.length === 0) return undefined;
      return store ? takeStored() : takeLocally();
    },
    /** Puts that back if another limit refuses the request. */
    refundTokens: (): void => charge(-1, ofRequests),
    /** The tokens of answers are to be told to `takeUsage`. */
    countsUsage: ofTokens.length > 0,
    /** Takes the tokens that an answer has used. */
    takeUsage(usage: TokenUsage | undefined): void {
      const { prompt_tokens = 0, completion_tokens = 0, total_tokens } = usage ?? {};
      const total = total_tokens ?? prompt_tokens + completion_tokens;
      if (total > 0) charge(Math.min(total, MAX_ANSWER_TOKENS), ofTokens);
    },
    /** Returns what is used up of each bucket that is refilled by the minute or the day. */
    usedOfBuckets() {
      const nowMs = performance.now();
      const longer = buckets.filter(({ periodSeconds }) => periodSeconds > 1);
      return longer.map(({ limit, capacity, local }) => {
        return { limit, capacity, used: Math.round(capacity - local.level(nowMs)) };
      });
    },
  };
}

function refuse(bucket: Bucket, waitMs: number): GatewayError {
  const { name, limit, rate, periodSeconds, capacity } = bucket;
  const limitState = `${name}: no token left of ${capacity}, ${rate} come each ${PERIOD_NAMES[periodSeconds]}`;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  const details = { retryAfterSeconds, limit, limitState };
  const which = periodSeconds > 1 ? `: ${name}` : '';
  return new GatewayError('rateLimit', `Rate limit exceeded${which}`, details);
}
