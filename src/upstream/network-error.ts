/** Translates failures of a transport, by their network error codes, into gateway errors. */

import { isIPv4 } from 'node:net';

import { GatewayError, type ErrorDetails } from '../lib/errors.ts';
import { isLookupRunning } from '../lib/name-lookup.ts';
import { causeOf } from '../request/cause.ts';

/** State of a connection when it broke, which decides whether its request may be repeated. */
export type ConnectionFailure =
  /** It was never made: nothing was sent. */
  | 'unconnected'
  /** It was idle and broke as soon as a request was written: the upstream had closed it before. */
  | 'stale'
  /** Part of the answer's head had come. */
  | 'inHead'
  /** All of its head had come. */
  | 'inBody';

/**
 * Rejection of `Transport.send`, and failure of a reply's body, if the network or the upstream is
 * at fault.
 */
export class TransportError extends Error {
  override readonly cause: Error;
  readonly connectionFailure: ConnectionFailure | undefined;

  /** Takes the error of undici, node:net or node:tls. */
  constructor(cause: Error, connectionFailure?: ConnectionFailure) {
    super('the upstream request failed', { cause });
    this.cause = cause;
    this.connectionFailure = connectionFailure;
  }
}

const CLOSED = new Set(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']);
/** fetch's code; our own connections end with ETIMEDOUT. */
const CONNECT_TIMEOUT = 'UND_ERR_CONNECT_TIMEOUT';
const TIMED_OUT = /^(?:ETIMEDOUT|UND_ERR_(?:CONNECT|HEADERS|BODY)_TIMEOUT)$/;
/**
 * undici's parser, its limits, and exceptions without a code from within it; connect failures have
 * codes.
 */
const NOT_HTTP = /^(?:$|HPE_|UND_ERR_HEADERS_OVERFLOW$)/;
/**
 * What undici calls an end inside the body, and whatever is wrong in the head behind a
 * Content-Length.
 */
const WRONG_LENGTH = 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH';

/** `Request timed out` (docs/behaviour.md#unreachable). */
export function timeoutError(provider: string, details?: ErrorDetails): GatewayError {
  return new GatewayError('timeout', 'Request timed out', { ...details, provider });
}

/**
 * Marks a time limit that passed before a connection to `origin` was made: no model of the provider
 * can be reached. Returns other reasons unchanged.
 */
export function unconnectedFailure(reason: unknown, origin: string): unknown {
  if (!(reason instanceof GatewayError) || reason.kind !== 'timeout') return reason;
  const isUnresolved = isLookupRunning(new URL(origin).hostname);
  const why = isUnresolved ? 'the name lookup is not over' : 'no connection was made';
  const cause = `${causeOf(reason)}: ${why}`;
  return new GatewayError('timeout', reason.message, {
    ...reason.details,
    cause,
    scope: 'provider',
  });
}

/** The error of an answer that is not usable. */
export function providerError(
  provider: string,
  text: string,
  details?: ErrorDetails,
): GatewayError {
  return new GatewayError('provider', text, { ...details, provider });
}

/** SDKs repeat each 502, and the answer is paid each time. */
const FINAL = { 'x-should-retry': 'false' };
/**
 * A longer answer is no completion. One event of a stream may be as long: image models send
 * pictures in one.
 */
export const MAX_ANSWER_BYTES = 67_108_864;
/**
 * Returns the error of a complete answer, or of an event, that can never fit: it has more than
 * `MAX_ANSWER_BYTES`, or than `max_buffered_bytes`. The latter is on no provider's account, and
 * neither this nor another provider is asked again.
 *
 * @param maxBufferedBytes - the limit of the memory for all requests and answers
 */
export function tooLargeError(
  what: 'answer' | 'event',
  provider: string,
  maxBufferedBytes: number,
): GatewayError {
  if (maxBufferedBytes >= MAX_ANSWER_BYTES) {
    const text = `the ${what} is larger than ${MAX_ANSWER_BYTES} bytes`;
    return new GatewayError('provider', text, { provider, headers: FINAL });
  }
  const text = `the ${what} is larger than max_buffered_bytes, ${maxBufferedBytes} bytes`;
  return new GatewayError('provider', text, { scope: 'gateway', limit: 'memory', headers: FINAL });
}

/**
 * The error of an answer that says nothing, with `[server] empty_answers = "fail"`: it may say more
 * if it is asked for again.
 */
export function emptyAnswerError(provider: string): GatewayError {
  return new GatewayError('provider', 'the answer is empty', { provider, retry: 'later' });
}

/**
 * Translates a `TransportError`, and returns other errors unchanged. Hosts, ports and library texts
 * stay in `cause`, for the log.
 */
export function upstreamFailure(thrown: unknown, provider: string): unknown {
  if (!(thrown instanceof TransportError)) return thrown;
  const { cause, connectionFailure } = thrown;
  const { code = '' } = cause as NodeJS.ErrnoException;
  const exhaustion = exhaustionOf(cause);
  if (exhaustion) {
    // Not the provider's fault. As text: the stack of an error would say nothing more.
    return new GatewayError('internal', 'Internal server error', {
      provider,
      cause: `${exhaustion.code}: ${LOCAL_LIMITS[exhaustion.code]}`,
      retry: 'later',
      problem: 'descriptors',
    });
  }
  const isUnconnected = connectionFailure === 'unconnected' || code === CONNECT_TIMEOUT;
  // An AggregateError has the code of the first address that was tried only.
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
  // The provider has worked on the request: it must not be repeated.
  if (isInBody || connectionFailure === 'inHead') {
    return fail('the answer was cut off', { problem: 'cut' });
  }
  const isClosed = CLOSED.has(code);
  if (isClosed && !isUnconnected) {
    const retry = connectionFailure === 'stale' ? 'at once' : 'later';
    return fail('the connection was closed without an answer', { retry, problem: 'cut' });
  }
  // An idle connection may have broken before the request was written to it.
  const retry = isClosed ? 'at once' : 'later';
  return fail('the provider is unreachable', { scope: 'provider', retry });
}

/** The resource of this machine that is exhausted, by the error's code. */
const LOCAL_LIMITS: Record<string, string> = {
  EMFILE: 'open files of the process (ulimit -n)',
  ENFILE: 'open files of the system (fs.file-max)',
  EADDRNOTAVAIL: 'local ports (net.ipv4.ip_local_port_range)',
};

type SystemError = Error & { readonly code: string; readonly address?: string };

/**
 * Returns the error that says what has run out, if `error` is one, or has one for an address that
 * was tried.
 */
function exhaustionOf(error: unknown): SystemError | undefined {
  const errors: unknown[] = error instanceof AggregateError ? error.errors : [error];
  return errors.find((one): one is SystemError => {
    const { code = '', address = '' } = (one ?? {}) as Partial<SystemError>;
    // For an IPv6 address it means no more than that this machine has none itself.
    return code === 'EADDRNOTAVAIL' ? isIPv4(address) : Object.hasOwn(LOCAL_LIMITS, code);
  });
}
