/** Limits on requests in all, of each client and at each provider, from the settings. */

import type { BucketSettings, Tenant, Config } from '../config/config.ts';
import type { Limit } from '../lib/errors.ts';
import { type Bucket, type ConcurrencyLimit, Limiter, type RateLimitStore } from './limiter.ts';
import { TokenBucket } from './token-bucket.ts';

export type Limiters = ReturnType<typeof createLimiters>;

/** What the limits of the next settings take over, by their names. */
interface LimitState {
  readonly used: Map<string, { inFlight: number }>;
  readonly buckets: Map<string, TokenBucket>;
}

/**
 * Creates the limits of the settings. What is in flight counts on after a reload, and buckets with
 * the same settings keep their tokens: `former` is the state of the limits before. Uses the buckets
 * of the store as long as it answers.
 */
export function createLimiters(
  { server, clients, providers, rateLimit }: Omit<Config, 'secrets'>,
  store?: RateLimitStore,
  former?: LimitState,
) {
  const { enabled, global } = rateLimit;
  const made = new LimitFactory(former);
  const inServer = made.slots('server', 'server_concurrency', server.maxConcurrentRequests);
  const ofAll = made.bySecond('rate_limit', 'global', enabled ? global : undefined);
  /** By the client's name; by undefined that of requests without a client. */
  const ofTenants = new Map<string | undefined, Limiter>();
  ofTenants.set(undefined, new Limiter([inServer], ofAll, store));
  for (const { name, limit, maxConcurrentRequests } of clients) {
    const slot = made.slots(`clients.${name}`, 'client_concurrency', maxConcurrentRequests);
    // A client's own buckets do not depend on `rate_limit.enabled`.
    const bySeconds = made.bySecond(`clients.${name}`, 'client', limit);
    const buckets = [...bySeconds, ...made.ofTenant(name, limit), ...ofAll];
    ofTenants.set(name, new Limiter([inServer, slot], buckets, store));
  }
  /** By the provider's id. */
  const ofProviders = new Map<string, Limiter>();
  for (const { id, maxConcurrentRequests } of providers.registered) {
    const slot = made.slots(`providers.${id}`, 'provider_concurrency', maxConcurrentRequests);
    const limit = enabled ? rateLimit.providers.get(id) : undefined;
    const buckets = made.bySecond(`rate_limit.providers.${id}`, 'provider', limit);
    ofProviders.set(id, new Limiter([slot], buckets, store));
  }
  return { ofTenants, ofProviders, state: made.state as Readonly<LimitState> };
}

/** Makes slots and buckets. Takes their counts over from those with the same name and settings. */
class LimitFactory {
  /** What was made, for the limits of the next settings. */
  readonly state: LimitState;
  readonly #former: LimitState | undefined;

  constructor(former: LimitState | undefined) {
    // A limit that is gone may come back while its requests are still in flight.
    const inUse = [...(former?.used ?? [])].filter(([, { inFlight }]) => inFlight > 0);
    this.state = { used: new Map(inUse), buckets: new Map() };
    this.#former = former;
  }

  /** A `max` of 0 is no limit. */
  slots(name: string, limit: Limit, max: number): ConcurrencyLimit {
    const used = this.#former?.used.get(name) ?? { inFlight: 0 };
    this.state.used.set(name, used);
    return { name, limit, max: max || Infinity, used };
  }

  /** Returns the bucket of a limit by the second; none if it is not set. */
  bySecond(name: string, limit: Limit, settings?: BucketSettings): readonly Bucket[] {
    const { requestsPerSecond: rate = 0, burstCapacity: capacity = 1 } = settings ?? {};
    return this.#bucket({ name, limit, rate, periodSeconds: 1, capacity, perRequest: 1 });
  }

  /** Returns the buckets of a client by the minute and the day, of requests and of tokens. */
  ofTenant(tenant: string, limits: Tenant['limit']): readonly Bucket[] {
    const rows = [
      ['requests_per_minute', limits.requestsPerMinute, 60, 1],
      ['tokens_per_minute', limits.tokensPerMinute, 60, 0],
      ['tokens_per_day', limits.tokensPerDay, 86_400, 0],
    ] as const;
    return rows.flatMap(([key, rate, periodSeconds, perRequest]) => {
      const [name, limit] = [`clients.${tenant}.${key}`, `client_${key}`] as const;
      return this.#bucket({ name, limit, rate, periodSeconds, capacity: rate, perRequest });
    });
  }

  /**
   * None if there is no limit. Its name is that of its section in the settings, or of the setting.
   */
  #bucket(settings: Omit<Bucket, 'local'>): readonly Bucket[] {
    const { name, rate, periodSeconds, capacity } = settings;
    if (rate === 0) return [];
    // The period: `clients.alice.requests_per_minute` may be a limit of alice or another client.
    const key = `${name} ${rate}/${capacity}/${periodSeconds}`;
    const kept = this.#former?.buckets.get(key);
    const local = kept ?? new TokenBucket(rate / periodSeconds, capacity);
    this.state.buckets.set(key, local);
    // So that it goes on from there while the store is away, and the page shows it.
    const onLack = (lack: number) => local.take(local.level(performance.now()) - (capacity - lack));
    return [{ ...settings, local, ...(periodSeconds > 1 && { onLack }) }];
  }
}
