/** The end of an attempt: its line in the log, and its count for the incidents. */

import type { Call } from '../downstream/call.ts';
import { ClientGone, type GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Attempt } from '../request/history.ts';
import type { Services } from './services.ts';

/**
 * Records how an attempt has ended. A good attempt needs no count here, because it was counted when
 * its answer was sent.
 */
export function recordAttemptEnd(
  attempt: Attempt,
  failure: GatewayError | ClientGone | undefined,
  call: Call,
  { incidents, logger }: Services,
): void {
  attempt.recordEnd(failure);
  logAttempt('try', attempt, call, logger);
  // `recordFailure` ignores failures that say nothing of the provider.
  if (attempt.failure) incidents.recordFailure(attempt, attempt.failure);
}

/** Logs an attempt at level debug. */
export function logAttempt(message: string, attempt: Attempt, { id }: Call, logger: Logger): void {
  if (!logger.isEnabled('debug')) return;
  const { connection, url, wasAsked } = attempt;
  const sent = wasAsked ? { url, connection } : {};
  logger.log('debug', message, { request_id: id, ...attempt.toFacts(), ...sent });
}

/**
 * Returns whether the failure of an attempt ends its request, because the client has left or the
 * gateway itself has failed: no other provider can help, and the failure says nothing of this
 * provider.
 */
export function endsRequest(failure: GatewayError | ClientGone | undefined): boolean {
  if (failure instanceof ClientGone) return true;
  return failure?.scope === 'gateway' && failure.retry === 'no';
}
