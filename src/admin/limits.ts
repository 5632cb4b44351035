/** The limits of the settings as samples of a metric. */

import type { Config } from '../config/config.ts';
import { NO_LABELS, type LabelSet } from './labels.ts';

/** Returns those that are set, by the `reason` of a refusal. */
export function limitsOf({
  clients,
  providers,
  rateLimit,
  server,
}: Config): readonly (readonly [labels: LabelSet, value: number])[] {
  const limit = (name: string) => NO_LABELS.with('limit', name);
  const { enabled, global } = rateLimit;
  return [
    [limit('server_concurrency'), server.maxConcurrentRequests] as const,
    [limit('memory'), server.maxBufferedBytes] as const,
    [limit('global'), enabled ? global.requestsPerSecond : 0] as const,
    ...clients.flatMap(({ name, maxConcurrentRequests, limit: { requestsPerSecond } }) => [
      [limit('client_concurrency').with('client', name), maxConcurrentRequests] as const,
      [limit('client').with('client', name), requestsPerSecond] as const,
    ]),
    ...providers.registered.map(
      ({ id, maxConcurrentRequests }) =>
        [limit('provider_concurrency').with('provider', id), maxConcurrentRequests] as const,
    ),
    ...[...(enabled ? rateLimit.providers : [])].map(
      ([id, { requestsPerSecond }]) =>
        [limit('provider').with('provider', id), requestsPerSecond] as const,
    ),
  ].filter(([, value]) => value > 0 && value < Infinity);
}
