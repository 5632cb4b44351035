/**
 * A finished request's attributes for the access line, the metrics and the admin page. The line and
 * the page hide keys, because a client or a provider may have written a key into a field.
 */

import type { IncomingHttpHeaders } from 'node:http';

import { describeCause, MAX_LOGGED_CHARACTERS } from './cause.ts';
import { type Attempt, waitedMsOf, type RequestHistory, type TryFacts } from './history.ts';
import { CHECKS, type GatewayError, type Outcome, type Refusal } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import type { TokenUsage } from '../protocol/usage.ts';

interface FinishedCall {
  readonly id: string;
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly history: RequestHistory;
  readonly receivedAtMs: number;
  readonly reply: {
    /** Undefined if no response was sent. */
    readonly status: number | undefined;
    readonly firstByteAtMs: number | undefined;
    readonly sentBytes: number;
  };
}

interface Ending {
  readonly outcome: Outcome;
  readonly endedAtMs: number;
  /** Undefined unless the client has left. */
  readonly phase: string | undefined;
  readonly remote: string | undefined;
  /** The refusing limit, and how full it is. */
  readonly limitState: string | undefined;
}

/** Returns the cost of an attempt's answer; undefined without prices or counts. */
type CostOf = (attempt: Attempt, usage: TokenUsage | undefined) => number | undefined;

type Recorded = ReturnType<typeof factsOf>;
/** The fields that even the line of bytes that are no request has. */
type LeastFields = 'request_id' | 'method' | 'path' | 'duration_ms' | 'bytes' | 'outcome';
/** An access line's fields. */
export type RequestFacts = Pick<Recorded, LeastFields> & Partial<Recorded>;

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

/** Adds the values that the access line rounds or leaves out. */
export function toFinished(
  call: FinishedCall,
  facts: RequestFacts,
  endedAtMs: number,
): FinishedRequest {
  const { history, receivedAtMs, reply } = call;
  const { firstByteAtMs = endedAtMs } = reply;
  const answer = history.attempt?.hasAnswer ? history.attempt : undefined;
  return {
    facts,
    endTime: Date.now(),
    durationMs: endedAtMs - receivedAtMs,
    // A stream that began with a comment may have no first event.
    firstByteMs: answer && firstByteAtMs - receivedAtMs,
    gatewayMs: history.timeSpent(firstByteAtMs)?.gatewayMs,
    operation: history.endpoint.operation,
    responseModel: answer?.responseModel,
    refusal: history.failure?.details.limit ?? history.failure?.details.check,
  };
}

/**
 * Returns the fields of a request's access line, by their names in the log. Text from outside is
 * bounded and has no control characters.
 *
 * @param costOf - undefined if no provider has prices
 */
export function factsOf(
  call: FinishedCall,
  { outcome, endedAtMs, phase, remote, limitState }: Ending,
  costOf: CostOf | undefined,
) {
  const { history, receivedAtMs } = call;
  const { firstByteAtMs, sentBytes, status } = call.reply;
  const { attempt, failure, provider, waits } = history;
  const tries: readonly TryFacts[] = history.attempts.map((one) => one.toFacts());
  const lastTry = attempt && tries[history.attempts.indexOf(attempt)];
  const answer = attempt?.hasAnswer ? attempt : undefined;
  const usage = answer?.usage;
  const cause = failure && lineCauseOf(failure);
  const isWhole = outcome === 'ok' && lastTry?.outcome === 'ok';
  return {
    request_id: call.id,
    /**
     * From the client's `traceparent` (W3C Trace Context), or else new. Undefined for a request
     * that names no model, or that was refused before its body was read.
     */
    trace_id: history.traceId,
    method: call.method,
    path: escapeControlCharacters(call.path, MAX_LOGGED_CHARACTERS),
    remote,
    client: history.client ?? failure?.details.client,
    status,
    provider,
    model: history.model,
    upstream_model: lastTry?.model,
    upstream_request_id: lastTry?.upstream_request_id,
    stream: history.stream,
    duration_ms: Math.round(endedAtMs - receivedAtMs),
    first_byte_ms: firstByteAtMs && Math.round(firstByteAtMs - receivedAtMs),
    waited_ms: waits.length > 0 ? Math.round(waitedMsOf(waits)) : undefined,
    bytes: sentBytes,
    outcome,
    /**
     * The limit or the check that refused the request, or else the error message. If the client
     * left, the phase at that time.
     */
    reason: phase ?? (failure && reasonOf(failure, call)),
    /** For the gateway's own 429: the limit, and how full it is. */
    limit: limitState,
    // Not repeated if a try has the same cause.
    cause: cause && tries.some((one) => one.cause === cause) ? undefined : cause,
    finish_reason: answer?.finishReason ?? (isWhole ? 'none' : undefined),
    prompt_tokens: usage?.prompt_tokens,
    completion_tokens: usage?.completion_tokens,
    cached_tokens: usage?.cached_tokens,
    reasoning_tokens: usage?.reasoning_tokens,
    /** In the currency of the prices in the settings. */
    cost: answer && costOf?.(answer, usage),
    usage_added: attempt?.usageAdded || undefined,
    tries: tries.length > 0 ? tries : undefined,
  };
}

/** Headers in which the clients of Anthropic and Azure send a key. */
const OTHER_KEY_HEADERS = ['x-api-key', 'api-key'];

/** Returns the refusing limit or check, else the message without the provider's own text. */
function reasonOf({ details, message }: GatewayError, { headers, history }: FinishedCall): string {
  const { check, limit, reason } = details;
  const keyHeader = history.endpoint.ownProtocol?.keyHeader;
  const other =
    check === 'no_token' &&
    headers.authorization === undefined &&
    OTHER_KEY_HEADERS.find((name) => headers[name] && name !== keyHeader);
  const hint = other ? `; ${other} was sent, and no Authorization` : '';
  const text = limit ?? (check && CHECKS[check] + hint) ?? reason ?? message;
  return escapeControlCharacters(text, MAX_LOGGED_CHARACTERS);
}

function lineCauseOf({ details, kind }: GatewayError): string | undefined {
  if (kind === 'internal' && details.cause instanceof Error) return details.cause.stack;
  const text = describeCause(details.cause);
  return text && escapeControlCharacters(text, MAX_LOGGED_CHARACTERS);
}
