/** `POST /v1/chat/completions`: which providers to ask for a request, in what order and how often. */

import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import type { Cancellation } from '../lib/cancellation.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import type { Answer, ChatRequest } from '../lib/messages.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { CircuitBreaker } from '../policy/circuit-breaker.ts';
import type { Limits } from '../policy/rate-limits.ts';
import { attempt, type AttemptCall, type AttemptSettings } from '../upstream/attempt.ts';
import type { Provider } from '../upstream/provider.ts';
import { MAX_ECHOED_CHARACTERS, resolveModel, type Candidate } from './model-name.ts';

const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;
/** A longer `Retry-After` is the client's to wait for. */
const MAX_AWAITED_SECONDS = 30;

export interface CompletionSettings extends AttemptSettings {
  readonly providers: ReadonlyMap<string, Provider>;
  /** In their order. */
  readonly fallbacks: readonly Provider[];
  readonly limits: Limits;
  readonly breaker: CircuitBreaker;
}

/** Answers one chat completion. Throws `GatewayError`, or `ClientGone`. */
export async function completeChat(call: Call, settings: CompletionSettings): Promise<Answer> {
  checkContentHeaders(call);
  try {
    return await answerBody(call, settings);
  } finally {
    // No provider is asked any more: a stream has begun, or a complete answer is there.
    call.bodyReservation.end();
  }
}

async function answerBody(call: Call, settings: CompletionSettings): Promise<Answer> {
  const parser = new ChatRequestParser();
  const { maxBodyBytes } = settings.config.server;
  const chat = parser.end(await call.readBody(maxBodyBytes, (chunk) => parser.push(chunk)));
  call.record.model = escapeControlCharacters(chat.model, MAX_ECHOED_CHARACTERS);
  call.record.stream = chat.stream;
  const requested = resolveModel(chat.model, settings);
  call.record.provider = requested.provider.id;
  const refusal = settings.limits.takeProvider(requested.provider.id);
  if (refusal) {
    settings.limits.refundGlobal();
    throw refusal;
  }
  return tryCandidates(withFallbacks(requested, settings.fallbacks), { call, chat, settings });
}

/** A page in a browser may send `text/plain` to localhost without asking; JSON it may not. */
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
function withFallbacks(requested: Candidate, fallbacks: readonly Provider[]): Candidate[] {
  const others = fallbacks.filter((provider) => provider !== requested.provider);
  return [
    requested,
    ...others.map((provider) => ({ provider, model: provider.defaultModel ?? requested.model })),
  ];
}

interface CompletionContext {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly settings: CompletionSettings;
}

/** The first answer; or, when all fail, the first failure. */
async function tryCandidates(
  candidates: readonly Candidate[],
  inquiry: CompletionContext,
): Promise<Answer> {
  const { breaker, limits } = inquiry.settings;
  const first = candidates[0]!;
  let firstFailure: GatewayError | undefined;
  for (const candidate of candidates) {
    const { id } = candidate.provider;
    if (candidates.length > 1 && breaker.isOpen(id)) continue;
    // A fallback at its own limit is passed over too.
    if (candidate !== first && limits.takeProvider(id)) continue;
    const result = await tryCandidate(candidate, inquiry);
    if (!(result instanceof GatewayError)) return result;
    firstFailure ??= result;
    if (!mayFallBack(result)) break;
  }
  // All rest: better to ask than to answer for them.
  const result = firstFailure ?? (await tryCandidate(first, inquiry));
  if (result instanceof GatewayError) throw result;
  return result;
}

/** Asks one provider and lets the breaker know. A failure is returned, unless the client is gone. */
async function tryCandidate(
  candidate: Candidate,
  inquiry: CompletionContext,
): Promise<Answer | GatewayError> {
  const { breaker } = inquiry.settings;
  const { id } = candidate.provider;
  breaker.recordAttempt(id);
  try {
    const answer = await tryWithRetries(candidate, inquiry);
    breaker.recordSuccess(id);
    return answer;
  } catch (thrown) {
    if (!(thrown instanceof GatewayError)) throw thrown;
    if (thrown.status >= 500 && thrown.kind !== 'unsupported') breaker.recordFailure(id);
    else breaker.recordSuccess(id);
    return thrown;
  }
}

function mayFallBack({ kind, status, facts }: GatewayError): boolean {
  // Shutting down, or a bug: no provider's failure.
  if (kind === 'internal') return false;
  return facts.mayFallBack ?? (status >= 500 || status === 408 || status === 429);
}

/** One provider, as often as its `retries` and the failures allow. */
async function tryWithRetries(candidate: Candidate, inquiry: CompletionContext): Promise<Answer> {
  const { call, chat, settings } = inquiry;
  const { provider } = candidate;
  let retriesLeft = provider.retries;
  let hasReconnected = false;
  for (let failures = 0; ; failures += 1) {
    try {
      const request = { ...attemptContextOf(call), chat, ...candidate };
      const answer = await attempt(request, settings);
      call.record.attempts.push(`${provider.id}:${answer.status}`);
      call.record.provider = provider.id;
      return answer;
    } catch (thrown) {
      if (thrown instanceof ClientGone) {
        call.record.attempts.push(`${provider.id}:client_closed`);
        call.record.provider = provider.id;
      }
      if (!(thrown instanceof GatewayError)) throw thrown;
      call.record.attempts.push(`${provider.id}:${thrown.facts.upstreamStatus ?? thrown.kind}`);
      const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = thrown.facts;
      if (repeatAtOnce && !hasReconnected) {
        hasReconnected = true;
        failures -= 1;
        continue;
      }
      if (!retryable || retriesLeft === 0 || retryAfterSeconds > MAX_AWAITED_SECONDS) throw thrown;
      retriesLeft -= 1;
      await pause(Math.max(backoffMs(failures), retryAfterSeconds * 1000), call.cancellation);
    }
  }
}

/** What an attempt needs of the call. */
function attemptContextOf(call: Call): AttemptCall {
  return {
    requestId: call.id,
    headers: call.headers,
    cancellation: call.cancellation,
    reservation: call.answerReservation,
    onStreamFailure: (failure) => {
      call.record.failure = failure;
    },
  };
}

/** Exponential with full jitter: clients that failed together do not come back together. */
function backoffMs(failures: number): number {
  return Math.random() * Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** failures);
}

async function pause(ms: number, cancellation: Cancellation): Promise<void> {
  await new Promise<void>((resolve) => {
    const end = () => {
      clearTimeout(timer);
      cancellation.offCancel(end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    cancellation.onCancel(end);
  });
  cancellation.throwIfCancelled();
}
