/** The rate limits: a token bucket for all requests, and one for each client and each provider that has a limit. */

import type { BucketSettings, ClientSettings, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Limit } from '../lib/request-facts.ts';
import { TokenBucket } from './token-bucket.ts';

export interface Limits {
  /** Takes a token of the client's bucket and one of the global bucket, or neither and returns `rateLimit`. */
  takeRequest(client: ClientSettings | undefined): GatewayError | undefined;
  /** Puts them back if another limit refuses the request: all are taken or none. */
  refundRequest(client: ClientSettings | undefined): void;
  /** Takes a token of the provider's bucket, or returns `rateLimit`. */
  takeProvider(id: string): GatewayError | undefined;
}

/** Creates the buckets of the settings, full. Those of clients do not depend on `rate_limit.enabled`. */
export function createLimits({
  rateLimit,
  clients,
}: Pick<Config, 'rateLimit' | 'clients'>): Limits {
  const global = rateLimit.enabled ? createBucket(rateLimit.global) : undefined;
  const byProvider = createBuckets(rateLimit.enabled ? rateLimit.providers : []);
  const byClient = createBuckets(clients.map(({ name, limit }) => [name, limit]));
  const bucketOf = (client: ClientSettings | undefined) => client && byClient.get(client.name);

  return {
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
    takeProvider: (id) => take(byProvider.get(id), 'provider'),
  };
}

function createBuckets(
  settings: Iterable<readonly [name: string, bucket: BucketSettings]>,
): ReadonlyMap<string, TokenBucket | undefined> {
  return new Map([...settings].map(([name, bucket]) => [name, createBucket(bucket)]));
}

/** Returns undefined if there is no limit. */
function createBucket({ requestsPerSecond, burstCapacity }: BucketSettings) {
  if (requestsPerSecond === 0) return undefined;
  return new TokenBucket(requestsPerSecond, burstCapacity, performance.now());
}

function take(bucket: TokenBucket | undefined, limit: Limit): GatewayError | undefined {
  const waitMs = bucket?.take(performance.now()) ?? 0;
  if (waitMs === 0) return undefined;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  return new GatewayError('rateLimit', 'Rate limit exceeded', { retryAfterSeconds, limit });
}
