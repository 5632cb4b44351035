/**
 * A finished request's attributes for the access line, the metrics and the admin page. The line and
 * the page hide keys, because a client or a provider may have written a key into a field.
 */

import type { Attempt, RequestHistory, TryFacts } from './history.ts';
import type { TokenUsage } from '../protocol/usage.ts';
import type { Outcome, Refusal } from '../lib/errors.ts';

/**
 * An access line's fields, by their names in the log. Text from outside is bounded and has no
 * control characters. A type, because TypeScript does not assign an interface to the index
 * signature of `LogFacts`.
 */
export type RequestFacts = Partial<Omit<TokenUsage, 'total_tokens'>> & {
  readonly request_id: string;
  /**
   * From the client's `traceparent` (W3C Trace Context), or else new. Undefined for a request that
   * names no model, or that was refused before its body was read.
   */
  readonly trace_id?: string | undefined;
  readonly method: string;
  readonly path: string;
  readonly remote?: string | undefined;
  readonly client?: string | undefined;
  /** Undefined if no response was sent. */
  readonly status?: number | undefined;
  readonly provider?: string | undefined;
  readonly model?: string | undefined;
  readonly upstream_model?: string | undefined;
  readonly upstream_request_id?: string | undefined;
  readonly stream?: boolean | undefined;
  readonly duration_ms: number;
  readonly first_byte_ms?: number | undefined;
  readonly waited_ms?: number | undefined;
  readonly bytes: number;
  readonly outcome: Outcome;
  /**
   * The limit or the check that refused the request, or else the error message. If the client left,
   * the phase at that time.
   */
  readonly reason?: string | undefined;
  /** For the gateway's own 429: the limit, and how full it is. */
  readonly limit?: string | undefined;
  readonly cause?: string | undefined;
  readonly finish_reason?: string | undefined;
  /** In the currency of the prices in the settings. */
  readonly cost?: number | undefined;
  readonly usage_added?: boolean | undefined;
  readonly tries?: readonly TryFacts[] | undefined;
};

/** Beside the facts, values that the log rounds or leaves out. */
export interface FinishedRequest {
  readonly facts: RequestFacts;
  readonly endTime: number;
  readonly durationMs: number;
  readonly firstByteMs?: number | undefined;
  readonly gatewayMs?: number | undefined;
  /** `gen_ai_operation_name` of the metrics; `chat` if absent. */
  readonly operation?: string | undefined;
  /** Untrusted. */
  readonly responseModel?: string | undefined;
  /** The refusing limit or check; `upstream` for a provider's limit. */
  readonly refusal?: Refusal | undefined;
}

export type RequestObserver = (request: FinishedRequest) => void;

export interface TracedCall {
  readonly history: Pick<RequestHistory, 'endpoint' | 'redactKey'>;
  readonly receivedAtMs: number;
}

/** The spans of a request and of its attempts; only with `[telemetry] traces`. */
export interface RequestTrace {
  readonly traceId: string;
  /** Begins an attempt's span, and returns the `traceparent` to send. Called once an attempt. */
  traceparentOf(attempt: Attempt): string;
  /** Ends all spans. Called once. `route` is undefined if no endpoint has the request's path. */
  end(request: FinishedRequest, call: TracedCall, route?: string): void;
}
