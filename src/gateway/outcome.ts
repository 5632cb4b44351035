/** How requests and attempts ended, in the words of the log. */

import { ClientGone, type ErrorKind, type GatewayError } from '../lib/errors.ts';
import type { Outcome } from '../lib/request-facts.ts';
import { escapeControlCharacters } from '../lib/secrets.ts';

/** Of every text from outside that a line of the log quotes. */
export const MAX_LOGGED_CHARACTERS = 200;

const OUTCOMES: Record<ErrorKind, Outcome> = {
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

/** The outcome of what failed with `failure`; `ok` if nothing did. */
export function outcomeOf(failure: GatewayError | ClientGone | undefined): Outcome {
  if (failure instanceof ClientGone) return 'client_closed';
  return failure ? OUTCOMES[failure.kind] : 'ok';
}

/** What happened, for the operator: the network's error, or the provider's own text, or the failure's message. */
export function causeOf(failure: GatewayError): string {
  const text = describeCause(failure.facts.cause) ?? failure.message;
  return escapeControlCharacters(text, MAX_LOGGED_CHARACTERS);
}

/** A cause as text: a provider's own words, or the system's error code and message. */
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
