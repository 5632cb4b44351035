/** The allow-lists of headers, both ways. */

import type { IncomingHttpHeaders } from 'node:http';

import type { ForwardedHeaders, UpstreamHeaders } from './provider.ts';

const PASSED_HEADERS = /^(?:(?:x-|anthropic-)?ratelimit[a-z0-9-]*|retry-after-ms|x-should-retry)$/;

/** The allow-list: an upstream's cookies, server banners and connection headers are not the client's. */
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

/** The allow-list in the other direction; W3C Trace Context is the only thing of the client's in it. */
export function forwardedHeaders(
  requestId: string,
  { traceparent, tracestate }: IncomingHttpHeaders,
): ForwardedHeaders {
  return {
    'x-request-id': requestId,
    ...(isTraceHeader(traceparent) ? { traceparent } : {}),
    ...(isTraceHeader(tracestate) ? { tracestate } : {}),
  };
}

function isTraceHeader(value: unknown): value is string {
  return typeof value === 'string' && /^[\x20-\x7e]{1,512}$/.test(value);
}
