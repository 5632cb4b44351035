/** A provider's error as the client is told of it. */

import { STATUS_CODES } from 'node:http';

import { GatewayError, type ErrorFacts } from '../lib/errors.ts';
import { withoutControlCharacters } from '../lib/secrets.ts';
import { passedHeaders } from './headers.ts';
import type { UpstreamFault, UpstreamHeaders } from './provider.ts';

const MAX_RETRY_AFTER_SECONDS = 86_400;
const MAX_ERROR_TEXT_CHARACTERS = 500;
const RETRYABLE_STATUSES = new Set([408, 429, 500, 502, 503, 504, 529]);
const REFUSED_BY_POLICY = /content[_-]?(?:policy|filter)|moderation|safety/i;

interface ProviderErrorContext {
  /** The provider's id. */
  readonly provider: string;
  readonly status: number;
  readonly redact: (text: string) => string;
  /** Of an answer that is an error by its status. */
  readonly headers?: UpstreamHeaders;
  /** The error came as an event of a stream. */
  readonly isEvent?: boolean;
}

/** Maps what a provider said went wrong to the error that the client gets. */
export function toProviderError(
  { message = '', code = '' }: UpstreamFault,
  { provider, status, redact, headers, isEvent = false }: ProviderErrorContext,
): GatewayError {
  const retryAfterSeconds = readRetryAfter(headers?.get('retry-after'));
  const isPolicy = REFUSED_BY_POLICY.test(code);
  const isTooLong = status === 400 && code === 'context_length_exceeded';
  const facts: ErrorFacts = {
    provider,
    status,
    upstreamStatus: status,
    headers: headers ? passedHeaders(headers, redact) : {},
    retryable: !isEvent && RETRYABLE_STATUSES.has(status),
    ...(isPolicy ? { mayFallBack: false } : {}),
    ...(isTooLong || (isEvent && !isPolicy && status !== 401) ? { mayFallBack: true } : {}),
    ...(retryAfterSeconds === undefined ? {} : { retryAfterSeconds }),
  };
  if (status === 401) return new GatewayError('api', 'Authentication failed', facts);

  const text = sanitizeMessage(message, redact) || (STATUS_CODES[status] ?? 'Unknown error');
  if (status === 429) {
    return new GatewayError('rateLimit', `Rate limit exceeded at ${provider}: ${text}`, facts);
  }
  return new GatewayError('api', `API error: ${status} - ${text}`, facts);
}

/** An upstream's message on one line, bounded and without keys; nothing of an HTML page. */
function sanitizeMessage(message: string, redact: (text: string) => string): string {
  if (/<[a-z!/]/i.test(message)) return '';
  return redact(withoutControlCharacters(message)).trim().slice(0, MAX_ERROR_TEXT_CHARACTERS);
}

/** Seconds or a date (RFC 9110 10.2.3), as whole seconds from now, at least 1. */
function readRetryAfter(header: string | null | undefined): number | undefined {
  if (!header) return undefined;
  // The first of several, which come joined by commas; a date has one of its own.
  const [value] = /^(?:[a-z]+,)?[^,]*/i.exec(header)!;
  const isNumber = /^\d+(?:\.\d+)?$/.test(value);
  const seconds = isNumber ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  if (!Number.isFinite(seconds)) return undefined;
  return Math.min(MAX_RETRY_AFTER_SECONDS, Math.max(1, Math.ceil(seconds)));
}
