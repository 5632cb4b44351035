/**
 * The attributes of one finished request. The access line, the metrics and the admin page all show
 * this object; the line and the page without keys, which a client or a provider may have written
 * into it. Types and not interfaces: the logger takes facts by their names, which interfaces do not
 * allow.
 */

import type { TryFacts } from './history.ts';
import type { TokenUsage } from '../openai/usage.ts';
import type { Outcome, Refusal } from '../lib/errors.ts';

/**
 * The fields of an access line, by their names in the log. Text from outside is bounded, and
 * without control characters.
 */
export type RequestFacts = Partial<Omit<TokenUsage, 'total_tokens'>> & {
  readonly request_id: string;
  /**
   * W3C Trace Context: of the client's `traceparent`, else created. Of chat completions whose body
   * was read.
   */
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
  /** The limit of a 429 of the gateway's own, and how full it is. */
  readonly limit?: string | undefined;
  readonly cause?: string | undefined;
  readonly finish_reason?: string | undefined;
  /** The gateway has asked for the tokens of the stream. */
  readonly usage_added?: boolean | undefined;
  readonly tries?: readonly TryFacts[] | undefined;
};

/** A finished request, with what the log rounds or leaves out. */
export interface FinishedRequest {
  readonly facts: RequestFacts;
  readonly endedAtMs: number;
  readonly durationMs: number;
  readonly firstByteMs?: number | undefined;
  /**
   * Spent neither on reading the client's upload nor on waiting for providers, until the answer's
   * head.
   */
  readonly gatewayMs?: number | undefined;
  /** The model that the answer names, untrusted. */
  readonly responseModel?: string | undefined;
  /** The limit or the check that has refused the request, or that a provider has told of. */
  readonly refusal?: Refusal | undefined;
}

export type RequestObserver = (request: FinishedRequest) => void;
