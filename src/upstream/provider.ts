/**
 * Requests to a provider and its replies, without I/O, and the allow-lists of headers in both directions. All providers
 * speak OpenAI's protocol; this covers their differences in paths, headers and model lists.
 */

import { randomFillSync } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';

import { BUILT_IN_PROVIDERS } from '../config/built-in-providers.ts';
import type { ProviderSettings } from '../config/config.ts';
import { copyIfResizable, type Reservation } from '../lib/byte-budget.ts';
import { type ByteSource, nextTurn, TurnLimit } from '../lib/byte-source.ts';
import { joinParts, lengthOf } from '../lib/chunk-buffer.ts';
import type { ChatRequest } from '../lib/attempt.ts';
import { memberOf } from '../lib/json.ts';
import { digestOf, type Redactor } from '../lib/secrets.ts';
import { USER_AGENT } from '../lib/version.ts';

export interface UpstreamRequest {
  readonly method: 'GET' | 'POST';
  /** Scheme, host and port. */
  readonly origin: string;
  /** With the query. */
  readonly path: string;
  /** Names and values in turn. */
  readonly headers: readonly string[];
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
export type ForwardedHeaders = readonly string[];

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

/** Reads `{data: […]}` (OpenAI), an array (Together) or `{models: […]}`; strips `models/` (Gemini). Throws for all else. */
function readModelList(json: unknown): ListedModel[] {
  const list = Array.isArray(json) ? json : (memberOf(json, 'data') ?? memberOf(json, 'models'));
  if (!Array.isArray(list)) throw new Error('not a model list');
  return list.flatMap((entry: unknown) => {
    const name = memberOf(entry, 'id') ?? memberOf(entry, 'name') ?? entry;
    const created = memberOf(entry, 'created');
    if (typeof name !== 'string' || name === '') return [];
    return {
      name: name.replace(/^models\//, ''),
      created: Number.isSafeInteger(created) ? (created as number) : 0,
    };
  });
}

/** A longer body, and that of a stream, is sent in slices, so that no buffer of it outlives its sending. */
const MAX_WHOLE_BYTES = 4096;
const SLICE_BYTES = 65_536;

/** Returns one buffer if it is short; else a `SlicedBody`, whose `content-length` the caller has to send. */
export function toBody({ body, held, isStream }: UpstreamRequest) {
  if (!body) return undefined;
  if (!isStream && lengthOf(body) <= MAX_WHOLE_BYTES) return joinParts(body);
  return new SlicedBody(body, held);
}

/** Releases its bytes as they are sent. undici and fetch keep a body until the response ends, for a stream minutes later. */
export class SlicedBody {
  readonly length: number;
  #parts: Buffer[];
  #held: Reservation | undefined;

  constructor(parts: readonly Buffer[], held: Reservation | undefined) {
    this.length = lengthOf(parts);
    this.#parts = [...parts];
    this.#held = held;
    held?.retain();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer> {
    const turn = new TurnLimit();
    try {
      for (let part = this.#parts.shift(); part; part = this.#parts.shift()) {
        const slice = copyIfResizable(part.subarray(0, SLICE_BYTES));
        if (slice.length < part.length) this.#parts.unshift(part.subarray(SLICE_BYTES));
        if (this.#parts.length === 0) this.release();
        if (turn.spend(slice.length)) await nextTurn();
        yield slice;
      }
    } finally {
      this.release();
    }
  }

  /** Drops what has not been sent. */
  release(): void {
    this.#parts = [];
    this.#held?.release();
    this.#held = undefined;
  }
}

const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|x-should-retry)$/;
/**
 * One value: Node joins a repeated header with ', ', and W3C Trace Context 3.2 allows only one. Version ff and ids of
 * zeros are invalid.
 */
const TRACEPARENT = /^(?!ff)[\da-f]{2}-(?!0{32})[\da-f]{32}-(?!0{16})[\da-f]{16}-[\da-f]{2}$/;
/** A list (W3C Trace Context 3.3): it may be repeated, and joined. */
const TRACESTATE = /^[\x20-\x7e]{1,512}$/;

/** The allow-list to the client. Cookies, server banners and connection headers of the upstream are not in it. */
export function passedHeaders(headers: UpstreamHeaders, redact: Redactor): Record<string, string> {
  const passed: Record<string, string> = {};
  for (const [name, value] of headers) {
    if (PASSED_HEADERS.test(name)) passed[name] = redact(value);
  }
  const requestId = upstreamRequestId(headers);
  if (requestId) passed['x-upstream-request-id'] = redact(requestId);
  return passed;
}

/** Those of providers, then those of the clouds in front of them. */
const REQUEST_ID_HEADERS = (
  'x-request-id request-id mistral-correlation-id x-ds-trace-id x-generation-id ' +
  'apim-request-id x-amzn-requestid cf-ray'
).split(' ');

/** The provider's own id of a request, untrusted. */
export function upstreamRequestId(headers: UpstreamHeaders): string | undefined {
  const name = REQUEST_ID_HEADERS.find((one) => headers.get(one));
  return name && headers.get(name)!;
}

/** The allow-list to the upstream. W3C Trace Context is the only part that comes from the client. */
export function forwardedHeaders(
  requestId: string,
  { traceparent, tracestate }: IncomingHttpHeaders,
): ForwardedHeaders {
  if (typeof traceparent !== 'string' || !TRACEPARENT.test(traceparent)) {
    return ['x-request-id', requestId, 'traceparent', createTraceparent()];
  }
  // Vendors' data about that trace: it means nothing without it (W3C Trace Context 3.3).
  const isPassed = typeof tracestate === 'string' && TRACESTATE.test(tracestate);
  const others = isPassed ? ['tracestate', tracestate] : [];
  return ['x-request-id', requestId, 'traceparent', traceparent, ...others];
}

/** The trace's id (W3C Trace Context 3.2.2.3). */
export function traceIdOf(forwarded: ForwardedHeaders): string {
  return forwarded[3]!.slice(3, 35);
}

const ID_BYTES = 24;
const randomIds = Buffer.alloc(1000 * ID_BYTES);
let nextIdAt = randomIds.length;

/** Returns a new `traceparent`. Its flag is `sampled`: providers that sample as their caller does record these requests. */
function createTraceparent(): string {
  if (nextIdAt === randomIds.length) {
    // A call of the random generator costs more than the rest: one for 1,000 identifiers.
    randomFillSync(randomIds);
    nextIdAt = 0;
  }
  const hex = randomIds.toString('hex', nextIdAt, nextIdAt + ID_BYTES);
  nextIdAt += ID_BYTES;
  return `00-${hex.slice(0, 32)}-${hex.slice(32)}-01`;
}
