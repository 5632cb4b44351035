/** The cause of a failure, as the log tells it. */

import type { GatewayError } from '../lib/errors.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

/** The length of every text from outside that a line of the log quotes. */
export const MAX_LOGGED_CHARACTERS = 200;

/**
 * Returns what happened, for the operator: the network's error, the provider's own text, or the
 * failure's message.
 */
export function causeOf(failure: GatewayError): string {
  const text = describeCause(failure.details.cause) ?? failure.message;
  return escapeControlCharacters(text, MAX_LOGGED_CHARACTERS);
}

/** Returns a cause as text: a provider's own words, or the system's error code and message. */
export function describeCause(cause: unknown): string | undefined {
  if (typeof cause === 'string') return cause;
  // It has no message of its own, but one error for each address that was tried.
  const error: unknown = cause instanceof AggregateError ? cause.errors[0] : cause;
  if (!(error instanceof Error)) return undefined;
  const { code } = error as NodeJS.ErrnoException;
  // OpenSSL's end with a line end.
  const message = error.message.trim();
  return code === undefined ? message : `${code}: ${message}`;
}
