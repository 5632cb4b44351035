/** Maps a provider's error to the client's error. */

import { namingSetting } from '../../config/named-models.ts';
import { GatewayError, type ErrorDetails } from '../../lib/errors.ts';
import { cutText, withoutControlCharacters } from '../../lib/secrets.ts';
import { isAboutMoney, readFault, type UpstreamFault } from '../../protocol/error-body.ts';
import { MAX_WORDS_CHARACTERS, PAGE_TAG, pageWordsOf } from '../../protocol/page-words.ts';
import type { AttemptContext } from './attempt-context.ts';
import { redactorOf, returnedHeaders } from './headers.ts';
import type { UpstreamHeaders } from '../connections/upstream-request.ts';
import { http } from '../../lib/http.ts';

const MAX_RETRY_AFTER_SECONDS = 86_400;
const MAX_ERROR_TEXT_CHARACTERS = 500;
/**
 * How much more of a long text is searched for keys before it is cut. A key that begins in the
 * shown text is hidden if it is no longer than this.
 */
const MAX_CUT_SECRET_CHARACTERS = 4096;
const RETRYABLE_STATUSES = new Set([408, 429, 500, 502, 503, 504, 529]);
/** A word, or a number written as text, by which clients classify errors; not a sentence. */
const CODE_WORD = /^\w[\w.-]{0,63}$/;

type Redact = (text: string) => string;

type Consequence = Pick<ErrorDetails, 'scope' | 'problem'>;
const CONSEQUENCES: Readonly<Record<UpstreamFault['blame'], Consequence>> = {
  policy: { scope: 'client', problem: 'policy' },
  length: { scope: 'client', problem: 'length' },
  reference: { scope: 'client', problem: 'reference' },
  request: { scope: 'client' },
  key: { scope: 'key' },
  model: { scope: 'client', problem: 'model gone' },
  /** A 429 too, because another provider may answer. */
  server: { scope: 'model' },
};
const MODEL_GONE: Consequence = { scope: 'model', problem: 'model gone' };

/** Returns the client's error for an error reported in a 200 or in an event. */
export function errorOf(json: unknown, context: AttemptContext, isEvent = false): GatewayError {
  const { references } = context.call.history.endpoint;
  return toProviderError(readFault(json, undefined, references), context, isEvent);
}

/** Maps a fault to the client's error. An error in a stream's event is not retried. */
export function toProviderError(
  fault: UpstreamFault,
  context: AttemptContext,
  isEvent = false,
): GatewayError {
  const { blame, status } = fault;
  const { headers, model, provider } = context.attempt;
  const { config } = context.services;
  const redact = redactorOf(context);
  const retryAfterSeconds = wholeSeconds(readRetryAfter(headers) ?? fault.retrySeconds);
  const text = errorText(fault, redact);
  const { providerMessages } = config.logging;
  const setting = blame === 'model' ? namingSetting(config, provider, model) : undefined;
  const { scope, problem } = setting ? MODEL_GONE : CONSEQUENCES[blame];
  const isLimit = status === 429;
  const isRetryable = RETRYABLE_STATUSES.has(status);
  const isRepeatUseless = scope === 'client' || (isLimit && isAboutMoney(fault));
  const logged = providerMessages ? loggedCause(fault, text, context) : namesOf(fault, redact);
  const details: ErrorDetails = {
    cause: setting ? `${setting}: ${logged}` : logged,
    ...(isLimit && scope !== 'client' && { limit: 'upstream' }),
    status,
    upstreamStatus: status,
    scope,
    headers: {
      ...(headers && returnedHeaders(headers, context)),
      ...(isRepeatUseless && isRetryable && { 'x-should-retry': 'false' }),
    },
    retry: !isEvent && !isRepeatUseless && isRetryable ? 'later' : 'no',
    ...(problem && { problem }),
    ...(retryAfterSeconds === undefined ? {} : { retryAfterSeconds }),
  };
  if (scope === 'key' && status === 401)
    return new GatewayError('api', 'Authentication failed', details);
  // The log shows `reason` in place of the message, because the provider's text is in `cause`.
  const reason = isLimit ? `Rate limit exceeded at ${provider}` : `API error: ${status}`;
  const message = `${reason}${isLimit ? ':' : ' -'} ${text}`;
  return new GatewayError(isLimit ? 'rateLimit' : 'api', message, { ...details, reason });
}

/**
 * Returns the provider's message on a single line without keys. The status's reason phrase replaces
 * a page or an absent message. The provider's code follows in brackets if the message lacks it.
 */
function errorText({ message = '', code = '', status }: UpstreamFault, redact: Redact): string {
  // The message is cut first, because all further steps take longer for a longer text.
  const beginning = cutText(message, MAX_ERROR_TEXT_CHARACTERS + MAX_CUT_SECRET_CHARACTERS);
  const line = withoutControlCharacters(beginning).trim();
  const shown = cutText(redact(line), MAX_ERROR_TEXT_CHARACTERS).trimEnd();
  const text =
    (PAGE_TAG.test(shown) ? '' : shown) || (http.STATUS_CODES[status] ?? 'Unknown error');
  const isKnown = text.includes(code) || code === String(status);
  return CODE_WORD.test(code) && !isKnown ? `${text} (${redact(code)})` : text;
}

/** For the log: a page has no text that helps. */
function loggedCause(
  { message, page = pageWordsOf(message ?? ''), status }: UpstreamFault,
  text: string,
  context: AttemptContext,
): string {
  if (page === undefined && (message !== undefined || context.attempt.status !== status)) {
    return text;
  }
  return describeResponse(page || text, context);
}

/**
 * Describes a response without JSON or events by its status, media type and words:
 * `502, text/html, "Bad Gateway"`. A log that must not show the provider's texts has no words.
 */
export function describeResponse(words: string | undefined, context: AttemptContext): string {
  const { headers, status } = context.attempt;
  const { providerMessages } = context.services.config.logging;
  const [type] = (headers?.get('content-type') ?? '').split(';', 1);
  const facts = `${status}, ${type || 'no content-type'}`;
  if (!words || !providerMessages) return facts;
  const line = withoutControlCharacters(redactorOf(context)(words)).trim();
  return `${facts}, ${JSON.stringify(cutText(line, MAX_WORDS_CHARACTERS))}`;
}

/** For a log that must not show the provider's message. */
function namesOf({ code = '', type = '', status }: UpstreamFault, redact: Redact): string {
  const names = [...new Set([type, code])].filter((name) => CODE_WORD.test(name));
  return redact(names.join(' ')) || (http.STATUS_CODES[status] ?? 'Unknown error');
}

function wholeSeconds(seconds: number | undefined): number | undefined {
  if (seconds === undefined) return undefined;
  return Math.min(MAX_RETRY_AFTER_SECONDS, Math.max(1, Math.ceil(seconds)));
}

/**
 * Returns a response's `Retry-After` (RFC 9110 10.2.3) or OpenAI's `retry-after-ms`, as seconds
 * from now. `retry-after-ms` does not pass to the client, because it would contradict the rounded
 * `Retry-After`.
 */
function readRetryAfter(headers: UpstreamHeaders | undefined): number | undefined {
  const inMs = headers?.get('retry-after-ms');
  const header = headers?.get('retry-after') || (inMs && `${Number(inMs) / 1000}`);
  if (!header) return undefined;
  // Node joins repeated headers with commas, so the first value ends at a comma. A date also
  // contains a comma.
  const [value] = /^(?:[a-z]+,)?[^,]*/i.exec(header)!;
  const isNumber = /^\d+(?:\.\d+)?$/.test(value);
  const seconds = isNumber ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? seconds : undefined;
}
