/** One attempt at one provider: send the request, map the reply to an answer or a `GatewayError`. */

import type { Config } from '../config/config.ts';
import { Deadline, type Cancellation } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { ExhaustionLog } from '../lib/exhaustion.ts';
import type { Logger } from '../lib/log.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import { readAll } from '../lib/byte-source.ts';
import type { Redactor } from '../lib/secrets.ts';
import { parseUntrustedJson } from '../lib/untrusted-json.ts';
import type { Answer, ChatRequest } from '../lib/messages.ts';
import type { AnswerFacts } from './answer-facts.ts';
import { readCompletion, type AnswerOptions } from './completion.ts';
import { readFault, reportsFault } from './fault.ts';
import { pairsOf, passedHeaders, traceHeaders, upstreamRequestId } from './headers.ts';
import { timeoutError, TransportError, upstreamFailure } from './network-error.ts';
import { toProviderError } from './provider-error.ts';
import type { ForwardedHeaders, Provider, UpstreamReply } from './provider.ts';
import { openStream } from './stream-relay.ts';
import type { Transport } from './transport.ts';

const MAX_ERROR_BYTES = 65_536;
/** Time limit for reading an error body: the status alone is enough to answer with. */
const ERROR_BODY_MS = 1000;

const JSON_TYPE = /^[^;]*[/+]json\s*(?:;|$)/i;
const PLAIN_TYPE = /^\s*text\/plain\s*(?:;|$)/i;
const HTML_TYPE = /^\s*(?:text\/html|application\/xhtml\+xml)\s*(?:;|$)/i;
/** An end tag, a comment or a declaration: not the `<class 'int'>` of an ordinary message. */
const MARKUP = /<[/!?]/;
const EVENT_STREAM_TYPE = /^\s*text\/event-stream\s*(?:;|$)/i;
/** Success without a body (RFC 9110 15.3.5, 15.3.6), and a proxy's demand, which is not the provider's to make. */
const NO_ANSWER_STATUSES = new Set([204, 205, 407]);

export interface AttemptSettings {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: Redactor;
  readonly logger: Logger;
  readonly exhaustion: ExhaustionLog;
}

/** What becomes known of one attempt while it is made. For the log. */
export interface AttemptFacts {
  /** The provider's own. */
  status: number | undefined;
  upstreamRequestId: string | undefined;
  /** Undefined if the transport does not tell. */
  connection: 'new' | 'reused' | undefined;
  /** Is filled in while the answer is read: a complete one before `attempt` resolves, a stream until it has ended. */
  readonly answer: AnswerFacts;
}

/** The client's request as an attempt sees it. */
export interface AttemptCall {
  /** What of the client's headers goes upstream. */
  readonly forwarded: ForwardedHeaders;
  /** What becomes known of the attempt. */
  readonly facts: AttemptFacts;
  /** Cancelled when the client leaves or the gateway gives the request up. */
  readonly cancellation: Cancellation;
  /** The memory that the request's body takes until it is sent. */
  readonly bodyReservation: Reservation;
  /** The memory that the answer takes until it is delivered. */
  readonly reservation: Reservation;
  /** Called when a stream has ended, with its failure if there is one; not if the client leaves. */
  readonly onStreamEnd: ((failure?: GatewayError) => void) | undefined;
}

interface AttemptRequest {
  readonly call: AttemptCall;
  readonly chat: ChatRequest;
  readonly provider: Provider;
  readonly model: string;
  /** The index of the provider's key to send; the first if absent. */
  readonly key?: number | undefined;
  /** A new connection is wanted. */
  readonly isFresh?: boolean | undefined;
}

/**
 * Sends the request once. Resolves to the client's answer: a complete one, or a stream whose first event was read.
 * Throws `GatewayError`, or `ClientGone` if the client leaves.
 */
export async function attempt(request: AttemptRequest, settings: AttemptSettings): Promise<Answer> {
  const { call, chat, provider, model, key, isFresh } = request;
  const { logger } = settings;
  const traced = { request_id: call.forwarded[1], provider: provider.id };
  const isStream = chat.stream;
  const deadline = new Deadline(call.cancellation);
  const limitMs = isStream
    ? Math.min(provider.timeoutMs, settings.config.server.firstTokenTimeoutMs)
    : provider.timeoutMs;
  deadline.arm(limitMs, () => {
    const awaited = isStream ? 'first event' : 'complete answer';
    return timeoutError(provider.id, { cause: `no ${awaited} in ${limitMs} ms` });
  });
  let answered = false;
  try {
    const asked = provider.chatRequest(chat, model, call.forwarded, key);
    const sent = { ...asked, held: call.bodyReservation, isStream, isFresh };
    const isTraced = logger.isEnabled('trace');
    if (isTraced) traceHeaders(logger, 'request to provider', traced, pairsOf(sent.headers));
    const reply = await settings.transport.send(sent, deadline);
    answered = true;
    call.facts.status = reply.status;
    call.facts.connection = reply.connection;
    call.facts.upstreamRequestId = upstreamRequestId(reply.headers);
    traceHeaders(logger, 'response of provider', traced, reply.headers);
    const context = { call, provider, isStream, settings, deadline };
    if (reply.status >= 300 || NO_ANSWER_STATUSES.has(reply.status)) {
      throw await readStatusError(reply, context);
    }
    const read = toAnswer(reply, context);
    const answer = read instanceof Promise ? await read : read;
    if (!isStream) deadline.end();
    return answer;
  } catch (thrown) {
    // Also ends a reply that was not read to its end.
    deadline.end({ abandon: true });
    call.reservation.resize(0);
    if (thrown instanceof TransportError) settings.exhaustion.record(thrown.cause);
    throw upstreamFailure(thrown, { provider: provider.id, answered });
  }
}

/** Without the chat request: a stream would hold its body, often megabytes, until it ends. */
interface ReplyContext {
  readonly call: AttemptCall;
  readonly provider: Provider;
  readonly isStream: boolean;
  readonly settings: AttemptSettings;
  readonly deadline: Deadline;
}

/** Maps an upstream's reply to the client's answer. Throws `GatewayError` if it is not one. */
function toAnswer(reply: UpstreamReply, context: ReplyContext): Answer | Promise<Answer> {
  const { status } = reply;
  const { call, deadline, isStream, provider, settings } = context;
  const { redact } = settings;
  const encoding = reply.headers.get('content-encoding');
  if (encoding && encoding.toLowerCase() !== 'identity') {
    // It was not asked for, and a few compressed bytes can expand to gigabytes.
    throw new GatewayError('provider', 'the answer is compressed', { provider: provider.id });
  }
  const headers = passedHeaders(reply.headers, redact);
  const contentType = redact(reply.headers.get('content-type') ?? '');
  const isJson = JSON_TYPE.test(contentType);
  const isEventStream = EVENT_STREAM_TYPE.test(contentType);
  const isEvent = isStream && !isJson;
  const options: AnswerOptions = {
    provider: provider.id,
    reservation: call.reservation,
    facts: call.facts.answer,
    errorIn(json) {
      if (!reportsFault(json)) return undefined;
      const fault = readFault(json);
      return toProviderError(fault, {
        status: fault.status,
        provider: provider.id,
        redact,
        isEvent,
        isQuoted: settings.config.logging.providerMessages,
      });
    },
  };

  if (isEvent) {
    headers['content-type'] = isEventStream ? contentType : 'text/event-stream; charset=utf-8';
    // Proxies must neither buffer nor rewrite events.
    headers['cache-control'] = 'no-cache, no-transform';
    headers['x-accel-buffering'] = 'no';
    return openStream(reply.body, {
      ...options,
      deadline,
      idleMs: settings.config.server.streamIdleTimeoutMs,
      causeIfEmpty: `content-type: ${reply.headers.get('content-type') ?? 'none'}`,
      onEnd: call.onStreamEnd,
    }).then((body) => ({ status, headers, body }));
  }

  if (isEventStream) {
    const text = 'a stream was answered to a request for a complete answer';
    throw new GatewayError('provider', text, { provider: provider.id });
  }
  const body = readCompletion(reply, options);
  headers['content-type'] = isJson ? contentType : 'application/json';
  const toCompleteAnswer = (parts: readonly Buffer[]): Answer => {
    if (!isStream) return { status, headers, body: parts };
    const text = `Provider ${provider.id} does not support streaming`;
    throw new GatewayError('unsupported', text, { provider: provider.id });
  };
  return body instanceof Promise ? body.then(toCompleteAnswer) : toCompleteAnswer(body);
}

/** The error that a reply without an answer stands for; its body is read if the status is that of an error. */
async function readStatusError(reply: UpstreamReply, context: ReplyContext): Promise<GatewayError> {
  const { status, headers } = reply;
  const { call, provider } = context;
  if (status < 400 || status > 599 || NO_ANSWER_STATUSES.has(status)) {
    const location = headers.get('location')?.split('?', 1)[0];
    return new GatewayError('provider', `unexpected status ${status}`, {
      provider: provider.id,
      ...(location && { cause: `status ${status}, location ${location}` }),
    });
  }
  const giveUp = () => context.deadline.cancel(timeoutError(provider.id));
  const timer = setTimeout(giveUp, ERROR_BODY_MS);
  // If the error body is truncated or slow, answer with the status alone.
  const bytes = await readAll(reply.body, MAX_ERROR_BYTES).catch(() => undefined);
  clearTimeout(timer);
  call.cancellation.throwIfCancelled();
  const error = bytes && readErrorBody(bytes.toString('utf8'), headers.get('content-type') ?? '');
  return toProviderError(readFault(error), {
    status,
    provider: provider.id,
    redact: context.settings.redact,
    headers,
    isQuoted: context.settings.config.logging.providerMessages,
  });
}

/** The JSON of an error body, or its text if that is a message and not a page; else undefined. */
function readErrorBody(text: string, contentType: string): unknown {
  if (HTML_TYPE.test(contentType)) return undefined;
  const isMessage = PLAIN_TYPE.test(contentType) && !MARKUP.test(text);
  return parseUntrustedJson(text) ?? (isMessage ? text : undefined);
}
