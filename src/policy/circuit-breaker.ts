/**
 * Keeps requests away from a provider that is down, so that they reach its fallback without the
 * wait.
 */

import { causeOf } from '../request/cause.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

const FAILURES_TO_OPEN = 3;
/** The first rest of a circuit, and the time that a probe has. A failed probe doubles the rest. */
const COOLDOWN_MS = 10_000;
const MAX_COOLDOWN_MS = 60_000;
/** A probe has succeeded if data still comes so long after the first of its stream. */
const PROBED_STREAM_MS = 10_000;
/** Statuses of network failures (502) and time limits (504), and an upstream's own. */
const OUTAGE_STATUSES = new Set([502, 503, 504, 529]);
/** Statuses of a wrong key, a model that is not there, and a limit. */
export const TARGET_STATUSES = new Set([401, 403, 404, 429]);
/**
 * Model names come from clients: the circuits that failed last are kept, and no names longer than
 * this.
 */
const MAX_CIRCUITS = 1000;
const MAX_MODEL_CHARACTERS = 256;

/** `open`: skip the provider. `half-open`: one request may probe it. */
type CircuitState = 'closed' | 'open' | 'half-open';

/** The request that tests a half-open circuit. */
export interface Probe {
  /** To be called when its stream has data. */
  readonly onData: () => void;
  /** To be called when the request is over: without a result another one may probe at once. */
  readonly end: () => void;
}

/** `digest` is that of its settings: with others it is another provider. */
type Guarded = { readonly id: string; readonly digest: string };

/**
 * The model of a provider; `isBalanced` if the gateway has chosen it among several that are alike.
 */
interface Target {
  readonly provider: Guarded;
  readonly model: string;
  readonly isBalanced?: boolean;
}

/** A circuit that has failures: those in a row, of which `cause` is the latest. */
interface Circuit {
  readonly provider: string;
  readonly digest: string;
  /** Undefined for the provider itself: it could not be connected to. */
  readonly model: string | undefined;
  readonly cause: string | undefined;
  readonly failures: number;
  /** The length of the rest that the latest failure began. */
  readonly cooldownMs: number;
  /** The end of the cooldown, of `performance.now()`. */
  openUntilMs: number;
  /** A probe is under way, so the next failure doubles the rest. */
  isProbed: boolean;
}

/** A circuit that is not closed. */
export type CircuitReport = Circuit & { readonly state: CircuitState };

/**
 * Each model of a provider has a circuit, and the provider itself has one for failed connections. A
 * circuit opens after three failures in a row, and is half-open ten seconds later; each failed
 * probe doubles that rest, up to a minute.
 */
export class CircuitBreaker {
  /** The circuits that have failures, by name, in the order of their latest failures. */
  readonly #circuits = new Map<string, Circuit>();
  #digests: ReadonlySet<string> = new Set();
  readonly #logger: Logger;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /**
   * Guards these providers. Closes the circuits of others, and ignores their later failures:
   * results of requests in flight over a reload do not apply to the provider that has the same id
   * now.
   */
  guard(providers: Iterable<Guarded>): void {
    this.#digests = new Set([...providers].map(({ digest }) => digest));
    for (const [name, { digest }] of this.#circuits) {
      if (!this.#digests.has(digest)) this.#close(name, 'reload');
    }
  }

  stateOf({ digest }: Guarded, model: string): CircuitState {
    if (this.#circuits.size === 0) return 'closed';
    const states = this.#tripped(digest, model).map(stateOfCircuit);
    return states.find((state) => state === 'open') ?? states[0] ?? 'closed';
  }

  /**
   * Marks an attempt and returns the state before it, or the probe that the attempt is if the
   * circuit was half-open: then it is open for all others until the result or the end of the probe,
   * for ten seconds at most.
   */
  recordAttempt(provider: Guarded, model: string): 'closed' | 'open' | Probe {
    const state = this.stateOf(provider, model);
    if (state !== 'half-open') return state;
    const openUntilMs = performance.now() + COOLDOWN_MS;
    const circuits = this.#tripped(provider.digest, model).map((before) => {
      const circuit = { ...before, openUntilMs, isProbed: true };
      this.#circuits.set(nameOf(before.digest, before.model), circuit);
      this.#logger.log('debug', 'breaker half-open', shown(before));
      return circuit;
    });
    let succeedsAtMs = 0;
    return {
      onData: () => {
        succeedsAtMs ||= performance.now() + PROBED_STREAM_MS;
        if (performance.now() < succeedsAtMs) return;
        // Once: what fails later counts, although the stream goes on.
        succeedsAtMs = Infinity;
        this.record('success', provider, model);
      },
      // With a result, or the probe of another request, they have been replaced.
      end: () => {
        const over = { openUntilMs: performance.now(), isProbed: false };
        for (const circuit of circuits) Object.assign(circuit, over);
      },
    };
  }

  /**
   * Records a result. `success`: the model answered, so it and its provider work. `failure`: the
   * provider was reached, but the model failed; without a model no connection could be made.
   * `cause` is for the log and the report, and bounded.
   */
  record(type: 'success' | 'failure', provider: Guarded, model?: string, cause?: string): void {
    if (type === 'success' && this.#circuits.size === 0) return;
    // A model that answers or fails shows that its provider was reached.
    if (model !== undefined) this.#close(provider.digest);
    if (type === 'success') this.#close(nameOf(provider.digest, model));
    else this.#fail(provider, model, cause);
  }

  /** Records how a request for the model of the provider has ended. */
  recordOutcome(candidate: Target, failure: GatewayError | undefined): void {
    const { provider, model, isBalanced } = candidate;
    if (failure === undefined) return this.record('success', provider, model);
    const { details, scope, status } = failure;
    const isFaultOfTarget = isBalanced && TARGET_STATUSES.has(status);
    const isModelGone = details.problem === 'model gone';
    const isOutage = OUTAGE_STATUSES.has(status) || isFaultOfTarget || isModelGone;
    if (scope === 'provider') {
      this.record('failure', provider, undefined, causeOf(failure));
      // The probe of a model has failed too: without a result, the next request would probe at
      // once.
      const circuit = this.#circuits.get(nameOf(provider.digest, model));
      if (circuit && isTripped(circuit)) this.#fail(provider, model, causeOf(failure));
    } else if (isOutage) this.record('failure', provider, model, causeOf(failure));
    // Other refusals show that the model works. A plain 500 may be the fault of one request's
    // parameter.
    else if (status !== 500) this.record('success', provider, model);
  }

  /**
   * The circuits that are not closed, in the order of their latest failures. `redact` is applied to
   * their texts.
   */
  report(redact: (text: string) => string): CircuitReport[] {
    return [...this.#circuits.values()].filter(isTripped).map((circuit) => ({
      ...circuit,
      model: circuit.model && redact(shown(circuit).model!),
      cause: circuit.cause && redact(circuit.cause),
      state: stateOfCircuit(circuit),
    }));
  }

  #fail({ id, digest }: Guarded, model: string | undefined, cause: string | undefined): void {
    if (!this.#digests.has(digest)) return;
    if (model && model.length > MAX_MODEL_CHARACTERS) return;
    const name = nameOf(digest, model);
    const before = this.#circuits.get(name);
    const failures = (before?.failures ?? 0) + 1;
    // To the end of the order.
    this.#circuits.delete(name);
    const [oldest] = this.#circuits.keys();
    if (this.#circuits.size === MAX_CIRCUITS) this.#close(oldest!);
    const { cooldownMs: formerMs = COOLDOWN_MS, isProbed = false } = before ?? {};
    const cooldownMs = isProbed ? Math.min(MAX_COOLDOWN_MS, formerMs * 2) : formerMs;
    const circuit: Circuit = {
      provider: id,
      digest,
      model,
      cause,
      failures,
      cooldownMs,
      openUntilMs: performance.now() + cooldownMs,
      isProbed: false,
    };
    this.#circuits.set(name, circuit);
    const fields = { ...shown(circuit), cause, failures, cooldown_ms: cooldownMs };
    if (failures === FAILURES_TO_OPEN) this.#logger.log('warn', 'breaker opened', fields);
    if (failures > FAILURES_TO_OPEN) this.#logger.log('debug', 'breaker stays open', fields);
  }

  /** Forgets the failures. */
  #close(name: string, reason?: 'reload'): void {
    const circuit = this.#circuits.get(name);
    this.#circuits.delete(name);
    if (!circuit || !isTripped(circuit)) return;
    this.#logger.log('info', 'breaker closed', { ...shown(circuit), ...(reason && { reason }) });
  }

  /** The circuits that count for this model: the provider's and its own. */
  #tripped(digest: string, model: string | undefined): Circuit[] {
    const circuits = [this.#circuits.get(digest), this.#circuits.get(nameOf(digest, model))];
    return circuits.filter((circuit) => circuit !== undefined).filter(isTripped);
  }
}

function isTripped({ failures }: Circuit): boolean {
  return failures >= FAILURES_TO_OPEN;
}

function stateOfCircuit({ openUntilMs }: Circuit): CircuitState {
  return performance.now() < openUntilMs ? 'open' : 'half-open';
}

/** The names as the log and the page show them. */
function shown({ provider, model }: Circuit) {
  return { provider, model: model && escapeControlCharacters(model, MAX_MODEL_CHARACTERS) };
}

function nameOf(digest: string, model: string | undefined): string {
  return model === undefined ? digest : `${digest}/${model}`;
}
