/** Asks a provider until its answer begins, and decides on keys, retries and waits. */

import type { Call } from '../downstream/call.ts';
import { Deadline, pause } from '../lib/cancellation.ts';
import { ClientGone, type GatewayError } from '../lib/errors.ts';
import { type KeyPool, TakenKey } from '../policy/key-pool.ts';
import type { ModelRequest } from '../protocol/model-request.ts';
import { Attempt, waitedMsOf } from '../request/history.ts';
import type { AttemptContext } from '../upstream/answers/attempt-context.ts';
import { withTraceparent } from '../upstream/answers/headers.ts';
import type { UpstreamResponse } from '../upstream/connections/upstream-request.ts';
import { endFailed, openAnswer, sendAttempt } from '../upstream/answers/open-answer.ts';
import type { Candidate } from './candidates.ts';
import { Lease } from './lease.ts';
import { endsRequest, logAttempt, recordAttemptEnd } from './attempt-end.ts';
import type { Services } from './services.ts';

/** If `Retry-After` is longer, the gateway does not retry, so that the client can decide. */
const MAX_AWAITED_SECONDS = 30;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;

/** A request on its way through the candidates. */
export interface Asking {
  readonly call: Call;
  readonly modelRequest: ModelRequest;
  readonly first: Candidate;
  /**
   * True if there are other candidates. Circuits are used only then: without another provider, an
   * open circuit would only refuse the request.
   */
  readonly hasOthers: boolean;
  /** The headers from `forwardedHeaders`, names and values in turn. */
  readonly forwarded: readonly string[];
  readonly services: Services;
}

/** Returns the time limit for the complete answer or the stream's first token. */
export function timeLimitMsOf({ isStream, provider }: Candidate, { config }: Services): number {
  return Math.min(provider.timeoutMs, isStream ? config.server.firstTokenTimeoutMs : Infinity);
}

function skip(
  candidate: Candidate,
  why: 'open' | GatewayError,
  { call, services }: Asking,
): Attempt {
  const url = candidate.provider.urls.get(call.history.endpoint)!;
  const attempt = call.history.addAttempt(new Attempt(candidate, url));
  attempt.outcome = why === 'open' ? 'circuit_open' : 'limit';
  attempt.failure = why === 'open' ? undefined : why;
  logAttempt('provider skipped', attempt, call, services.logger);
  return attempt;
}

/**
 * Asks a provider until its answer begins, unless the provider has to be skipped. Its keys are
 * tried in turn until it accepts a key. If its circuit was closed, failed attempts are retried.
 * Resolves with the lease of the answer, before the client gets any of it; else with the attempt
 * whose failure is reported. Rejects with `ClientGone`, and with the gateway's own failures, after
 * which no other provider is asked. `turn`: with `last` and `waited` the provider is asked even if
 * its circuit is open. With `waited` the request already holds a slot, and keeps it if the provider
 * is skipped.
 */
export async function askProvider(
  candidate: Candidate,
  asking: Asking,
  turn: 'usual' | 'last' | 'waited' = 'usual',
): Promise<Lease | Attempt> {
  const { call, services } = asking;
  const { provider } = candidate;
  const { limiter } = provider;
  const breaker = asking.hasOthers ? provider.breaker : undefined;
  const isCircuitOpen = () => turn === 'usual' && breaker?.stateOf(candidate) === 'open';
  if (isCircuitOpen()) return skip(candidate, 'open', asking);
  const taking = limiter.takeRequest();
  const refusal = taking instanceof Promise ? await taking : taking;
  if (refusal) return skip(candidate, refusal, asking);
  // Another request may have become the probe while the store answered.
  const why = turn === 'waited' ? undefined : isCircuitOpen() ? 'open' : limiter.acquireSlot();
  if (why) {
    limiter.refundRequest();
    return skip(candidate, why, asking);
  }
  call.history.hasRetried ||= candidate !== asking.first;
  const state = breaker?.stateOf(candidate) ?? 'closed';
  // Begun only now, because an unsent request must not become the probe.
  const probe = state === 'half-open' ? breaker?.beginProbe(candidate) : undefined;
  const lease = new Lease({ candidate, call, services, breaker, probe });
  const maxRetries = state === 'closed' ? provider.retries : 0;
  const plan = new RetryPlan(maxRetries, provider.keyPool, call);
  const waitedMs = turn === 'waited' ? waitedMsOf(call.history.waits) : 0;
  try {
    let waitMs: number | undefined = 0;
    while (waitMs !== undefined) {
      if (waitMs > 0) await pause(waitMs, call.cancellation);
      call.cancellation.throwIfCancelled();
      plan.begin();
      const context = beginAttempt(candidate, plan, asking, waitedMs);
      const { attempt } = context;
      let failure: GatewayError | ClientGone;
      try {
        const opening = openAnswer(await send(candidate, plan, asking, context), context);
        const answer = opening instanceof Promise ? await opening : opening;
        return lease.begin(answer, context, plan.key);
      } catch (thrown) {
        failure = endFailed(thrown, context);
      }
      if (candidate.isStream && failure instanceof ClientGone) candidate.times?.addSilence(attempt);
      call.answerMemory?.close();
      recordAttemptEnd(attempt, failure, call, services);
      if (endsRequest(failure)) throw failure;
      waitMs = plan.next(attempt);
    }
  } catch (thrown) {
    throw lease.fail(thrown);
  }
  const attempt = plan.chosen!;
  breaker?.recordOutcome(candidate, attempt.failure, probe);
  if (candidate.isStream) candidate.times?.recordEnd(attempt);
  lease.close();
  return attempt;
}

function beginAttempt(
  candidate: Candidate,
  { key }: RetryPlan,
  { call, services }: Asking,
  waitedMs: number,
): AttemptContext {
  const { history } = call;
  const { isStream, provider } = candidate;
  const url = provider.urls.get(history.endpoint)!;
  const attempt = history.addAttempt(new Attempt(candidate, url, key?.index));
  history.attempt = attempt;
  history.provider = provider.id;
  const deadline = new Deadline(call.cancellation);
  const limitMs = timeLimitMsOf(candidate, services) - waitedMs;
  return { attempt, settings: provider, limitMs, call, services, isStream, deadline };
}

/** Not async, because the frame of an async function would hold the request until the response. */
function send(
  { provider, model, sentModel = model }: Candidate,
  { key, reconnect }: RetryPlan,
  { call, modelRequest, forwarded }: Asking,
  context: AttemptContext,
): Promise<UpstreamResponse> {
  const { attempt, isStream } = context;
  const { trace } = call;
  attempt.usageAdded = provider.streamUsage && modelRequest.mayAskForUsage;
  const request = provider.request({
    endpoint: call.history.endpoint,
    body: modelRequest.bodyWith(sentModel, attempt.usageAdded),
    heldBody: call.requestBody,
    isStream,
    forwarded: trace ? withTraceparent(forwarded, trace.traceparentOf(attempt)) : forwarded,
    key: key?.index,
    reconnect,
  });
  return sendAttempt(request, context);
}

/** Decides after each failed attempt whether another follows, and how it differs. */
class RetryPlan {
  /** The key to send; undefined if the provider has only a single key. */
  key: TakenKey | undefined;
  /** True if the next attempts need a new connection. */
  reconnect = false;
  /** The attempt whose failure is reported. */
  chosen: Attempt | undefined;
  readonly #keyPool: KeyPool | undefined;
  readonly #call: Call;
  #keys: Iterator<number, undefined> | undefined;
  readonly #maxRetries: number;
  #retries = 0;

  constructor(maxRetries: number, keyPool: KeyPool | undefined, call: Call) {
    this.#maxRetries = maxRetries;
    this.#keyPool = keyPool;
    this.#call = call;
  }

  /** To be called before each attempt, because a key chosen before a wait may be refused by now. */
  begin(): void {
    if (!this.#keyPool || this.#keys) return;
    this.#keys = this.#keyPool.keysToTry(this.#call);
    this.#takeKey();
  }

  /** Returns the milliseconds to wait before the next attempt; undefined if none follows. */
  next(attempt: Attempt): number | undefined {
    const failure = attempt.failure!;
    const isKeyRefused =
      this.key !== undefined && this.#keyPool!.recordFailure(this.key.index, failure);
    // If several keys were refused, a 429 is reported rather than a 401 or a 403, because the limit
    // behind it ends, and because it lets the request fall back (`isReasonToFallBack`).
    const keepsFormer429 =
      isKeyRefused && failure.status !== 429 && this.chosen?.failure?.status === 429;
    if (!keepsFormer429) this.chosen = attempt;
    if (isKeyRefused && this.#takeKey()) {
      this.#call.history.hasRetried = true;
      return 0;
    }
    return this.#retry(this.chosen!.failure!);
  }

  #retry({ details, retry }: GatewayError): number | undefined {
    const { retryAfterSeconds = 0 } = details;
    // A stale connection is not the provider's fault, so another attempt is not a retry.
    if (retry === 'at once' && !this.reconnect) {
      this.reconnect = true;
      this.#beginAgain();
      return 0;
    }
    const isLast = this.#retries === this.#maxRetries;
    if (retry === 'no' || isLast || retryAfterSeconds > MAX_AWAITED_SECONDS) return undefined;
    // Exponential with equal jitter: half the step, and a random part of the other half.
    const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** this.#retries);
    const backoffMs = (stepMs / 2) * (1 + Math.random());
    this.#retries += 1;
    this.#call.history.hasRetried = true;
    this.#beginAgain();
    return Math.max(backoffMs, retryAfterSeconds * 1000);
  }

  #beginAgain(): void {
    this.chosen = undefined;
    this.#keys = undefined;
  }

  /** Returns false if all keys have been tried. */
  #takeKey(): boolean {
    const { done, value } = this.#keys!.next();
    if (done) return false;
    this.key = new TakenKey(this.#keyPool!, value);
    return true;
  }
}
