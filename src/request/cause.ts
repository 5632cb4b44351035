/** A failure's cause, as the log shows it. */

import type { GatewayError } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';
import { messageOf } from '../lib/tls-errors.ts';

/** The longest text from outside in a log line. */
export const MAX_LOGGED_CHARACTERS = 200;

/**
 * Returns the network's error, the provider's own text, or else the failure's message, bounded and
 * without control characters.
 */
export function causeOf(failure: GatewayError): string {
  const text = describeCause(failure.details.cause) ?? failure.message;
  return escapeControlCharacters(text, MAX_LOGGED_CHARACTERS);
}

/** Returns the provider's own words, or the system's error code and message. */
export function describeCause(cause: unknown): string | undefined {
  if (typeof cause === 'string') return cause;
  // An AggregateError has no message, but an error for each address tried.
  const error: unknown = cause instanceof AggregateError ? cause.errors[0] : cause;
  if (!(error instanceof Error)) return undefined;
  const { code } = error as NodeJS.ErrnoException;
  const message = messageOf(error, 'its URL may need http:// in place of https://');
  return typeof code === 'string' ? `${code}: ${message}` : message;
}
