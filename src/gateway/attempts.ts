/** One attempt of a chat completion at one provider, and its record. */

import type { Call } from '../downstream/call.ts';
import { Attempt, type ChatRequest } from '../lib/attempt.ts';
import { Deadline } from '../lib/cancellation.ts';
import { ClientGone, type GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { CircuitBreaker, Probe } from '../policy/circuit-breaker.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import type { Incidents } from '../policy/incidents.ts';
import type { AttemptContext, AttemptServices } from '../upstream/attempt-context.ts';
import type { UpstreamRequest } from '../upstream/provider.ts';
import { failureOf, readReply, sendAttempt } from '../upstream/send-attempt.ts';
import type { Candidate, CandidateServices } from './candidates.ts';
import type { ProviderTries } from './provider-tries.ts';

export interface CompletionServices extends AttemptServices, CandidateServices {
  readonly logger: Logger;
  /** By the provider's id; absent if it has one key. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly incidents: Incidents;
}

/** One request on its way through the candidates. */
export interface Asking {
  readonly call: Call;
  readonly chat: ChatRequest;
  /** The headers by which its trace goes on at providers, names and values in turn. */
  readonly tracing: readonly string[];
  /** Absent if there is one candidate: nobody else can be asked, and the circuit would have no effect. */
  readonly breaker: CircuitBreaker | undefined;
  readonly services: CompletionServices;
}

/** Records that a provider is not asked: its circuit is open, or a limit of its own is reached. */
export function skip(
  { provider, model }: Candidate,
  why: 'open' | GatewayError,
  asking: Asking,
): Attempt {
  const attempt = new Attempt(provider, model);
  attempt.outcome = why === 'open' ? 'circuit_open' : 'limit';
  attempt.failure = why === 'open' ? undefined : why;
  asking.call.record.tries.push(attempt);
  logAttempt('provider skipped', attempt, asking.call, asking.services.logger);
  return attempt;
}

/** Returns the attempt, with its answer or its provider's failure. Throws failures that name no provider: nobody else is asked. */
export async function makeAttempt(
  candidate: Candidate,
  tries: ProviderTries,
  probe: Probe | undefined,
  asking: Asking,
): Promise<Attempt> {
  const context = beginAttempt(candidate, tries, probe, asking);
  const { attempt } = context;
  try {
    const reply = await sendAttempt(toRequest(candidate, tries, asking, attempt), context);
    const answer = readReply(reply, context);
    attempt.answer = answer instanceof Promise ? await answer : answer;
  } catch (thrown) {
    const failure = failureOf(thrown, context);
    endAttempt(attempt, failure, asking);
    if (failure instanceof ClientGone || failure.details.provider === undefined) throw failure;
    return attempt;
  }
  // A stream goes on to its end, and may still fail.
  if (!context.isStream) context.deadline.stop();
  endAttempt(attempt, undefined, asking);
  return attempt;
}

const ignore = () => {};

function beginAttempt(
  candidate: Candidate,
  { key }: ProviderTries,
  probe: Probe | undefined,
  asking: Asking,
): AttemptContext {
  const { call, chat, services } = asking;
  const { record } = call;
  const { provider, model } = candidate;
  const attempt = new Attempt(provider, model, key);
  record.tries.push(attempt);
  record.attempt = attempt;
  record.provider = provider.id;
  return {
    attempt,
    settings: provider,
    call,
    services,
    isStream: chat.stream,
    deadline: new Deadline(call.cancellation),
    // Lives as long as the stream, and must not capture `chat`: its body is often megabytes.
    onStreamEnd: chat.stream ? createStreamEnd(candidate, attempt, asking) : ignore,
    onData: probe?.onData,
  };
}

function toRequest(
  { provider, model }: Candidate,
  { key, reconnect }: ProviderTries,
  { call, chat, tracing }: Asking,
  attempt: Attempt,
): UpstreamRequest {
  attempt.usageAdded = provider.streamUsage && chat.mayAskForUsage;
  return provider.chatRequest({
    body: chat.bodyWith(model, attempt.usageAdded),
    reservation: call.bodyReservation,
    isStream: chat.stream,
    headers: tracing,
    key,
    reconnect,
  });
}

/** Records the end, or that a stream has begun. */
function endAttempt(
  attempt: Attempt,
  failure: GatewayError | ClientGone | undefined,
  { call, services }: Pick<Asking, 'call' | 'services'>,
): void {
  attempt.recordEnd(failure);
  logAttempt('try', attempt, call, services.logger);
  if (!(failure instanceof ClientGone)) services.incidents.record(attempt, failure);
}

/** Returns what records the end of a stream, with its failure if there is one. */
function createStreamEnd(
  candidate: Candidate,
  attempt: Attempt,
  { breaker, call, services }: Asking,
) {
  return (failure?: GatewayError): void => {
    if (failure) {
      call.record.failure = failure;
      endAttempt(attempt, failure, { call, services });
    }
    breaker?.recordOutcome(candidate, failure);
  };
}

function logAttempt(message: string, attempt: Attempt, { id }: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, url, wasAsked } = attempt;
  const sent = wasAsked ? { url, connection } : {};
  logger.log('debug', message, { request_id: id, ...attempt.toFacts(), ...sent });
}
