/** Lets a provider that keeps failing rest, so that requests reach its fallback without the wait. */

const FAILURES_TO_OPEN = 3;
const REST_MS = 10_000;

export class CircuitBreaker {
  readonly #now: () => number;
  readonly #states = new Map<string, { failures: number; restsUntilMs: number }>();

  /** `now` is a monotonic clock in milliseconds. */
  constructor(now: () => number) {
    this.#now = now;
  }

  /** Whether to pass over the provider. */
  isOpen(providerId: string): boolean {
    const state = this.#states.get(providerId);
    if (state === undefined || state.failures < FAILURES_TO_OPEN) return false;
    return this.#now() < state.restsUntilMs;
  }

  /** It is asked. After its rest that is the probe: others pass the provider over for another rest, or until it has an answer. */
  recordAttempt(providerId: string): void {
    const state = this.#states.get(providerId);
    if (state) state.restsUntilMs = this.#now() + REST_MS;
  }

  recordSuccess(providerId: string): void {
    this.#states.delete(providerId);
  }

  recordFailure(providerId: string): void {
    const failures = (this.#states.get(providerId)?.failures ?? 0) + 1;
    this.#states.set(providerId, { failures, restsUntilMs: this.#now() + REST_MS });
  }
}
