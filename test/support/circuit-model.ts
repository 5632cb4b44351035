/** The circuit breaker as a Map in one thread, for tests to compare with. */

import type {
  CircuitBreaker,
  CircuitReport,
  CircuitState,
} from '../../src/policy/circuit-breaker.ts';
import type { Random } from './random.ts';

interface Circuit {
  readonly provider: string;
  readonly model: string | undefined;
  readonly cause: string | undefined;
  readonly failures: number;
  restsUntilMs: number;
}

const REST_MS = 10_000;
const MAX_CIRCUITS = 1000;

export class CircuitModel {
  /** Messages and names, since they were last taken. */
  readonly lines: string[] = [];
  /** In the order of their latest failures. */
  readonly #circuits = new Map<string, Circuit>();
  readonly #nowMs: () => number;

  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  retire({ id }: { readonly id: string }): void {
    for (const [name, { provider }] of this.#circuits) if (provider === id) this.#close(name);
  }

  stateOf({ id }: { readonly id: string }, model: string): CircuitState {
    const tripped = this.#tripped(id, model);
    if (tripped.length === 0) return 'closed';
    return tripped.some((circuit) => this.#isOpen(circuit)) ? 'open' : 'half-open';
  }

  recordAttempt({ id }: { readonly id: string }, model: string): CircuitState {
    const state = this.stateOf({ id }, model);
    if (state !== 'half-open') return state;
    for (const circuit of this.#tripped(id, model)) {
      circuit.restsUntilMs = this.#nowMs() + REST_MS;
      this.#log('half-open', circuit);
    }
    return state;
  }

  recordSuccess({ id }: { readonly id: string }, model: string): void {
    this.#close(id);
    this.#close(`${id}/${model}`);
  }

  recordModelFailure({ id }: { readonly id: string }, model: string, cause?: string): void {
    this.#close(id);
    this.#fail(`${id}/${model}`, { provider: id, model, cause });
  }

  recordProviderFailure({ id }: { readonly id: string }, cause?: string): void {
    this.#fail(id, { provider: id, model: undefined, cause });
  }

  report(): CircuitReport[] {
    return [...this.#circuits.values()]
      .filter(isTripped)
      .map((circuit) => ({ ...circuit, state: this.#isOpen(circuit) ? 'open' : 'half-open' }));
  }

  #fail(name: string, names: Pick<Circuit, 'provider' | 'model' | 'cause'>): void {
    if (name.length > 256) return;
    const failures = (this.#circuits.get(name)?.failures ?? 0) + 1;
    const circuit = { ...names, failures, restsUntilMs: this.#nowMs() + REST_MS };
    this.#circuits.delete(name);
    this.#circuits.set(name, circuit);
    if (failures === 3) this.#log('opened', circuit);
    if (failures > 3) this.#log('stays open', circuit);
    if (this.#circuits.size > MAX_CIRCUITS) this.#close([...this.#circuits.keys()][0]!);
  }

  #close(name: string): void {
    const circuit = this.#circuits.get(name);
    this.#circuits.delete(name);
    if (circuit && isTripped(circuit)) this.#log('closed', circuit);
  }

  #tripped(id: string, model: string): Circuit[] {
    return [id, `${id}/${model}`]
      .map((name) => this.#circuits.get(name))
      .filter((circuit) => circuit !== undefined)
      .filter(isTripped);
  }

  #isOpen({ restsUntilMs }: Circuit): boolean {
    return this.#nowMs() < restsUntilMs;
  }

  #log(what: string, { provider, model }: Circuit): void {
    this.lines.push(`breaker ${what} ${provider} ${model}`);
  }
}

function isTripped({ failures }: Circuit): boolean {
  return failures >= 3;
}

/** The report, with the time that each circuit still rests. */
export const restsOf = (breaker: Pick<CircuitBreaker, 'report'>, nowMs: number) =>
  breaker
    .report()
    .map((circuit) => ({ ...circuit, restsUntilMs: Math.round(circuit.restsUntilMs - nowMs) }));

type Operation = (breaker: CircuitModel | CircuitBreaker) => unknown;

/** Five models that are often asked, and thousands that are not, some of them with names that are almost too long. */
export function createOperation(random: Random): Operation {
  const provider = { id: random.pick(['p', 'p-2', 'q']) };
  const name = `${random.integer(0, random.pick([4, 4000]))}`;
  const model = random.oneIn(20) ? name.padStart(random.integer(252, 256), '🦜') : name;
  const cause = random.pick([undefined, '', '503', 'é\ud800x']);
  const isRare = random.oneIn(100);
  return random.pick<Operation>([
    (breaker) => breaker.stateOf(provider, model),
    (breaker) => breaker.recordAttempt(provider, model),
    ...Array<Operation>(6).fill((breaker) => breaker.recordModelFailure(provider, model, cause)),
    (breaker) => breaker.recordProviderFailure(provider, cause),
    (breaker) => breaker.recordSuccess(provider, model),
    (breaker) => isRare && breaker.retire({ ...provider }),
  ]);
}
