/** Ends an attempt: writes its log line, and counts it for the incidents. */

import type { Call } from '../downstream/call.ts';
import { ClientGone, type GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Attempt } from '../request/history.ts';
import type { Services } from './services.ts';

/** Records an attempt's end. A good attempt was already counted when its answer was sent. */
export function recordAttemptEnd(
  attempt: Attempt,
  failure: GatewayError | ClientGone | undefined,
  call: Call,
  { incidents, logger }: Services,
): void {
  attempt.recordEnd(failure);
  logAttempt('try', attempt, call, logger);
  // `recordFailure` ignores failures that are not about the provider.
  if (attempt.failure) incidents.recordFailure(attempt, attempt.failure);
}

/** Logs an attempt at level debug. */
export function logAttempt(message: string, attempt: Attempt, call: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, url, wasAsked } = attempt;
  const sent = wasAsked ? { url, connection } : {};
  const facts = { request_id: call.id, ...attempt.toFacts(), ...sent };
  logger.log('debug', message, call.history.withoutKey(facts));
}

/**
 * Returns whether the failure of an attempt ends its request: the client has left, or the gateway
 * itself has failed. Then this provider is not at fault, and no other can help. A want of
 * descriptors does not end it, because its `retry` says that descriptors may be free by then.
 */
export function endsRequest(failure: GatewayError | ClientGone | undefined): boolean {
  if (failure instanceof ClientGone) return true;
  return failure?.scope === 'gateway' && failure.retry === 'no';
}
