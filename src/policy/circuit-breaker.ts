/** Keeps requests away from a provider that is down, so that they reach its fallback without the wait. */

import { sharedNowWholeMs } from '../lib/clock.ts';
import type { Logger } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { SharedMemory } from '../lib/shared-memory.ts';
import { CircuitTable, MAX_NAME_CHARACTERS, type Circuit } from './circuit-table.ts';

const FAILURES_TO_OPEN = 3;
const REST_MS = 10_000;

/** `open`: pass the provider over. `half-open`: one request may probe it. */
export type CircuitState = 'closed' | 'open' | 'half-open';

/** A provider, as long as its settings are the same: with others it is another object. */
interface Guarded {
  readonly id: string;
}

/** A circuit that is not closed. `restsUntilMs` is on the clock of this thread's `performance.now()`. */
export type CircuitReport = Circuit & { readonly state: 'open' | 'half-open' };

/**
 * Each model of a provider has a circuit, and the provider itself has one for failed connections. A circuit opens
 * after three failures in a row, and is half-open ten seconds later. The threads of the process share the circuits.
 * If one of them dies while it changes a circuit, all circuits count as closed until `releaseLock` is called.
 */
export class CircuitBreaker {
  readonly #table: CircuitTable;
  readonly #retired = new WeakSet<Guarded>();
  readonly #logger: Logger;
  /** Logged once the table is unlocked: other threads do not wait for the log. */
  readonly #lines: Parameters<Logger['log']>[] = [];

  constructor(memory: SharedMemory, logger: Logger) {
    this.#table = new CircuitTable(memory);
    this.#logger = logger;
  }

  /**
   * Closes the circuits of a provider that is removed or has other settings now, and ignores what is recorded of it
   * later: results of requests in flight do not apply to the provider that has the same id now.
   */
  retire(provider: Guarded): void {
    this.#retired.add(provider);
    if (this.#table.size === 0) return;
    this.#locked(() => {
      // From the last, because what is removed is replaced by the last.
      for (let slot = this.#table.size - 1; slot >= 0; slot -= 1) {
        if (this.#table.read(slot).provider === provider.id) this.#close(slot);
      }
    });
  }

  stateOf(provider: Guarded, model: string): CircuitState {
    if (this.#table.size === 0 || this.#retired.has(provider)) return 'closed';
    return this.#locked(() => this.#stateOf(this.#tripped(provider, model))) ?? 'closed';
  }

  /**
   * Marks an attempt and returns the state before it. An attempt at a half-open circuit is its probe: the circuit is
   * open for all others until its result, for ten seconds at most.
   */
  recordAttempt(provider: Guarded, model: string): CircuitState {
    if (this.#table.size === 0 || this.#retired.has(provider)) return 'closed';
    const begin = () => {
      const slots = this.#tripped(provider, model);
      const state = this.#stateOf(slots);
      if (state !== 'half-open') return state;
      for (const slot of slots) {
        this.#table.restsUntilMs[slot] = sharedNowWholeMs() + REST_MS;
        this.#lines.push(['debug', 'breaker half-open', namesOf(this.#table.read(slot))]);
      }
      return state;
    };
    return this.#locked(begin) ?? 'closed';
  }

  /** The model answered: it and its provider work. */
  recordSuccess(provider: Guarded, model: string): void {
    if (this.#table.size === 0 || this.#retired.has(provider)) return;
    this.#locked(() => {
      this.#close(this.#table.find(provider.id));
      this.#close(this.#table.find(nameOf(provider.id, model)));
    });
  }

  /** The provider was reached, but the model failed. `cause` is for the log and the report. */
  recordModelFailure(provider: Guarded, model: string, cause?: string): void {
    if (this.#retired.has(provider)) return;
    this.#locked(() => {
      this.#close(this.#table.find(provider.id));
      this.#recordFailure(provider, nameOf(provider.id, model), cause);
    });
  }

  /** No connection to the provider could be made. */
  recordProviderFailure(provider: Guarded, cause?: string): void {
    if (this.#retired.has(provider)) return;
    this.#locked(() => this.#recordFailure(provider, provider.id, cause));
  }

  /** The circuits that are not closed, in the order of their latest failures. */
  report(): CircuitReport[] {
    if (this.#table.size === 0) return [];
    const offsetMs = performance.now() - sharedNowWholeMs();
    const read = (slot: number): CircuitReport => {
      const circuit = this.#table.read(slot);
      return {
        ...circuit,
        ...namesOf(circuit),
        restsUntilMs: circuit.restsUntilMs + offsetMs,
        state: this.#isResting(slot) ? 'open' : 'half-open',
      };
    };
    const isTripped = (slot: number) => this.#isTripped(slot);
    return this.#locked(() => this.#table.slots().filter(isTripped).map(read)) ?? [];
  }

  /** Frees what a thread that has ended held. The circuits are forgotten if it was changing one. */
  releaseLock(thread: number): void {
    this.#table.releaseLock(thread);
  }

  /** Runs a task with the table locked, then logs. Undefined if the table stays locked by another thread. */
  #locked<T>(task: () => T): T | undefined {
    const result = this.#table.locked(task);
    for (const line of this.#lines.splice(0)) this.#logger.log(...line);
    return result;
  }

  #recordFailure(provider: Guarded, name: string, cause: string | undefined): void {
    if (name.length > MAX_NAME_CHARACTERS) return;
    let slot = this.#table.find(name);
    if (slot === undefined) {
      this.#close(this.#table.oldestIfFull());
      slot = this.#table.add(name, provider.id.length);
    }
    const failures = this.#table.recordFailure(slot, cause, sharedNowWholeMs() + REST_MS);
    const facts = { ...namesOf(this.#table.read(slot)), cause, failures, rest_ms: REST_MS };
    if (failures === FAILURES_TO_OPEN) this.#lines.push(['warn', 'breaker opened', facts]);
    if (failures > FAILURES_TO_OPEN) this.#lines.push(['debug', 'breaker stays open', facts]);
  }

  /** Forgets the failures. */
  #close(slot: number | undefined): void {
    if (slot === undefined) return;
    if (this.#isTripped(slot)) {
      this.#lines.push(['info', 'breaker closed', namesOf(this.#table.read(slot))]);
    }
    this.#table.remove(slot);
  }

  #tripped(provider: Guarded, model: string): number[] {
    return [provider.id, nameOf(provider.id, model)]
      .map((name) => this.#table.find(name))
      .filter((slot) => slot !== undefined)
      .filter((slot) => this.#isTripped(slot));
  }

  #isTripped(slot: number): boolean {
    return this.#table.failures[slot]! >= FAILURES_TO_OPEN;
  }

  #stateOf(tripped: readonly number[]): CircuitState {
    if (tripped.length === 0) return 'closed';
    return tripped.some((slot) => this.#isResting(slot)) ? 'open' : 'half-open';
  }

  #isResting(slot: number): boolean {
    return sharedNowWholeMs() < this.#table.restsUntilMs[slot]!;
  }
}

function namesOf({ provider, model }: Circuit): { provider: string; model: string | undefined } {
  return { provider, model: model && escapeControlCharacters(model, MAX_NAME_CHARACTERS) };
}

function nameOf(providerId: string, model: string): string {
  return `${providerId}/${model}`;
}
