/** Decides which headers pass: from clients to providers, and from providers to clients. */

import type { IncomingHttpHeaders } from 'node:http';

import { createIds, TRACEPARENT } from '../../lib/ids.ts';
import { cutText } from '../../lib/secrets.ts';
import type { AttemptContext } from './attempt-context.ts';
import type { UpstreamHeaders, UpstreamRequest } from '../connections/upstream-request.ts';

/** Headers that pass from every provider to the client. */
const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|x-should-retry)$/;
/** How much of a value passes to the client, unless settings name the header. */
const MAX_PASSED_CHARACTERS = 1024;
/** A configured header's value: visible ASCII, spaces and tabs. */
const NAMED_VALUE = /^[\t\x20-\x7e]{1,4096}$/;
/** A list of values (W3C Trace Context 3.3), so a repeated header, joined by Node, is valid. */
const TRACESTATE = /^[\x20-\x7e]{1,512}$/;

/** Returns a function that hides all keys, also the request's own if only its digest is known. */
export function redactorOf({ call, services: { redact } }: AttemptContext) {
  const { redactKey } = call.history;
  return redactKey ? (text: string) => redact(redactKey(text)) : redact;
}

/**
 * Returns the allow-listed response headers, and those in the provider's `return_headers`. Keys are
 * removed from the values.
 */
export function returnedHeaders(headers: UpstreamHeaders, context: AttemptContext) {
  const { returnHeaders } = context.settings;
  const { redact } = context.services;
  const passed: Record<string, string> = {};
  let hopByHop: ReadonlySet<string> | undefined;
  for (const [name, value] of headers) {
    const isListed = PASSED_HEADERS.test(name);
    if (!isListed && !(returnHeaders?.includes(name) && mayPass(value, redact))) continue;
    hopByHop ??= hopByHopNames(headers.get('connection'));
    if (hopByHop.has(name)) continue;
    passed[name] = isListed ? redact(passedValue(headers, name)!) : value;
  }
  return passed;
}

/** Returns as much of a header as passes to the client, untrusted. */
export function passedValue(headers: UpstreamHeaders, name: string): string | undefined {
  const value = headers.get(name);
  return value && cutText(value, MAX_PASSED_CHARACTERS);
}

/** The values of nearly every `Connection` header. */
const NO_NAMES = /^(?:keep-alive|close)$/i;
const NONE: ReadonlySet<string> = new Set();

/** Returns the names of headers that are only for the next hop (RFC 9110 7.6.1). */
function hopByHopNames(connection: string | undefined): ReadonlySet<string> {
  if (connection === undefined || NO_NAMES.test(connection)) return NONE;
  const names = connection.toLowerCase().split(',');
  return new Set(names.map((name) => name.trim()));
}

/** Names used by providers, then names used by the clouds in front of them. */
const REQUEST_ID_HEADERS = (
  'x-request-id request-id mistral-correlation-id x-ds-trace-id x-generation-id ' +
  'apim-request-id x-amzn-requestid cf-ray'
).split(' ');

/** Returns the provider's own request id, untrusted. */
export function upstreamRequestId(headers: UpstreamHeaders): string | undefined {
  const hopByHop = hopByHopNames(headers.get('connection'));
  const name = REQUEST_ID_HEADERS.find((id) => headers.get(id) && !hopByHop.has(id));
  return name && passedValue(headers, name);
}

/**
 * Returns the headers that always pass from a client to the provider, names and values in turn, and
 * the request's trace id (W3C Trace Context 3.2.2.3).
 */
export function forwardedHeaders(
  requestId: string,
  { traceparent, tracestate }: IncomingHttpHeaders,
) {
  const isValid = typeof traceparent === 'string' && TRACEPARENT.test(traceparent);
  const parent = isValid ? traceparent : createTraceparent();
  const traceId = parent.slice(3, 35);
  const headers = ['x-request-id', requestId, 'traceparent', parent];
  // `tracestate` has vendors' data about the client's trace, so it is dropped with an invalid
  // `traceparent` (W3C Trace Context 3.3).
  const hasState = isValid && typeof tracestate === 'string' && TRACESTATE.test(tracestate);
  return { traceId, headers: hasState ? [...headers, 'tracestate', tracestate] : headers };
}

/** Returns the headers of `forwardedHeaders` with another `traceparent`. */
export function withTraceparent(forwarded: readonly string[], traceparent: string) {
  return forwarded.with(forwarded.indexOf('traceparent') + 1, traceparent);
}

/** Adds the client's headers that the endpoint and the provider's `forward_headers` name. */
export function addClientHeaders(
  request: UpstreamRequest,
  context: AttemptContext,
): UpstreamRequest {
  const { call, settings } = context;
  const { forwardHeaders } = settings;
  const passedHeaders = call.history.endpoint.ownProtocol?.passedHeaders;
  if (!forwardHeaders && !passedHeaders) return request;
  const redact = redactorOf(context);
  const headers = [...request.headers];
  const hopByHop = hopByHopNames(call.headers['connection'] as string | undefined);
  for (const name of new Set([...(passedHeaders?.keys() ?? []), ...(forwardHeaders ?? [])])) {
    if (Object.hasOwn(settings.headers, name)) continue;
    const sent = hopByHop.has(name) ? undefined : call.headers[name];
    const value = mayPass(sent, redact) ? sent : passedHeaders?.get(name);
    if (value !== undefined) headers.push(name, value);
  }
  return { ...request, headers };
}

/** A client may send its token in other headers too, so a value with a key in it may not pass. */
function mayPass(value: unknown, redact: (text: string) => string): value is string {
  return typeof value === 'string' && NAMED_VALUE.test(value) && redact(value) === value;
}

/**
 * The flag is `sampled`, so that a provider that samples as its caller does records the request.
 */
const createTraceparent = createIds(`00-${'x'.repeat(32)}-${'x'.repeat(16)}-01`);
