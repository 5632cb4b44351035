/** `POST /v1/chat/completions`: reads the request, and asks one candidate after the other until one answers. */

import type { ClientSettings } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import { headerValues } from '../downstream/request-head.ts';
import { Deadline, pause } from '../lib/cancellation.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { type CircuitBreaker, type Probe, TARGET_STATUSES } from '../policy/circuit-breaker.ts';
import type { KeyPool } from '../policy/key-pool.ts';
import type { ProviderHealth } from '../policy/provider-health.ts';
import { Attempt, type ChatRequest, MAX_NAME_CHARACTERS } from '../request/record.ts';
import type { AttemptContext, AttemptServices } from '../upstream/attempt-context.ts';
import { tracingOf } from '../upstream/headers.ts';
import type { UpstreamReply } from '../upstream/provider.ts';
import { failureOf, passReply, sendAttempt } from '../upstream/send-attempt.ts';
import { type Candidate, type CandidateServices, candidatesFor } from './candidates.ts';
import { ProviderTries } from './provider-tries.ts';

export interface CompletionServices extends AttemptServices, CandidateServices {
  readonly logger: Logger;
  /** By the provider's id; absent if it has one key. */
  readonly keyPools: ReadonlyMap<string, KeyPool>;
  readonly health: ReadonlyMap<string, ProviderHealth>;
}

/** One request on its way through the candidates. */
interface Asking {
  readonly call: Call;
  readonly chat: ChatRequest;
  /** The headers by which its trace goes on at providers, names and values in turn. */
  readonly tracing: readonly string[];
  /** Absent if there is one candidate: nobody else can be asked, and the circuit would have no effect. */
  readonly breaker: CircuitBreaker | undefined;
  readonly services: CompletionServices;
}

/**
 * Answers one chat completion; resolves when all of the answer was handed over. `client` is undefined if the key has no name.
 * Rejects with `GatewayError` or `ClientGone`, before the answer has begun or after it.
 */
export async function completeChat(
  call: Call,
  services: CompletionServices,
  client: ClientSettings | undefined,
): Promise<void> {
  const { record, reply } = call;
  const { config } = services;
  checkContentHeaders(call);
  const tracing = tracingOf(call.id, call.headers);
  record.traceId = tracing.traceId;
  try {
    const chat = await readChat(call, config.server.maxBodyBytes, client);
    const candidates = candidatesFor(chat.model, call, services, client);
    record.provider = candidates[0]!.provider.id;
    const breaker = candidates.length > 1 ? services.breaker : undefined;
    const { streamKeepaliveMs } = config.server;
    if (chat.stream && streamKeepaliveMs > 0) reply.keepAlive(streamKeepaliveMs);
    await askCandidates(candidates, { call, chat, tracing: tracing.headers, breaker, services });
  } finally {
    call.bodyReservation.dropBody();
  }
}

/** Reads the request, and records what it says. Rejects with `invalidRequest`, or what `readRequestBody` rejects with. */
async function readChat(
  call: Call,
  maxBodyBytes: number,
  client: ClientSettings | undefined,
): Promise<ChatRequest> {
  const { record } = call;
  const parser = new ChatRequestParser(client?.models === undefined);
  const body = await call.readBody(maxBodyBytes, (chunk) => parser.push(chunk));
  record.requestBytes = body.size;
  record.bodyReadAtMs = performance.now();
  const chat = parser.finish(body);
  record.model = escapeControlCharacters(chat.model, MAX_NAME_CHARACTERS);
  record.stream = chat.stream;
  return chat;
}

const JSON_TYPE = /^\s*application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;
const OTHER_CHARSET = /charset\s*=(?!\s*"?utf-?8"?\s*(?:;|$))/i;

/** Requires JSON: without a preflight, a page in a browser may send `text/plain` to localhost, but not JSON. */
function checkContentHeaders(call: Call): void {
  const encoding = call.headers['content-encoding'];
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw invalidRequest('Content-Encoding must be identity');
  }
  const types = headerValues(call, 'content-type');
  if (types.length !== 1 || !JSON_TYPE.test(types[0]!) || OTHER_CHARSET.test(types[0]!)) {
    throw invalidRequest('Content-Type must be application/json in UTF-8');
  }
}

/**
 * Asks the candidates in order until one answers. The first is the requested one: if its circuit is open, it is asked last.
 * If all fail, throws the failure of the requested one; at once `ClientGone` or a failure that names no provider.
 */
async function askCandidates(candidates: readonly Candidate[], asking: Asking): Promise<void> {
  const { services } = asking;
  const { record } = asking.call;
  const requested = candidates[0]!;
  let failed: Attempt | undefined;
  // The requested one comes a second time if it was passed over.
  let count = candidates.length;
  for (let index = 0; index < count; index += 1) {
    const candidate = candidates[index] ?? requested;
    const isPostponed = index === candidates.length;
    const admitting = admit(candidate, asking, isPostponed);
    const admission = admitting instanceof Promise ? await admitting : admitting;
    const isSkipped = admission instanceof GatewayError || (admission === 'open' && !isPostponed);
    record.hasRetried ||= !isSkipped && candidate !== requested;
    const attempt = isSkipped
      ? skip(candidate, admission, asking)
      : await askProvider(candidate, admission, asking);
    // Nobody else is asked once the answer has begun.
    if (attempt.hasAnswer && attempt.failure) throw attempt.failure;
    if (attempt.hasAnswer) return;
    if (candidate !== requested) continue;
    failed = attempt;
    if (!attempt.failure) count += 1;
    else if (!isReasonToFallBack(attempt.failure, candidate)) break;
  }
  // If all providers were skipped, it takes nothing of the client's limit.
  const wasAsked = record.tries.some((one) => one.wasAsked);
  if (!wasAsked) services.limits.ofClients.get(record.client)!.refundTokens();
  record.provider = requested.provider.id;
  record.attempt = failed;
  throw failed!.failure!;
}

/** Returns whether another candidate may be asked after the requested one. */
function isReasonToFallBack({ details, status }: GatewayError, { isBalanced }: Candidate): boolean {
  // A target that has no key, no such model or no token left is the only one to blame among those that are alike.
  if (isBalanced && TARGET_STATUSES.has(status)) return details.mayFallBack ?? true;
  // The rate limit of a provider is no reason to ask another one, unlike its concurrency limit.
  if (details.limit === 'provider') return false;
  return details.mayFallBack ?? (status >= 500 || status === 408 || status === 429);
}

type Admission = 'closed' | 'open' | Probe | GatewayError;

/**
 * Takes a token of the provider's rate limit and a slot. Returns the state of the circuit before this attempt, or the probe
 * that it is, or `rateLimit` if a limit is reached. With an open circuit neither is kept, unless the provider
 * `isPostponed`: then it is asked nevertheless. Only with a store there is something to wait for.
 */
function admit(
  candidate: Candidate,
  asking: Asking,
  isPostponed: boolean,
): Admission | Promise<Admission> {
  const { provider, model } = candidate;
  const { breaker, services } = asking;
  const guard = isPostponed ? undefined : breaker;
  if (guard?.stateOf(provider, model) === 'open') return 'open';
  const taking = services.limits.ofProviders.get(provider.id)!.takeTokens();
  if (!(taking instanceof Promise)) return takeSlot(taking, candidate, asking, guard);
  return taking.then((noToken) => takeSlot(noToken, candidate, asking, guard));
}

function takeSlot(
  noToken: GatewayError | undefined,
  { provider, model }: Candidate,
  { breaker, services }: Asking,
  guard: CircuitBreaker | undefined,
): Admission {
  if (noToken) return noToken;
  const limiter = services.limits.ofProviders.get(provider.id)!;
  // While the store was asked, another request has become the probe.
  const isOpen = guard?.stateOf(provider, model) === 'open';
  const noSlot = isOpen ? undefined : limiter.acquireSlot();
  if (isOpen || noSlot) limiter.refundTokens();
  if (isOpen) return 'open';
  // A request that is not sent is not the probe.
  return noSlot ?? breaker?.recordAttempt(provider, model) ?? 'closed';
}

/** Records that a provider is not asked: its circuit is open, or a limit of its own is reached. */
function skip(
  { provider, model }: Candidate,
  why: 'open' | GatewayError,
  { call, services }: Asking,
): Attempt {
  const attempt = new Attempt(provider, model);
  attempt.outcome = why === 'open' ? 'circuit_open' : 'limit';
  attempt.failure = why === 'open' ? undefined : why;
  call.record.tries.push(attempt);
  logAttempt('provider skipped', attempt, call, services.logger);
  return attempt;
}

/**
 * Asks one provider, with retries if its circuit was closed, and with one key after the other until one is not refused.
 * Returns the attempt that had the answer, or says best why there is none. Holds the slot, and is the probe, to its end.
 */
async function askProvider(
  candidate: Candidate,
  admission: 'closed' | 'open' | Probe,
  asking: Asking,
): Promise<Attempt> {
  const { breaker, call, services } = asking;
  const { provider } = candidate;
  const probe = typeof admission === 'object' ? admission : undefined;
  const maxRetries = admission === 'closed' ? provider.retries : 0;
  const tries = new ProviderTries(maxRetries, services.keyPools.get(provider.id), call);
  try {
    for (let waitMs: number | undefined = 0; waitMs !== undefined;) {
      if (waitMs > 0) await pause(waitMs, call.cancellation);
      call.cancellation.throwIfCancelled();
      waitMs = tries.next(await makeAttempt(candidate, tries, probe, asking));
      call.record.hasRetried ||= tries.hasRetried;
    }
    const attempt = tries.chosen!;
    breaker?.recordOutcome(candidate, attempt.failure);
    return attempt;
  } finally {
    services.limits.ofProviders.get(provider.id)!.releaseSlot();
    probe?.end();
  }
}

/**
 * Makes one attempt, and passes its answer to the client. Returns it when it is over, with its provider's failure if there is
 * one. Throws failures that name no provider: nobody else is asked.
 */
async function makeAttempt(
  candidate: Candidate,
  tries: ProviderTries,
  probe: Probe | undefined,
  asking: Asking,
): Promise<Attempt> {
  const { call, services } = asking;
  const { record } = call;
  const { provider, model } = candidate;
  const attempt = new Attempt(provider, model, tries.key);
  record.tries.push(attempt);
  record.attempt = attempt;
  record.provider = provider.id;
  const context: AttemptContext = {
    attempt,
    settings: provider,
    call,
    services,
    isStream: asking.chat.stream,
    deadline: new Deadline(call.cancellation),
    onData: probe?.onData,
  };
  let failure: GatewayError | ClientGone | undefined;
  try {
    const passing = passReply(await send(candidate, tries, asking, context), context);
    if (passing) await passing;
    // After a stream it ends what still comes.
    if (!context.isStream) context.deadline.stop();
  } catch (thrown) {
    failure = failureOf(thrown, context);
  }
  attempt.recordEnd(failure);
  logAttempt('try', attempt, call, services.logger);
  if (failure instanceof ClientGone) throw failure;
  services.health.get(provider.id)!(failure);
  if (failure && failure.details.provider === undefined) throw failure;
  return attempt;
}

/** Not async, and apart: nothing of the request is held here while its answer lasts. */
function send(
  { provider, model }: Candidate,
  { key, reconnect }: ProviderTries,
  { call, chat, tracing }: Asking,
  context: AttemptContext,
): Promise<UpstreamReply> {
  const { attempt, isStream } = context;
  attempt.usageAdded = provider.streamUsage && chat.mayAskForUsage;
  const body = chat.bodyWith(model, attempt.usageAdded);
  const reservation = call.bodyReservation;
  const headers = tracing;
  const request = provider.chatRequest({ body, reservation, isStream, headers, key, reconnect });
  return sendAttempt(request, context);
}

function logAttempt(message: string, attempt: Attempt, { id }: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, url, wasAsked } = attempt;
  const sent = wasAsked ? { url, connection } : {};
  logger.log('debug', message, { request_id: id, ...attempt.toFacts(), ...sent });
}
