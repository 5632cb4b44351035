/** Asks one candidate: its retries, and the keys of its provider in turn. */

import type { Call } from '../downstream/call.ts';
import { Attempt, causeOf, type ChatRequest, isStream } from '../lib/attempt.ts';
import { pause } from '../lib/cancellation.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { CircuitBreaker, CircuitState } from '../policy/circuit-breaker.ts';
import type { Concurrency } from '../policy/concurrency.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import { sendAttempt, type AttemptSettings } from '../upstream/attempt.ts';
import type { ForwardedHeaders } from '../upstream/provider.ts';
import type { Candidate } from './model-name.ts';

/** A longer `Retry-After` is left to the client. */
const MAX_AWAITED_SECONDS = 30;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;

export interface CandidateSettings extends AttemptSettings {
  readonly logger: Logger;
  /** Of the providers with several keys, by their ids. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly concurrency: Concurrency;
}

export interface CandidateContext {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly forwarded: ForwardedHeaders;
  /** Absent if there is one candidate only. */
  readonly breaker: CircuitBreaker | undefined;
  readonly settings: CandidateSettings;
}

/**
 * Asks one provider, with its retries if its circuit was closed when the attempt was recorded. Returns the attempt with
 * the answer, or the one with the last failure. Throws if the client leaves or the gateway itself gives the request up.
 */
export async function tryCandidate(
  candidate: Candidate,
  context: CandidateContext,
  state: CircuitState,
): Promise<Attempt> {
  const { breaker, call, chat, settings } = context;
  const { provider } = candidate;
  const maxRetries = state === 'closed' ? provider.retries : 0;
  let isFresh = false;
  let before: Attempt | undefined;
  for (let retries = 0; ;) {
    const latest = settings.keyPools.has(provider.id)
      ? await tryKeys(candidate, context, isFresh)
      : await makeAttempt(candidate, context, { isFresh });
    if (!latest.failure) {
      // Whether a stream succeeds is known at its end, but a probe need not wait for it.
      if (!chat.stream || state !== 'closed') recordOutcome(breaker, candidate);
      return latest;
    }
    // A retry without a free slot is not asked: the failure before it stays.
    const attempt: Attempt = latest.isAsked ? latest : (before ?? latest);
    const failure = attempt.failure!;
    const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = failure.details;
    // Not a retry: a stale connection says nothing about the provider.
    if (repeatAtOnce && !isFresh) {
      isFresh = true;
      continue;
    }
    before = attempt;
    if (!retryable || retries === maxRetries || retryAfterSeconds > MAX_AWAITED_SECONDS) {
      if (attempt.isAsked) recordOutcome(breaker, candidate, failure);
      return attempt;
    }
    retries += 1;
    call.record.hasRetried = true;
    await pause(Math.max(backoffMs(retries), retryAfterSeconds * 1000), call.cancellation);
    call.cancellation.throwIfCancelled();
  }
}

/** Before retry number `retries`: exponential with equal jitter, half of the step and a random part of the other half. */
function backoffMs(retries: number): number {
  const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (retries - 1));
  return (stepMs / 2) * (1 + Math.random());
}

/**
 * Asks with one key after the other until one is not refused. Returns the last attempt, but one with a 429 rather than
 * one with a 401 or 403 after it: a limit ends, and another provider may be asked instead.
 */
async function tryKeys(
  candidate: Candidate,
  context: CandidateContext,
  isFresh: boolean,
): Promise<Attempt> {
  const keyPool = context.settings.keyPools.get(candidate.provider.id)!;
  let refused: Attempt | undefined;
  for (const key of keyPool.round()) {
    // If the client repeated the request, it would be tried with all keys again.
    if (refused) context.call.record.hasRetried = true;
    const rest = keyPool.restOf(key);
    const attempt = await makeAttempt(candidate, context, { key, isFresh });
    const { failure } = attempt;
    if (!failure) keyPool.recordSuccess(key, rest);
    if (!failure || !keyPool.recordFailure(key, failure)) return attempt;
    if (refused?.failure?.status !== 429 || failure.status === 429) refused = attempt;
  }
  return refused!;
}

/**
 * Returns the attempt, with its answer or a provider's failure; or a skipped one if the provider has no free slot. The
 * gateway's own failures, which name no provider, are thrown: a shutdown, a full `max_buffered_bytes`, or a bug.
 */
async function makeAttempt(
  candidate: Candidate,
  { breaker, call, chat, forwarded, settings }: CandidateContext,
  { key, isFresh }: { readonly key?: number; readonly isFresh: boolean },
): Promise<Attempt> {
  const { concurrency, logger } = settings;
  const { record } = call;
  const { provider, model } = candidate;
  const attempt = new Attempt(provider, model, key);
  const refusal = concurrency.beginAttempt(provider.id);
  if (refusal) return skip(attempt, refusal, call, logger);
  record.tries.push(attempt);
  record.attempt = attempt;
  record.provider = provider.id;
  const end = (failure?: GatewayError | ClientGone) => {
    attempt.end(failure);
    logAttempt('try', attempt, call, logger);
  };
  // Both are held until the stream ends, and must not name `chat`: its body is often megabytes.
  const onStreamEnd = (failure?: GatewayError) => {
    if (failure) {
      record.failure = failure;
      end(failure);
    }
    recordOutcome(breaker, candidate, failure);
  };
  try {
    attempt.answer = await sendAttempt(
      { attempt, call, chat, provider, forwarded, isFresh, onStreamEnd },
      settings,
    );
  } catch (thrown) {
    concurrency.endAttempt(provider.id);
    const failure = thrown instanceof ClientGone ? thrown : GatewayError.from(thrown);
    end(failure);
    if (failure instanceof ClientGone || failure.details.provider === undefined) throw failure;
    return attempt;
  }
  end();
  if (isStream(attempt.answer.body)) call.onEnd(() => concurrency.endAttempt(provider.id));
  else concurrency.endAttempt(provider.id);
  return attempt;
}

/** Records that a provider is not asked: its circuit is open, or a limit of its own is reached. Returns the attempt. */
export function skip(
  attempt: Attempt,
  why: 'open' | GatewayError,
  call: Call,
  logger: Logger,
): Attempt {
  attempt.outcome = why === 'open' ? 'resting' : 'limit';
  attempt.failure = why === 'open' ? undefined : why;
  call.record.tries.push(attempt);
  logAttempt('provider passed over', attempt, call, logger);
  return attempt;
}

function logAttempt(message: string, attempt: Attempt, { id }: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, isAsked } = attempt;
  const url = isAsked ? attempt.url : undefined;
  logger.log('debug', message, { request_id: id, ...attempt.toFacts(), url, connection });
}

/** Those of the network (502), of time limits (504), and an upstream's own. */
const OUTAGE_STATUSES = new Set([502, 503, 504, 529]);

function recordOutcome(
  breaker: CircuitBreaker | undefined,
  { provider, model }: Candidate,
  failure?: GatewayError,
): void {
  if (failure?.details.unreachable) breaker?.recordProviderFailure(provider, causeOf(failure));
  else if (failure && OUTAGE_STATUSES.has(failure.status))
    breaker?.recordModelFailure(provider, model, causeOf(failure));
  // A plain 500 may be the fault of one request's parameter: it says nothing about others.
  else if (failure?.status !== 500) breaker?.recordSuccess(provider, model);
}
