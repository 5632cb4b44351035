/** One attempt at one provider: send the request, map the reply to an answer or a `GatewayError`. */

import type { Config } from '../config/config.ts';
import type { Answer, Attempt, ChatRequest } from '../lib/attempt.ts';
import { Deadline, type Cancellation } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import { readAll } from '../lib/byte-source.ts';
import type { Redactor } from '../lib/secrets.ts';
import { parseUntrustedJson } from '../lib/json.ts';
import { readCompletion } from './completion.ts';
import { passedHeaders, upstreamRequestId } from './headers.ts';
import {
  type ExhaustionLog,
  timeoutError,
  TransportError,
  upstreamFailure,
} from './network-error.ts';
import { readFault, toProviderError, type ReplyContext } from './provider-error.ts';
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
/** Success without a body (RFC 9110 15.3.5, 15.3.6), and 407, which only a proxy may answer. */
const NO_ANSWER_STATUSES = new Set([204, 205, 407]);

export interface AttemptSettings {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: Redactor;
  readonly exhaustion: ExhaustionLog;
}

/** The client's request, as far as an attempt needs it. */
interface ClientRequest {
  /** Cancelled when the client leaves or the gateway gives the request up. */
  readonly cancellation: Cancellation;
  /** The memory that the request's body takes until it is sent. */
  readonly bodyReservation: Reservation;
  /** The memory that the answer takes until it is delivered. */
  readonly answerReservation: Reservation;
}

interface AttemptRequest {
  /** Receives what becomes known of the attempt. */
  readonly attempt: Attempt;
  readonly call: ClientRequest;
  readonly chat: ChatRequest;
  readonly provider: Provider;
  /** The headers of the client that go upstream. */
  readonly forwarded: ForwardedHeaders;
  /** A new connection is wanted. */
  readonly isFresh: boolean;
  /** Called when a stream has ended, with its failure if there is one; not if the client leaves. */
  readonly onStreamEnd: (failure?: GatewayError) => void;
}

/**
 * Sends the request once. Resolves to the client's answer: a complete one, or a stream whose first event was read.
 * Throws `GatewayError`, or `ClientGone` if the client leaves.
 */
export async function sendAttempt(
  request: AttemptRequest,
  settings: AttemptSettings,
): Promise<Answer> {
  const { attempt, call, chat, forwarded, isFresh, onStreamEnd, provider } = request;
  const { firstTokenTimeoutMs, streamIdleTimeoutMs } = settings.config.server;
  const isStream = chat.stream;
  const deadline = new Deadline(call.cancellation);
  const limitMs = isStream ? Math.min(provider.timeoutMs, firstTokenTimeoutMs) : provider.timeoutMs;
  deadline.arm(limitMs, () => {
    const awaited = isStream ? 'first event' : 'complete answer';
    return timeoutError(provider.id, { cause: `no ${awaited} in ${limitMs} ms` });
  });
  let answered = false;
  try {
    const asked = provider.chatRequest(chat, attempt.model, forwarded, attempt.key);
    const sent = { ...asked, held: call.bodyReservation, isStream, isFresh };
    const reply = await settings.transport.send(sent, deadline);
    answered = true;
    attempt.status = reply.status;
    attempt.connection = reply.connection;
    attempt.upstreamRequestId = upstreamRequestId(reply.headers);
    const context: ReplyContext = {
      attempt,
      provider: provider.id,
      isStream,
      deadline,
      reservation: call.answerReservation,
      idleMs: streamIdleTimeoutMs,
      redact: settings.redact,
      isQuoted: settings.config.logging.providerMessages,
      onStreamEnd,
    };
    if (reply.status >= 300 || NO_ANSWER_STATUSES.has(reply.status)) {
      throw await readStatusError(reply, context, call.cancellation);
    }
    const read = toAnswer(reply, context);
    const answer = read instanceof Promise ? await read : read;
    if (!isStream) deadline.end();
    return answer;
  } catch (thrown) {
    // Also ends a reply that was not read to its end.
    deadline.end({ abandon: true });
    call.answerReservation.resize(0);
    if (thrown instanceof TransportError) settings.exhaustion.record(thrown.cause);
    throw upstreamFailure(thrown, { provider: provider.id, answered });
  }
}

/** Maps an upstream's reply to the client's answer. Throws `GatewayError` if it is not one. */
function toAnswer(reply: UpstreamReply, context: ReplyContext): Answer | Promise<Answer> {
  const { status } = reply;
  const { isStream, provider, redact } = context;
  const encoding = reply.headers.get('content-encoding');
  if (encoding && encoding.toLowerCase() !== 'identity') {
    // It was not asked for, and a few compressed bytes can expand to gigabytes.
    throw new GatewayError('provider', 'the answer is compressed', { provider });
  }
  const headers = passedHeaders(reply.headers, redact);
  const contentType = redact(reply.headers.get('content-type') ?? '');
  const isJson = JSON_TYPE.test(contentType);
  const isEventStream = EVENT_STREAM_TYPE.test(contentType);

  if (isStream && !isJson) {
    headers['content-type'] = isEventStream ? contentType : 'text/event-stream; charset=utf-8';
    // Proxies must neither buffer nor rewrite events.
    headers['cache-control'] = 'no-cache, no-transform';
    headers['x-accel-buffering'] = 'no';
    return openStream(reply, context).then((body) => ({ status, headers, body }));
  }

  if (isEventStream) {
    const text = 'a stream was answered to a request for a complete answer';
    throw new GatewayError('provider', text, { provider });
  }
  const body = readCompletion(reply, context);
  headers['content-type'] = isJson ? contentType : 'application/json';
  const toCompleteAnswer = (parts: readonly Buffer[]): Answer => {
    if (!isStream) return { status, headers, body: parts };
    const text = `Provider ${provider} does not support streaming`;
    throw new GatewayError('unsupported', text, { provider });
  };
  return body instanceof Promise ? body.then(toCompleteAnswer) : toCompleteAnswer(body);
}

/** The error that a reply without an answer stands for; its body is read if the status is that of an error. */
async function readStatusError(
  { status, headers, body }: UpstreamReply,
  context: ReplyContext,
  cancellation: Cancellation,
): Promise<GatewayError> {
  const { deadline, provider } = context;
  if (status < 400 || status > 599 || NO_ANSWER_STATUSES.has(status)) {
    const location = headers.get('location')?.split('?', 1)[0];
    return new GatewayError('provider', `unexpected status ${status}`, {
      provider,
      ...(location && { cause: `status ${status}, location ${location}` }),
    });
  }
  const timer = setTimeout(() => deadline.cancel(timeoutError(provider)), ERROR_BODY_MS);
  // If the error body is truncated or slow, answer with the status alone.
  const bytes = await readAll(body, MAX_ERROR_BYTES).catch(() => undefined);
  clearTimeout(timer);
  cancellation.throwIfCancelled();
  const error = bytes && readErrorBody(bytes.toString('utf8'), headers.get('content-type') ?? '');
  return toProviderError(readFault(error), context, { status, headers });
}

/** The JSON of an error body, or its text if that is a message and not a page; else undefined. */
function readErrorBody(text: string, contentType: string): unknown {
  if (HTML_TYPE.test(contentType)) return undefined;
  const isMessage = PLAIN_TYPE.test(contentType) && !MARKUP.test(text);
  return parseUntrustedJson(text) ?? (isMessage ? text : undefined);
}
