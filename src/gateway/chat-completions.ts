/** `POST /v1/chat/completions`: reads the request and asks the candidates in order. */

import type { Call } from '../downstream/call.ts';
import { ChatRequestParser } from '../downstream/chat-request.ts';
import { headerValues } from '../downstream/request-head.ts';
import type { ClientSettings } from '../config/config.ts';
import { type Answer, MAX_NAME_CHARACTERS } from '../lib/attempt.ts';
import { lengthOf } from '../lib/chunk-buffer.ts';
import { invalidRequest } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { forwardedHeaders, traceIdOf } from '../upstream/headers.ts';
import type { Provider } from '../upstream/provider.ts';
import { resolveModel, withFallbacks } from './model-name.ts';
import { askCandidates, type SelectionSettings } from './selection.ts';

export interface CompletionSettings extends SelectionSettings {
  readonly providers: ReadonlyMap<string, Provider>;
  readonly fallbacks: readonly Provider[];
}

/** Answers one chat completion. `client` is undefined if the key has no name. Throws `GatewayError` or `ClientGone`. */
export async function completeChat(
  call: Call,
  settings: CompletionSettings,
  client: ClientSettings | undefined,
): Promise<Answer> {
  checkContentHeaders(call);
  const { record } = call;
  let isValid = false;
  call.bodyReservation.retain();
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
    record.provider = candidates[0].provider.id;
    isValid = true;
    return await askCandidates(candidates, { call, chat, forwarded, settings });
  } catch (thrown) {
    // A request that a later limit refuses takes nothing of the others.
    if (isValid && !record.tries.some(({ wasSent }) => wasSent)) {
      settings.limits.ofClients.get(client?.name)!.refund();
    }
    throw thrown;
  } finally {
    // No provider is asked any more: a stream has begun, or a complete answer is there.
    call.bodyReservation.release();
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
  const types = headerValues(call, 'content-type');
  if (types.length !== 1 || !JSON_TYPE.test(types[0]!) || OTHER_CHARSET.test(types[0]!)) {
    throw invalidRequest('Content-Type must be application/json in UTF-8');
  }
}
