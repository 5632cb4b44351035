/** Translates the failures of a transport into gateway errors. */

import { isIPv4 } from 'node:net';

import { GatewayError, type ErrorDetails } from '../lib/errors.ts';
import { isLookupRunning } from '../lib/name-lookup.ts';
import { causeOf } from '../request/cause.ts';

/** The state of a connection when it broke, which decides whether its request may be repeated. */
export type ConnectionFailure =
  /** The connection was never made, so nothing was sent. */
  | 'unconnected'
  /**
   * The connection was idle and broke as soon as the request was written, because the provider had
   * already closed it.
   */
  | 'stale'
  /** Part of the answer's head had come. */
  | 'inHead'
  /** The whole head of the answer had come. */
  | 'inBody';

/**
 * The failure of a request because of the network or the provider. `Transport.send` rejects with
 * it, and the body of a reply fails with it.
 */
export class TransportError extends Error {
  override readonly cause: Error;
  readonly connectionFailure: ConnectionFailure | undefined;

  /** Wraps an error of undici, node:net or node:tls. */
  constructor(cause: Error, connectionFailure?: ConnectionFailure) {
    super('the upstream request failed', { cause });
    this.cause = cause;
    this.connectionFailure = connectionFailure;
  }
}

/** Codes of a connection that was closed. */
const CLOSED = new Set(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']);
/** fetch's code; the gateway's own connections fail with ETIMEDOUT. */
const CONNECT_TIMEOUT = 'UND_ERR_CONNECT_TIMEOUT';
const TIMED_OUT = /^(?:ETIMEDOUT|UND_ERR_(?:CONNECT|HEADERS|BODY)_TIMEOUT)$/;
/**
 * The codes of undici's parser and of its limits. Exceptions inside undici have no code, whereas
 * every failure to connect has a code.
 */
const NOT_HTTP = /^(?:$|HPE_|UND_ERR_HEADERS_OVERFLOW$)/;
/**
 * undici's code for a body that ends early, and for any fault in the head behind a Content-Length.
 */
const WRONG_LENGTH = 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH';

/** Returns the error `Request timed out` (docs/behaviour.md#unreachable). */
export function timeoutError(provider: string, details?: ErrorDetails): GatewayError {
  return new GatewayError('timeout', 'Request timed out', { ...details, provider });
}

/**
 * Marks a time limit that passed before a connection to `origin` was made, because then no model of
 * the provider can be reached. Returns other reasons unchanged.
 */
export function unconnectedFailure(reason: unknown, origin: string): unknown {
  if (!(reason instanceof GatewayError) || reason.kind !== 'timeout') return reason;
  const isUnresolved = isLookupRunning(new URL(origin).hostname);
  const phase = isUnresolved ? 'the name lookup is not over' : 'no connection was made';
  const cause = `${causeOf(reason)}: ${phase}`;
  return new GatewayError('timeout', reason.message, {
    ...reason.details,
    cause,
    scope: 'provider',
  });
}

/** Returns the error for an answer that is not usable. */
export function providerError(
  provider: string,
  text: string,
  details?: ErrorDetails,
): GatewayError {
  return new GatewayError('provider', text, { ...details, provider });
}

/** SDKs repeat every 502, and the provider would charge for each repeated answer. */
const FINAL = { 'x-should-retry': 'false' };
/**
 * Maximum length of an answer, because no completion is longer. An event of a stream may be as
 * long, because image models send a picture in a single event.
 */
export const MAX_ANSWER_BYTES = 67_108_864;

/**
 * Returns the error for a complete answer, or for an event, that can never fit because it has more
 * than `MAX_ANSWER_BYTES` or than `max_buffered_bytes`. The limit `max_buffered_bytes` is the
 * gateway's own, so it does not count against the provider, and no provider is asked again.
 *
 * @param maxBufferedBytes - the limit of the memory for all requests and answers
 */
export function tooLargeError(
  part: 'answer' | 'event',
  provider: string,
  maxBufferedBytes: number,
): GatewayError {
  if (maxBufferedBytes >= MAX_ANSWER_BYTES) {
    const text = `the ${part} is larger than ${MAX_ANSWER_BYTES} bytes`;
    return new GatewayError('provider', text, { provider, headers: FINAL });
  }
  const text = `the ${part} is larger than max_buffered_bytes, ${maxBufferedBytes} bytes`;
  return new GatewayError('provider', text, { scope: 'gateway', limit: 'memory', headers: FINAL });
}

/**
 * Returns the error for an answer without content, with `[server] empty_answers = "fail"`. The
 * request is retried, because another answer may have content.
 */
export function emptyAnswerError(provider: string): GatewayError {
  return new GatewayError('provider', 'the answer is empty', { provider, retry: 'later' });
}

/**
 * Translates a `TransportError`; other errors are returned unchanged. Hosts, ports and the texts of
 * libraries stay in `cause`, which only the log shows.
 */
export function upstreamFailure(thrown: unknown, provider: string): unknown {
  if (!(thrown instanceof TransportError)) return thrown;
  const { cause, connectionFailure } = thrown;
  const { code = '' } = cause as NodeJS.ErrnoException;
  const exhaustion = exhaustionOf(cause);
  if (exhaustion) {
    // The gateway is at fault, and not the provider. The cause is a text, because the stack of the
    // error would add nothing.
    return new GatewayError('internal', 'Internal server error', {
      provider,
      cause: `${exhaustion.code}: ${LOCAL_LIMITS[exhaustion.code]}`,
      retry: 'later',
      problem: 'descriptors',
    });
  }
  const isUnconnected = connectionFailure === 'unconnected' || code === CONNECT_TIMEOUT;
  // An AggregateError only has the code of the first address that was tried.
  if (TIMED_OUT.test(code) && !(cause instanceof AggregateError)) {
    return timeoutError(provider, { cause, scope: isUnconnected ? 'provider' : 'model' });
  }
  const fail = (text: string, details?: ErrorDetails) =>
    providerError(provider, text, { cause, ...details });
  const isInBody = connectionFailure === 'inBody';
  if (NOT_HTTP.test(code)) return fail('the answer was not valid HTTP');
  if (code === WRONG_LENGTH && !isInBody) {
    return fail('the answer was not valid HTTP', { cause: 'malformed headers' });
  }
  // The request must not be repeated, because the provider has worked on it.
  if (isInBody || connectionFailure === 'inHead') {
    return fail('the answer was cut off', { problem: 'cut' });
  }
  const isClosed = CLOSED.has(code);
  if (isClosed && !isUnconnected) {
    const retry = connectionFailure === 'stale' ? 'at once' : 'later';
    return fail('the connection was closed without an answer', { retry, problem: 'cut' });
  }
  // The request may not have been written, because an idle connection may have broken before.
  const retry = isClosed ? 'at once' : 'later';
  return fail('the provider is unreachable', { scope: 'provider', retry });
}

/** The resource of this machine that is exhausted, by the code of the error. */
const LOCAL_LIMITS: Record<string, string> = {
  EMFILE: 'open files of the process (ulimit -n)',
  ENFILE: 'open files of the system (fs.file-max)',
  EADDRNOTAVAIL: 'local ports (net.ipv4.ip_local_port_range)',
};

type SystemError = Error & { readonly code: string; readonly address?: string };

/**
 * Returns the error of an exhausted resource: `error` itself, or the error for an address that was
 * tried. Returns undefined if no resource is exhausted.
 */
function exhaustionOf(error: unknown): SystemError | undefined {
  const errors: unknown[] = error instanceof AggregateError ? error.errors : [error];
  return errors.find((tried): tried is SystemError => {
    const { code = '', address = '' } = (tried ?? {}) as Partial<SystemError>;
    // For an IPv6 address, EADDRNOTAVAIL only means that this machine has no IPv6 address.
    return code === 'EADDRNOTAVAIL' ? isIPv4(address) : Object.hasOwn(LOCAL_LIMITS, code);
  });
}
