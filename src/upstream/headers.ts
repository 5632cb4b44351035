/** The allow-lists of headers, in both directions. */

import type { IncomingHttpHeaders } from 'node:http';

import type { ForwardedHeaders, UpstreamHeaders } from './provider.ts';

const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|retry-after-ms|x-should-retry)$/;
/** One value: Node joins a repeated header with ', ', and W3C Trace Context 3.2 allows only one. */
const TRACEPARENT = /^[\da-f]{2}-[\da-f]{32}-[\da-f]{16}-[\da-f]{2}$/;
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
  const requestId = headers.get('x-request-id') ?? headers.get('request-id');
  if (requestId) passed['x-upstream-request-id'] = redact(requestId);
  return passed;
}

/** The allow-list to the upstream. W3C Trace Context is the only part that comes from the client. */
export function forwardedHeaders(
  requestId: string,
  { traceparent, tracestate }: IncomingHttpHeaders,
): ForwardedHeaders {
  const isTraced = typeof traceparent === 'string' && TRACEPARENT.test(traceparent);
  return {
    'x-request-id': requestId,
    ...(isTraced ? { traceparent } : {}),
    // Vendors' data about that trace: it means nothing without it (W3C Trace Context 3.3).
    ...(isTraced &&
      typeof tracestate === 'string' &&
      TRACESTATE.test(tracestate) && { tracestate }),
  };
}
