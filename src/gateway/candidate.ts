/** Asks one candidate: its retries, and the keys of its provider in turn. */

import type { Call } from '../downstream/call.ts';
import { pause } from '../lib/cancellation.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import { isStream, type Answer, type ChatRequest } from '../lib/messages.ts';
import type { CircuitBreaker, CircuitState } from '../policy/circuit-breaker.ts';
import type { Concurrency } from '../policy/concurrency.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import { attempt, type AttemptCall, type AttemptSettings } from '../upstream/attempt.ts';
import type { ForwardedHeaders } from '../upstream/provider.ts';
import type { Candidate } from './model-name.ts';
import { causeOf } from './outcome.ts';
import { beginTry, recordPassedOver, type OpenTry } from './tries.ts';

/** A longer `Retry-After` is left to the client. */
const MAX_AWAITED_SECONDS = 30;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;

export interface TrySettings extends AttemptSettings {
  /** Of the providers with several keys, by their ids. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly concurrency: Concurrency;
}

export interface TryContext {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly forwarded: ForwardedHeaders;
  /** Absent if there is one candidate only. */
  readonly breaker: CircuitBreaker | undefined;
  readonly settings: TrySettings;
  /** A reused connection turned out closed: a new one is wanted. */
  readonly isFresh?: boolean;
}

/**
 * Asks one provider, with its retries if its circuit was closed when the attempt was recorded. Returns the answer or
 * the last failure. Throws if the client leaves or the gateway itself gives the request up.
 */
export async function tryCandidate(
  candidate: Candidate,
  context: TryContext,
  state: CircuitState,
): Promise<Answer | GatewayError> {
  const { breaker, call, chat, settings } = context;
  const { provider, model } = candidate;
  const keyPool = settings.keyPools.get(provider.id);
  const maxRetries = state === 'closed' ? provider.retries : 0;
  let tried = context;
  let failure: GatewayError | undefined;
  for (let retries = 0; ;) {
    const outcome = await (keyPool
      ? attemptWithKeys(keyPool, candidate, tried)
      : attemptOnce(candidate, tried));
    if (!(outcome instanceof GatewayError)) {
      // Whether a stream succeeds is known at its end, but a probe need not wait for it.
      if (!chat.stream || state !== 'closed') breaker?.recordSuccess(provider, model);
      return outcome;
    }
    // A retry without a free slot is not asked: the failure before it stays.
    const result: GatewayError = isNotAsked(outcome) ? (failure ?? outcome) : outcome;
    const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = result.facts;
    // Not a retry: a stale connection says nothing about the provider.
    if (repeatAtOnce && !tried.isFresh) {
      tried = { ...context, isFresh: true };
      continue;
    }
    failure = result;
    if (!retryable || retries === maxRetries || retryAfterSeconds > MAX_AWAITED_SECONDS) {
      recordFailure(breaker, candidate, result);
      return result;
    }
    retries += 1;
    call.record.hasRetried = true;
    await pause(Math.max(backoffMs(retries), retryAfterSeconds * 1000), call.cancellation);
    call.cancellation.throwIfCancelled();
  }
}

/**
 * Asks with one key after the other until one is not refused. Returns the answer or the last failure, but a 429 rather
 * than a 401 or 403 after it: a limit ends, and another provider may be asked instead.
 */
async function attemptWithKeys(
  keyPool: KeyPool,
  candidate: Candidate,
  context: TryContext,
): Promise<Answer | GatewayError> {
  const { record } = context.call;
  let refusal: GatewayError | undefined;
  let refusedTry: number | undefined;
  for (const key of keyPool.round()) {
    // If the client repeated the request, it would be tried with all keys again.
    if (refusal) record.hasRetried = true;
    const rest = keyPool.restOf(key);
    const result = await attemptOnce(candidate, context, key);
    if (!(result instanceof GatewayError)) {
      keyPool.recordSuccess(key, rest);
      return result;
    }
    if (!keyPool.recordFailure(key, result)) return result;
    if (refusal?.status === 429 && result.status !== 429) continue;
    refusal = result;
    refusedTry = record.answeredTry;
  }
  record.answeredTry = refusedTry;
  return refusal!;
}

/** Before retry number `retries`: exponential with equal jitter, half of the step and a random part of the other half. */
function backoffMs(retries: number): number {
  const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (retries - 1));
  return (stepMs / 2) * (1 + Math.random());
}

/** The provider has no free slot. */
function isNotAsked({ facts }: GatewayError): boolean {
  return facts.limit === 'provider_concurrency';
}

/**
 * A provider's failure is returned, and so is the refusal of one that has no free slot. The gateway's own, which name no
 * provider, are thrown: a shutdown, a full `max_buffered_bytes`, or a bug.
 */
async function attemptOnce(
  candidate: Candidate,
  { breaker, call, chat, forwarded, settings, isFresh }: TryContext,
  key?: number,
): Promise<Answer | GatewayError> {
  const { concurrency, logger } = settings;
  const { id } = candidate.provider;
  const refusal = concurrency.beginAttempt(id);
  if (refusal) {
    recordPassedOver(candidate, 'limit', call, logger);
    return refusal;
  }
  const opened = beginTry(candidate, call, logger, key);
  const attemptCall: AttemptCall = {
    forwarded,
    facts: opened.facts,
    cancellation: call.cancellation,
    bodyReservation: call.bodyReservation,
    reservation: call.answerReservation,
    onStreamEnd: chat.stream ? createStreamEnd(call, candidate, opened, breaker) : undefined,
  };
  try {
    const { provider, model } = candidate;
    const request = { call: attemptCall, chat, provider, model, key, isFresh };
    const answer = await attempt(request, settings);
    opened.end();
    if (isStream(answer.body)) call.onEnd(() => concurrency.endAttempt(id));
    else concurrency.endAttempt(id);
    return answer;
  } catch (thrown) {
    concurrency.endAttempt(id);
    const failure = thrown instanceof ClientGone ? thrown : GatewayError.from(thrown);
    opened.end(failure);
    if (failure instanceof ClientGone || failure.facts.provider === undefined) throw failure;
    return failure;
  }
}

/** Those of the network (502), of time limits (504), and an upstream's own. */
const OUTAGE_STATUSES = new Set([502, 503, 504, 529]);

function recordFailure(
  breaker: CircuitBreaker | undefined,
  { provider, model }: Candidate,
  failure: GatewayError,
): void {
  const { status, facts } = failure;
  if (isNotAsked(failure)) return;
  if (facts.unreachable) breaker?.recordProviderFailure(provider, causeOf(failure));
  else if (OUTAGE_STATUSES.has(status))
    breaker?.recordModelFailure(provider, model, causeOf(failure));
  // A plain 500 may be the fault of one request's parameter: it says nothing about others.
  else if (status !== 500) breaker?.recordSuccess(provider, model);
}

/** Without the chat request: a stream would hold its body, often megabytes, until it ends. */
function createStreamEnd(
  call: Call,
  candidate: Candidate,
  opened: OpenTry,
  breaker: CircuitBreaker | undefined,
): (failure?: GatewayError) => void {
  return (failure) => {
    if (failure) {
      call.record.failure = failure;
      opened.end(failure);
      recordFailure(breaker, candidate, failure);
    } else {
      breaker?.recordSuccess(candidate.provider, candidate.model);
    }
  };
}
