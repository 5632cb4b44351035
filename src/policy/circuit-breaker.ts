/** Keeps requests away from a provider that is down, so that they reach its fallback without the wait. */

import { sharedNowWholeMs } from '../lib/shared-memory.ts';
import type { Logger } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

const FAILURES_TO_OPEN = 3;
const COOLDOWN_MS = 10_000;
/** Model names come from clients: the circuits that failed last are kept, and no names longer than this. */
const MAX_CIRCUITS = 1000;
const MAX_MODEL_CHARACTERS = 256;

/** `open`: skip the provider. `half-open`: one request may probe it. */
export type CircuitState = 'closed' | 'open' | 'half-open';

/** A provider, as long as its settings are the same: with others it is another object. */
interface Guarded {
  readonly id: string;
}

/** A circuit that has failures. */
export interface Circuit {
  readonly provider: string;
  /** Absent for the provider itself. */
  readonly model: string | undefined;
  /** In a row. */
  readonly failures: number;
  /** Of the latest failure. */
  readonly cause: string | undefined;
  /** The end of the cooldown, on the clock of `sharedNowMs()`. */
  readonly openUntilMs: number;
}

/** A circuit that is not closed. `openUntilMs` is on the clock of this thread's `performance.now()`. */
export type CircuitReport = Circuit & { readonly state: 'open' | 'half-open' };

/** A change that the breakers of the other threads make too. A failure without a model is one to connect. */
export type CircuitEvent = Omit<Circuit, 'failures'> & {
  readonly type: 'probe' | 'success' | 'failure';
};

/**
 * Each model of a provider has a circuit, and the provider itself has one for failed connections. A circuit opens
 * after three failures in a row, and is half-open ten seconds later.
 */
export class CircuitBreaker {
  /** Those that have failures, by name, in the order of their latest failures. */
  readonly #circuits: Map<string, Circuit>;
  readonly #retired = new WeakSet<Guarded>();
  readonly #logger: Logger;
  readonly #share: ((event: CircuitEvent) => void) | undefined;

  /** `share` takes this thread's changes to other threads, and `circuits` are those that they know already. */
  constructor(
    logger: Logger,
    share?: (event: CircuitEvent) => void,
    circuits: CircuitBreaker['circuits'] = [],
  ) {
    this.#logger = logger;
    this.#share = share;
    this.#circuits = new Map(circuits);
  }

  /** The state with which the breaker of another thread begins. */
  get circuits(): readonly (readonly [string, Circuit])[] {
    return [...this.#circuits];
  }

  /**
   * Closes the circuits of a provider that is removed or has other settings now, and ignores what is recorded of it
   * later: results of requests in flight do not apply to the provider that has the same id now.
   */
  retire(provider: Guarded): void {
    this.#retired.add(provider);
    for (const [name, circuit] of this.#circuits) {
      if (circuit.provider === provider.id) this.#close(name, 'reload');
    }
  }

  stateOf(provider: Guarded, model: string): CircuitState {
    if (this.#circuits.size === 0 || this.#retired.has(provider)) return 'closed';
    const tripped = this.#tripped(provider.id, model);
    if (tripped.length === 0) return 'closed';
    return tripped.some(isOpen) ? 'open' : 'half-open';
  }

  /**
   * Marks an attempt and returns the state before it. An attempt at a half-open circuit is its probe: the circuit is
   * open for all others until its result, for ten seconds at most.
   */
  recordAttempt(provider: Guarded, model: string): CircuitState {
    const state = this.stateOf(provider, model);
    if (state === 'half-open') this.#record(provider, 'probe', model);
    return state;
  }

  /** The model answered: it and its provider work. */
  recordSuccess(provider: Guarded, model: string): void {
    const { id } = provider;
    // Nearly every success changes nothing, and is not sent to other threads.
    const isKnown = this.#circuits.has(id) || this.#circuits.has(nameOf(id, model));
    if (isKnown) this.#record(provider, 'success', model);
  }

  /** The provider was reached, but the model failed. `cause` is for the log and the report, and bounded. */
  recordModelFailure(provider: Guarded, model: string, cause?: string): void {
    this.#record(provider, 'failure', model, cause);
  }

  /** No connection to the provider could be made. */
  recordProviderFailure(provider: Guarded, cause?: string): void {
    this.#record(provider, 'failure', undefined, cause);
  }

  /** Makes a change that another thread has made. */
  apply(event: CircuitEvent): void {
    const { type, provider, model, openUntilMs } = event;
    const name = nameOf(provider, model);
    if (type === 'probe') {
      for (const circuit of this.#tripped(provider, model)) {
        this.#circuits.set(nameOf(provider, circuit.model), { ...circuit, openUntilMs });
        this.#logger.log('debug', 'breaker half-open', namesOf(circuit));
      }
      return;
    }
    // A model that answers or fails shows that its provider was reached.
    if (model !== undefined) this.#close(provider);
    if (type === 'success') this.#close(name);
    else if (name.length <= MAX_MODEL_CHARACTERS) this.#fail(name, event);
  }

  /** The circuits that are not closed, in the order of their latest failures. */
  report(): CircuitReport[] {
    const offsetMs = performance.now() - sharedNowWholeMs();
    return [...this.#circuits.values()].filter(isTripped).map((circuit) => ({
      ...circuit,
      ...namesOf(circuit),
      openUntilMs: circuit.openUntilMs + offsetMs,
      state: isOpen(circuit) ? 'open' : 'half-open',
    }));
  }

  #record(
    provider: Guarded,
    type: CircuitEvent['type'],
    model: string | undefined,
    cause?: string,
  ): void {
    if (this.#retired.has(provider)) return;
    const event: CircuitEvent = {
      type,
      provider: provider.id,
      // Megabytes of a client's are not sent to other threads: what is cut is still too long to be kept.
      model: model?.slice(0, MAX_MODEL_CHARACTERS),
      cause,
      openUntilMs: sharedNowWholeMs() + COOLDOWN_MS,
    };
    this.apply(event);
    this.#share?.(event);
  }

  #fail(name: string, { provider, model, cause, openUntilMs }: CircuitEvent): void {
    const failures = (this.#circuits.get(name)?.failures ?? 0) + 1;
    const circuit = { provider, model, failures, cause, openUntilMs };
    // To the end of the order.
    this.#circuits.delete(name);
    const [oldest] = this.#circuits.keys();
    if (this.#circuits.size === MAX_CIRCUITS) this.#close(oldest!);
    this.#circuits.set(name, circuit);
    const fields = { ...namesOf(circuit), cause, failures, cooldown_ms: COOLDOWN_MS };
    if (failures === FAILURES_TO_OPEN) this.#logger.log('warn', 'breaker opened', fields);
    if (failures > FAILURES_TO_OPEN) this.#logger.log('debug', 'breaker stays open', fields);
  }

  /** Forgets the failures. */
  #close(name: string, reason?: 'reload'): void {
    const circuit = this.#circuits.get(name);
    this.#circuits.delete(name);
    if (circuit && isTripped(circuit)) {
      this.#logger.log('info', 'breaker closed', {
        ...namesOf(circuit),
        ...(reason && { reason }),
      });
    }
  }

  /** The circuits that count for this model: the provider's and its own. */
  #tripped(id: string, model: string | undefined): Circuit[] {
    const circuits = [this.#circuits.get(id), this.#circuits.get(nameOf(id, model))];
    return circuits.filter((circuit) => circuit !== undefined).filter(isTripped);
  }
}

function isTripped({ failures }: Circuit): boolean {
  return failures >= FAILURES_TO_OPEN;
}

function isOpen({ openUntilMs }: Circuit): boolean {
  return sharedNowWholeMs() < openUntilMs;
}

function namesOf({ provider, model }: Circuit): { provider: string; model: string | undefined } {
  return { provider, model: model && escapeControlCharacters(model, MAX_MODEL_CHARACTERS) };
}

function nameOf(id: string, model: string | undefined): string {
  return model === undefined ? id : `${id}/${model}`;
}
