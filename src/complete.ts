/** `POST /v1/chat/completions`: which providers to ask for a request, in what order and how often. */

import { attempt, type AttemptSettings } from './attempt.ts';
import type { Cancellation } from './cancellation.ts';
import { parseChatRequest, type ChatRequest } from './chat.ts';
import type { CircuitBreaker } from './circuit-breaker.ts';
import { ClientGone, GatewayError, invalidRequest } from './errors.ts';
import type { Answer, Call } from './call.ts';
import type { Limits } from './limits.ts';
import type { Provider } from './provider.ts';
import { printable } from './secrets.ts';

const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;
/** A longer `Retry-After` is the client's to wait for. */
const MAX_AWAITED_SECONDS = 30;
const MAX_ECHOED_CHARACTERS = 128;

export interface CompletionSettings extends AttemptSettings {
  readonly providers: ReadonlyMap<string, Provider>;
  /** In their order. */
  readonly fallbacks: readonly Provider[];
  readonly limits: Limits;
  readonly breaker: CircuitBreaker;
}

/** A provider and the model to ask it for. */
interface Candidate {
  readonly provider: Provider;
  readonly model: string;
}

/** Answers one chat completion. Throws `GatewayError`, or `ClientGone`. */
export async function complete(call: Call, settings: CompletionSettings): Promise<Answer> {
  checkContentHeaders(call);
  const chat = parseChatRequest(await call.readBody(settings.config.server.maxBodyBytes));
  call.record.model = printable(chat.model, MAX_ECHOED_CHARACTERS);
  call.record.stream = chat.stream;
  const requested = resolveModel(chat.model, settings);
  call.record.provider = requested.provider.id;
  const refusal = settings.limits.takeProvider(requested.provider.id);
  if (refusal) {
    settings.limits.giveBackGlobal();
    throw refusal;
  }
  return askInOrder(withFallbacks(requested, settings.fallbacks), { call, chat, settings });
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

/**
 * The provider and model that a `model` value names (interface, What the service does, 2, 3 and 7):
 * an alias; `<provider_id>/<model_name>`, split at the first slash; a provider's id alone for its
 * default model; any other name for the primary provider.
 */
function resolveModel(name: string, { config, providers }: CompletionSettings): Candidate {
  const { primary } = config.providers;
  const target = config.aliases.get(name) ?? name;
  const slash = target.indexOf('/');
  const isWholeName = slash < 0 && !providers.has(target);
  if (isWholeName && primary === undefined) {
    throw invalidRequest('"model" must have the form "<provider_id>/<model_name>"');
  }
  const providerId = isWholeName ? primary! : slash < 0 ? target : target.slice(0, slash);
  const provider = providers.get(providerId);
  if (provider === undefined) {
    throw new GatewayError('unknownProvider', printable(providerId, MAX_ECHOED_CHARACTERS));
  }
  const named = isWholeName ? target : slash < 0 ? '' : target.slice(slash + 1);
  const model = named || provider.defaultModel;
  if (!model) throw invalidRequest(`provider ${providerId} has no default_model; name a model`);
  return { provider, model };
}

/** The requested provider first, then each fallback once, with its own default model. */
function withFallbacks(requested: Candidate, fallbacks: readonly Provider[]): Candidate[] {
  const others = fallbacks.filter((provider) => provider !== requested.provider);
  return [
    requested,
    ...others.map((provider) => ({ provider, model: provider.defaultModel ?? requested.model })),
  ];
}

interface Inquiry {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly settings: CompletionSettings;
}

/** The first answer; or, when all fail, the first failure. */
async function askInOrder(candidates: readonly Candidate[], inquiry: Inquiry): Promise<Answer> {
  const { breaker, limits } = inquiry.settings;
  const first = candidates[0]!;
  let firstFailure: GatewayError | undefined;
  for (const candidate of candidates) {
    const { id } = candidate.provider;
    if (candidates.length > 1 && breaker.isResting(id)) continue;
    // A fallback at its own limit is passed over too.
    if (candidate !== first && limits.takeProvider(id)) continue;
    const result = await askAndRecord(candidate, inquiry);
    if (!(result instanceof GatewayError)) return result;
    firstFailure ??= result;
    if (!mayFallBack(result)) break;
  }
  // All rest: better to ask than to answer for them.
  const result = firstFailure ?? (await askAndRecord(first, inquiry));
  if (result instanceof GatewayError) throw result;
  return result;
}

/** Asks one provider and lets the breaker know. A failure is returned, unless the client is gone. */
async function askAndRecord(
  candidate: Candidate,
  inquiry: Inquiry,
): Promise<Answer | GatewayError> {
  const { breaker } = inquiry.settings;
  const { id } = candidate.provider;
  breaker.recordStart(id);
  try {
    const answer = await askRepeatedly(candidate, inquiry);
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
async function askRepeatedly(candidate: Candidate, inquiry: Inquiry): Promise<Answer> {
  const { call, chat, settings } = inquiry;
  const { provider } = candidate;
  let retriesLeft = provider.retries;
  let hasReconnected = false;
  for (let failures = 0; ; failures += 1) {
    try {
      const answer = await attempt({ call, chat, ...candidate }, settings);
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
