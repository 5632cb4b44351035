/** Tells the operator of a provider that fails often: fallbacks and retries hide it from clients. */

import { causeOf } from '../request/record.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';

/** In ticks of a tenth of a second: as whole numbers of 32 bits they cost a request next to nothing. */
const TICK_MS = 100;
const WINDOW_TICKS = 600;
const MIN_TRIES = 10;
/** Below 500, the failures that are not the client's own. */
const PROVIDER_STATUSES = new Set([401, 403, 408, 429]);

export type ProviderHealth = ReturnType<typeof createProviderHealth>;

/**
 * Returns a function that takes the end of a try of one provider, and counts them in windows of a minute. It logs `provider
 * failing` when at least half of ten or more tries have failed, and `provider works again` in a later window of ten or more
 * in which fewer than half have.
 */
export function createProviderHealth(provider: string, logger: Logger) {
  let start = -Infinity;
  let tries = 0;
  let failures = 0;
  /** The start of the window that was told of. */
  let failingSince: number | undefined;
  return (failure: GatewayError | undefined): void => {
    if (failure && !failure.isProviders) return;
    const isFailure =
      failure !== undefined && (failure.status >= 500 || PROVIDER_STATUSES.has(failure.status));
    const now = Math.floor(performance.now() / TICK_MS);
    if (now - start >= WINDOW_TICKS) {
      start = now;
      tries = 0;
      failures = 0;
    }
    tries += 1;
    failures += Number(isFailure);
    const isFailing = failures * 2 >= tries;
    const facts = { provider, tries, failures };
    if (tries < MIN_TRIES) return;
    if (isFailure && isFailing && failingSince === undefined) {
      failingSince = start;
      logger.log('warn', 'provider failing', { ...facts, cause: causeOf(failure) });
    }
    // Not within the same minute: half of the tries would log a line each.
    if (isFailing || failingSince === undefined || failingSince === start) return;
    failingSince = undefined;
    logger.log('info', 'provider works again', facts);
  };
}
