/** `POST /v1/chat/completions`: reads the request, and asks one candidate after the other until one answers. */

import type { ClientSettings, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import { headerValues } from '../downstream/request-head.ts';
import {
  type Answer,
  type Attempt,
  type ChatRequest,
  MAX_NAME_CHARACTERS,
} from '../lib/attempt.ts';
import { pause } from '../lib/cancellation.ts';
import { lengthOf } from '../lib/chunk-buffer.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { type CircuitBreaker, type Probe, TARGET_STATUSES } from '../policy/circuit-breaker.ts';
import { tracingOf } from '../upstream/headers.ts';
import { type Asking, type CompletionServices, makeAttempt, skip } from './attempts.ts';
import { type Candidate, candidatesFor } from './candidates.ts';
import { keepAlive } from './keep-alive.ts';
import { ProviderTries } from './provider-tries.ts';

/** Answers one chat completion. `client` is undefined if the key has no name. Rejects with `GatewayError` or `ClientGone`. */
export async function completeChat(
  call: Call,
  services: CompletionServices,
  client: ClientSettings | undefined,
): Promise<Answer> {
  checkContentHeaders(call);
  const tracing = tracingOf(call.id, call.headers);
  call.record.traceId = tracing.traceId;
  const parser = new ChatRequestParser(client?.models === undefined);
  const { maxBodyBytes, streamKeepaliveMs } = services.config.server;
  const body = await call.readBody(maxBodyBytes, (chunk) => parser.push(chunk));
  const chat = noteRequest(parser, body, call);
  const candidates = candidatesFor(chat.model, call, services, client);
  call.record.provider = candidates[0]!.provider.id;
  const breaker = candidates.length > 1 ? services.breaker : undefined;
  const asking = { call, chat, tracing: tracing.headers, breaker, services };
  const answering = askCandidates(candidates, asking);
  const isKeptAlive = chat.stream && streamKeepaliveMs > 0;
  return isKeptAlive ? keepAlive(answering, call, streamKeepaliveMs) : answering;
}

/** Returns the request, and records what it says. Throws `invalidRequest`. */
function noteRequest(
  parser: ChatRequestParser,
  body: readonly Buffer[],
  { record }: Call,
): ChatRequest {
  record.requestBytes = lengthOf(body);
  record.bodyReadAtMs = performance.now();
  const chat = parser.finish(body);
  record.model = escapeControlCharacters(chat.model, MAX_NAME_CHARACTERS);
  record.stream = chat.stream;
  record.promptCacheKey = chat.promptCacheKey;
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
 * If all fail, throws the failure of the requested one; at once `ClientGone` or a failure that names no provider. Holds the
 * request's body until it has its result.
 */
async function askCandidates(candidates: readonly Candidate[], asking: Asking): Promise<Answer> {
  const { call, services } = asking;
  const { record } = call;
  const requested = candidates[0]!;
  let failed: Attempt | undefined;
  // The requested one comes a second time if it was passed over.
  let count = candidates.length;
  call.bodyReservation.retain();
  try {
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
      if (attempt.answer) return attempt.answer;
      if (candidate !== requested) continue;
      failed = attempt;
      if (!attempt.failure) count += 1;
      else if (!isReasonToFallBack(attempt.failure, candidate, services.config)) break;
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
function isReasonToFallBack(
  { details, status }: GatewayError,
  { isBalanced }: Candidate,
  { providers: { fallbackOn } }: Config,
): boolean {
  // A target that has no key, no such model or no token left is the only one to blame among those that are alike.
  if (isBalanced && TARGET_STATUSES.has(status)) return details.mayFallBack ?? true;
  // The rate limit of a provider is no reason to ask another one, unlike its concurrency limit.
  if (details.limit === 'provider') return false;
  const mayPass = status >= 500 || status === 408 || status === 429;
  return details.mayFallBack ?? (mayPass || fallbackOn.includes(status));
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

/**
 * Asks one provider, with retries if its circuit was closed, and with one key after the other until one is not refused.
 * Returns the attempt that has the answer, or says why there is none. Frees the slot and ends the probe: after a stream, else
 * at once.
 */
async function askProvider(
  candidate: Candidate,
  admission: 'closed' | 'open' | Probe,
  asking: Asking,
): Promise<Attempt> {
  const { breaker, call, chat, services } = asking;
  const { provider } = candidate;
  const probe = typeof admission === 'object' ? admission : undefined;
  const maxRetries = admission === 'closed' ? provider.retries : 0;
  const tries = new ProviderTries(maxRetries, services.keyPools.get(provider.id), call);
  const { releaseSlot } = services.limits.ofProviders.get(provider.id)!;
  let isStreamed = false;
  try {
    for (let waitMs: number | undefined = 0; waitMs !== undefined;) {
      if (waitMs > 0) await pause(waitMs, call.cancellation);
      call.cancellation.throwIfCancelled();
      waitMs = tries.next(await makeAttempt(candidate, tries, probe, asking));
      call.record.hasRetried ||= tries.hasRetried;
    }
    const attempt = tries.chosen!;
    isStreamed = chat.stream && attempt.answer !== undefined;
    // A stream can fail until its end.
    if (!isStreamed) breaker?.recordOutcome(candidate, attempt.failure);
    return attempt;
  } finally {
    if (isStreamed) {
      call.onFinish(releaseSlot);
      if (probe) call.onFinish(probe.end);
    } else {
      releaseSlot();
      probe?.end();
    }
  }
}
