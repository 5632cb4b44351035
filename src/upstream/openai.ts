/** The OpenAI wire format, which all built-in providers speak in one dialect or another. */

import type { ProviderSettings } from '../config/config.ts';
import type { ListedModel, Provider, UpstreamFault } from './provider.ts';
import { memberOf } from '../lib/untrusted-json.ts';
import { USER_AGENT } from '../lib/version.ts';
import { BUILT_IN_PROVIDERS } from '../config/built-in-providers.ts';

/** A provider that takes OpenAI's requests at `settings.baseUrl` and gives OpenAI's answers. */
export function createOpenAIProvider(settings: ProviderSettings): Provider {
  const { id, baseUrl, apiKeys } = settings;
  const { origin, pathname } = new URL(baseUrl);
  const basePath = pathname.replace(/\/$/, '');
  const chatPath = `${basePath}/chat/completions`;
  const modelList = BUILT_IN_PROVIDERS.get(id)?.modelList;
  const fixed: Record<string, string> = Object.fromEntries(
    Object.entries(settings.headers).map(([name, value]) => [name, value.reveal()]),
  );
  /** By the index of the key. */
  const headers = apiKeys.map((apiKey) => ({
    'user-agent': USER_AGENT,
    ...fixed,
    authorization: `Bearer ${apiKey.reveal()}`,
    // A compressed answer could not be passed on byte for byte.
    'accept-encoding': 'identity',
  }));
  const chatHeaders = (accept: string) =>
    headers.map((own) =>
      Object.entries({ ...own, 'content-type': 'application/json', accept }).flat(),
    );
  const completionHeaders = chatHeaders('application/json');
  const streamHeaders = chatHeaders('text/event-stream');

  return {
    ...settings,
    chatUrl: origin + chatPath,

    chatRequest: (chat, model, forwarded, key = 0) => ({
      method: 'POST',
      origin,
      path: chatPath,
      headers: (chat.stream ? streamHeaders : completionHeaders)[key]!.concat(forwarded),
      body: chat.bodyWithModel(model),
    }),

    modelListRequest: (key = 0) => ({
      method: 'GET',
      origin,
      path: `${basePath}/models${modelList?.query ?? ''}`,
      headers: Object.entries({
        ...modelList?.headers,
        ...headers[key],
        ...(modelList?.keyHeader ? { [modelList.keyHeader]: apiKeys[key]!.reveal() } : {}),
        accept: 'application/json',
      }).flat(),
    }),

    readModelList,
    readFault,
    readErrorBody,
  };
}

/**
 * Accepts `{data: […]}` (OpenAI), a bare array (Together) and `{models: […]}`; strips `models/` (Gemini).
 * Throws for anything else.
 */
function readModelList(json: unknown): ListedModel[] {
  const list = Array.isArray(json) ? json : (memberOf(json, 'data') ?? memberOf(json, 'models'));
  if (!Array.isArray(list)) throw new Error('not a model list');
  return list.flatMap((entry: unknown) => {
    const name = text(memberOf(entry, 'id') ?? memberOf(entry, 'name') ?? entry);
    const created = memberOf(entry, 'created');
    if (name === undefined) return [];
    return {
      name: name.replace(/^models\//, ''),
      created: Number.isSafeInteger(created) ? (created as number) : 0,
    };
  });
}

/**
 * An error inside a successful answer: `{error: {message, code}}`, `{error: "text"}`, `[{error}]` (Gemini),
 * `{object: "error", message}` (vLLM), `{type: "error", message}`.
 */
function readFault(json: unknown): UpstreamFault | undefined {
  const body: unknown = Array.isArray(json) ? json[0] : json;
  const error = memberOf(body, 'error');
  const isFlat = memberOf(body, 'object') === 'error' || memberOf(body, 'type') === 'error';
  if (!error && !isFlat) return undefined;
  const source = typeof error === 'object' && error !== null ? error : body;
  return {
    message: text(error) ?? text(memberOf(source, 'message')),
    code: text(memberOf(source, 'code')),
    type: text(memberOf(source, 'type')),
    status: [memberOf(source, 'code'), memberOf(source, 'status')].map(Number).find(isErrorStatus),
  };
}

/** Error bodies are also `{message}`, `{detail: "text"}` and `{detail: [{msg}]}` (Mistral, vLLM). */
function readErrorBody(json: unknown): UpstreamFault {
  return (
    readFault(json) ?? {
      message: text(memberOf(json, 'message')) ?? readDetail(memberOf(json, 'detail')),
      code: text(memberOf(json, 'code')),
    }
  );
}

function readDetail(detail: unknown): string | undefined {
  if (!Array.isArray(detail)) return text(detail);
  const messages = detail.map((item) => text(memberOf(item, 'msg'))).filter(Boolean);
  return messages.length === 0 ? undefined : messages.join('; ');
}

function isErrorStatus(status: number): boolean {
  return Number.isInteger(status) && status >= 400 && status <= 599;
}

function text(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}
