/** What network failures mean. Nothing else looks at the errors of fetch, undici or node:net. */

import { GatewayError, type ErrorFacts } from '../lib/errors.ts';
import { connectionFailureOf } from './connections.ts';

const CLOSED_BY_UPSTREAM = new Set(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']);
const TIMED_OUT = new Set([
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
]);

/** `Request timed out` (interface, Errors). */
export function timeoutError(provider: string, facts?: ErrorFacts): GatewayError {
  return new GatewayError('timeout', 'Request timed out', { ...facts, provider });
}

/**
 * Translates what `send`, or reading its body, was rejected with. `answered`: the response headers
 * had come, so the provider has worked on the request and it must not be repeated.
 * Hosts, ports and library texts stay in `cause`, for the log.
 */
export function upstreamFailure(
  thrown: unknown,
  { provider, answered }: { readonly provider: string; readonly answered: boolean },
): unknown {
  const outer = thrown instanceof TypeError ? thrown.cause : undefined;
  // fetch takes a proxy that refuses a tunnel for an abort of its own.
  const cause = outer instanceof DOMException ? (outer.cause ?? outer) : outer;
  // The reason of an abort, or a bug of ours: fetch's own failures are TypeErrors with a cause.
  if (!(cause instanceof Error)) return thrown;
  const { code = '' } = cause as NodeJS.ErrnoException;
  // Of several addresses tried, an AggregateError names only what became of the first.
  const isOneAddress = !(cause instanceof AggregateError);
  const connectionFailure = connectionFailureOf(cause);
  const unreachable = connectionFailure === 'unconnected';
  if (isOneAddress && TIMED_OUT.has(code)) return timeoutError(provider, { cause, unreachable });
  if (connectionFailure === 'abandoned' || unreachable) {
    return new GatewayError('provider', 'the provider is unreachable', {
      provider,
      cause,
      unreachable,
      retryable: true,
      repeatAtOnce: connectionFailure === 'abandoned',
    });
  }
  if (!CLOSED_BY_UPSTREAM.has(code)) {
    return new GatewayError('provider', 'the answer was not valid HTTP', { provider, cause });
  }
  if (answered || connectionFailure === 'midAnswer') {
    return new GatewayError('provider', 'the answer was cut off', { provider, cause });
  }
  return new GatewayError('provider', 'the connection was closed without an answer', {
    provider,
    cause,
    retryable: true,
    repeatAtOnce: connectionFailure === 'stale',
  });
}
