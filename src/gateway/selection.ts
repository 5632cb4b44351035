/** The way from the candidates to an answer: choose a provider, ask it, and choose again while it may help. */

import { type Answer, Attempt } from '../lib/attempt.ts';
import { GatewayError } from '../lib/errors.ts';
import { type Probe, TARGET_STATUSES } from '../policy/circuit-breaker.ts';
import { askProvider, type Candidate, logAttempt, type Selection } from './ask-provider.ts';

/**
 * Asks the candidates in order until one answers. The first is the requested one: if its circuit is open, it is asked last.
 * If all fail, throws the failure of the requested one; at once `ClientGone` or a failure that names no provider. Holds the request's
 * body until it has its result.
 */
export async function askCandidates(
  candidates: readonly Candidate[],
  request: Omit<Selection, 'breaker'>,
): Promise<Answer> {
  const { call, services } = request;
  const { record } = call;
  const selection = { ...request, breaker: candidates.length > 1 ? services.breaker : undefined };
  const requested = candidates[0]!;
  // Grows by one if the requested candidate is to be asked last.
  const queue = [...candidates];
  let failed: Attempt | undefined;
  call.bodyReservation.retain();
  try {
    for (const [index, candidate] of queue.entries()) {
      const isRequested = candidate === requested;
      const isPostponed = index === candidates.length;
      const admission = await admit(candidate, selection, isPostponed);
      const isSkipped = admission instanceof GatewayError || (admission === 'open' && !isPostponed);
      record.hasRetried ||= !isSkipped && !isRequested;
      const attempt = isSkipped
        ? skip(candidate, admission, selection)
        : await askProvider(candidate, admission, selection);
      if (attempt.answer) return attempt.answer;
      if (!isRequested) continue;
      if (!attempt.failure) {
        queue.push(candidate);
        continue;
      }
      failed = attempt;
      if (!isReasonToFallBack(attempt.failure, candidate)) break;
    }
  } finally {
    // If all providers were skipped, it takes nothing of the client's limit.
    const wasAsked = record.tries.some((attempt) => attempt.wasAsked);
    if (!wasAsked) services.limits.ofClients.get(record.client)!.refundTokens();
    call.bodyReservation.release();
  }
  record.provider = requested.provider.id;
  record.attempt = failed;
  throw failed!.failure!;
}

/** Returns whether another candidate may be asked after the requested one. */
function isReasonToFallBack({ details, status }: GatewayError, { isBalanced }: Candidate): boolean {
  // Of targets that are alike, one that has no key, no such model or no token left is the only one to blame.
  if (isBalanced && TARGET_STATUSES.has(status)) return details.mayFallBack ?? true;
  // The rate limit of a provider is no reason to ask another one, unlike its concurrency limit.
  if (details.limit === 'provider') return false;
  return details.mayFallBack ?? (status >= 500 || status === 408 || status === 429);
}

/**
 * Takes a token of the provider's rate limit and a slot. Returns the state of the circuit before this attempt, or
 * `rateLimit` if a limit is reached. With an open circuit neither is kept, unless the provider `isPostponed`: then it is
 * asked nevertheless.
 */
async function admit(
  { provider, model }: Candidate,
  { breaker, services }: Selection,
  isPostponed: boolean,
): Promise<'closed' | 'open' | Probe | GatewayError> {
  const guard = isPostponed ? undefined : breaker;
  if (guard?.stateOf(provider, model) === 'open') return 'open';
  // Before the circuit: a request that is not sent is not the probe.
  const limiter = services.limits.ofProviders.get(provider.id)!;
  const noToken = await limiter.takeTokens();
  if (noToken) return noToken;
  // While the store was asked, another request has become the probe.
  if (guard?.stateOf(provider, model) === 'open') {
    limiter.refundTokens();
    return 'open';
  }
  const noSlot = limiter.acquireSlot();
  if (noSlot) {
    limiter.refundTokens();
    return noSlot;
  }
  return breaker?.recordAttempt(provider, model) ?? 'closed';
}

/** Records that a provider is not asked: its circuit is open, or a limit of its own is reached. */
function skip(candidate: Candidate, why: 'open' | GatewayError, { call, services }: Selection) {
  const attempt = new Attempt(candidate.provider, candidate.model);
  attempt.outcome = why === 'open' ? 'circuit_open' : 'limit';
  attempt.failure = why === 'open' ? undefined : why;
  call.record.tries.push(attempt);
  logAttempt('provider skipped', attempt, call, services.logger);
  return attempt;
}
