/** Translates a transport's failures into gateway errors. */

import { isIPv4 } from 'node:net';

import { GatewayError, type ErrorDetails } from '../../lib/errors.ts';
import { isLookupAwaited } from '../../lib/name-lookup.ts';
import { causeOf } from '../../request/cause.ts';
import { CLOSED, MalformedResponse } from './http1-connection.ts';

/** When a connection broke, because this decides whether its request may be repeated. */
export type ConnectionFailure =
  /** The request was not written. */
  | 'unconnected'
  /** The provider had already closed the connection while it was idle. */
  | 'stale'
  /** Part of the answer's head had arrived. */
  | 'inHead'
  /** The answer's whole head had arrived. */
  | 'inBody';

/** A request's failure because of the network or the provider. */
export class TransportError extends Error {
  override readonly cause: Error;
  readonly connectionFailure: ConnectionFailure | undefined;

  constructor(cause: Error, connectionFailure?: ConnectionFailure) {
    super('the upstream request failed', { cause });
    this.cause = cause;
    this.connectionFailure = connectionFailure;
  }
}

/** The last code is fetch's. */
const CLOSED_CODES = new Set([CLOSED, 'ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']);
/** The gateway's own connections fail with ETIMEDOUT. */
const CONNECT_TIMEOUT = 'UND_ERR_CONNECT_TIMEOUT';
const TIMED_OUT = /^(?:ETIMEDOUT|UND_ERR_(?:CONNECT|HEADERS|BODY)_TIMEOUT)$/;
/** OpenSSL's codes for a certificate that it does not accept, and Node's for a wrong name. */
const CERTIFICATE =
  /^(?:ERR_TLS_CERT|CERT_|CRL_|UNABLE_TO_|DEPTH_ZERO_SELF|SELF_SIGNED|INVALID_(?:CA|PURPOSE)$)/;
/** Exceptions inside fetch have no code, but every failure to connect has a code. */
const NOT_HTTP = /^(?:$|HPE_|UND_ERR_HEADERS_OVERFLOW$)/;
/**
 * fetch's code for a body that ends early, and for any fault in the head behind a Content-Length.
 */
const WRONG_LENGTH = 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH';

/** Returns the error `Request timed out` (docs/behaviour.md#unreachable). */
export function timeoutError(details: ErrorDetails): GatewayError {
  return new GatewayError('timeout', 'Request timed out', details);
}

/**
 * Marks a time limit that passed without a connection to `origin`, because then none of the
 * provider's models can be reached.
 */
export function unconnectedFailure(reason: unknown, origin: string): unknown {
  if (!(reason instanceof GatewayError) || reason.kind !== 'timeout') return reason;
  const { hostname } = new URL(origin);
  const isUnresolved = isLookupAwaited(hostname);
  const phase = isUnresolved ? `lookup of ${hostname} has not finished` : 'no connection was made';
  const cause = `${causeOf(reason)}: ${phase}`;
  return new GatewayError('timeout', reason.message, {
    ...reason.details,
    cause,
    scope: 'provider',
    ...(isUnresolved && { problem: 'lookup' }),
  });
}

/** Returns the details of a failed or overdue name lookup; undefined for another error. */
function lookupDetails(error: Error): ErrorDetails | undefined {
  const { code, hostname, syscall } = error as NodeJS.ErrnoException & { hostname?: string };
  if (syscall !== 'getaddrinfo') return undefined;
  const end = code === 'ETIMEDOUT' ? 'timed out' : `failed: ${code}`;
  return { cause: `lookup of ${hostname} ${end}`, problem: 'lookup' };
}

/**
 * Translates a `TransportError`; other errors are returned unchanged. Hosts, ports and library
 * texts stay in `cause`, for the log only.
 */
export function upstreamFailure(thrown: unknown): unknown {
  if (!(thrown instanceof TransportError)) return thrown;
  const { cause, connectionFailure } = thrown;
  const { code = '' } = cause as NodeJS.ErrnoException;
  const exhaustion = exhaustionOf(cause);
  if (exhaustion) {
    // The cause is a text, because the error's stack would add nothing.
    return new GatewayError('internal', 'Internal server error', {
      cause: `${exhaustion.code}: ${LOCAL_LIMITS[exhaustion.code]}`,
      retry: 'later',
      problem: 'descriptors',
    });
  }
  const isUnconnected = connectionFailure === 'unconnected' || code === CONNECT_TIMEOUT;
  // An AggregateError only has the first address's code.
  if (TIMED_OUT.test(code) && !(cause instanceof AggregateError)) {
    const scope = isUnconnected ? 'provider' : 'model';
    return timeoutError({ cause, scope, ...lookupDetails(cause) });
  }
  const fail = (text: string, details?: ErrorDetails) =>
    new GatewayError('provider', text, { cause, ...details });
  const isInBody = connectionFailure === 'inBody';
  if (cause instanceof MalformedResponse) {
    return fail('the answer was not valid HTTP', { cause: cause.message });
  }
  if (NOT_HTTP.test(code)) return fail('the answer was not valid HTTP');
  if (code === WRONG_LENGTH && !isInBody) {
    return fail('the answer was not valid HTTP', { cause: 'malformed headers' });
  }
  // `retry` is `no` then, because the provider has worked on the request.
  if (isInBody || connectionFailure === 'inHead') {
    return fail('the answer was cut off', { problem: 'cut' });
  }
  if (CLOSED_CODES.has(code) && !isUnconnected) {
    // A stale connection is replaced at once. Without one, the provider may have worked on the
    // request, so a repetition counts as a retry.
    const retry = connectionFailure === 'stale' ? 'at once' : 'later';
    return fail('the connection was closed without an answer', { retry, problem: 'cut' });
  }
  const details = CERTIFICATE.test(code)
    ? ({ problem: 'certificate' } as const)
    : lookupDetails(cause);
  return fail('the provider is unreachable', { scope: 'provider', retry: 'later', ...details });
}

/** This machine's exhausted resource, by error code. */
const LOCAL_LIMITS: Record<string, string> = {
  EMFILE: 'open files of the process (ulimit -n)',
  ENFILE: 'open files of the system (fs.file-max)',
  EADDRNOTAVAIL: 'local ports (net.ipv4.ip_local_port_range)',
};

type SystemError = Error & { readonly code: string; readonly address?: string };

function exhaustionOf(error: unknown): SystemError | undefined {
  const errors: unknown[] = error instanceof AggregateError ? error.errors : [error];
  return errors.find((tried): tried is SystemError => {
    const { code = '', address = '' } = (tried ?? {}) as Partial<SystemError>;
    // For an IPv6 address, EADDRNOTAVAIL only means that this machine has no IPv6.
    return code === 'EADDRNOTAVAIL' ? isIPv4(address) : Object.hasOwn(LOCAL_LIMITS, code);
  });
}
