/**
 * Skips a provider that is down, so that requests reach its fallback without waiting for another
 * failure.
 */

import { causeOf } from '../request/cause.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

const FAILURES_TO_OPEN = 3;
/** A probe may take as long as the first cooldown. */
const COOLDOWN_MS = 10_000;
const MAX_COOLDOWN_MS = 60_000;
/** A probe succeeds if its stream still has data this long after the first data. */
const PROBED_STREAM_MS = 10_000;
/** The gateway itself sets 502 after a network failure, and 504 after a time limit. */
const OUTAGE_STATUSES = new Set([502, 503, 504, 529]);
const TARGET_STATUSES = new Set([404, 429]);
/** Bounds a provider's circuits, because model names come from clients. */
const MAX_CIRCUITS = 1000;
/** A longer model's name has no circuit, and is not counted by itself. */
export const MAX_MODEL_CHARACTERS = 256;

/** `open`: the provider is skipped. `half-open`: one request may probe it. */
type CircuitState = 'closed' | 'open' | 'half-open';

/**
 * Returns whether only the asked target of a balanced alias may be at fault, because its key, its
 * model or its limit is its own.
 */
export function isOfTarget({ details, scope, status }: GatewayError): boolean {
  return scope === 'key' || TARGET_STATUSES.has(status) || details.problem === 'model gone';
}

/** The request that tests a half-open circuit. */
export interface Probe {
  readonly onData: () => void;
  /**
   * To be called when the request is over. If it had no result, another request may probe at once.
   */
  readonly release: () => void;
}

/** `isBalanced`: the gateway chose the model among several equivalent targets. */
interface CandidateModel {
  readonly model: string;
  readonly operation: string;
  readonly isStream: boolean;
  readonly isBalanced?: boolean;
}

interface Circuit extends Partial<Pick<CandidateModel, 'model' | 'operation' | 'isStream'>> {
  /** Failures in a row. */
  readonly failures: number;
  readonly cooldownMs: number;
  /** The end of the cooldown, or of the probe's time. */
  halfOpenAtMs: number;
  isProbed: boolean;
}

export type CircuitReport = Circuit & { readonly state: CircuitState };

/** The name of the provider's own circuit. */
const OWN = '';

/**
 * The circuits of a provider. Each of its models has, for each endpoint, a circuit for its streams
 * and one for its complete answers, because a server can stall in streams and still complete
 * answers. The provider itself has a circuit for failed connections. A circuit opens after three
 * failures in a row and is half-open ten seconds later. Each failed probe doubles the cooldown, up
 * to a minute.
 */
export class CircuitBreaker {
  /** Circuits with failures, by `nameOf`, the latest failure last. */
  readonly #circuits = new Map<string, Circuit>();
  readonly #provider: string;
  readonly #logger: Logger;
  readonly #redact: (text: string) => string;
  #isDisposed = false;

  constructor(provider: string, logger: Logger, redact: (text: string) => string) {
    this.#provider = provider;
    this.#logger = logger;
    this.#redact = redact;
  }

  /** To be called when a reload has removed or replaced the provider. */
  dispose(): void {
    this.#isDisposed = true;
    for (const name of this.#circuits.keys()) this.#close(name, 'reload');
  }

  /** Returns the worse state of the candidate's circuit and the provider's own. */
  stateOf(candidate: CandidateModel): CircuitState {
    if (this.#circuits.size === 0) return 'closed';
    const states = this.#tripped(candidate).map(stateOfCircuit);
    return states.find((state) => state === 'open') ?? states[0] ?? 'closed';
  }

  /**
   * Makes an attempt the probe of the candidate's half-open circuits. They are open for other
   * requests until the probe is released.
   */
  beginProbe(candidate: CandidateModel): Probe {
    const halfOpenAtMs = performance.now() + COOLDOWN_MS;
    const circuits = this.#tripped(candidate).map((before) => {
      const circuit = { ...before, halfOpenAtMs, isProbed: true };
      this.#circuits.set(nameOf(before), circuit);
      this.#logger.log('debug', 'breaker half-open', this.#shown(before));
      return circuit;
    });
    let succeedsAtMs = 0;
    return {
      onData: () => {
        succeedsAtMs ||= performance.now() + PROBED_STREAM_MS;
        if (performance.now() < succeedsAtMs) return;
        // Records the success only once, so that a failure later in the stream still counts.
        succeedsAtMs = Infinity;
        this.#recordSuccess(candidate);
      },
      // Changes nothing if a result or a later probe has replaced these circuits.
      release: () => {
        const over = { halfOpenAtMs: performance.now(), isProbed: false };
        for (const circuit of circuits) Object.assign(circuit, over);
      },
    };
  }

  recordOutcome(candidate: CandidateModel, failure: GatewayError | undefined, probe?: Probe): void {
    if (failure === undefined) return this.#recordSuccess(candidate);
    const { details, scope, status } = failure;
    const isProbe = probe !== undefined;
    // The other scopes show that the provider was reached.
    if (scope !== 'provider' && scope !== 'gateway') this.#close(OWN);
    // The request may be at fault, so its failure neither counts nor ends a row of failures: a
    // single client could otherwise open a circuit, or keep the circuit closed. Some providers
    // answer a wrong parameter with a plain 500.
    if (scope === 'client' || status === 500) return;
    const isFaultOfTarget = candidate.isBalanced && isOfTarget(failure);
    const isModelGone = details.problem === 'model gone';
    const cause = causeOf(failure);
    if (scope === 'provider') {
      this.#fail({}, cause, isProbe);
      // The request may have been the model's probe. Without a result for the model, the next
      // request would probe it at once.
      const circuit = this.#circuits.get(nameOf(candidate));
      if (circuit && isTripped(circuit)) this.#fail(candidate, cause, isProbe);
    } else if (OUTAGE_STATUSES.has(status) || isFaultOfTarget || isModelGone) {
      this.#fail(candidate, cause, isProbe);
    } else {
      // A 401 or a 429 is an answer, and a circuit only counts outages.
      this.#recordSuccess(candidate);
    }
  }

  /** A request that no circuit guards may have reached the provider. */
  recordReached(): void {
    this.#close(OWN);
  }

  report(): CircuitReport[] {
    return [...this.#circuits.values()].filter(isTripped).map((circuit) => ({
      ...circuit,
      model: circuit.model && this.#redact(this.#shown(circuit).model!),
      state: stateOfCircuit(circuit),
    }));
  }

  #recordSuccess(candidate: CandidateModel): void {
    if (this.#circuits.size === 0) return;
    this.#close(OWN);
    this.#close(nameOf(candidate));
  }

  #fail(
    { model, operation, isStream }: Partial<CandidateModel>,
    cause: string,
    isProbe: boolean,
  ): void {
    if (this.#isDisposed) return;
    if (model && model.length > MAX_MODEL_CHARACTERS) return;
    const name = nameOf({ model, operation, isStream });
    const before = this.#circuits.get(name);
    // A request from before the circuit opened may fail late. The probe decides.
    if (before?.isProbed && !isProbe) return;
    const failures = (before?.failures ?? 0) + 1;
    // `Map.set` moves only a new key to the end.
    this.#circuits.delete(name);
    const [oldest] = this.#circuits.keys();
    if (this.#circuits.size === MAX_CIRCUITS) this.#close(oldest!);
    const { cooldownMs: formerMs = COOLDOWN_MS, isProbed = false } = before ?? {};
    const cooldownMs = isProbed ? Math.min(MAX_COOLDOWN_MS, formerMs * 2) : formerMs;
    const circuit: Circuit = {
      model,
      operation,
      isStream,
      failures,
      cooldownMs,
      halfOpenAtMs: performance.now() + cooldownMs,
      isProbed: false,
    };
    this.#circuits.set(name, circuit);
    const fields = { ...this.#shown(circuit), cause, failures, cooldown_ms: cooldownMs };
    if (failures === FAILURES_TO_OPEN) this.#logger.log('warn', 'breaker opened', fields);
    if (failures > FAILURES_TO_OPEN) this.#logger.log('debug', 'breaker stays open', fields);
  }

  #close(name: string, reason?: 'reload'): void {
    const circuit = this.#circuits.get(name);
    this.#circuits.delete(name);
    if (!circuit || !isTripped(circuit)) return;
    const fields = { ...this.#shown(circuit), ...(reason && { reason }) };
    this.#logger.log('info', 'breaker closed', fields);
  }

  #tripped(candidate: CandidateModel): Circuit[] {
    const circuits = [OWN, nameOf(candidate)].map((name) => this.#circuits.get(name));
    return circuits.filter((circuit) => circuit !== undefined).filter(isTripped);
  }

  #shown({ model, operation, isStream: stream }: Circuit) {
    const name = model && escapeControlCharacters(model, MAX_MODEL_CHARACTERS);
    const ofEndpoint = operation && operation !== 'chat' && { operation };
    return { provider: this.#provider, model: name, ...ofEndpoint, stream };
  }
}

function isTripped({ failures }: Circuit): boolean {
  return failures >= FAILURES_TO_OPEN;
}

function stateOfCircuit({ halfOpenAtMs }: Circuit): CircuitState {
  return performance.now() < halfOpenAtMs ? 'open' : 'half-open';
}

function nameOf({ model, operation, isStream }: Partial<CandidateModel>): string {
  if (model === undefined) return OWN;
  return `${operation} ${isStream ? 'stream' : 'complete'} ${model}`;
}
