/** Tells the operator of a provider that fails often: fallbacks and retries hide it from clients. */

import { causeOf } from '../lib/attempt.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { type SharedMemory, sharedNowMs } from '../lib/shared-memory.ts';

/** In ticks of a tenth of a second: as whole numbers of 32 bits they cost a request next to nothing. */
const TICK_MS = 100;
const WINDOW_TICKS = 600;
const MIN_TRIES = 10;
/** Below 500, the failures that are not the client's own. */
const PROVIDER_STATUSES = new Set([401, 403, 408, 429]);

/** Cells of shared memory. `FAILING_SINCE` is the start of the window that was told of; 0 if the provider works. */
const [START, TRIES, FAILURES, FAILING_SINCE] = [0, 1, 2, 3];

export type ProviderHealth = ReturnType<typeof createProviderHealth>;

/**
 * Returns a function that takes the end of a try of one provider, and counts those of all threads in windows of a minute. Once
 * over all threads it logs `provider failing` when at least half of ten or more tries have failed, and `provider works again`
 * in a later window of ten or more in which fewer than half have.
 */
export function createProviderHealth(provider: string, logger: Logger, memory: SharedMemory) {
  const cells = new Int32Array(memory.block(`health: ${provider}`, 16));
  return (failure: GatewayError | undefined): void => {
    if (failure && !failure.isProviders) return;
    const isFailure =
      failure !== undefined && (failure.status >= 500 || PROVIDER_STATUSES.has(failure.status));
    const now = Math.floor(sharedNowMs() / TICK_MS);
    const before = Atomics.load(cells, START);
    const isOver = before === 0 || now - before >= WINDOW_TICKS;
    if (isOver && Atomics.compareExchange(cells, START, before, now) === before) {
      Atomics.store(cells, TRIES, 0);
      Atomics.store(cells, FAILURES, 0);
    }
    const start = Atomics.load(cells, START);
    const tries = Atomics.add(cells, TRIES, 1) + 1;
    const failures = Atomics.add(cells, FAILURES, Number(isFailure)) + Number(isFailure);
    const since = Atomics.load(cells, FAILING_SINCE);
    const isFailing = failures * 2 >= tries;
    const facts = { provider, tries, failures };
    if (tries < MIN_TRIES) return;
    if (isFailure && isFailing && since === 0) {
      if (Atomics.compareExchange(cells, FAILING_SINCE, 0, start) !== 0) return;
      logger.log('warn', 'provider failing', { ...facts, cause: causeOf(failure) });
    }
    // Not within the same minute: half of the tries would log a line each.
    if (isFailing || since === 0 || since === start) return;
    if (Atomics.compareExchange(cells, FAILING_SINCE, since, 0) !== since) return;
    logger.log('info', 'provider works again', facts);
  };
}
