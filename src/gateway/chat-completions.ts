/** `POST /v1/chat/completions`: reads the request and asks the candidates in order. */

import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import type { ClientSettings } from '../config/config.ts';
import { lengthOf } from '../lib/chunk-buffer.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import type { Answer } from '../lib/messages.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { CircuitBreaker, CircuitState } from '../policy/circuit-breaker.ts';
import type { Limits } from '../policy/rate-limits.ts';
import { forwardedHeaders, traceIdOf } from '../upstream/headers.ts';
import type { Provider } from '../upstream/provider.ts';
import { resolveAllowed } from './allowed-model.ts';
import { tryCandidate, type TryContext, type TrySettings } from './candidate.ts';
import {
  MAX_ECHOED_CHARACTERS,
  withFallbacks,
  type Candidate,
  type Candidates,
} from './model-name.ts';
import { recordPassedOver } from './tries.ts';

export interface CompletionSettings extends TrySettings {
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
    record.model = escapeControlCharacters(chat.model, MAX_ECHOED_CHARACTERS);
    record.stream = chat.stream;
    const candidates = withFallbacks(
      resolveAllowed(chat.model, settings, client),
      settings.fallbacks,
    );
    const [requested] = candidates;
    const { id } = requested.provider;
    record.provider = id;
    const taking = limits.takeProvider(id);
    const refusal = taking && (await taking);
    if (refusal) {
      limits.refundRequest(client);
      recordPassedOver(requested, 'limit', call, settings.logger);
      throw refusal;
    }
    takenOf = id;
    // With one candidate nobody else can be asked: the circuit would have no effect.
    const breaker = candidates.length > 1 ? settings.breaker : undefined;
    const context = { call, chat, forwarded, breaker, settings };
    if (breaker) return await tryCandidates(candidates, { ...context, breaker });
    const result = await tryCandidate(requested, context, 'closed');
    if (result instanceof GatewayError) throw result;
    return result;
  } catch (thrown) {
    if (takenOf !== undefined && !isAsked(call)) {
      limits.refundRequest(client);
      limits.refundProvider(takenOf);
    }
    throw thrown;
  } finally {
    // No provider is asked any more: a stream has begun, or a complete answer is there.
    call.bodyReservation.endReading();
  }
}

/** Whether a provider was asked, and not passed over. */
function isAsked({ record }: Call): boolean {
  return record.tries.some(({ outcome }) => outcome !== 'limit' && outcome !== 'resting');
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

interface CompletionContext extends TryContext {
  readonly breaker: CircuitBreaker;
  readonly settings: CompletionSettings;
}

/** Asks the candidates until one answers. If all fail, throws the failure of the requested one, the first. */
async function tryCandidates(candidates: Candidates, context: CompletionContext): Promise<Answer> {
  const { breaker, call } = context;
  const { concurrency, limits, logger } = context.settings;
  const [requested, ...others] = candidates;
  // Before the attempt is recorded: a request that is not sent is not the probe.
  const begin = ({ provider, model }: Candidate): CircuitState | GatewayError =>
    concurrency.refuseAttempt(provider.id) ?? breaker.recordAttempt(provider, model);
  const beginFallback = async (candidate: Candidate) => {
    const { provider, model } = candidate;
    if (breaker.stateOf(provider, model) === 'open') return 'open';
    const { id } = provider;
    const refusal = concurrency.refuseAttempt(id) ?? (await limits.takeProvider(id));
    if (refusal) return refusal;
    const state = begin(candidate);
    // Meanwhile another request has become the probe, or has the last slot.
    if (state === 'open' || state instanceof GatewayError) limits.refundProvider(id);
    return state;
  };
  const passOver = (candidate: Candidate, why: 'open' | GatewayError) =>
    recordPassedOver(candidate, why === 'open' ? 'resting' : 'limit', call, logger);
  // While its circuit is open, the requested candidate is asked last.
  const first = begin(requested);
  const isLast = first === 'open';
  if (isLast) passOver(requested, first);
  const order = isLast ? [...others, requested] : candidates;
  let failure: GatewayError | undefined;
  let failedTry: number | undefined;
  for (const candidate of order) {
    let state = first;
    if (candidate !== requested) {
      state = await beginFallback(candidate);
      if (state === 'open' || state instanceof GatewayError) {
        passOver(candidate, state);
        continue;
      }
      call.record.hasRetried = true;
    } else if (isLast) {
      // If it is refused, its answer is that of no try.
      call.record.answeredTry = undefined;
      state = begin(requested);
    }
    if (state instanceof GatewayError) passOver(candidate, state);
    const result =
      state instanceof GatewayError ? state : await tryCandidate(candidate, context, state);
    if (!(result instanceof GatewayError)) return result;
    if (candidate === requested) {
      failure = result;
      failedTry = call.record.answeredTry;
      if (!mayFallBack(result)) break;
    }
  }
  call.record.provider = requested.provider.id;
  call.record.answeredTry = failedTry;
  throw failure!;
}

function mayFallBack({ status, facts }: GatewayError): boolean {
  return facts.mayFallBack ?? (status >= 500 || status === 408 || status === 429);
}
