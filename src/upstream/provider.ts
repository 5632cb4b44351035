/**
 * Requests to a provider and its replies, without I/O. All speak OpenAI's protocol in one
 * dialect or another; this covers their differences in paths, headers and model lists.
 */

import { BUILT_IN_PROVIDERS } from '../config/built-in-providers.ts';
import type { ProviderSettings } from '../config/config.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import type { ByteSource } from '../lib/byte-source.ts';
import type { ChatRequest } from '../lib/attempt.ts';
import { memberOf } from '../lib/json.ts';
import { digestOf } from '../lib/secrets.ts';
import { USER_AGENT } from '../lib/version.ts';

export interface UpstreamRequest {
  readonly method: 'GET' | 'POST';
  /** Scheme, host and port. */
  readonly origin: string;
  /** With the query. */
  readonly path: string;
  /** Names and values in turn. */
  readonly headers: readonly string[];
  /** In parts, to be sent one after the other. */
  readonly body?: readonly Buffer[];
  /** The reservation of the body's memory. */
  readonly held?: Reservation;
  /** The answer is a stream, which lasts: nothing of the body may last as long. */
  readonly isStream?: boolean;
  /** Wants a new connection; over fetch it may still get a reused one. */
  readonly reconnect?: boolean | undefined;
}

/** An upstream's response, once its headers have come. */
export interface UpstreamReply {
  readonly status: number;
  /** Names in lower case, as in `Headers`. */
  readonly headers: UpstreamHeaders;
  readonly body: ByteSource;
  /** `reused` if the connection had carried a request before; undefined over fetch. */
  readonly connection?: 'new' | 'reused' | undefined;
}

export type UpstreamHeaders = ReadonlyMap<string, string>;

export interface ListedModel {
  readonly name: string;
  /** Seconds since the epoch; 0 if the provider does not say. */
  readonly created: number;
}

/** Names and values in turn: `x-request-id`, `traceparent`, and `tracestate` if there is one. */
export type ForwardedHeaders = readonly [
  'x-request-id',
  requestId: string,
  'traceparent',
  traceparent: string,
  ...tracestate: string[],
];

/** A registered provider. */
export type Provider = ReturnType<typeof createOpenAIProvider>;

/** Creates a provider that takes OpenAI's requests at `settings.baseUrl` and gives OpenAI's answers. */
export function createOpenAIProvider(settings: ProviderSettings) {
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
    /** The same in all threads as long as its settings are the same. */
    digest: digestOf(settings),
    /** Without the query, which may hold a key. For the log. */
    chatUrl: origin + chatPath,

    /** `forwarded` are the allow-listed headers of the client's request; `key` is the index of the key to send. */
    chatRequest: (
      chat: ChatRequest,
      model: string,
      forwarded: ForwardedHeaders,
      key = 0,
    ): UpstreamRequest => ({
      method: 'POST',
      origin,
      path: chatPath,
      headers: (chat.stream ? streamHeaders : completionHeaders)[key]!.concat(forwarded),
      body: chat.bodyWithModel(model),
    }),

    modelListRequest: (key = 0): UpstreamRequest => ({
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
 * Reads `{data: […]}` (OpenAI), a bare array (Together) or `{models: […]}`, without unusable entries; strips `models/`
 * (Gemini). Throws for anything else.
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
