/** Keeps requests away from a provider that is down, so that they reach its fallback without the wait. */

import type { Logger } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

const FAILURES_TO_OPEN = 3;
const REST_MS = 10_000;
/** Model names come from clients: the circuits that failed last are kept, and no names longer than this. */
const MAX_CIRCUITS = 1000;
const MAX_NAME_CHARACTERS = 256;

/** `open`: pass the provider over. `half-open`: one request may probe it. */
export type CircuitState = 'closed' | 'open' | 'half-open';

/** A provider, as long as its settings are the same: with others it is another object. */
interface Guarded {
  readonly id: string;
}

interface Circuit {
  readonly provider: string;
  /** Absent for the provider itself. */
  readonly model?: string | undefined;
  /** In a row. */
  failures: number;
  /** Of the latest failure. */
  cause?: string | undefined;
  /** On the clock of `performance.now()`. */
  restsUntilMs: number;
}

/** A circuit that is not closed. */
export type CircuitReport = Readonly<Circuit> & { readonly state: 'open' | 'half-open' };

/**
 * Each model of a provider has a circuit, and the provider itself has one for failed connections. A circuit opens
 * after three failures in a row, and is half-open ten seconds later.
 */
export class CircuitBreaker {
  /** Circuits with failures, the latest to fail last. */
  readonly #circuits = new Map<string, Circuit>();
  readonly #retired = new WeakSet<Guarded>();
  readonly #logger: Logger | undefined;

  constructor(logger?: Logger) {
    this.#logger = logger;
  }

  /**
   * Closes the circuits of a provider that is removed or has other settings now, and ignores what is recorded of it
   * later: results of requests in flight do not apply to the provider that has the same id now.
   */
  retire(provider: Guarded): void {
    this.#retired.add(provider);
    for (const [name, circuit] of this.#circuits) {
      if (circuit.provider === provider.id) this.#close(name);
    }
  }

  stateOf(provider: Guarded, model: string): CircuitState {
    const states = this.#tripped(provider, model).map(stateOf);
    if (states.length === 0) return 'closed';
    return states.includes('open') ? 'open' : 'half-open';
  }

  /** Marks an attempt. The first one after the rest is the probe: the circuit stays open for others until its result. */
  recordAttempt(provider: Guarded, model: string): void {
    for (const circuit of this.#tripped(provider, model)) {
      if (stateOf(circuit) === 'open') continue;
      circuit.restsUntilMs = performance.now() + REST_MS;
      this.#logger?.log('debug', 'breaker half-open', namesOf(circuit));
    }
  }

  /** The model answered: it and its provider work. */
  recordSuccess(provider: Guarded, model: string): void {
    if (this.#retired.has(provider)) return;
    this.#close(provider.id);
    this.#close(nameOf(provider.id, model));
  }

  /** The provider was reached, but the model failed. `cause` is for the log and the report. */
  recordModelFailure(provider: Guarded, model: string, cause?: string): void {
    if (this.#retired.has(provider)) return;
    this.#close(provider.id);
    this.#recordFailure(nameOf(provider.id, model), { provider: provider.id, model, cause });
  }

  /** No connection to the provider could be made. */
  recordProviderFailure(provider: Guarded, cause?: string): void {
    if (this.#retired.has(provider)) return;
    this.#recordFailure(provider.id, { provider: provider.id, cause });
  }

  /** The circuits that are not closed, in the order of their latest failures. */
  report(): CircuitReport[] {
    return [...this.#circuits.values()]
      .filter(isTripped)
      .map((circuit) => ({ ...circuit, ...namesOf(circuit), state: stateOf(circuit) }));
  }

  #recordFailure(name: string, failed: Pick<Circuit, 'provider' | 'model' | 'cause'>): void {
    if (name.length > MAX_NAME_CHARACTERS) return;
    const failures = (this.#circuits.get(name)?.failures ?? 0) + 1;
    const circuit = { ...failed, failures, restsUntilMs: performance.now() + REST_MS };
    // Moved to the end.
    this.#circuits.delete(name);
    this.#circuits.set(name, circuit);
    const facts = { ...namesOf(circuit), cause: circuit.cause, failures, rest_ms: REST_MS };
    if (failures === FAILURES_TO_OPEN) this.#logger?.log('warn', 'breaker opened', facts);
    if (failures > FAILURES_TO_OPEN) this.#logger?.log('debug', 'breaker stays open', facts);
    if (this.#circuits.size <= MAX_CIRCUITS) return;
    const [oldest] = this.#circuits.keys();
    this.#close(oldest!);
  }

  /** Forgets the failures. */
  #close(name: string): void {
    const circuit = this.#circuits.get(name);
    if (!circuit) return;
    this.#circuits.delete(name);
    if (isTripped(circuit)) this.#logger?.log('info', 'breaker closed', namesOf(circuit));
  }

  #tripped(provider: Guarded, model: string): Circuit[] {
    if (this.#retired.has(provider)) return [];
    return [provider.id, nameOf(provider.id, model)]
      .map((name) => this.#circuits.get(name))
      .filter((circuit) => circuit !== undefined)
      .filter(isTripped);
  }
}

function isTripped({ failures }: Circuit): boolean {
  return failures >= FAILURES_TO_OPEN;
}

/** Of a tripped circuit. */
function stateOf({ restsUntilMs }: Circuit): 'open' | 'half-open' {
  return performance.now() < restsUntilMs ? 'open' : 'half-open';
}

function namesOf({ provider, model }: Circuit): { provider: string; model: string | undefined } {
  return { provider, model: model && escapeControlCharacters(model, MAX_NAME_CHARACTERS) };
}

function nameOf(providerId: string, model: string): string {
  return `${providerId}/${model}`;
}
