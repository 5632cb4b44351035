/**
 * The attributes of one finished request. The access line, the metrics and the admin page all show this object.
 * Types and not interfaces: the logger takes facts by their names, which interfaces do not allow.
 */

/** The end of a request or an attempt; see docs/log.md. */
export type Outcome =
  | 'ok'
  | 'client_closed'
  | 'refused'
  | 'rate_limited'
  | 'upstream_error'
  | 'timeout'
  | 'internal_error';

/** One attempt at a provider, or a provider that was skipped: its circuit is open, or its limit reached. */
export type TryFacts = {
  readonly provider: string;
  readonly model: string;
  readonly key?: number | undefined;
  readonly outcome: Outcome | 'circuit_open' | 'limit';
  readonly status?: number | undefined;
  /** The network's error, or the provider's own text: redacted, 200 characters at most. */
  readonly cause?: string | undefined;
  /** Without the query. Only of failures. */
  readonly url?: string | undefined;
  readonly upstream_request_id?: string | undefined;
  /** To the complete answer, or to the first event of a stream. Absent if it was skipped. */
  readonly duration_ms?: number | undefined;
};

/** Whose limit a 429 is about: the gateway's for all requests, for a client, a provider or its memory, or a provider's own. */
export type Limit =
  | 'global'
  | 'client'
  | 'provider'
  | 'server_concurrency'
  | 'client_concurrency'
  | 'provider_concurrency'
  | 'memory'
  | 'upstream';

export type TokenUsage = {
  readonly prompt_tokens?: number | undefined;
  readonly completion_tokens?: number | undefined;
  /** The part of the prompt that came from the provider's cache. */
  readonly cached_tokens?: number | undefined;
  /** The part of the completion that the client does not see. */
  readonly reasoning_tokens?: number | undefined;
};

/** The fields of an access line, by their names in the log. Text from outside is bounded, and without control characters. */
export type RequestFacts = TokenUsage & {
  readonly request_id: string;
  /** W3C Trace Context: of the client's `traceparent`, else created. Of chat completions whose body was read. */
  readonly trace_id?: string | undefined;
  readonly method: string;
  readonly path: string;
  readonly remote?: string | undefined;
  readonly client?: string | undefined;
  /** Absent if nothing was sent. */
  readonly status?: number | undefined;
  readonly provider?: string | undefined;
  readonly model?: string | undefined;
  readonly upstream_model?: string | undefined;
  readonly upstream_request_id?: string | undefined;
  readonly stream?: boolean | undefined;
  readonly duration_ms: number;
  readonly first_byte_ms?: number | undefined;
  readonly bytes: number;
  readonly outcome: Outcome;
  /** The message of the error that the client got; of a 429, whose limit it was. */
  readonly reason?: string | undefined;
  /** Of a 429 of the gateway's own: which limit, and how full it is. */
  readonly limit?: string | undefined;
  readonly cause?: string | undefined;
  readonly finish_reason?: string | undefined;
  readonly tries?: readonly TryFacts[] | undefined;
};

/** A finished request, with what the log rounds or leaves out. */
export interface FinishedRequest {
  readonly facts: RequestFacts;
  readonly endedAtMs: number;
  readonly durationMs: number;
  readonly firstByteMs?: number | undefined;
  /** Spent neither on reading the client's upload nor on waiting for providers, until the answer's head. */
  readonly gatewayMs?: number | undefined;
  /** The model that the answer names, untrusted. */
  readonly responseModel?: string | undefined;
}

export type RequestObserver = (request: FinishedRequest) => void;
