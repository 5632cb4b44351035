/**
 * The port between the gateway and a provider: what a provider is asked and how its answers are read, without I/O. All
 * providers speak OpenAI's protocol; this covers their differences in paths, headers and model lists.
 */

import type { Reservation } from '../lib/byte-budget.ts';
import type { ByteSource } from '../lib/byte-source.ts';
import type { ChatRequest } from '../lib/attempt.ts';

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
  /** What the memory of the body is reserved by. */
  readonly held?: Reservation;
  /** The answer is a stream, which lasts: nothing of the body may last as long. */
  readonly isStream?: boolean;
  /** Wants a new connection; over fetch it may still get a reused one. */
  readonly isFresh?: boolean | undefined;
}

/** An upstream's response, once its headers have come. */
export interface UpstreamReply {
  readonly status: number;
  readonly headers: UpstreamHeaders;
  readonly body: ByteSource;
  /** Whether its connection had carried a request before; over fetch it is not known. */
  readonly connection?: 'new' | 'reused' | undefined;
}

/** Names in lower case, as in `Headers`. */
export interface UpstreamHeaders extends Iterable<[string, string]> {
  get(name: string): string | null | undefined;
}

export interface ListedModel {
  readonly name: string;
  /** Seconds since the epoch; 0 if the provider does not say. */
  readonly created: number;
}

/** One registered provider. */
export interface Provider {
  readonly id: string;
  readonly defaultModel?: string | undefined;
  /** One attempt: to the complete answer, or to the first event of a stream. */
  readonly timeoutMs: number;
  /** Extra attempts after a failure that a repeat may cure. */
  readonly retries: number;
  /** Models listed in the settings. If absent, the provider is asked. */
  readonly models?: readonly string[] | undefined;
  /** Where chat completions are asked for, without the query, which may hold a key. For the log. */
  readonly chatUrl: string;
  /**
   * `forwarded` are the allow-listed headers of the client's request; `key` is the index of the key to send, 0 if
   * absent.
   */
  chatRequest(
    chat: ChatRequest,
    model: string,
    forwarded: ForwardedHeaders,
    key?: number,
  ): UpstreamRequest;
  modelListRequest(key?: number): UpstreamRequest;
  /** The entries of the provider's model list; unusable ones are left out. Throws if `json` is no list. */
  readModelList(json: unknown): ListedModel[];
}

/** Names and values in turn: `x-request-id`, `traceparent`, and `tracestate` if there is one. */
export type ForwardedHeaders = readonly [
  'x-request-id',
  requestId: string,
  'traceparent',
  traceparent: string,
  ...tracestate: string[],
];
