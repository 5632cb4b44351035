/** What an answer holds until the client has all of it, and how its outcome is recorded. */

import type { Call } from '../downstream/call.ts';
import type { ClientGone, GatewayError } from '../lib/errors.ts';
import type { CircuitBreaker, Probe } from '../policy/circuit-breaker.ts';
import type { TakenKey } from '../policy/key-pool.ts';
import type { Limiter } from '../policy/limiter.ts';
import type { Answer, AttemptContext } from '../upstream/attempt-context.ts';
import { endFailed } from '../upstream/open-answer.ts';
import type { Candidate } from './candidates.ts';
import { endsRequest, recordAttempt } from './attempt-end.ts';
import type { Services } from './services.ts';

/** What outlives the attempts at one provider. */
interface LeaseOptions {
  readonly candidate: Candidate;
  readonly call: Call;
  readonly services: Services;
  /** Absent if the circuit has no effect. */
  readonly breaker: CircuitBreaker | undefined;
  readonly probe: Probe | undefined;
  /** The limiter of the provider, whose slot was acquired. */
  readonly limiter: Limiter;
}

/**
 * A provider's slot, and the probe of its circuit, from before its first attempt until its answer
 * was delivered, or all attempts have failed. `close` has to be called at the end.
 */
export class Lease {
  readonly #options: LeaseOptions;
  /** The attempt whose answer has begun; undefined until one has. */
  #context: AttemptContext | undefined;
  /** The key of that attempt; undefined if the provider has only one. */
  #key: TakenKey | undefined;
  #answer: Answer | undefined;
  #isClosed = false;

  constructor(options: LeaseOptions) {
    this.#options = options;
  }

  /** Takes the answer of an attempt: from now on nothing is retried. Throws for a second answer. */
  begin(answer: Answer, context: AttemptContext, key: TakenKey | undefined): this {
    if (this.#context) throw new Error('a second answer to one request');
    context.attempt.beginAnswer();
    this.#answer = answer;
    this.#context = context;
    this.#key = key;
    return this;
  }

  /**
   * Sends the answer to the client; without a promise if that is done at once. Throws or rejects
   * with what `close` takes.
   */
  deliver(): Promise<void> | undefined {
    const { call, probe, services } = this.#options;
    const { attempt, deadline } = this.#context!;
    const answer = this.#answer!;
    // The lease lasts as long as the client reads: it must not keep the bytes of the answer.
    this.#answer = undefined;
    // The client may have left between the first token and this call.
    deadline.throwIfCancelled();
    const delivery = answer.deliver(call.reply, probe?.onData);
    // Counted behind `deliver`, because node:http may refuse the head of the answer.
    services.incidents.addGood(attempt);
    return delivery;
  }

  /**
   * Gives the slot and the probe back, and records the outcome of an answer that has begun.
   * `thrown` is the reason if the delivery failed. Returns the failure to answer the client with.
   * Only the first call has an effect.
   */
  close(thrown?: unknown): unknown {
    if (this.#isClosed) return thrown;
    this.#isClosed = true;
    const { limiter, probe } = this.#options;
    try {
      return this.#context ? this.#recordOutcome(this.#context, thrown) : thrown;
    } finally {
      limiter.releaseSlot();
      probe?.end();
    }
  }

  #recordOutcome(context: AttemptContext, thrown: unknown): GatewayError | ClientGone | undefined {
    const { breaker, call, candidate, services } = this.#options;
    const { attempt } = context;
    const failure = thrown === undefined ? undefined : endFailed(thrown, context);
    recordAttempt(attempt, failure, call, services);
    if (!endsRequest(failure)) {
      this.#key?.recordSuccess();
      breaker?.recordOutcome(candidate, attempt.failure);
    }
    return failure;
  }
}
