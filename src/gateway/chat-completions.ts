/** `POST /v1/chat/completions`: reads the request and asks the candidates in order. */

import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import type { ClientSettings } from '../config/config.ts';
import { type Answer, Attempt, MAX_NAME_CHARACTERS } from '../lib/attempt.ts';
import { lengthOf } from '../lib/chunk-buffer.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { CircuitBreaker, CircuitState } from '../policy/circuit-breaker.ts';
import type { Limits } from '../policy/rate-limits.ts';
import { forwardedHeaders, traceIdOf } from '../upstream/headers.ts';
import type { Provider } from '../upstream/provider.ts';
import { tryCandidate, skip, type CandidateContext, type CandidateSettings } from './candidate.ts';
import { resolveModel, withFallbacks, type Candidate, type Candidates } from './model-name.ts';

export interface CompletionSettings extends CandidateSettings {
  readonly providers: ReadonlyMap<string, Provider>;
  /** In the order of the settings. */
  readonly fallbacks: readonly Provider[];
  readonly limits: Limits;
  readonly breaker: CircuitBreaker;
}

/** Answers one chat completion. `client` is undefined if the key has no name. Throws `GatewayError` or `ClientGone`. */
export async function completeChat(
  call: Call,
  settings: CompletionSettings,
  client: ClientSettings | undefined,
): Promise<Answer> {
  checkContentHeaders(call);
  const { record } = call;
  const { limits } = settings;
  let takenOf: string | undefined;
  call.bodyReservation.beginReading();
  try {
    const forwarded = forwardedHeaders(call.id, call.headers);
    record.traceId = traceIdOf(forwarded);
    const parser = new ChatRequestParser(client?.models === undefined);
    const { maxBodyBytes } = settings.config.server;
    const body = await call.readBody(maxBodyBytes, (chunk) => parser.push(chunk));
    record.requestBytes = lengthOf(body);
    record.bodyReadAtMs = performance.now();
    const chat = parser.end(body);
    record.model = escapeControlCharacters(chat.model, MAX_NAME_CHARACTERS);
    record.stream = chat.stream;
    const candidates = withFallbacks(
      resolveModel(chat.model, settings, client),
      settings.fallbacks,
    );
    const [{ provider, model }] = candidates;
    record.provider = provider.id;
    const taking = limits.takeProvider(provider.id);
    const refusal = taking && (await taking);
    if (refusal) {
      limits.refundRequest(client);
      skip(new Attempt(provider, model), refusal, call, settings.logger);
      throw refusal;
    }
    takenOf = provider.id;
    return await tryCandidates(candidates, { call, chat, forwarded, settings });
  } catch (thrown) {
    if (takenOf !== undefined && !record.tries.some(({ isAsked }) => isAsked)) {
      limits.refundRequest(client);
      limits.refundProvider(takenOf);
    }
    throw thrown;
  } finally {
    // No provider is asked any more: a stream has begun, or a complete answer is there.
    call.bodyReservation.endReading();
  }
}

const JSON_TYPE = /^\s*application\/(?:[\w.-]+\+)?json\s*(?:;|$)/i;
const OTHER_CHARSET = /charset\s*=(?!\s*"?utf-?8"?\s*(?:;|$))/i;

/** Requires JSON: without a preflight, a page in a browser may send `text/plain` to localhost, but not JSON. */
function checkContentHeaders(call: Call): void {
  const encoding = call.headers['content-encoding'];
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw invalidRequest('Content-Encoding must be identity');
  }
  const types = call.headerValues('content-type');
  if (types.length !== 1 || !JSON_TYPE.test(types[0]!) || OTHER_CHARSET.test(types[0]!)) {
    throw invalidRequest('Content-Type must be application/json in UTF-8');
  }
}

interface CompletionContext extends Omit<CandidateContext, 'breaker'> {
  readonly settings: CompletionSettings;
}

/**
 * Asks the candidates in order until one answers. While its circuit is open, the requested one, the first, is asked last.
 * If all fail, throws the failure of the requested one.
 */
async function tryCandidates(candidates: Candidates, context: CompletionContext): Promise<Answer> {
  const { call, settings } = context;
  const { record } = call;
  // With one candidate nobody else can be asked: the circuit would have no effect.
  const breaker = candidates.length > 1 ? settings.breaker : undefined;
  const asking = { ...context, breaker };
  const [requested] = candidates;
  const queue: Candidate[] = [...candidates];
  let isPostponed = false;
  let failed: Attempt | undefined;
  for (let candidate = queue.shift(); candidate; candidate = queue.shift()) {
    const isRequested = candidate === requested;
    const start = isRequested ? begin(candidate, asking) : await beginFallback(candidate, asking);
    let attempt: Attempt;
    if (start instanceof GatewayError || (start === 'open' && !(isRequested && isPostponed))) {
      const skipped = new Attempt(candidate.provider, candidate.model);
      attempt = skip(skipped, start, call, settings.logger);
    } else {
      record.hasRetried ||= !isRequested;
      attempt = await tryCandidate(candidate, asking, start);
      if (attempt.answer) return attempt.answer;
    }
    if (!isRequested) continue;
    if (attempt.failure) {
      failed = attempt;
      if (!mayFallBack(attempt.failure)) break;
    } else {
      isPostponed = true;
      queue.push(candidate);
    }
  }
  record.provider = requested.provider.id;
  record.attempt = failed;
  throw failed!.failure!;
}

/** Returns the state of the circuit, and marks the attempt there; or why the provider has no free slot. */
function begin(
  { provider, model }: Candidate,
  { breaker, settings }: CandidateContext,
): CircuitState | GatewayError {
  if (!breaker) return 'closed';
  // First: a request that is not sent is not the probe.
  const refusal = settings.concurrency.refuseAttempt(provider.id);
  return refusal ?? breaker.recordAttempt(provider, model);
}

/** As `begin`, with a token of the provider's rate limit. */
async function beginFallback(
  candidate: Candidate,
  context: CandidateContext & { readonly settings: CompletionSettings },
): Promise<CircuitState | GatewayError> {
  const { breaker, settings } = context;
  const { id } = candidate.provider;
  if (breaker?.stateOf(candidate.provider, candidate.model) === 'open') return 'open';
  const refusal =
    settings.concurrency.refuseAttempt(id) ?? (await settings.limits.takeProvider(id));
  if (refusal) return refusal;
  const state = begin(candidate, context);
  // Meanwhile another request has become the probe, or has the last slot.
  if (state === 'open' || state instanceof GatewayError) settings.limits.refundProvider(id);
  return state;
}

function mayFallBack({ status, details }: GatewayError): boolean {
  return details.mayFallBack ?? (status >= 500 || status === 408 || status === 429);
}
