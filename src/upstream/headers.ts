/** The allow-lists of headers, in both directions. */

import { randomFillSync } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';

import type { ForwardedHeaders, UpstreamHeaders } from './provider.ts';

const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|x-should-retry)$/;
/**
 * One value: Node joins a repeated header with ', ', and W3C Trace Context 3.2 allows only one. Version ff and ids of
 * zeros are invalid.
 */
const TRACEPARENT = /^(?!ff)[\da-f]{2}-(?!0{32})[\da-f]{32}-(?!0{16})[\da-f]{16}-[\da-f]{2}$/;
/** A list (W3C Trace Context 3.3): it may be repeated, and joined. */
const TRACESTATE = /^[\x20-\x7e]{1,512}$/;

/** The allow-list to the client. Cookies, server banners and connection headers of the upstream are not in it. */
export function passedHeaders(
  headers: UpstreamHeaders,
  redact: (text: string) => string,
): Record<string, string> {
  const passed: Record<string, string> = {};
  for (const [name, value] of headers) {
    if (PASSED_HEADERS.test(name)) passed[name] = redact(value);
  }
  const requestId = upstreamRequestId(headers);
  if (requestId) passed['x-upstream-request-id'] = redact(requestId);
  return passed;
}

/** Those of providers, then those of the clouds in front of them. */
const REQUEST_ID_HEADERS = (
  'x-request-id request-id mistral-correlation-id x-ds-trace-id x-generation-id ' +
  'apim-request-id x-amzn-requestid cf-ray'
).split(' ');

/** The provider's own id of a request, untrusted. */
export function upstreamRequestId(headers: UpstreamHeaders): string | undefined {
  const name = REQUEST_ID_HEADERS.find((one) => headers.get(one));
  return name && headers.get(name)!;
}

/** The allow-list to the upstream. W3C Trace Context is the only part that comes from the client. */
export function forwardedHeaders(
  requestId: string,
  { traceparent, tracestate }: IncomingHttpHeaders,
): ForwardedHeaders {
  if (typeof traceparent !== 'string' || !TRACEPARENT.test(traceparent)) {
    return ['x-request-id', requestId, 'traceparent', createTraceparent()];
  }
  // Vendors' data about that trace: it means nothing without it (W3C Trace Context 3.3).
  const isPassed = typeof tracestate === 'string' && TRACESTATE.test(tracestate);
  const others = isPassed ? ['tracestate', tracestate] : [];
  return ['x-request-id', requestId, 'traceparent', traceparent, ...others];
}

/** The trace's id (W3C Trace Context 3.2.2.3). */
export function traceIdOf(forwarded: ForwardedHeaders): string {
  return forwarded[3].slice(3, 35);
}

const ID_BYTES = 24;
const randomIds = Buffer.alloc(1000 * ID_BYTES);
let nextIdAt = randomIds.length;

/** Returns a new `traceparent`. Its flag is `sampled`: providers that sample as their caller does record these requests. */
function createTraceparent(): string {
  if (nextIdAt === randomIds.length) {
    // A call of the random generator costs more than the rest: one for 1,000 identifiers.
    randomFillSync(randomIds);
    nextIdAt = 0;
  }
  const hex = randomIds.toString('hex', nextIdAt, nextIdAt + ID_BYTES);
  nextIdAt += ID_BYTES;
  return `00-${hex.slice(0, 32)}-${hex.slice(32)}-01`;
}
