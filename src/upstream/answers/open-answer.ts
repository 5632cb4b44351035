/** Sends an attempt's request, and opens the answer in the response. */

import { ClientGone, GatewayError } from '../../lib/errors.ts';
import { readAll } from '../../lib/memory/byte-source.ts';
import type { Cancellation } from '../../lib/cancellation.ts';
import { parseUntrustedJson } from '../../lib/json.ts';
import { EVENT_STREAM_HEADERS, parseEvents } from '../../lib/sse.ts';
import type { Answer, AttemptContext } from './attempt-context.ts';
import { openCompleteAnswer, EVENT_STREAM_TYPE } from './complete-answer.ts';
import { addClientHeaders, passedValue, returnedHeaders, upstreamRequestId } from './headers.ts';
import { timeoutError, upstreamFailure } from '../connections/network-error.ts';
import { readFault, type UpstreamFault } from '../../protocol/error-body.ts';
import { MARKUP, pageWordsOf } from '../../protocol/page-words.ts';
import { toProviderError } from './provider-error.ts';
import type { UpstreamResponse, UpstreamRequest } from '../connections/upstream-request.ts';
import { openStream } from './stream-opening.ts';

const MAX_ERROR_BYTES = 65_536;
/** The limit is short, because the status is enough for an answer. */
const ERROR_BODY_MS = 1000;
const SLOW_ERROR_BODY = new Error('the error body is slow');

// Media types with or without parameters; a comma follows if the header is repeated.

const JSON_TYPE = /^[^;,]*[/+]json\s*(?:[;,]|$)/i;
const PLAIN_TYPE = /^\s*text\/plain\s*(?:[;,]|$)/i;
const HTML_TYPE = /^\s*(?:text\/html|application\/xhtml\+xml)\s*(?:[;,]|$)/i;
/** IANA's registry. Some servers send `UTF-8` or `none`, which are not codings. */
const COMPRESSED = /\b(?:aes128gcm|br|compress|dcb|dcz|deflate|exi|gzip|zstd)\b/i;
/** Success without a body (RFC 9110 15.3.5, 15.3.6). */
const NO_ANSWER_STATUSES = new Set([204, 205]);

/**
 * Sends the request once, and starts the time limit for the complete answer or a stream's first
 * token. Rejects as `Transport.send` does.
 */
export function sendAttempt(
  request: UpstreamRequest,
  context: AttemptContext,
): Promise<UpstreamResponse> {
  const { attempt, deadline, isStream, limitMs, services } = context;
  deadline.arm(limitMs, () => {
    const cause = `no ${isStream ? 'first token' : 'complete answer'} in ${Math.round(limitMs)} ms`;
    return timeoutError({ cause });
  });
  // The transport notes the connection in the attempt, because it has the members of
  // `ConnectionUse`.
  return services.transport.send(addClientHeaders(request, context), deadline, attempt);
}

/**
 * Opens the answer in a response: a complete answer once it has fully arrived, a stream at its
 * first token. Returns without a promise if the answer is already there. Nothing is sent to the
 * client here. Throws, or rejects, with an error for `endFailed`.
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
    // The request forbids compression, and a few compressed bytes can expand to gigabytes.
    throw new GatewayError('provider', 'the answer is compressed');
  }
  const headers = returnedHeaders(response.headers, context);
  const contentType = services.redact(passedValue(response.headers, 'content-type') ?? '');
  const isJson = JSON_TYPE.test(contentType);
  // The first bytes decide the kind of answer, because its content type is often wrong.
  if (isStream) {
    const isEventStream = EVENT_STREAM_TYPE.test(contentType);
    Object.assign(
      headers,
      EVENT_STREAM_HEADERS,
      isEventStream && { 'content-type': soleValue(contentType) },
    );
    return openStream(response.body, headers, context);
  }
  headers['content-type'] = isJson ? soleValue(contentType) : 'application/json';
  return openCompleteAnswer(response, headers, context);
}

/** Returns the media type alone if the header is repeated, because clients do not read a list. */
function soleValue(contentType: string): string {
  return contentType.includes(',') ? contentType.split(/[;,]/, 1)[0]!.trim() : contentType;
}

/** Ends a failed attempt and its request to the provider, and returns the failure. */
export function endFailed(
  thrown: unknown,
  { attempt, deadline }: AttemptContext,
): GatewayError | ClientGone {
  // Unlike `stop`, `abandon` also ends an unread response.
  deadline.abandon();
  const failure = upstreamFailure(thrown);
  if (failure instanceof ClientGone) return failure;
  const error = GatewayError.from(failure);
  // The client's error shows the provider. All calls that a drain cancels share one error.
  if (error.scope !== 'gateway') error.provider = attempt.provider;
  return error;
}

async function readStatusError(
  response: UpstreamResponse,
  context: AttemptContext,
): Promise<never> {
  const { headers, status } = response;
  const { call, deadline } = context;
  // A proxy on the way has to send this header with a 407 (RFC 9110 15.5.8). Over fetch a 407 has
  // no headers at all.
  const isFromProxy = status === 407 && (headers.has('proxy-authenticate') || headers.size === 0);
  if (status < 400 || status > 599 || isFromProxy) {
    const location = headers.get('location')?.split('?', 1)[0];
    const cause = location && `status ${status}, location ${location}`;
    throw new GatewayError('provider', `unexpected status ${status}`, { cause });
  }
  const fault = await readStatusFault(response, deadline, call.history.endpoint.references);
  call.cancellation.throwIfCancelled();
  throw toProviderError(fault, context);
}

/**
 * Reads the error in a response whose status is one. If the body is truncated or slow, only the
 * status is used, and `deadline` is cancelled.
 */
export async function readStatusFault(
  { status, headers, body }: UpstreamResponse,
  deadline: Cancellation,
  references?: RegExp,
): Promise<UpstreamFault> {
  const timer = setTimeout(() => deadline.cancel(SLOW_ERROR_BODY), ERROR_BODY_MS);
  const bytes = await readAll(body, MAX_ERROR_BYTES).catch(() => undefined);
  clearTimeout(timer);
  const error = bytes && readErrorBody(bytes, headers.get('content-type') ?? '');
  const fault = readFault(error, status, references);
  const hasPage = bytes !== undefined && error === undefined;
  return hasPage ? { ...fault, page: pageWordsOf(bytes.toString('utf8')) } : fault;
}

/**
 * Returns an error body's JSON, or the JSON in its first event, because servers prepared for a
 * stream also write their errors as events. Otherwise returns the text if it is a message and not a
 * page.
 */
function readErrorBody(bytes: Buffer, contentType: string): unknown {
  if (HTML_TYPE.test(contentType)) return undefined;
  const text = bytes.toString('utf8');
  const isMessage = PLAIN_TYPE.test(contentType) && !MARKUP.test(text);
  return parseUntrustedJson(text) ?? readEvent(bytes) ?? (isMessage ? text : undefined);
}

function readEvent(bytes: Buffer): unknown {
  const closed = Buffer.concat([bytes, Buffer.from('\n\n')]);
  for (const { data, bareJson } of parseEvents(closed, true)) {
    const json = parseUntrustedJson(data) ?? parseUntrustedJson(bareJson);
    if (typeof json === 'object' && json !== null) return json;
  }
  return undefined;
}
