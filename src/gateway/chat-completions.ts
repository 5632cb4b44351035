/** `POST /v1/chat/completions`: reads the request, and asks one candidate after the other until one answers. */

import type { ClientSettings, Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import { soleHeader } from '../downstream/request-head.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { type CircuitBreaker, type Probe, TARGET_STATUSES } from '../policy/circuit-breaker.ts';
import { type Attempt, type ChatRequest, MAX_NAME_CHARACTERS } from '../request/record.ts';
import { tracingOf } from '../upstream/headers.ts';
import { askProvider, type Asking, skip } from './ask-provider.ts';
import type { Candidate } from './balance.ts';
import { candidatesFor } from './candidates.ts';
import type { Services } from './services.ts';

/**
 * Answers one chat completion; resolves when all of the answer was handed over. `client` is undefined if the key has no name.
 * Asks the candidates in order until one answers; the first is the requested one: if its circuit is open, it is asked last.
 * Rejects with `GatewayError` or `ClientGone`, before the answer has begun or after it: if all fail, with the failure of the
 * requested one.
 */
export async function completeChat(
  call: Call,
  services: Services,
  client: ClientSettings | undefined,
): Promise<void> {
  const { record } = call;
  const { maxBodyBytes, streamKeepaliveMs } = services.config.server;
  checkContentHeaders(call);
  const tracing = tracingOf(call.id, call.headers);
  record.traceId = tracing.traceId;
  try {
    const chat = await readChat(call, client, maxBodyBytes);
    const candidates = candidatesFor(chat.model, call, services, client);
    const requested = candidates[0]!;
    record.provider = requested.provider.id;
    if (chat.stream && streamKeepaliveMs > 0) call.reply.keepAlive(streamKeepaliveMs);
    const breaker = candidates.length > 1 ? services.breaker : undefined;
    const asking = { call, chat, tracing: tracing.headers, breaker, services };
    let failed: Attempt | undefined;
    for (const candidate of candidates) {
      // The requested one comes a second time if its circuit was open.
      const isPostponed = candidate === requested && failed !== undefined;
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
      if (attempt.outcome === 'circuit_open') candidates.push(requested);
      else if (!isReasonToFallBack(attempt.failure!, candidate, services.config)) break;
    }
    throw failureOfAll(requested, failed!, asking);
  } finally {
    call.bodyReservation.dropBody();
  }
}

/** Reads the request, and records what it says. Rejects with `invalidRequest`. Apart: an open stream keeps no parser. */
async function readChat(
  call: Call,
  client: ClientSettings | undefined,
  maxBytes: number,
): Promise<ChatRequest> {
  const { record } = call;
  const parser = new ChatRequestParser(client?.models === undefined);
  const body = await call.readBody(maxBytes, (chunk) => parser.push(chunk));
  record.requestBytes = body.size;
  record.bodyReadAtMs = performance.now();
  const chat = parser.finish(body);
  record.model = escapeControlCharacters(chat.model, MAX_NAME_CHARACTERS);
  record.stream = chat.stream;
  record.promptCacheKey = chat.promptCacheKey;
  return chat;
}

/** Returns the failure of the requested candidate, and records it as the one that is answered. */
function failureOfAll(
  { provider }: Candidate,
  failed: Attempt,
  { call: { record }, services }: Asking,
): GatewayError {
  // If all providers were skipped, it takes nothing of the client's limit.
  const wasAsked = record.tries.some((one) => one.wasAsked);
  if (!wasAsked) services.limits.ofClients.get(record.client)!.refundRequest();
  record.provider = provider.id;
  record.attempt = failed;
  return failed.failure!;
}

const JSON_TYPE = /^\s*application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;
const OTHER_CHARSET = /charset\s*=(?!\s*"?utf-?8"?\s*(?:;|$))/i;

/** Requires JSON: without a preflight, a page in a browser may send `text/plain` to localhost, but not JSON. */
function checkContentHeaders(call: Call): void {
  const encoding = call.headers['content-encoding'];
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw invalidRequest('Content-Encoding must be identity');
  }
  const type = soleHeader(call, 'content-type');
  if (type === undefined || !JSON_TYPE.test(type) || OTHER_CHARSET.test(type)) {
    throw invalidRequest('Content-Type must be application/json in UTF-8');
  }
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
  const isTransient = status >= 500 || status === 408 || status === 429;
  return details.mayFallBack ?? (isTransient || fallbackOn.includes(status));
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
  const consulted = isPostponed ? undefined : breaker;
  if (consulted?.stateOf(provider, model) === 'open') return 'open';
  const taking = services.limits.ofProviders.get(provider.id)!.takeRequest();
  if (!(taking instanceof Promise)) return takeSlot(taking, candidate, asking, consulted);
  return taking.then((refusal) => takeSlot(refusal, candidate, asking, consulted));
}

function takeSlot(
  refusal: GatewayError | undefined,
  { provider, model }: Candidate,
  { breaker, services }: Asking,
  consulted: CircuitBreaker | undefined,
): Admission {
  if (refusal) return refusal;
  const limiter = services.limits.ofProviders.get(provider.id)!;
  // While the store was asked, another request has become the probe.
  const isOpen = consulted?.stateOf(provider, model) === 'open';
  const noSlot = isOpen ? undefined : limiter.acquireSlot();
  if (isOpen || noSlot) limiter.refundRequest();
  if (isOpen) return 'open';
  // A request that is not sent is not the probe.
  return noSlot ?? breaker?.recordAttempt(provider, model) ?? 'closed';
}
