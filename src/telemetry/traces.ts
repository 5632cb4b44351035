/**
 * Makes the spans of requests and of their tries, only with `[telemetry] traces`. The span of a
 * request has attributes of OpenTelemetry's HTTP conventions, the span of a try those of its GenAI
 * conventions. No attribute has a prompt, an answer or a provider's text.
 */

import type { TraceSettings } from '../config/config.ts';
import { createIds, TRACEPARENT } from '../lib/ids.ts';
import type { Logger } from '../lib/log.ts';
import { withoutBrackets } from '../lib/loopback.ts';
import { escapeControlCharacters, type Redactor } from '../lib/secrets.ts';
import type { FinishedRequest, RequestTrace, TracedCall } from '../request/facts.ts';
import { type Attempt, MAX_NAME_CHARACTERS } from '../request/history.ts';
import { type AttributeValue, SpanExporter, toKeyValues } from './span-exporter.ts';

/** OTLP's numbers (opentelemetry/proto/trace/v1/trace.proto). */
const SERVER = 2;
const CLIENT = 3;
const STATUS_ERROR = 2;
/** The bit `sampled` of `trace-flags` (W3C Trace Context 3.2.2.5). */
const SAMPLED = 1;
/** The last 13 digits of a trace id are 52 random bits, which a number holds exactly. */
const RANDOM_DIGITS = 13;
const RANDOM_RANGE = 16 ** RANDOM_DIGITS;

const createTraceId = createIds('x'.repeat(32));
const createSpanId = createIds('x'.repeat(16));

/** A span's attributes by their names. */
type Attributes = Readonly<Record<string, AttributeValue>>;

interface Span {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string | undefined;
  readonly name: string;
  readonly kind: typeof SERVER | typeof CLIENT;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: Attributes;
  readonly status: { readonly code: number; readonly message: string } | undefined;
}

/** Queues a span. */
type AddSpan = (span: Span, { history }: TracedCall) => void;

/** Begins the traces of requests, and sends the spans of sampled traces. */
export class Traces {
  readonly #exporter: SpanExporter;
  readonly #sampler: TraceSettings['sampler'];
  readonly #redact: Redactor;

  constructor(settings: TraceSettings, logger: Logger, redact: Redactor) {
    this.#exporter = new SpanExporter(settings, logger);
    this.#sampler = settings.sampler;
    this.#redact = redact;
  }

  /** Spans lost since the start. */
  get droppedSpans(): number {
    return this.#exporter.droppedSpans;
  }

  /** Begins a request's trace, below the client's `traceparent` if that is valid. */
  begin(traceparent: unknown): RequestTrace {
    const parent = TRACEPARENT.exec(String(traceparent));
    const [, traceId = createTraceId(), parentSpanId, flags] = parent ?? [];
    const { isParentBased, ratio } = this.#sampler;
    const isSampled =
      parent && isParentBased
        ? (Number(`0x${flags}`) & SAMPLED) === SAMPLED
        : Number(`0x${traceId.slice(-RANDOM_DIGITS)}`) >= (1 - ratio) * RANDOM_RANGE;
    return new Trace(traceId, parentSpanId, isSampled ? this.#add : undefined);
  }

  /** Sends the spans that wait, for 2 s at most. */
  close(): Promise<void> {
    return this.#exporter.close();
  }

  readonly #add: AddSpan = (span, { history: { redactKey } }) => {
    // Ids are not redacted, because a collector refuses the whole batch of a wrong id.
    const hide = (text: string) => this.#redact(redactKey?.(text) ?? text);
    const attributes = toKeyValues(Object.entries(span.attributes), hide);
    this.#exporter.add(JSON.stringify({ ...span, name: hide(span.name), attributes }));
  };
}

class Trace implements RequestTrace {
  readonly traceId: string;
  readonly #parentSpanId: string | undefined;
  readonly #spanId = createSpanId();
  /** The span ids of the attempts that were sent. */
  readonly #spanIds = new Map<Attempt, string>();
  /** Undefined if the trace is not sampled. */
  readonly #add: AddSpan | undefined;

  constructor(traceId: string, parentSpanId: string | undefined, add: AddSpan | undefined) {
    this.traceId = traceId;
    this.#parentSpanId = parentSpanId;
    this.#add = add;
  }

  traceparentOf(attempt: Attempt): string {
    const spanId = createSpanId();
    this.#spanIds.set(attempt, spanId);
    return `00-${this.traceId}-${spanId}-${this.#add ? '01' : '00'}`;
  }

  end(request: FinishedRequest, call: TracedCall, route?: string): void {
    if (!this.#add) return;
    this.#add(this.#requestSpan(request, route), call);
    for (const [attempt, spanId] of this.#spanIds) {
      this.#add(this.#trySpan(attempt, spanId, request, call), call);
    }
  }

  #requestSpan({ facts, ...times }: FinishedRequest, route: string | undefined): Span {
    const { method, outcome, path, status = 0 } = facts;
    // The HTTP conventions leave the span of a server without an error if the client is at fault.
    const isClientsFault = status >= 400 && status < 500;
    return {
      traceId: this.traceId,
      spanId: this.#spanId,
      parentSpanId: this.#parentSpanId,
      name: route === undefined ? method : `${method} ${route}`,
      kind: SERVER,
      startTimeUnixNano: toNanoseconds(times.endTime - times.durationMs),
      endTimeUnixNano: toNanoseconds(times.endTime),
      attributes: {
        'http.request.method': method,
        'http.route': route,
        'url.path': path,
        'http.response.status_code': status || undefined,
        'error.type': errorTypeOf(outcome),
      },
      status: isClientsFault ? undefined : statusOf(outcome),
    };
  }

  #trySpan(
    attempt: Attempt,
    spanId: string,
    { durationMs, endTime }: FinishedRequest,
    { history, receivedAtMs }: TracedCall,
  ): Span {
    // `beganAtMs` is on another clock than `endTime`.
    const toTime = (atMs: number) => endTime - durationMs + (atMs - receivedAtMs);
    const { beganAtMs, decidedAtMs = beganAtMs, finishReason, outcome, status, usage } = attempt;
    const isDelivered = attempt.isStream && attempt.hasAnswer;
    const { operation } = history.endpoint;
    const model = escapeControlCharacters(attempt.model, MAX_NAME_CHARACTERS);
    const { hostname, port, protocol } = new URL(attempt.url);
    return {
      traceId: this.traceId,
      spanId,
      parentSpanId: this.#spanId,
      name: `${operation} ${model}`,
      kind: CLIENT,
      startTimeUnixNano: toNanoseconds(toTime(beganAtMs)),
      endTimeUnixNano: toNanoseconds(isDelivered ? endTime : toTime(decidedAtMs)),
      attributes: {
        'gen_ai.operation.name': operation,
        'gen_ai.provider.name': attempt.provider,
        'gen_ai.request.model': model,
        'gen_ai.response.model': attempt.responseModel,
        'gen_ai.response.finish_reasons': finishReason === undefined ? undefined : [finishReason],
        'gen_ai.usage.input_tokens': usage?.prompt_tokens,
        'gen_ai.usage.output_tokens': usage?.completion_tokens,
        'server.address': withoutBrackets(hostname),
        'server.port': Number(port) || (protocol === 'https:' ? 443 : 80),
        'http.response.status_code': status,
        'error.type': errorTypeOf(outcome),
      },
      status: statusOf(outcome),
    };
  }
}

/** Returns the outcome if it is an error. A client that has left is none. */
function errorTypeOf(outcome: Attempt['outcome']): string | undefined {
  return outcome === 'ok' || outcome === 'client_closed' ? undefined : outcome;
}

function statusOf(outcome: Attempt['outcome']): Span['status'] {
  const message = errorTypeOf(outcome);
  return message === undefined ? undefined : { code: STATUS_ERROR, message };
}

/** Returns a time of day in nanoseconds since the epoch, exact to the microsecond. */
function toNanoseconds(time: number): string {
  return `${Math.round(time * 1000)}000`;
}
