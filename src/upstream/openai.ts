/** The OpenAI wire format, which all built-in providers speak in one dialect or another. */

import type { ProviderSettings } from '../config/config.ts';
import type { ListedModel, Provider } from './provider.ts';
import { memberOf } from '../lib/json.ts';
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

function text(value: unknown): string | undefined {
  return typeof value === 'string' && value !== '' ? value : undefined;
}
