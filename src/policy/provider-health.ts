/** Tells the operator of a provider that fails often: fallbacks and retries hide it from clients. */

import { causeOf } from '../lib/attempt.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { type SharedMemory, sharedNowWholeMs } from '../lib/shared-memory.ts';

const WINDOW_MS = 60_000n;
const MIN_TRIES = 10n;
/** Below 500, the failures that are not the client's own. */
const PROVIDER_STATUSES = new Set([401, 403, 408, 429]);

/** Cells of shared memory. `FAILING_SINCE` is the start of the window that was told of; 0 if the provider works. */
const [START, TRIES, FAILURES, FAILING_SINCE] = [0, 1, 2, 3];

/** Counts the tries of one provider in windows of a minute, those of all threads together. */
export class ProviderHealth {
  readonly #provider: string;
  readonly #logger: Logger;
  readonly #cells: BigInt64Array;

  constructor(provider: string, logger: Logger, memory: SharedMemory) {
    this.#provider = provider;
    this.#logger = logger;
    this.#cells = new BigInt64Array(memory.block(`health: ${provider}`, 32));
  }

  /** Takes the end of a try. Logs, once over all threads, that half of at least ten failed, and that fewer do again. */
  record(failure: GatewayError | undefined): void {
    const cells = this.#cells;
    const isFailure =
      failure !== undefined && (failure.status >= 500 || PROVIDER_STATUSES.has(failure.status));
    const start = this.#beginWindow();
    const tries = Atomics.add(cells, TRIES, 1n) + 1n;
    const failures = Atomics.add(cells, FAILURES, isFailure ? 1n : 0n) + (isFailure ? 1n : 0n);
    const since = Atomics.load(cells, FAILING_SINCE);
    const isFailing = failures * 2n >= tries;
    const facts = { provider: this.#provider, tries: Number(tries), failures: Number(failures) };
    if (isFailure && isFailing && tries >= MIN_TRIES && since === 0n) {
      if (Atomics.compareExchange(cells, FAILING_SINCE, 0n, start) !== 0n) return;
      this.#logger.log('warn', 'provider failing', { ...facts, cause: causeOf(failure) });
    }
    // Not within the same minute: half of the tries would log a line each.
    if (isFailing || since === 0n || since === start) return;
    if (Atomics.compareExchange(cells, FAILING_SINCE, since, 0n) !== since) return;
    this.#logger.log('info', 'provider works again', facts);
  }

  /** Returns the start of the current window, which begins with a try. */
  #beginWindow(): bigint {
    const cells = this.#cells;
    const now = BigInt(sharedNowWholeMs());
    const start = Atomics.load(cells, START);
    if (start !== 0n && now - start < WINDOW_MS) return start;
    if (Atomics.compareExchange(cells, START, start, now) !== start)
      return Atomics.load(cells, START);
    Atomics.store(cells, TRIES, 0n);
    Atomics.store(cells, FAILURES, 0n);
    return now;
  }
}
