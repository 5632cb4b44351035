/** The allow-lists of headers: from the client to a provider, and from a provider to the client. */

import type { IncomingHttpHeaders } from 'node:http';

import { createIds } from '../lib/ids.ts';
import type { Redactor } from '../lib/secrets.ts';
import type { AttemptContext } from './attempt-context.ts';
import type { UpstreamHeaders, UpstreamRequest } from './provider.ts';

const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|x-should-retry)$/;
/** The value of a header that the settings name: visible ASCII, spaces and tabs. */
const NAMED_VALUE = /^[\t\x20-\x7e]{1,4096}$/;
/**
 * One value: Node joins a repeated header with ', ', and W3C Trace Context 3.2 allows only one.
 * Version ff and ids of zeros are invalid.
 */
const TRACEPARENT = /^(?!ff)[\da-f]{2}-(?!0{32})[\da-f]{32}-(?!0{16})[\da-f]{16}-[\da-f]{2}$/;
/** A list (W3C Trace Context 3.3): it may be repeated, and joined. */
const TRACESTATE = /^[\x20-\x7e]{1,512}$/;

/** The allow-list to the client, and the headers that the provider's `return_headers` name. */
export function returnedHeaders(headers: UpstreamHeaders, context: AttemptContext) {
  const { returnHeaders } = context.settings;
  const { redact } = context.services;
  const passed: Record<string, string> = {};
  for (const [name, value] of headers) {
    const isListed = PASSED_HEADERS.test(name);
    if (!isListed && !(returnHeaders?.includes(name) && mayPass(value, redact))) continue;
    if (!isHopByHop(name, headers.get('connection'))) passed[name] = redact(value);
  }
  return passed;
}

/**
 * Returns whether a header is for the next hop alone, because `Connection` names it (RFC 9110
 * 7.6.1).
 */
function isHopByHop(name: string, connection: string | undefined): boolean {
  const names = connection?.toLowerCase().split(',') ?? [];
  return names.some((one) => one.trim() === name);
}

/** Names that providers use, then those of the clouds in front of them. */
const REQUEST_ID_HEADERS = (
  'x-request-id request-id mistral-correlation-id x-ds-trace-id x-generation-id ' +
  'apim-request-id x-amzn-requestid cf-ray'
).split(' ');

/** The provider's own id of a request, untrusted. */
export function upstreamRequestId(headers: UpstreamHeaders): string | undefined {
  const connection = headers.get('connection');
  const name = REQUEST_ID_HEADERS.find((one) => headers.get(one) && !isHopByHop(one, connection));
  return name && headers.get(name)!;
}

/**
 * The id of the request's trace (W3C Trace Context 3.2.2.3), and the headers that every completion
 * carries, names and values in turn. Of the client's headers a provider gets no others, unless its
 * `forward_headers` names them.
 */
export function tracingOf(requestId: string, { traceparent, tracestate }: IncomingHttpHeaders) {
  const isValid = typeof traceparent === 'string' && TRACEPARENT.test(traceparent);
  const parent = isValid ? traceparent : createTraceparent();
  const traceId = parent.slice(3, 35);
  const headers = ['x-request-id', requestId, 'traceparent', parent];
  // Vendors' data about that trace: it means nothing without it (W3C Trace Context 3.3).
  const hasState = isValid && typeof tracestate === 'string' && TRACESTATE.test(tracestate);
  return { traceId, headers: hasState ? [...headers, 'tracestate', tracestate] : headers };
}

/**
 * Returns the request with the headers of the client's that the provider's `forward_headers` name.
 */
export function addClientHeaders(
  request: UpstreamRequest,
  { call, settings: { forwardHeaders }, services: { redact } }: AttemptContext,
): UpstreamRequest {
  if (!forwardHeaders) return request;
  const headers = [...request.headers];
  for (const name of forwardHeaders) {
    const value = call.headers[name];
    const isForGateway = isHopByHop(name, call.headers['connection'] as string | undefined);
    if (!isForGateway && mayPass(value, redact)) headers.push(name, value);
  }
  return { ...request, headers };
}

/**
 * Returns false also for a value with a key in it: a client may send its token in other headers
 * too.
 */
function mayPass(value: unknown, redact: Redactor): value is string {
  return typeof value === 'string' && NAMED_VALUE.test(value) && redact(value) === value;
}

/**
 * A new `traceparent`. Its flag is `sampled`: providers that sample as their caller does record
 * these requests.
 */
const createTraceparent = createIds(`00-${'x'.repeat(32)}-${'x'.repeat(16)}-01`);
