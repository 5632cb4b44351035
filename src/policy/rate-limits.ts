/** The rate limits: a token bucket for all requests, and one for each client and each provider that has a limit. */

import type { ClientSettings, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Limit } from '../lib/request-facts.ts';
import { TokenBucket } from './token-bucket.ts';

export interface Limits {
  readonly buckets: Buckets;
  /** Takes a token of the client's bucket and one of the global bucket, or neither and returns `rateLimit`. */
  takeRequest(client: ClientSettings | undefined): GatewayError | undefined;
  /** Puts them back if another limit refuses the request: all are taken or none. */
  refundRequest(client: ClientSettings | undefined): void;
  /** Takes a token of the provider's bucket, or returns `rateLimit`. */
  takeProvider(id: string): GatewayError | undefined;
}

/** By the names of their sections in the settings. */
type Buckets = ReadonlyMap<string, TokenBucket>;

/** Creates the buckets of the settings. Those that `former` had with the same settings keep their tokens. */
export function createLimits(
  config: Pick<Config, 'rateLimit' | 'clients'>,
  former?: Limits,
): Limits {
  const buckets = createBuckets(config, former?.buckets);
  const global = buckets.get(GLOBAL);
  const bucketOf = (client: ClientSettings | undefined) =>
    client && buckets.get(clientBucket(client.name));

  return {
    buckets,
    takeRequest(client) {
      const own = bucketOf(client);
      const refusal = take(own, 'client') ?? take(global, 'global');
      if (refusal?.facts.limit === 'global') own?.refund();
      return refusal;
    },
    refundRequest(client) {
      global?.refund();
      bucketOf(client)?.refund();
    },
    takeProvider: (id) => take(buckets.get(providerBucket(id)), 'provider'),
  };
}

const GLOBAL = 'rate_limit';
const providerBucket = (id: string) => `rate_limit.providers.${id}`;
const clientBucket = (name: string) => `clients.${name}`;

/** Creates full ones. Those of clients do not depend on `rate_limit.enabled`. */
function createBuckets(
  { rateLimit, clients }: Pick<Config, 'rateLimit' | 'clients'>,
  former?: Buckets,
): Buckets {
  const settings = new Map(clients.map(({ name, limit }) => [clientBucket(name), limit]));
  if (rateLimit.enabled) {
    settings.set(GLOBAL, rateLimit.global);
    for (const [id, limit] of rateLimit.providers) settings.set(providerBucket(id), limit);
  }
  const buckets = new Map<string, TokenBucket>();
  for (const [name, { requestsPerSecond, burstCapacity }] of settings) {
    // No limit.
    if (requestsPerSecond === 0) continue;
    const kept = former?.get(name);
    const isSame = kept?.tokensPerSecond === requestsPerSecond && kept.capacity === burstCapacity;
    const created = new TokenBucket(requestsPerSecond, burstCapacity, performance.now());
    buckets.set(name, isSame ? kept : created);
  }
  return buckets;
}

function take(bucket: TokenBucket | undefined, limit: Limit): GatewayError | undefined {
  const waitMs = bucket?.take(performance.now()) ?? 0;
  if (waitMs === 0) return undefined;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  return new GatewayError('rateLimit', 'Rate limit exceeded', { retryAfterSeconds, limit });
}
