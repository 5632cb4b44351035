/**
 * Requests to a provider and its replies. All providers speak OpenAI's protocol; this covers their
 * differences in paths and headers, and hands long bodies out in slices.
 */

import { BUILT_IN_PROVIDERS } from '../config/built-in-providers.ts';
import type { ProviderSettings } from '../config/config.ts';
import type { ByteSource } from '../lib/byte-source.ts';
import { nextTurn, TurnLimit } from '../lib/turns.ts';
import { joinParts, lengthOf } from '../lib/chunk-buffer.ts';
import { copyIfResizable, type HeldBody } from '../lib/held-body.ts';
import { digestOf } from '../lib/secret.ts';
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
  /** Keeps the bytes of the body until they are sent. */
  readonly heldBody?: HeldBody;
  /** The answer is a stream, which lasts: nothing of the body may last as long. */
  readonly isStream?: boolean;
  /** Wants a new connection; over fetch it may still get a reused one. */
  readonly reconnect?: boolean | undefined;
}

/** An upstream's response, once its headers have come. */
export interface UpstreamResponse {
  readonly status: number;
  /** Names in lower case, as in `Headers`. */
  readonly headers: UpstreamHeaders;
  readonly body: ByteSource;
}

/**
 * The connection that carries a request, noted as soon as the request is written to it, so that a
 * request that fails later has it too. Over fetch nothing is known.
 */
export interface ConnectionUse {
  /** `reused` if the connection had carried a request before. */
  connection?: 'new' | 'reused' | undefined;
  /** When the request was written to it, by `performance.now()`. */
  sentAtMs?: number | undefined;
  /**
   * How long the lookup of its host's name took; undefined for a reused connection, an address or a
   * proxy.
   */
  lookupMs?: number | undefined;
}

export type UpstreamHeaders = ReadonlyMap<string, string>;

type ChatOptions = Required<Pick<UpstreamRequest, 'body' | 'heldBody' | 'isStream' | 'headers'>> &
  Pick<UpstreamRequest, 'reconnect'> & { readonly key: number | undefined };

/** A registered provider. */
export type Provider = ReturnType<typeof createOpenAIProvider>;

/**
 * Creates a provider that takes OpenAI's requests at `settings.baseUrl` and gives OpenAI's answers.
 */
export function createOpenAIProvider(settings: ProviderSettings) {
  const { id, baseUrl, apiKeys } = settings;
  const { origin, pathname } = new URL(baseUrl);
  const basePath = pathname.replace(/\/$/, '');
  const chatPath = `${basePath}/chat/completions`;
  const modelList = BUILT_IN_PROVIDERS.get(id)?.modelList;
  const headers = headersByKey(settings);
  const chatHeaders = (accept: string) =>
    headers.map((keyHeaders) =>
      Object.entries({ ...keyHeaders, 'content-type': 'application/json', accept }).flat(),
    );
  const completionHeaders = chatHeaders('application/json');
  const streamHeaders = chatHeaders('text/event-stream');

  return {
    ...settings,
    /** The same as long as its settings are the same. */
    digest: digestOf(settings),
    /** Without the query, which may hold a key. For the log. */
    chatUrl: origin + chatPath,

    /**
     * `headers` are further ones, names and values in turn; `key` is the index of the key to send.
     */
    chatRequest: ({ key = 0, headers: more, ...chat }: ChatOptions): UpstreamRequest => ({
      method: 'POST',
      origin,
      path: chatPath,
      headers: (chat.isStream ? streamHeaders : completionHeaders)[key]!.concat(more),
      ...chat,
    }),

    /** `key` is the index of the key to send; with `undefined` nothing is sent that may be one. */
    modelListRequest: (key: number | undefined): UpstreamRequest => {
      const keyHeader = key !== undefined && modelList?.keyHeader;
      const keyHeaders = key === undefined ? { 'user-agent': USER_AGENT } : headers[key];
      return {
        method: 'GET',
        origin,
        path: `${basePath}/models${modelList?.query ?? ''}`,
        headers: Object.entries({
          ...modelList?.headers,
          ...keyHeaders,
          ...(keyHeader ? { [keyHeader]: apiKeys[key]!.reveal() } : {}),
          accept: 'application/json',
        }).flat(),
      };
    },
  };
}

/** Returns what each request has in its head, by the index of its key. */
function headersByKey({ apiKeys, headers }: ProviderSettings) {
  const fixed: Record<string, string> = Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, value.reveal()]),
  );
  // The settings may not name `authorization` (config/providers-section.ts).
  return apiKeys.map((apiKey) => ({
    'user-agent': USER_AGENT,
    ...fixed,
    authorization: `Bearer ${apiKey.reveal()}`,
    // A compressed answer could not be passed on byte for byte.
    'accept-encoding': 'identity',
  }));
}

/**
 * A longer body, and that of a stream, is sent in slices, so that no buffer of it outlives its
 * sending.
 */
const MAX_WHOLE_BYTES = 4096;
const SLICE_BYTES = 65_536;

/**
 * Returns one buffer if it is short; else a `SlicedBody`, whose `content-length` the caller has to
 * send.
 */
export function toBody({ body, heldBody, isStream }: UpstreamRequest) {
  if (!body) return undefined;
  if (!isStream && lengthOf(body) <= MAX_WHOLE_BYTES) return joinParts(body);
  return new SlicedBody(body, heldBody);
}

/**
 * Copies its bytes out in slices, and releases them with the last one: undici and fetch keep a body
 * until the response ends, for a stream minutes later.
 */
export class SlicedBody {
  readonly length: number;
  #parts: Buffer[];
  #heldBody: HeldBody | undefined;

  constructor(parts: readonly Buffer[], heldBody: HeldBody | undefined) {
    this.length = lengthOf(parts);
    this.#parts = [...parts];
    this.#heldBody = heldBody;
    heldBody?.retain();
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
    this.#heldBody?.release();
    this.#heldBody = undefined;
  }
}
