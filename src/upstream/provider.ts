/**
 * The port between the gateway and a provider: data and pure functions, no I/O, no state.
 * A provider with another wire format is another maker of `Provider`s; no other room changes.
 */

import type { ChatRequest } from '../lib/messages.ts';

export interface UpstreamRequest {
  readonly method: 'GET' | 'POST';
  /** Scheme, host and port. */
  readonly origin: string;
  /** With the query. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  /** In parts, to be sent one after the other. */
  readonly body?: readonly Buffer[];
}

export interface UpstreamReply {
  readonly status: number;
  readonly headers: UpstreamHeaders;
  /** No ReadableStream: that takes 7 µs for each answer on Node 24, and 24 µs on Node 20. */
  readonly body: AsyncIterableIterator<Buffer>;
}

/** Names in lower case, as in `Headers`. */
export interface UpstreamHeaders extends Iterable<[string, string]> {
  get(name: string): string | null | undefined;
}

/** What an upstream says went wrong, from an error body or an error event. */
export interface UpstreamFault {
  /** The upstream's own message, untrusted. */
  readonly message?: string;
  readonly code?: string;
  /** An HTTP status named inside the body. */
  readonly status?: number;
}

export interface Provider {
  readonly id: string;
  readonly defaultModel?: string | undefined;
  /** One attempt: to the complete answer, or to the first event of a stream. */
  readonly timeoutMs: number;
  /** Extra attempts after a failure that may pass. */
  readonly retries: number;
  /** Models listed by hand; absent: ask the provider. */
  readonly models?: readonly string[] | undefined;
  /** `forwarded` are the allow-listed headers of the client's request. */
  chatRequest(chat: ChatRequest, model: string, forwarded: ForwardedHeaders): UpstreamRequest;
  modelListRequest(): UpstreamRequest;
  /** Model names in the provider's list. Unusable entries are left out. Throws where it is none. */
  readModelList(json: unknown): string[];
  /** The fault in a 200 answer or a stream event, or undefined where it is none. */
  readFault(json: unknown): UpstreamFault | undefined;
  /** What the body of an answer that is an error by its status says, in any dialect. */
  readErrorBody(json: unknown): UpstreamFault;
}

export interface ForwardedHeaders {
  readonly 'x-request-id': string;
  readonly traceparent?: string;
  readonly tracestate?: string;
}
