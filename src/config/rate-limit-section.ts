/** `[rate_limit]`: buckets for all requests and for each provider, and what keeps the buckets. */

import { didYouMean } from '../lib/did-you-mean.ts';
import { Secret } from '../lib/secrets.ts';
import { toBucket, type BucketSettings, type ClientSettings } from './clients-section.ts';
import type { SectionReader } from './section-reader.ts';
import { SETTINGS } from './settings-table.ts';
import { readStore, type StoreSettings } from './store-section.ts';

export interface RateLimitSettings {
  readonly enabled: boolean;
  readonly global: BucketSettings;
  readonly providers: ReadonlyMap<string, BucketSettings>;
  /** What keeps the buckets for several gateways. */
  readonly store: StoreSettings | undefined;
  /** As it is written; only to be hidden. */
  readonly storeUrl: Secret | undefined;
}

/**
 * Reads the section. `known` are the ids of all providers; `clients` may have limits of their own, for which a store has
 * an effect too.
 */
export function readRateLimit(
  section: SectionReader,
  known: readonly string[],
  clients: readonly ClientSettings[],
): RateLimitSettings {
  const { enabled, store: url, prefix, ...bucket } = section.values(SETTINGS.rate_limit);
  const global = toBucket(bucket);
  const byProvider = section.section('providers');
  const providers = new Map<string, BucketSettings>();
  for (const id of byProvider.remainingKeys()) {
    const own = byProvider.section(id);
    providers.set(id, toBucket(own.values(SETTINGS['rate_limit.providers.<id>'])));
    if (!known.includes(id)) byProvider.problem(id, `no such provider${didYouMean(id, known)}`);
  }
  const isLimit = ({ requestsPerSecond }: BucketSettings) => requestsPerSecond > 0;
  const isLimited = [global, ...providers.values()].some(isLimit);
  if (!enabled && isLimited) {
    const why = 'rate_limit.enabled (GATEWAY_RATE_LIMIT_ENABLED) is false';
    section.warning('requests_per_second', `has no effect: ${why}`);
  }
  const store = readStore({ store: url, prefix }, section);
  if (store && !(enabled && isLimited) && !clients.some(({ limit }) => isLimit(limit))) {
    section.warning('store', 'has no effect: there is no rate limit');
  }
  const storeUrl = url === undefined ? undefined : new Secret(url, { isKey: false });
  return { enabled, global, providers, store, storeUrl };
}
