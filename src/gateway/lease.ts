/** Holds the provider's slot and the probe of its circuit until an answer is delivered. */

import type { Call } from '../downstream/call.ts';
import type { ClientGone, GatewayError } from '../lib/errors.ts';
import type { CircuitBreaker, Probe } from '../policy/circuit-breaker.ts';
import type { TakenKey } from '../policy/key-pool.ts';
import type { Answer, AttemptContext } from '../upstream/answers/attempt-context.ts';
import { endFailed } from '../upstream/answers/open-answer.ts';
import type { Candidate } from './candidates.ts';
import { endsRequest, recordAttemptEnd } from './attempt-end.ts';
import type { Services } from './services.ts';

/** The parts of a request that outlive the attempts at a provider. */
interface LeaseOptions {
  /** Its provider's limiter has an acquired slot. */
  readonly candidate: Candidate;
  readonly call: Call;
  readonly services: Services;
  /** Absent if the circuit has no effect. */
  readonly breaker: CircuitBreaker | undefined;
  readonly probe: Probe | undefined;
}

/**
 * `askProvider` creates the lease, and ends it if all attempts fail. `Gateway.handle` calls
 * `deliver` if an answer has begun, then `close`, or `fail` if the delivery has failed. It does so
 * before the response has closed: the slot is free while the client reads the end of the answer.
 */
export class Lease {
  readonly #options: LeaseOptions;
  /** The attempt whose answer has begun, if any. */
  #context: AttemptContext | undefined;
  #key: TakenKey | undefined;
  #answer: Answer | undefined;
  #isClosed = false;

  constructor(options: LeaseOptions) {
    this.#options = options;
    options.call.history.holdsSlot = true;
  }

  /** Takes an attempt's answer. Nothing is retried from then on. Throws for a second answer. */
  begin(answer: Answer, context: AttemptContext, key: TakenKey | undefined): this {
    if (this.#context) throw new Error('a second answer to one request');
    const { attempt } = context;
    attempt.beginAnswer();
    const { isStream, times } = this.#options.candidate;
    // A complete answer has no first token.
    if (isStream) times?.add(attempt);
    this.#answer = answer;
    this.#context = context;
    this.#key = key;
    return this;
  }

  /**
   * Sends the answer to the client. Returns no promise if the answer is sent at once, else a
   * promise that resolves when the last bytes were handed to `ClientReply`. Throws or rejects with
   * a reason for `fail`.
   */
  deliver(): Promise<void> | undefined {
    const { call, probe, services } = this.#options;
    const { attempt, deadline } = this.#context!;
    const answer = this.#answer!;
    // `Gateway.handle` keeps this object while the client reads, so it must not keep the bytes.
    this.#answer = undefined;
    // The client may have left between the first token and this call.
    deadline.throwIfCancelled();
    const delivery = answer.deliver(call.reply, probe?.onData);
    // Counted after `deliver`, because node:http may refuse the answer's head.
    services.incidents.addGood(attempt);
    return delivery;
  }

  /**
   * Gives the slot and the probe back, and records a begun answer as delivered. Only the first call
   * of `close` or `fail` has an effect.
   */
  close(): void {
    this.#end();
  }

  /** As `close`, after a failure with the reason `thrown`. Returns the failure for the client. */
  fail(thrown: unknown): unknown {
    const failure = this.#context && !this.#isClosed ? endFailed(thrown, this.#context) : undefined;
    this.#end(failure);
    return failure ?? thrown;
  }

  #end(failure?: GatewayError | ClientGone): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const { call, candidate, probe } = this.#options;
    try {
      if (this.#context) this.#recordOutcome(this.#context, failure);
    } finally {
      call.history.holdsSlot = false;
      candidate.provider.limiter.releaseSlot();
      probe?.release();
    }
  }

  #recordOutcome(
    { attempt }: AttemptContext,
    failure: GatewayError | ClientGone | undefined,
  ): void {
    const { breaker, call, candidate, probe, services } = this.#options;
    recordAttemptEnd(attempt, failure, call, services);
    if (!endsRequest(failure)) {
      this.#key?.recordEnd(attempt.failure);
      breaker?.recordOutcome(candidate, attempt.failure, probe);
      if (candidate.isStream) candidate.times?.recordEnd(attempt);
    }
  }
}
