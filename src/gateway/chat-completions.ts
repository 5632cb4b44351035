/** `POST /v1/chat/completions`: candidates in order, retries, fallback. */

import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import type { ClientSettings } from '../config/config.ts';
import { pause } from '../lib/cancellation.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import type { Answer, ChatRequest } from '../lib/messages.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { CircuitBreaker, CircuitState } from '../policy/circuit-breaker.ts';
import type { Limits } from '../policy/rate-limits.ts';
import { attempt, type AttemptCall, type AttemptSettings } from '../upstream/attempt.ts';
import { forwardedHeaders, traceIdOf } from '../upstream/headers.ts';
import type { ForwardedHeaders, Provider } from '../upstream/provider.ts';
import { MAX_ECHOED_CHARACTERS, type Candidate } from './model-name.ts';
import { resolveAllowed } from './allowed-model.ts';
import { backoffMs } from './backoff.ts';
import { causeOf } from './outcome.ts';
import { beginTry, recordPassedOver, type OpenTry } from './tries.ts';

/** A longer `Retry-After` is left to the client. */
const MAX_AWAITED_SECONDS = 30;

export interface CompletionSettings extends AttemptSettings {
  readonly providers: ReadonlyMap<string, Provider>;
  /** In the order of the settings. */
  readonly fallbacks: readonly Provider[];
  readonly limits: Limits;
  readonly breaker: CircuitBreaker;
}

/** Answers one chat completion of a client, if it has a name. Throws `GatewayError` or `ClientGone`. */
export async function completeChat(
  call: Call,
  settings: CompletionSettings,
  client: ClientSettings | undefined,
): Promise<Answer> {
  checkContentHeaders(call);
  try {
    return await answerBody(call, settings, client);
  } finally {
    // No provider is asked any more: a stream has begun, or a complete answer is there.
    call.bodyReservation.end();
  }
}

async function answerBody(
  call: Call,
  settings: CompletionSettings,
  client: ClientSettings | undefined,
): Promise<Answer> {
  const forwarded = forwardedHeaders(call.id, call.headers);
  call.record.traceId = traceIdOf(forwarded);
  const parser = new ChatRequestParser();
  const { maxBodyBytes } = settings.config.server;
  const chat = parser.end(await call.readBody(maxBodyBytes, (chunk) => parser.push(chunk)));
  call.record.model = escapeControlCharacters(chat.model, MAX_ECHOED_CHARACTERS);
  call.record.stream = chat.stream;
  const requested = resolveAllowed(chat.model, settings, client);
  call.record.provider = requested.provider.id;
  const refusal = settings.limits.takeProvider(requested.provider.id);
  if (refusal) {
    settings.limits.refundRequest(client);
    throw refusal;
  }
  const candidates = withFallbacks(requested, settings.fallbacks);
  // Without a fallback nobody else can be asked: the circuit would have no effect.
  const breaker = candidates.length > 1 ? settings.breaker : undefined;
  return tryCandidates(candidates, { call, chat, forwarded, breaker, settings });
}

/** Requires JSON: without a preflight, a page in a browser may send `text/plain` to localhost, but not JSON. */
function checkContentHeaders(call: Call): void {
  const encoding = call.headers['content-encoding'];
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw invalidRequest('Content-Encoding must be identity');
  }
  const types = call.headerValues('content-type');
  const isJson = /^\s*application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;
  const isOtherCharset = /charset\s*=(?!\s*"?utf-?8"?\s*(?:;|$))/i;
  if (types.length !== 1 || !isJson.test(types[0]!) || isOtherCharset.test(types[0]!)) {
    throw invalidRequest('Content-Type must be application/json in UTF-8');
  }
}

/** The requested provider first, then each fallback once, with its own default model. */
function withFallbacks(requested: Candidate, fallbacks: readonly Provider[]): Candidates {
  const others = fallbacks.filter((provider) => provider !== requested.provider);
  return [
    requested,
    ...others.map((provider) => ({ provider, model: provider.defaultModel ?? requested.model })),
  ];
}

type Candidates = readonly [requested: Candidate, ...fallbacks: Candidate[]];

interface CompletionContext {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly forwarded: ForwardedHeaders;
  readonly breaker: CircuitBreaker | undefined;
  readonly settings: CompletionSettings;
}

/** Asks the candidates until one answers. If all fail, throws the failure of the requested one. */
async function tryCandidates(candidates: Candidates, context: CompletionContext): Promise<Answer> {
  const { breaker, call } = context;
  const { limits, logger } = context.settings;
  const [requested, ...fallbacks] = candidates;
  const stateOf = ({ provider, model }: Candidate) =>
    breaker?.stateOf(provider.id, model) ?? 'closed';
  // While its circuit is open, the requested provider is asked last.
  const isLast = stateOf(requested) === 'open';
  if (isLast) recordPassedOver(requested, 'resting', call, logger);
  const order = isLast ? [...fallbacks, requested] : candidates;
  let failure: GatewayError | undefined;
  for (const candidate of order) {
    const state = stateOf(candidate);
    if (candidate !== requested) {
      if (state === 'open' || limits.takeProvider(candidate.provider.id)) {
        const why = state === 'open' ? 'resting' : 'limit';
        recordPassedOver(candidate, why, call, logger);
        continue;
      }
      call.record.hasRetried = true;
    }
    const result = await tryCandidate(candidate, context, state);
    if (!(result instanceof GatewayError)) return result;
    if (candidate === requested) {
      failure = result;
      if (!mayFallBack(result)) break;
    }
  }
  throw failure!;
}

function mayFallBack({ status, facts }: GatewayError): boolean {
  return facts.mayFallBack ?? (status >= 500 || status === 408 || status === 429);
}

/**
 * Asks one provider, with its retries if its circuit is closed. Returns the answer or the last failure. Throws if the
 * client leaves or the gateway itself gives the request up.
 */
async function tryCandidate(
  candidate: Candidate,
  context: CompletionContext,
  state: CircuitState,
): Promise<Answer | GatewayError> {
  const { breaker, call, chat } = context;
  const { provider, model } = candidate;
  const maxRetries = state === 'closed' ? provider.retries : 0;
  breaker?.recordAttempt(provider.id, model);
  let hasReconnected = false;
  for (let retries = 0; ;) {
    const result = await attemptOnce(candidate, context);
    if (!(result instanceof GatewayError)) {
      // Whether a stream succeeds is known at its end, but a probe need not wait for it.
      if (!chat.stream || state !== 'closed') breaker?.recordSuccess(provider.id, model);
      return result;
    }
    const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = result.facts;
    // Not a retry: a stale connection says nothing about the provider.
    if (repeatAtOnce && !hasReconnected) {
      hasReconnected = true;
      continue;
    }
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

/** A provider's failure is returned. The gateway's own, which name no provider, are thrown: a shutdown, or a bug. */
async function attemptOnce(
  candidate: Candidate,
  { breaker, call, chat, forwarded, settings }: CompletionContext,
): Promise<Answer | GatewayError> {
  const opened = beginTry(candidate, call, settings.logger);
  const attemptCall: AttemptCall = {
    forwarded,
    facts: opened.facts,
    answerFacts: opened.answerFacts,
    cancellation: call.cancellation,
    reservation: call.answerReservation,
    onStreamEnd: createStreamEnd({ call, candidate, opened, breaker }),
  };
  try {
    const answer = await attempt({ call: attemptCall, chat, ...candidate }, settings);
    opened.end();
    return answer;
  } catch (thrown) {
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
  if (facts.unreachable) breaker?.recordProviderFailure(provider.id, causeOf(failure));
  else if (OUTAGE_STATUSES.has(status))
    breaker?.recordModelFailure(provider.id, model, causeOf(failure));
  // A plain 500 may be the fault of one request's parameter: it says nothing about others.
  else if (status !== 500) breaker?.recordSuccess(provider.id, model);
}

interface StreamContext {
  readonly call: Call;
  readonly candidate: Candidate;
  readonly opened: OpenTry;
  readonly breaker: CircuitBreaker | undefined;
}

/** Without the chat request: a stream would hold its body, often megabytes, until it ends. */
function createStreamEnd(context: StreamContext): (failure?: GatewayError) => void {
  const { call, candidate, opened, breaker } = context;
  return (failure) => {
    if (failure) {
      call.record.failure = failure;
      opened.end(failure);
      recordFailure(breaker, candidate, failure);
    } else {
      breaker?.recordSuccess(candidate.provider.id, candidate.model);
    }
  };
}
