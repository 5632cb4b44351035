/** One attempt at one provider: sends the request, and opens the answer that its reply has. */

import { ClientGone, GatewayError } from '../lib/errors.ts';
import { readAll } from '../lib/byte-source.ts';
import { parseUntrustedJson } from '../lib/json.ts';
import { EVENT_STREAM_HEADERS, parseEvents } from '../lib/sse.ts';
import type { Answer, AttemptContext } from './attempt-context.ts';
import { openCompletion, EVENT_STREAM_TYPE } from './completion.ts';
import { returnedHeaders, upstreamRequestId, addClientHeaders } from './headers.ts';
import { providerError, timeoutError, upstreamFailure } from './network-error.ts';
import { readFault } from '../openai/error-body.ts';
import { toProviderError } from './provider-error.ts';
import type { UpstreamResponse, UpstreamRequest } from './provider.ts';
import { openStream } from './stream-relay.ts';

const MAX_ERROR_BYTES = 65_536;
/** Time limit for reading an error body: the status alone is enough to answer with. */
const ERROR_BODY_MS = 1000;

/** Media types, with parameters or without; a comma if the header is repeated. */
const JSON_TYPE = /^[^;,]*[/+]json\s*(?:[;,]|$)/i;
const PLAIN_TYPE = /^\s*text\/plain\s*(?:[;,]|$)/i;
const HTML_TYPE = /^\s*(?:text\/html|application\/xhtml\+xml)\s*(?:[;,]|$)/i;
/** An end tag, a comment or a declaration: not the `<class 'int'>` of an ordinary message. */
const MARKUP = /<[/!?]/;
/**
 * The content codings of IANA's registry. Some servers write `UTF-8` or `none` there, which are no
 * codings.
 */
const COMPRESSED = /\b(?:aes128gcm|br|compress|dcb|dcz|deflate|exi|gzip|zstd)\b/i;
/** Success without a body (RFC 9110 15.3.5, 15.3.6). */
const NO_ANSWER_STATUSES = new Set([204, 205]);

/**
 * Sends the request once, and begins its time limit: until a complete answer, or the first token of
 * a stream. Rejects as the transport does.
 */
export function sendAttempt(
  request: UpstreamRequest,
  context: AttemptContext,
): Promise<UpstreamResponse> {
  const { attempt, deadline, isStream, services, settings } = context;
  const { firstTokenTimeoutMs } = services.config.server;
  const limitMs = Math.min(settings.timeoutMs, isStream ? firstTokenTimeoutMs : Infinity);
  deadline.arm(limitMs, () => {
    const cause = `no ${isStream ? 'first token' : 'complete answer'} in ${limitMs} ms`;
    return timeoutError(attempt.provider, { cause });
  });
  return services.transport.send(addClientHeaders(request, context), deadline, attempt);
}

/**
 * Returns the answer that a reply has: once it is complete, or with the first token of a stream;
 * without a promise if that has come. Nothing of the answer was sent to the client then. Throws or
 * rejects with what `endFailed` takes.
 */
export function openAnswer(
  response: UpstreamResponse,
  context: AttemptContext,
): Answer | Promise<Answer> {
  const { attempt, isStream, services } = context;
  const { status } = response;
  attempt.status = status;
  attempt.headers = response.headers;
  attempt.upstreamRequestId = upstreamRequestId(response.headers);
  if (status >= 300 || NO_ANSWER_STATUSES.has(status)) return readStatusError(response, context);
  if (COMPRESSED.test(response.headers.get('content-encoding') ?? '')) {
    // It was not asked for, and a few compressed bytes can expand to gigabytes.
    throw providerError(attempt.provider, 'the answer is compressed');
  }
  const headers = returnedHeaders(response.headers, context);
  const contentType = services.redact(response.headers.get('content-type') ?? '');
  const isJson = JSON_TYPE.test(contentType);
  // The content type of an answer is often wrong: its first bytes decide.
  if (isStream) {
    const isEventStream = EVENT_STREAM_TYPE.test(contentType);
    Object.assign(
      headers,
      EVENT_STREAM_HEADERS,
      isEventStream && { 'content-type': soleValue(contentType) },
    );
    return openStream(response, headers, context);
  }
  headers['content-type'] = isJson ? soleValue(contentType) : 'application/json';
  return openCompletion(response, headers, context);
}

/** The media type alone of a header that is repeated: clients do not read a list. */
function soleValue(contentType: string): string {
  return contentType.includes(',') ? contentType.split(/[;,]/, 1)[0]!.trim() : contentType;
}

/** Ends an attempt that has failed, and its request to the provider; returns why it failed. */
export function endFailed(
  thrown: unknown,
  { attempt, deadline }: AttemptContext,
): GatewayError | ClientGone {
  // Unlike `stop`, also ends a reply that was not read to its end.
  deadline.abandon();
  const failure = upstreamFailure(thrown, attempt.provider);
  return failure instanceof ClientGone ? failure : GatewayError.from(failure);
}

/**
 * Throws the error that a reply without an answer stands for; its body is read if the status is
 * that of an error.
 */
async function readStatusError(
  { status, headers, body }: UpstreamResponse,
  context: AttemptContext,
): Promise<never> {
  const { call, deadline } = context;
  const { provider } = context.attempt;
  // Of a proxy on the way, which has to send this header (RFC 9110 15.5.8). fetch hides all headers
  // of a 407.
  const isOfProxy = status === 407 && (headers.has('proxy-authenticate') || headers.size === 0);
  if (status < 400 || status > 599 || isOfProxy) {
    const location = headers.get('location')?.split('?', 1)[0];
    const cause = location && `status ${status}, location ${location}`;
    throw providerError(provider, `unexpected status ${status}`, { cause });
  }
  const timer = setTimeout(() => deadline.cancel(timeoutError(provider)), ERROR_BODY_MS);
  // If the error body is truncated or slow, answer with the status alone.
  const bytes = await readAll(body, MAX_ERROR_BYTES).catch(() => undefined);
  clearTimeout(timer);
  call.cancellation.throwIfCancelled();
  const error = bytes && readErrorBody(bytes, headers.get('content-type') ?? '');
  throw toProviderError({ ...readFault(error), status }, context);
}

/**
 * The JSON of an error body or of an event in it, or its text if that is a message and not a page;
 * else undefined. Servers that have prepared a stream write their errors as events too.
 */
function readErrorBody(bytes: Buffer, contentType: string): unknown {
  if (HTML_TYPE.test(contentType)) return undefined;
  const text = bytes.toString('utf8');
  const isMessage = PLAIN_TYPE.test(contentType) && !MARKUP.test(text);
  return parseUntrustedJson(text) ?? readEvent(bytes) ?? (isMessage ? text : undefined);
}

/** The first object or array in the data of events; undefined if there is none. */
function readEvent(bytes: Buffer): unknown {
  const closed = Buffer.concat([bytes, Buffer.from('\n\n')]);
  for (const { data, bareJson } of parseEvents(closed, true)) {
    const json = parseUntrustedJson(data) ?? parseUntrustedJson(bareJson);
    if (typeof json === 'object' && json !== null) return json;
  }
  return undefined;
}
