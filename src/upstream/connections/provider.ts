/**
 * Builds the requests to a provider. Bodies pass in the protocol of the client's endpoint, so
 * providers differ only in paths and headers. Long bodies are sent in slices.
 */

import { BUILT_IN_PROVIDERS } from '../../config/built-in-providers.ts';
import type { ProviderSettings, TlsSettings } from '../../config/config.ts';
import type { ByteSource } from '../../lib/memory/byte-source.ts';
import { joinParts, lengthOf } from '../../lib/chunk-buffer.ts';
import { copyIfResizable, type HeldBody } from '../../lib/memory/held-body.ts';
import { digestOf } from '../../lib/secret.ts';
import type { Endpoint } from '../../protocol/endpoint.ts';
import { ENDPOINTS } from '../../protocol/endpoints.ts';
import { ANTHROPIC_VERSION } from '../../protocol/messages.ts';
import { USER_AGENT } from '../../lib/version.ts';

export interface UpstreamRequest {
  readonly method: 'GET' | 'POST';
  /** Scheme, host and port. */
  readonly origin: string;
  readonly tls?: TlsSettings | undefined;
  readonly path: string;
  readonly fixed: FixedHeaders;
  /** Further headers, names and values in turn. */
  readonly headers: readonly string[];
  readonly body?: readonly Buffer[];
  /** Keeps the body's bytes until they are sent. */
  readonly heldBody?: HeldBody;
  /** The body of a stream's request must be freed long before the answer ends. */
  readonly isStream?: boolean;
  /**
   * True if the request needs a new connection. Over fetch it may still get a reused connection.
   */
  readonly reconnect?: boolean | undefined;
}

/** Headers that are the same for many requests. */
interface FixedHeaders {
  /** Names and values in turn. */
  readonly pairs: readonly string[];
  /** Lines of HTTP/1, behind `host` and `connection`. */
  readonly text: string;
}

/** Returns the fixed headers of requests to `origin`. */
export function fixedHeaders(
  origin: string,
  headers: Readonly<Record<string, string>>,
): FixedHeaders {
  const host = origin.slice(origin.indexOf('//') + 2);
  const lines = Object.entries({ host, connection: 'keep-alive', ...headers });
  return {
    pairs: Object.entries(headers).flat(),
    text: lines.map(([name, value]) => `${name}: ${value}\r\n`).join(''),
  };
}

export interface UpstreamResponse {
  readonly status: number;
  readonly headers: UpstreamHeaders;
  readonly body: ByteSource;
}

/**
 * A request's connection. The fields are set when the request is written, so that a request has
 * them even if it fails later. Over fetch they stay undefined.
 */
export interface ConnectionUse {
  connection?: 'new' | 'reused' | undefined;
  sentAtMs?: number | undefined;
  /** Undefined for a reused connection, an address or a proxy. */
  lookupMs?: number | undefined;
}

/** Response headers, by name in lower case. */
export type UpstreamHeaders = ReadonlyMap<string, string>;

interface RequestOptions
  extends
    Required<Pick<UpstreamRequest, 'body' | 'heldBody' | 'isStream'>>,
    Pick<UpstreamRequest, 'reconnect'> {
  readonly endpoint: Endpoint;
  readonly key: number | undefined;
  /** Headers that always pass from the client, names and values in turn. */
  readonly forwarded: readonly string[];
}

/** A registered provider. */
export type Provider = ReturnType<typeof createOpenAIProvider>;

/** Creates a provider that serves OpenAI's protocol at `settings.baseUrl`. */
export function createOpenAIProvider(settings: ProviderSettings) {
  const { id, baseUrl, tls } = settings;
  const { origin, pathname } = new URL(baseUrl);
  const basePath = pathname.replace(/\/$/, '');
  const { keyHeader = settings.keyHeader, modelListQuery = '' } = BUILT_IN_PROVIDERS.get(id) ?? {};
  const paths = byEndpoint(basePath);
  const openAIHeaders = jsonHeaders(origin, headersByKey(settings));
  const otherHeaders = keyHeader
    ? jsonHeaders(origin, headersByKey(settings, keyHeader))
    : openAIHeaders;

  return {
    ...settings,
    /** Scheme, host and port. */
    origin,
    /** Changes if a reload changes the settings. */
    digest: digestOf(settings),
    /** The URLs of the endpoints, for the log. They have no query: `base_url` may have none. */
    urls: byEndpoint(origin + basePath),

    /** Builds a request that names a model. `key` is the index of the key to send. */
    request(options: RequestOptions): UpstreamRequest {
      const { complete, stream } = options.endpoint.ownProtocol ? otherHeaders : openAIHeaders;
      return {
        method: 'POST',
        origin,
        tls,
        path: paths.get(options.endpoint)!,
        fixed: (options.isStream ? stream : complete)[options.key ?? 0]!,
        headers: options.forwarded,
        body: options.body,
        heldBody: options.heldBody,
        isStream: options.isStream,
        reconnect: options.reconnect,
      };
    },

    /** @param key - index of the key to send; with undefined, the request contains no key */
    modelListRequest: (key: number | undefined): UpstreamRequest => ({
      method: 'GET',
      origin,
      tls,
      path: `${basePath}/models${modelListQuery}`,
      fixed: fixedHeaders(origin, modelListHeaders(settings, key, keyHeader)),
      headers: [],
    }),
  };
}

function jsonHeaders(origin: string, byKey: readonly Record<string, string>[]) {
  const withAccept = (accept: string) =>
    byKey.map((one) =>
      fixedHeaders(origin, { ...one, 'content-type': 'application/json', accept }),
    );
  return { complete: withAccept('application/json'), stream: withAccept('text/event-stream') };
}

function byEndpoint(base: string): ReadonlyMap<Endpoint, string> {
  return new Map(ENDPOINTS.map((endpoint) => [endpoint, base + endpoint.path]));
}

/** A provider that takes the key in a header of its own gets it there too. */
function modelListHeaders(
  settings: ProviderSettings,
  key: number | undefined,
  keyHeader: string | undefined,
): Record<string, string> {
  const version = keyHeader && { 'anthropic-version': ANTHROPIC_VERSION };
  const accept = { ...version, accept: 'application/json' };
  if (key === undefined) return { ...accept, 'user-agent': USER_AGENT };
  const own = keyHeader && { [keyHeader]: settings.apiKeys[key]!.reveal() };
  return { ...accept, ...headersByKey(settings)[key], ...own };
}

function headersByKey(
  { apiKeys, headers }: ProviderSettings,
  keyHeader?: string,
): Record<string, string>[] {
  const fixed: Record<string, string> = Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [name, value.reveal()]),
  );
  // `fixed` has no `authorization`, because settings may not name it (config/providers-section.ts).
  return apiKeys.map((apiKey) => ({
    'user-agent': USER_AGENT,
    ...fixed,
    ...(keyHeader
      ? { [keyHeader]: apiKey.reveal() }
      : { authorization: `Bearer ${apiKey.reveal()}` }),
    // A compressed answer could not be passed on byte for byte.
    'accept-encoding': 'identity',
  }));
}

/** A longer body is sent in slices. */
const MAX_WHOLE_BYTES = 4096;
const SLICE_BYTES = 65_536;

/** Returns a short body as a buffer, and a long body as a `SlicedBody`. */
export function toBody({ body, heldBody }: UpstreamRequest): Buffer | SlicedBody | undefined {
  if (!body) return undefined;
  return lengthOf(body) > MAX_WHOLE_BYTES ? new SlicedBody(body, heldBody) : joinParts(body);
}

/** Gives out a body in slices, and releases the body with the last slice. */
export class SlicedBody {
  readonly length: number;
  #parts: Buffer[];
  #heldBody: HeldBody | undefined;

  /**
   * `firstAnswer` drops `heldBody` once an answer has begun, so it is freed with its last reader.
   */
  constructor(parts: readonly Buffer[], heldBody: HeldBody | undefined) {
    this.length = lengthOf(parts);
    this.#parts = [...parts];
    this.#heldBody = heldBody;
    heldBody?.retain();
  }

  next(): Buffer | undefined {
    const part = this.#parts.shift();
    if (!part) return undefined;
    const slice = copyIfResizable(part.subarray(0, SLICE_BYTES));
    if (slice.length < part.length) this.#parts.unshift(part.subarray(SLICE_BYTES));
    if (this.#parts.length === 0) this.release();
    return slice;
  }

  release(): void {
    this.#parts = [];
    this.#heldBody?.release();
    this.#heldBody = undefined;
  }
}
