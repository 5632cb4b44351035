/** The way from the candidates to an answer: choose a provider and a key, attempt, and choose again while it may help. */

import type { Call } from '../downstream/call.ts';
import { type Answer, Attempt, causeOf, type ChatRequest, isStream } from '../lib/attempt.ts';
import { Deadline, pause } from '../lib/cancellation.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { CircuitBreaker, CircuitState } from '../policy/circuit-breaker.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import type { ProviderHealth } from '../policy/provider-health.ts';
import type { Limits } from '../policy/limits.ts';
import { sendAttempt } from '../upstream/attempt.ts';
import type { AttemptSettings } from '../upstream/attempt-context.ts';
import type { ForwardedHeaders, Provider } from '../upstream/provider.ts';

/** A longer `Retry-After` is left to the client. */
const MAX_AWAITED_SECONDS = 30;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;
/** Those of the network (502), of time limits (504), and an upstream's own. */
const OUTAGE_STATUSES = new Set([502, 503, 504, 529]);

/** A provider, and the model to ask it for. */
export interface Candidate {
  readonly provider: Provider;
  readonly model: string;
}

export interface SelectionSettings extends AttemptSettings {
  readonly logger: Logger;
  readonly breaker: CircuitBreaker;
  readonly limits: Limits;
  /** By the provider's id; absent if it has one key. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly health: ReadonlyMap<string, ProviderHealth>;
}

interface Selection {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly forwarded: ForwardedHeaders;
  /** Absent if there is one candidate: nobody else can be asked, and the circuit would have no effect. */
  readonly breaker: CircuitBreaker | undefined;
  readonly settings: SelectionSettings;
}

/**
 * Asks the candidates in order until one answers; the requested one, the first, last if its circuit is open. If all fail,
 * throws the failure of the requested one; at once `ClientGone` or a failure that names no provider.
 */
export async function askCandidates(
  candidates: readonly Candidate[],
  request: Omit<Selection, 'breaker'>,
): Promise<Answer> {
  const { call, settings } = request;
  const { record } = call;
  const selection = { ...request, breaker: candidates.length > 1 ? settings.breaker : undefined };
  const requested = candidates[0]!;
  const queue: Candidate[] = [...candidates];
  let failed: Attempt | undefined;
  for (const [index, candidate] of queue.entries()) {
    const isRequested = candidate === requested;
    const isPostponed = index === candidates.length;
    const start = await begin(candidate, selection, isPostponed);
    const isSkipped = start instanceof GatewayError || (start === 'open' && !isPostponed);
    record.hasRetried ||= !isSkipped && !isRequested;
    const attempt = isSkipped
      ? skip(candidate, start, selection)
      : await askProvider(candidate, start, selection);
    if (attempt.answer) return attempt.answer;
    if (!isRequested) continue;
    if (!attempt.failure) {
      queue.push(candidate);
      continue;
    }
    failed = attempt;
    const { details, status } = attempt.failure;
    // The gateway's own rate limit is no reason to ask another provider.
    if (details.limit === 'provider') break;
    if (!(details.mayFallBack ?? (status >= 500 || status === 408 || status === 429))) break;
  }
  record.provider = requested.provider.id;
  record.attempt = failed;
  throw failed!.failure!;
}

/**
 * Takes a token of the provider's rate limit and a slot, and marks the attempt at its circuit, whose state before it
 * returns; `rateLimit` if a limit is reached. An open circuit keeps neither, unless its provider `isPostponed`: then it is
 * asked nevertheless.
 */
async function begin(
  { provider, model }: Candidate,
  { breaker, call, settings }: Selection,
  isPostponed: boolean,
): Promise<CircuitState | GatewayError> {
  if (!isPostponed && breaker?.stateOf(provider, model) === 'open') return 'open';
  // Before the circuit: a request that is not sent is not the probe.
  const limiter = settings.limits.ofProviders.get(provider.id)!;
  const refusal = await limiter.take();
  if (refusal) return refusal;
  const noSlot = limiter.begin(call);
  if (noSlot) {
    limiter.refund();
    return noSlot;
  }
  const state = breaker?.recordAttempt(provider, model) ?? 'closed';
  // Meanwhile another request has become the probe.
  if (state === 'open' && !isPostponed) {
    limiter.end(call);
    limiter.refund();
  }
  return state;
}

/** Records that a provider is not asked: its circuit is open, or a limit of its own is reached. */
function skip(candidate: Candidate, why: 'open' | GatewayError, { call, settings }: Selection) {
  const attempt = new Attempt(candidate.provider, candidate.model);
  attempt.outcome = why === 'open' ? 'circuit_open' : 'limit';
  attempt.failure = why === 'open' ? undefined : why;
  call.record.tries.push(attempt);
  logAttempt('provider skipped', attempt, call, settings.logger);
  return attempt;
}

/**
 * Asks one provider, with retries if its circuit was closed, and with one key after the other until one is not refused.
 * Returns the attempt that has the answer, or that says why there is none. Frees the slot: after a stream, else at once.
 */
async function askProvider(
  candidate: Candidate,
  state: CircuitState,
  selection: Selection,
): Promise<Attempt> {
  const { breaker, call, chat, settings } = selection;
  const { provider } = candidate;
  const keyPool = settings.keyPools.get(provider.id);
  const maxRetries = state === 'closed' ? provider.retries : 0;
  let reconnect = false;
  let isStreamed = false;
  try {
    for (let retries = 0; ;) {
      let latest: Attempt | undefined;
      for (const key of keyPool?.keysToTry() ?? [0]) {
        // If the client repeated the request, it would be tried with all keys again.
        if (latest) call.record.hasRetried = true;
        const cooldown = keyPool?.cooldownOf(key);
        const attempt = await makeAttempt(candidate, { key: keyPool && key, reconnect }, selection);
        const { failure } = attempt;
        if (!failure) keyPool?.recordSuccess(key, cooldown);
        const isRefused = failure && keyPool?.recordFailure(key, failure);
        // A 429 stays: unlike a 401 or 403 it ends, and another provider may be asked instead.
        const isWorse = failure?.status !== 429 && latest?.failure?.status === 429;
        if (!isRefused || !isWorse) latest = attempt;
        if (!isRefused) break;
      }
      const { answer, failure } = latest!;
      if (!failure) {
        // A stream can fail until its end, but a probe need not wait for that.
        if (!chat.stream || state !== 'closed') recordOutcome(breaker, candidate);
        isStreamed = isStream(answer!.body);
        return latest!;
      }
      const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = failure.details;
      // Not a retry: a stale connection says nothing about the provider.
      if (repeatAtOnce && !reconnect) {
        reconnect = true;
        continue;
      }
      if (!retryable || retries === maxRetries || retryAfterSeconds > MAX_AWAITED_SECONDS) {
        recordOutcome(breaker, candidate, failure);
        return latest!;
      }
      retries += 1;
      call.record.hasRetried = true;
      // Exponential with equal jitter: half of the step and a random part of the other half.
      const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** (retries - 1));
      const backoffMs = (stepMs / 2) * (1 + Math.random());
      await pause(Math.max(backoffMs, retryAfterSeconds * 1000), call.cancellation);
      call.cancellation.throwIfCancelled();
    }
  } finally {
    const limiter = settings.limits.ofProviders.get(provider.id)!;
    const end = () => limiter.end(call);
    if (isStreamed) call.onEnd(end);
    else end();
  }
}

/** Returns the attempt, with its answer or its provider's failure. Throws failures that name no provider: nobody else is asked. */
async function makeAttempt(
  candidate: Candidate,
  { key, reconnect }: { readonly key: number | undefined; readonly reconnect: boolean },
  { breaker, call, chat, forwarded, settings }: Selection,
): Promise<Attempt> {
  const { record } = call;
  const { provider, model } = candidate;
  const attempt = new Attempt(provider, model, key);
  const deadline = new Deadline(call.cancellation);
  record.tries.push(attempt);
  record.attempt = attempt;
  record.provider = provider.id;
  const end = (failure?: GatewayError | ClientGone) => {
    attempt.end(failure);
    if (!(failure instanceof ClientGone)) settings.health.get(provider.id)!(failure);
    logAttempt('try', attempt, call, settings.logger);
  };
  // Both live as long as the stream, and must not capture `chat`: its body is often megabytes.
  const onStreamEnd = (failure?: GatewayError) => {
    if (failure) {
      record.failure = failure;
      end(failure);
    }
    recordOutcome(breaker, candidate, failure);
  };
  try {
    const request = provider.chatRequest(chat, model, forwarded, key);
    attempt.answer = await sendAttempt(
      { ...request, held: call.bodyReservation, isStream: chat.stream, reconnect },
      provider.timeoutMs,
      { attempt, call, settings, isStream: chat.stream, deadline, onStreamEnd },
    );
    end();
  } catch (thrown) {
    const failure = thrown instanceof ClientGone ? thrown : GatewayError.from(thrown);
    end(failure);
    if (failure instanceof ClientGone || failure.details.provider === undefined) throw failure;
  }
  return attempt;
}

function logAttempt(message: string, attempt: Attempt, { id }: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, wasSent } = attempt;
  const url = wasSent ? attempt.url : undefined;
  logger.log('debug', message, { request_id: id, ...attempt.toFacts(), url, connection });
}

function recordOutcome(
  breaker: CircuitBreaker | undefined,
  { provider, model }: Candidate,
  failure?: GatewayError,
): void {
  const isOutage = failure && OUTAGE_STATUSES.has(failure.status);
  if (failure?.details.unreachable)
    breaker?.record('failure', provider, undefined, causeOf(failure));
  else if (isOutage) breaker?.record('failure', provider, model, causeOf(failure));
  // A plain 500 may be the fault of one request's parameter: it says nothing about others.
  else if (failure?.status !== 500) breaker?.record('success', provider, model);
}
