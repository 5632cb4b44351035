/** The access log: one line per request. */

import type { Call } from '../downstream/call.ts';
import { ClientGone, GatewayError, type ErrorKind } from '../lib/errors.ts';
import type { Logger, LogFacts } from '../lib/log.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

const MAX_LOGGED_CHARACTERS = 200;

interface AccessLogOptions {
  readonly logger: Logger;
  /** Adds sizes, the user agent and the list of attempts. */
  readonly verbose: boolean;
}

/** Returns a function that logs one finished request. `status` is absent if nothing was sent. */
export function createAccessLog({
  logger,
  verbose,
}: AccessLogOptions): (call: Call, status: number | undefined) => void {
  return (call, status) => {
    const { record } = call;
    const { failure } = record;
    // A shutdown is `internal` too, but it is also the reason of the call's cancellation.
    const isOurFault =
      failure?.kind === 'internal' && !(call.cancellation.reason instanceof GatewayError);
    const level = isOurFault ? 'error' : call.path === '/health' ? 'debug' : 'info';
    const hasSeveralAttempts = record.attempts.length > 1;
    const facts: LogFacts = {
      request_id: call.id,
      method: call.method,
      path: escapeControlCharacters(call.path, MAX_LOGGED_CHARACTERS),
      // Absent if nothing was sent.
      status: call.firstByteAtMs === undefined ? undefined : status,
      provider: record.provider,
      model: record.model,
      stream: record.stream,
      duration_ms: Math.round(performance.now() - call.receivedAtMs),
      first_byte_ms: call.firstByteAtMs && Math.round(call.firstByteAtMs - call.receivedAtMs),
      bytes: call.sentBytes,
      outcome: outcomeOf(call),
      cause: failure && describeCause(failure.cause, isOurFault),
      attempts: hasSeveralAttempts || verbose ? record.attempts.join(' ') : undefined,
      ...(verbose && {
        request_bytes: record.requestBytes,
        user_agent: escapeControlCharacters(
          call.headers['user-agent'] ?? '',
          MAX_LOGGED_CHARACTERS,
        ),
      }),
    };
    logger.log(level, 'request', facts);
  };
}

/** The access line's `outcome`; the others are `ok` and `client_closed`. */
const OUTCOMES: Record<ErrorKind, string> = {
  authentication: 'refused',
  rateLimit: 'rate_limited',
  invalidRequest: 'refused',
  unknownProvider: 'refused',
  notFound: 'refused',
  provider: 'upstream_error',
  api: 'upstream_error',
  timeout: 'timeout',
  internal: 'internal_error',
  serialization: 'upstream_error',
  unsupported: 'upstream_error',
};

function outcomeOf(call: Call): string {
  if (call.cancellation.reason instanceof ClientGone) return 'client_closed';
  return call.record.failure ? OUTCOMES[call.record.failure.kind] : 'ok';
}

/** For the operator: the system's error code and message, or the stack of a bug. */
export function describeCause(cause: unknown, isOurFault = false): string | undefined {
  if (!(cause instanceof Error)) return cause === undefined ? undefined : typeof cause;
  if (isOurFault) return cause.stack;
  const { code } = cause as NodeJS.ErrnoException;
  return code === undefined ? cause.message : `${code}: ${cause.message}`;
}
