/** Shows clients what is left of their own limits, in the headers of OpenAI. */

import type { ResponseHeaders } from '../downstream/client-reply.ts';
import { formatCost } from '../lib/limits.ts';
import type { Limiter } from '../policy/limiter.ts';

/**
 * Sets `x-ratelimit-limit-*`, `-remaining-*` and `-reset-*` for `requests`, `tokens` and `cost`,
 * each from the client's limit with the least left. The provider's headers of these names are
 * removed first, because they describe the provider's key. A client without limits gets none.
 */
export function addLimitHeaders(headers: ResponseHeaders, limiter: Limiter): void {
  const levels = limiter.levelsOfTenant();
  if (levels.length === 0) return;
  for (const unit of ['requests', 'tokens', 'cost']) {
    const [limitName, remainingName, resetName] = ['limit', 'remaining', 'reset'].map(
      (name) => `x-ratelimit-${name}-${unit}`,
    ) as [string, string, string];
    for (const name of [limitName, remainingName, resetName]) delete headers[name];
    const level = levels.find((one) => one.unit === unit);
    if (!level) continue;
    headers[limitName] = formatCost(level.capacity);
    headers[remainingName] = formatCost(level.remaining);
    headers[resetName] = formatDuration(level.resetMs);
  }
}

/** Formats a time, rounded up, as OpenAI does: `20ms`, `1s`, `6m0s`, `23h59m2s`. */
function formatDuration(ms: number): string {
  const wholeMs = Math.ceil(ms);
  if (wholeMs < 1000) return wholeMs > 0 ? `${wholeMs}ms` : '0s';
  const seconds = Math.ceil(ms / 1000);
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60)];
  const parts = [hours && `${hours}h`, minutes && `${minutes % 60}m`, `${seconds % 60}s`];
  return parts.filter(Boolean).join('');
}
