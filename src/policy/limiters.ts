/** Creates the limiters for all requests, each client and each provider from the settings. */

import type { BucketSettings, Tenant, Config } from '../config/config.ts';
import { CLIENT_BUCKETS, CLIENT_WINDOWS, LIMITS, type Limit } from '../lib/limits.ts';
import { CalendarWindow } from './calendar-window.ts';
import {
  type Bucket,
  type ConcurrencyLimit,
  Limiter,
  type RateLimitStore,
  type RefilledBucket,
} from './limiter.ts';
import { TokenBucket } from './token-bucket.ts';
import { SlotQueue, type Slots } from './waiting.ts';

export type Limiters = ReturnType<typeof createLimiters>;

/** The state of all limiters, by name. */
interface LimiterState {
  readonly used: Map<string, Slots>;
  readonly buckets: Map<string, TokenBucket>;
  readonly windows: Map<string, CalendarWindow>;
}

/**
 * `former` is the state before a reload: requests in flight still count, and buckets with the same
 * settings keep their units, and windows their sums. While `store` answers, its buckets and sums
 * are used instead of those in memory.
 */
export function createLimiters(
  { server, clients, providers, rateLimit }: Omit<Config, 'secrets'>,
  store?: RateLimitStore,
  former?: LimiterState,
) {
  const { enabled, global } = rateLimit;
  const made = new LimitFactory(former);
  const inServer = made.concurrency('server', 'server_concurrency', server.maxConcurrentRequests);
  const ofAll = made.bySecond('rate_limit', 'global', enabled ? global : undefined);
  /** Limiters by the client's name; undefined is the name for requests without a client. */
  const ofTenants = new Map<string | undefined, Limiter>();
  ofTenants.set(undefined, new Limiter([inServer], ofAll, store));
  for (const { name, limit: limits, maxConcurrentRequests } of clients) {
    const inClient = made.concurrency(
      `clients.${name}`,
      'client_concurrency',
      maxConcurrentRequests,
    );
    // A client's buckets apply even if `rate_limit.enabled` is false.
    const bySeconds = made.bySecond(`clients.${name}`, 'client', limits);
    const buckets = [...bySeconds, ...made.tenantBuckets(name, limits), ...ofAll];
    ofTenants.set(name, new Limiter([inServer, inClient], buckets, store));
  }
  const ofProviders = new Map<string, Limiter>();
  for (const { id, maxConcurrentRequests, maxWaiting } of providers.registered) {
    const inProvider = made.concurrency(
      `providers.${id}`,
      'provider_concurrency',
      maxConcurrentRequests,
      maxWaiting,
    );
    const limits = enabled ? rateLimit.providers.get(id) : undefined;
    const name = `rate_limit.providers.${id}`;
    const bySeconds = made.bySecond(name, 'provider', limits);
    const byMinutes = made.byMinute(name, limits?.requestsPerMinute);
    ofProviders.set(id, new Limiter([inProvider], [...bySeconds, ...byMinutes], store));
  }
  return { ofTenants, ofProviders, state: made.state as Readonly<LimiterState> };
}

class LimitFactory {
  readonly state: LimiterState;
  readonly #former: LimiterState | undefined;

  constructor(former: LimiterState | undefined) {
    // The count of a limit with requests in flight is kept even if the settings have no such limit
    // now: a later reload may bring the limit back before these requests end.
    const inUse = [...(former?.used ?? [])].filter(([, { inFlight }]) => inFlight > 0);
    // The sum of a client or limit that the settings leave out is kept until its day or month ends,
    // because a later reload may bring the limit back within the same window.
    const now = Date.now();
    const open = [...(former?.windows ?? [])].filter(([, { sum }]) => sum.endTime > now);
    this.state = { used: new Map(inUse), buckets: new Map(), windows: new Map(open) };
    this.#former = former;
  }

  /** `maxWaiting` more requests may wait for a slot. A `max` of 0 means no limit. */
  concurrency(name: string, limit: Limit, max: number, maxWaiting = 0): ConcurrencyLimit {
    const used = this.#former?.used.get(name) ?? { inFlight: 0, queue: undefined };
    this.state.used.set(name, used);
    if (maxWaiting > 0) used.queue ??= new SlotQueue(used);
    used.queue?.configure(max || Infinity, maxWaiting);
    return { name, limit, max: max || Infinity, used };
  }

  bySecond(name: string, limit: Limit, settings?: BucketSettings): readonly Bucket[] {
    const { requestsPerSecond: rate = 0, burstCapacity: capacity = 1 } = settings ?? {};
    return this.#bucket({ name, limit, rate, periodSeconds: 1, capacity, perRequest: 1 });
  }

  byMinute(section: string, rate = 0): readonly Bucket[] {
    const limit = 'provider_requests_per_minute';
    const name = `${section}.requests_per_minute`;
    return this.#bucket({ name, limit, rate, periodSeconds: 60, capacity: rate, perRequest: 1 });
  }

  tenantBuckets(tenant: string, limits: Tenant['limit']): readonly Bucket[] {
    const buckets = CLIENT_BUCKETS.flatMap(
      ({ limit, setting, property, counts, periodSeconds }) => {
        const name = `clients.${tenant}.${setting}`;
        const rate = limits[property];
        const perRequest = Number(counts === 'requests');
        return this.#bucket({ name, limit, rate, periodSeconds, capacity: rate, perRequest });
      },
    );
    const windows = CLIENT_WINDOWS.flatMap(({ limit, setting, property, counts, period }) => {
      const name = `clients.${tenant}.${setting}`;
      const capacity = limits[property];
      if (capacity === 0) return [];
      // A changed limit keeps the sum, because the day or the month is the same.
      const sum = this.#former?.windows.get(name)?.sum;
      const local = new CalendarWindow(period, capacity, sum);
      this.state.windows.set(name, local);
      return { name, limit, counts, period, capacity, perRequest: 0 as const, local };
    });
    return [...buckets, ...windows];
  }

  #bucket(settings: Omit<RefilledBucket, 'local'>): readonly Bucket[] {
    const { name, limit, rate, periodSeconds, capacity } = settings;
    if (rate === 0) return [];
    // The key contains the period, because the limit per second of a client named
    // `alice.requests_per_minute` has the same name as alice's limit per minute.
    const key = `${name} ${rate}/${capacity}/${periodSeconds}`;
    const kept = this.#former?.buckets.get(key);
    const local = kept ?? new TokenBucket(rate / periodSeconds, capacity);
    this.state.buckets.set(key, local);
    // The local bucket takes over while the store is away, and the client and the page are shown
    // its level.
    const onLack = (lack: number) => {
      const nowMs = performance.now();
      local.take(local.level(nowMs) - (capacity - lack), nowMs);
    };
    const isOfTenant = LIMITS[limit].of === 'client';
    return [{ ...settings, local, ...(isOfTenant && { onLack }) }];
  }
}
