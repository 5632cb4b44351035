/** One attempt at one provider: send the request, map the reply to an answer or a `GatewayError`. */

import type { IncomingHttpHeaders } from 'node:http';

import type { Config } from '../config/config.ts';
import { Deadline, type Cancellation } from '../lib/cancellation.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Reservation } from '../lib/byte-budget.ts';
import { readAll } from '../lib/chunk-buffer.ts';
import { parseUntrustedJson } from '../lib/untrusted-json.ts';
import type { Answer, ChatRequest } from '../lib/messages.ts';
import { readCompletion } from './completion.ts';
import { forwardedHeaders, passedHeaders } from './headers.ts';
import { timeoutError, upstreamFailure } from './network-error.ts';
import { toProviderError } from './provider-error.ts';
import type { Provider, UpstreamFault, UpstreamReply } from './provider.ts';
import { openStream } from './stream-relay.ts';
import type { Transport } from './transport.ts';

const MAX_ERROR_BYTES = 65_536;
/** The status says most of it: the text is not waited for as an answer is. */
const ERROR_BODY_MS = 1000;

/** Success without a body (RFC 9110 15.3.5, 15.3.6). */
const NO_ANSWER_STATUSES = new Set([204, 205]);

export interface AttemptSettings {
  readonly config: Config;
  readonly transport: Transport;
  /** Removes keys from text that is sent to a client. */
  readonly redact: (text: string) => string;
}

/** The client's request as an attempt sees it. */
export interface AttemptCall {
  readonly requestId: string;
  readonly headers: IncomingHttpHeaders;
  /** Cancelled when the client leaves or the gateway gives the request up. */
  readonly cancellation: Cancellation;
  /** The memory that the answer takes until it is delivered. */
  readonly reservation: Reservation;
  /** Called if a stream that has begun does not end well. */
  readonly onStreamFailure: (failure: GatewayError) => void;
}

interface AttemptRequest extends AttemptCall {
  readonly chat: ChatRequest;
  readonly provider: Provider;
  readonly model: string;
}

/**
 * Tries once. Resolves to the client's answer: a complete one, or a stream whose first event is in
 * hand. Throws `GatewayError` for everything else, `ClientGone` when nobody waits any more.
 */
export async function attempt(request: AttemptRequest, settings: AttemptSettings): Promise<Answer> {
  const { chat, provider, model, cancellation, reservation, onStreamFailure } = request;
  const deadline = new Deadline(cancellation);
  const limitMs = chat.stream
    ? Math.min(provider.timeoutMs, settings.config.server.firstTokenTimeoutMs)
    : provider.timeoutMs;
  deadline.arm(limitMs, () => timeoutError(provider.id));
  let answered = false;
  try {
    const sent = provider.chatRequest(
      chat,
      model,
      forwardedHeaders(request.requestId, request.headers),
    );
    const reply = await settings.transport.send(sent, deadline);
    answered = true;
    const isStream = chat.stream;
    const context = {
      provider,
      isStream,
      settings,
      deadline,
      cancellation,
      reservation,
      onStreamFailure,
    };
    const answer = await toAnswer(reply, context);
    if (!chat.stream) deadline.end();
    return answer;
  } catch (thrown) {
    // Also lets go of a body that nobody will read.
    deadline.end({ abandon: true });
    request.reservation.resize(0);
    throw upstreamFailure(thrown, { provider: provider.id, answered });
  }
}

/** Without the request itself: a stream would hold its body, often megabytes, to its end. */
interface ReplyContext extends Pick<
  AttemptCall,
  'cancellation' | 'reservation' | 'onStreamFailure'
> {
  readonly provider: Provider;
  readonly isStream: boolean;
  readonly settings: AttemptSettings;
  readonly deadline: Deadline;
}

/** The client's answer to an upstream's reply. Throws what is not an answer as what it is. */
async function toAnswer(reply: UpstreamReply, context: ReplyContext): Promise<Answer> {
  const { status } = reply;
  const { isStream, provider } = context;
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
    toProviderError(fault, {
      status: fault.status ?? 502,
      provider: provider.id,
      redact: context.settings.redact,
      isEvent,
    });

  if (isEvent) {
    const events = await openStream(reply.body, {
      provider: provider.id,
      deadline: context.deadline,
      idleMs: context.settings.config.server.streamIdleTimeoutMs,
      reservation: context.reservation,
      readFault: (json) => provider.readFault(json),
      toError,
      onFailure: context.onStreamFailure,
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
  const body = await readCompletion(reply, {
    provider: provider.id,
    reservation: context.reservation,
    readFault: (json) => provider.readFault(json),
    toError,
  });
  if (isStream) {
    const text = `Provider ${provider.id} does not support streaming`;
    throw new GatewayError('unsupported', text, { provider: provider.id });
  }
  headers['content-type'] = isJson ? contentType : 'application/json';
  return { status, headers, body };
}

async function readStatusError(reply: UpstreamReply, context: ReplyContext): Promise<GatewayError> {
  const { cancellation, provider } = context;
  const giveUp = () => context.deadline.cancel(timeoutError(provider.id));
  const timer = setTimeout(giveUp, ERROR_BODY_MS);
  // A body that breaks off or never ends takes nothing from what the status says.
  const bytes = await readAll(reply.body, MAX_ERROR_BYTES).catch(() => undefined);
  clearTimeout(timer);
  cancellation.throwIfCancelled();
  const fault = provider.readErrorBody(bytes && parseUntrustedJson(bytes.toString('utf8')));
  return toProviderError(fault, {
    status: reply.status,
    provider: provider.id,
    redact: context.settings.redact,
    headers: reply.headers,
  });
}
