/** `POST /v1/chat/completions`: reads the request, resolves its `model`, and asks the candidates in order. */

import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import { headerValues } from '../downstream/request-head.ts';
import type { ClientSettings } from '../config/config.ts';
import { type Answer, MAX_NAME_CHARACTERS } from '../lib/attempt.ts';
import { lengthOf } from '../lib/chunk-buffer.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { tracingOf } from '../upstream/headers.ts';
import type { Provider } from '../upstream/provider.ts';
import { mayName } from '../policy/authentication.ts';
import { type BalanceServices, leastBusyFirst } from './balance.ts';
import { keepAlive } from './keep-alive.ts';
import type { Candidate, SelectionServices } from './ask-provider.ts';
import { askCandidates } from './selection.ts';

export interface CompletionServices extends SelectionServices, BalanceServices {
  readonly providers: ReadonlyMap<string, Provider>;
  readonly fallbacks: readonly Provider[];
}

/** Answers one chat completion. `client` is undefined if the key has no name. Throws `GatewayError` or `ClientGone`. */
export async function completeChat(
  call: Call,
  services: CompletionServices,
  client: ClientSettings | undefined,
): Promise<Answer> {
  checkContentHeaders(call);
  const { record } = call;
  const { traceId, headers: tracing } = tracingOf(call.id, call.headers);
  record.traceId = traceId;
  const parser = new ChatRequestParser(client?.models === undefined);
  const { maxBodyBytes, streamKeepaliveMs } = services.config.server;
  const body = await call.readBody(maxBodyBytes, (chunk) => parser.push(chunk));
  record.requestBytes = lengthOf(body);
  record.bodyReadAtMs = performance.now();
  const chat = parser.finish(body);
  record.model = escapeControlCharacters(chat.model, MAX_NAME_CHARACTERS);
  record.stream = chat.stream;
  const candidates = resolveModel(chat.model, call, services, client);
  record.provider = candidates[0]!.provider.id;
  const answering = askCandidates(candidates, { call, chat, tracing, services });
  const isKeptAlive = chat.stream && streamKeepaliveMs > 0;
  return isKeptAlive ? keepAlive(answering, call, streamKeepaliveMs) : answering;
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
 * Resolves a `model` value:
 * - an alias, to those of its targets whose providers are registered, in order or balanced;
 * - `<provider_id>/<model_name>`, split at the first slash;
 * - a provider's id, to its default model;
 * - any other name, to the primary provider.
 *
 * Adds each fallback that is not among them, with its own default model. The client's `models` must have the name as it
 * was sent, or, if it is no alias, as `<provider_id>/<model_name>`. Throws `unknownProvider` or `invalidRequest`; to a
 * client with `models` `notFound` for every other name, so that it does not learn what there is.
 */
function resolveModel(
  name: string,
  call: Call,
  services: CompletionServices,
  client: ClientSettings | undefined,
): Candidate[] {
  const { config, fallbacks, providers } = services;
  const { targets, isBalanced = false } = config.aliases.get(name) ?? {};
  const registered = targets?.filter((target) => providers.has(providerIdOf(target)));
  const names = registered?.length ? registered : [targets?.[0] ?? name];
  const found = names.map((one) => toCandidate(one, services));
  const [first] = found;
  const isNamedInFull =
    !targets &&
    !(first instanceof GatewayError) &&
    mayName(client, `${first!.provider.id}/${first!.model}`);
  if (!mayName(client, name) && !isNamedInFull) {
    const reason = 'model not allowed for this client';
    throw new GatewayError('notFound', 'Resource not found', { reason });
  }
  const targeted = found.map((one) => {
    if (one instanceof GatewayError) throw one;
    return one;
  });
  const candidates = isBalanced ? leastBusyFirst(targeted, call, services) : targeted;
  const others = fallbacks.filter((one) => candidates.every(({ provider }) => provider !== one));
  const { model } = candidates[0]!;
  for (const provider of others)
    candidates.push({ provider, model: provider.defaultModel ?? model });
  return candidates;
}

/** Returns the provider's id in the target of an alias, which always has a slash. */
export function providerIdOf(target: string): string {
  return target.slice(0, target.indexOf('/'));
}

function toCandidate(
  target: string,
  { config, providers }: CompletionServices,
): Candidate | GatewayError {
  const { primary } = config.providers;
  const slash = target.indexOf('/');
  const isWholeName = slash < 0 && !providers.has(target);
  if (slash === 0 || (isWholeName && primary === undefined)) {
    return invalidRequest('"model" must have the form "<provider_id>/<model_name>"');
  }
  const providerId = isWholeName ? primary! : slash < 0 ? target : target.slice(0, slash);
  const provider = providers.get(providerId);
  if (provider === undefined) {
    const shown = escapeControlCharacters(providerId, MAX_NAME_CHARACTERS);
    return new GatewayError('unknownProvider', shown);
  }
  const named = isWholeName ? target : slash < 0 ? '' : target.slice(slash + 1);
  const model = named || provider.defaultModel;
  if (!model) return invalidRequest(`provider ${providerId} has no default_model; name a model`);
  return { provider, model };
}
