/** One try at one provider: send the request, judge the answer, hand it on or say what is wrong with it. */

import { STATUS_CODES } from 'node:http';

import { Deadline } from './cancellation.ts';
import type { ChatRequest } from './chat.ts';
import type { Config } from './config.ts';
import { GatewayError, type ErrorFacts } from './errors.ts';
import type { Answer, Call } from './call.ts';
import { hasMember, parseForeignJson } from './json-scan.ts';
import type {
  ForwardedHeaders,
  Provider,
  UpstreamFault,
  UpstreamHeaders,
  UpstreamReply,
} from './provider.ts';
import { withoutControlCharacters } from './secrets.ts';
import { openStream } from './stream.ts';
import { readAll, timeoutError, upstreamFailure, type Upstream } from './upstream.ts';

/** Complete answers are held in memory to be judged; a longer one is no completion. */
const MAX_ANSWER_BYTES = 67_108_864;
const MAX_ERROR_BYTES = 65_536;
/** The status says most of it: the text is not waited for as an answer is. */
const ERROR_BODY_MS = 1000;
const MAX_RETRY_AFTER_SECONDS = 86_400;
const MAX_ERROR_TEXT_CHARACTERS = 500;

/** Success without a body (RFC 9110 15.3.5, 15.3.6). */
const NO_ANSWER_STATUSES = new Set([204, 205]);
const RETRYABLE_STATUSES = new Set([408, 429, 500, 502, 503, 504, 529]);
const REFUSED_BY_POLICY = /content[_-]?(?:policy|filter)|moderation|safety/i;

export interface AttemptSettings {
  readonly config: Config;
  readonly upstream: Upstream;
  /** Removes keys from text that is sent to a client. */
  readonly redact: (text: string) => string;
}

interface AttemptRequest {
  readonly call: Call;
  readonly chat: ChatRequest;
  readonly provider: Provider;
  readonly model: string;
}

/**
 * Tries once. Resolves to the client's answer: a complete one, or a stream whose first event is in
 * hand. Throws `GatewayError` for everything else, `ClientGone` when nobody waits any more.
 */
export async function attempt(request: AttemptRequest, settings: AttemptSettings): Promise<Answer> {
  const { call, chat, provider, model } = request;
  const deadline = new Deadline(call.cancellation);
  const limitMs = chat.stream
    ? Math.min(provider.timeoutMs, settings.config.server.firstTokenTimeoutMs)
    : provider.timeoutMs;
  deadline.arm(limitMs, () => timeoutError(provider.id));
  let answered = false;
  try {
    const sent = provider.chatRequest(chat, model, forwardedHeaders(call));
    const reply = await settings.upstream.send(sent, deadline);
    answered = true;
    const context = { call, provider, isStream: chat.stream, settings, deadline };
    const judged = await judge(provider.toOpenAI?.(reply) ?? reply, context);
    if (!chat.stream) deadline.end();
    return judged;
  } catch (thrown) {
    // Also lets go of a body that nobody will read.
    deadline.end({ abandon: true });
    throw upstreamFailure(thrown, { provider: provider.id, answered });
  }
}

/** Without the request itself: a stream would hold its body, often megabytes, to its end. */
interface JudgeContext {
  readonly call: Call;
  readonly provider: Provider;
  readonly isStream: boolean;
  readonly settings: AttemptSettings;
  readonly deadline: Deadline;
}

/** The client's answer to an upstream's reply. Throws what is not an answer as what it is. */
async function judge(reply: UpstreamReply, context: JudgeContext): Promise<Answer> {
  const { status } = reply;
  const { isStream, provider, call } = context;
  if (NO_ANSWER_STATUSES.has(status) || (status >= 300 && status < 400) || status > 599) {
    throw new GatewayError('provider', `unexpected status ${status}`, { provider: provider.id });
  }
  if (status >= 400) throw await readStatusError(reply, context);

  const headers = passedHeaders(reply.headers, context.settings.redact);
  if (!/^(?:identity)?$/i.test(reply.headers.get('content-encoding') ?? '')) {
    // Not asked for; and a few packed bytes can stand for gigabytes.
    throw new GatewayError('provider', 'the answer is compressed', { provider: provider.id });
  }
  const contentType = context.settings.redact(reply.headers.get('content-type') ?? '');
  const mediaType = contentType.split(';', 1)[0]!.trim().toLowerCase();
  const isJson = /[/+]json$/.test(mediaType);
  const isEventStream = mediaType === 'text/event-stream';
  const isEvent = isStream && !isJson;
  const toError = (fault: UpstreamFault) =>
    faultError(fault.status ?? 502, fault, context, { isEvent });

  if (isEvent) {
    const events = await openStream(reply.body, {
      provider: provider.id,
      deadline: context.deadline,
      idleMs: context.settings.config.server.streamIdleTimeoutMs,
      readFault: (json) => provider.readFault(json),
      toError,
      onFailure: (failure) => {
        call.record.failure = failure;
      },
    });
    headers['content-type'] = isEventStream ? contentType : 'text/event-stream; charset=utf-8';
    // Proxies in front must neither hold back nor rewrite events.
    headers['cache-control'] = 'no-cache, no-transform';
    headers['x-accel-buffering'] = 'no';
    return { status, headers, body: events };
  }

  if (isEventStream) {
    const text = 'a stream was answered to a request for a complete answer';
    throw new GatewayError('provider', text, { provider: provider.id });
  }
  const bytes = await readAll(reply.body, MAX_ANSWER_BYTES);
  if (bytes === undefined) {
    throw new GatewayError('provider', 'the answer is too large', { provider: provider.id });
  }
  // A completion is not parsed: all there is to know is that it is one.
  if (!hasMember(bytes, 'choices')) {
    const json = parseForeignJson(bytes.toString('utf8'));
    if (json === undefined) {
      throw new GatewayError('serialization', 'the provider did not answer with usable JSON', {
        provider: provider.id,
      });
    }
    const fault = provider.readFault(json);
    if (fault) throw toError(fault);
  }
  if (isStream) {
    const text = `Provider ${provider.id} does not support streaming`;
    throw new GatewayError('unsupported', text, { provider: provider.id });
  }
  headers['content-type'] = isJson ? contentType : 'application/json';
  return { status, headers, body: bytes };
}

async function readStatusError(reply: UpstreamReply, context: JudgeContext): Promise<GatewayError> {
  const { call, provider } = context;
  const giveUp = () => context.deadline.cancel(timeoutError(provider.id));
  const timer = setTimeout(giveUp, ERROR_BODY_MS);
  // A body that breaks off or never ends takes nothing from what the status says.
  const bytes = await readAll(reply.body, MAX_ERROR_BYTES).catch(() => undefined);
  clearTimeout(timer);
  call.cancellation.throwIfCancelled();
  const fault = provider.readErrorBody(bytes && parseForeignJson(bytes.toString('utf8')));
  return faultError(reply.status, fault, context, { headers: reply.headers });
}

/** A provider's fault as the client is told of it (decisions, Upstream answers). */
function faultError(
  status: number,
  { message = '', code = '' }: UpstreamFault,
  { provider: { id: provider }, settings }: JudgeContext,
  { headers, isEvent = false }: { headers?: UpstreamHeaders; isEvent?: boolean } = {},
): GatewayError {
  const retryAfterSeconds = readRetryAfter(headers?.get('retry-after'));
  const isPolicy = REFUSED_BY_POLICY.test(code);
  const isTooLong = status === 400 && code === 'context_length_exceeded';
  const facts: ErrorFacts = {
    provider,
    status,
    upstreamStatus: status,
    headers: headers ? passedHeaders(headers, settings.redact) : {},
    retryable: !isEvent && RETRYABLE_STATUSES.has(status),
    ...(isPolicy ? { mayFallBack: false } : {}),
    ...(isTooLong || (isEvent && !isPolicy && status !== 401) ? { mayFallBack: true } : {}),
    ...(retryAfterSeconds === undefined ? {} : { retryAfterSeconds }),
  };
  if (status === 401) return new GatewayError('api', 'Authentication failed', facts);

  const text = presentable(message, settings.redact) || (STATUS_CODES[status] ?? 'Unknown error');
  if (status === 429) {
    return new GatewayError('rateLimit', `Rate limit exceeded at ${provider}: ${text}`, facts);
  }
  return new GatewayError('api', `API error: ${status} - ${text}`, facts);
}

/** An upstream's message on one line, bounded and without keys; nothing of an HTML page. */
function presentable(message: string, redact: (text: string) => string): string {
  if (/<[a-z!/]/i.test(message)) return '';
  return redact(withoutControlCharacters(message)).trim().slice(0, MAX_ERROR_TEXT_CHARACTERS);
}

/** Seconds or a date (RFC 9110 10.2.3), as whole seconds from now, at least 1. */
function readRetryAfter(header: string | null | undefined): number | undefined {
  if (!header) return undefined;
  // The first of several, which come joined by commas; a date has one of its own.
  const [value] = /^(?:[a-z]+,)?[^,]*/i.exec(header)!;
  const isNumber = /^\d+(?:\.\d+)?$/.test(value);
  const seconds = isNumber ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  if (!Number.isFinite(seconds)) return undefined;
  return Math.min(MAX_RETRY_AFTER_SECONDS, Math.max(1, Math.ceil(seconds)));
}

const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|retry-after-ms|x-should-retry)$/;

/** The allow-list: an upstream's cookies, server banners and connection headers are not the client's. */
function passedHeaders(
  headers: UpstreamHeaders,
  redact: (text: string) => string,
): Record<string, string> {
  const passed: Record<string, string> = {};
  for (const [name, value] of headers) {
    if (PASSED_HEADERS.test(name)) passed[name] = redact(value);
  }
  const requestId = headers.get('x-request-id') ?? headers.get('request-id');
  if (requestId) passed['x-upstream-request-id'] = redact(requestId);
  return passed;
}

/** The allow-list in the other direction; W3C Trace Context is the only thing of the client's in it. */
function forwardedHeaders({ id, headers }: Call): ForwardedHeaders {
  const { traceparent, tracestate } = headers;
  return {
    'x-request-id': id,
    ...(isTraceHeader(traceparent) ? { traceparent } : {}),
    ...(isTraceHeader(tracestate) ? { tracestate } : {}),
  };
}

function isTraceHeader(value: unknown): value is string {
  return typeof value === 'string' && /^[\x20-\x7e]{1,512}$/.test(value);
}
