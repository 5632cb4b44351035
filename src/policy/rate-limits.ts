/** The rate limits: one token bucket for all requests, and one for each provider that has a limit. */

import type { BucketSettings, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Limit } from '../lib/request-facts.ts';
import { TokenBucket } from './token-bucket.ts';

export interface Limits {
  /** Takes a token of the global bucket, or returns `rateLimit`. */
  takeGlobal(): GatewayError | undefined;
  /** Puts that token back if another limit refuses the request: both are taken or neither. */
  refundGlobal(): void;
  /** Takes a token of the provider's bucket, or returns `rateLimit`. */
  takeProvider(id: string): GatewayError | undefined;
}

/** Creates the buckets of the settings, full. */
export function createLimits(settings: Config['rateLimit']): Limits {
  const create = ({ requestsPerSecond, burstCapacity }: BucketSettings) =>
    settings.enabled && requestsPerSecond > 0
      ? new TokenBucket(requestsPerSecond, burstCapacity, performance.now())
      : undefined;
  const global = create(settings.global);
  const providers = new Map(
    [...settings.providers].map(([id, bucket]) => [id, create(bucket)] as const),
  );

  function take(bucket: TokenBucket | undefined, limit: Limit): GatewayError | undefined {
    const waitMs = bucket?.take(performance.now()) ?? 0;
    if (waitMs === 0) return undefined;
    const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
    return new GatewayError('rateLimit', 'Rate limit exceeded', { retryAfterSeconds, limit });
  }

  return {
    takeGlobal: () => take(global, 'global'),
    refundGlobal: () => global?.refund(),
    takeProvider: (id) => take(providers.get(id), 'provider'),
  };
}
