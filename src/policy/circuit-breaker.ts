/** Keeps requests away from a provider that is down, so that they reach its fallback without the wait. */

const FAILURES_TO_OPEN = 3;
const REST_MS = 10_000;
/** Model names come from clients: the circuits that failed last are kept, and no names longer than this. */
const MAX_CIRCUITS = 1000;
const MAX_NAME_CHARACTERS = 256;

/** `open`: pass the provider over. `half-open`: one request may probe it. */
export type CircuitState = 'closed' | 'open' | 'half-open';

interface Circuit {
  /** In a row. */
  failures: number;
  /** On the clock of `performance.now()`. */
  restsUntilMs: number;
}

/**
 * Each model of a provider has a circuit, and the provider itself has one for failed connections. A circuit opens
 * after three failures in a row, and is half-open ten seconds later.
 */
export class CircuitBreaker {
  /** Circuits with failures, the latest to fail last. */
  readonly #circuits = new Map<string, Circuit>();

  stateOf(providerId: string, model: string): CircuitState {
    const tripped = this.#tripped(providerId, model);
    if (tripped.length === 0) return 'closed';
    const now = performance.now();
    return tripped.some(({ restsUntilMs }) => now < restsUntilMs) ? 'open' : 'half-open';
  }

  /** Marks an attempt. The first one after the rest is the probe: the circuit stays open for others until its result. */
  recordAttempt(providerId: string, model: string): void {
    const now = performance.now();
    for (const circuit of this.#tripped(providerId, model)) {
      if (now >= circuit.restsUntilMs) circuit.restsUntilMs = now + REST_MS;
    }
  }

  /** The model answered: it and its provider work. */
  recordSuccess(providerId: string, model: string): void {
    this.#circuits.delete(providerId);
    this.#circuits.delete(nameOf(providerId, model));
  }

  /** The provider was reached, but the model failed. */
  recordModelFailure(providerId: string, model: string, _?: string): void {
    this.#circuits.delete(providerId);
    this.#recordFailure(nameOf(providerId, model));
  }

  /** No connection to the provider could be made. */
  recordProviderFailure(providerId: string, _?: string): void {
    this.#recordFailure(providerId);
  }

  #recordFailure(name: string): void {
    if (name.length > MAX_NAME_CHARACTERS) return;
    const failures = (this.#circuits.get(name)?.failures ?? 0) + 1;
    this.#circuits.delete(name);
    this.#circuits.set(name, { failures, restsUntilMs: performance.now() + REST_MS });
    if (this.#circuits.size <= MAX_CIRCUITS) return;
    const [oldest] = this.#circuits.keys();
    this.#circuits.delete(oldest!);
  }

  #tripped(providerId: string, model: string): Circuit[] {
    return [providerId, nameOf(providerId, model)]
      .map((name) => this.#circuits.get(name))
      .filter((circuit) => circuit !== undefined)
      .filter(({ failures }) => failures >= FAILURES_TO_OPEN);
  }
}

function nameOf(providerId: string, model: string): string {
  return `${providerId}/${model}`;
}
