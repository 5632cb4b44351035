/**
 * A provider's error: read, wherever the provider writes it, and mapped to the error that the
 * client gets.
 */

import { STATUS_CODES } from 'node:http';

import { isNamed } from '../config/named-models.ts';
import type { Attempt } from '../request/history.ts';
import { GatewayError, type ErrorDetails } from '../lib/errors.ts';
import { cutText, type Redactor, withoutControlCharacters } from '../lib/secrets.ts';
import { memberOf, parseUntrustedJson } from '../lib/json.ts';
import { firstItem, reportsError } from '../openai/answer-json.ts';
import type { AttemptContext } from './attempt-context.ts';
import { returnedHeaders } from './headers.ts';
import type { UpstreamHeaders } from './provider.ts';

const MAX_RETRY_AFTER_SECONDS = 86_400;
const MAX_ERROR_TEXT_CHARACTERS = 500;
/** A secret of this length is recognized although the end of the text is cut off inside it. */
const MAX_CUT_SECRET_CHARACTERS = 4096;
const MAX_CODE_CHARACTERS = 200;
const RETRYABLE_STATUSES = new Set([408, 429, 500, 502, 503, 504, 529]);
/** A client's own mistakes. A 404 about a model is one too, unless the settings name the model. */
const REJECTED_STATUSES = new Set([400, 413, 422, 451]);
/**
 * Patterns of words without their separators, in lower case: providers write `InvalidParameter` and
 * `invalid-parameter`.
 */
const REFUSED_BY_POLICY = /contentpolicy|contentfilter|moderation|safety/;
const TOO_LONG = /contextlengthexceeded/;
/** The account is out of money: to repeat the request cannot help. */
const BILLING = /insufficient[a-z]*(?:quota|balance|funds|credit)|billing/;
/** Words, and numbers written as text, that clients classify errors by; not sentences. */
const CODE_WORD = /^\w[\w.-]{0,63}$/;
/** Not every `<`: messages quote `<class 'int'>`, `<image>` and `<400>`. */
const PAGE = /<(?:!doctype|html|head|body|script)/i;

/** Members in which providers write their messages, in the order of the search. */
const MESSAGE_NAMES = (
  'message msg detail error errors Message error_description ' +
  // Baidu; and MiniMax, inside `base_resp`.
  'error_msg status_msg'
).split(' ');
/** Those of an object that is an error although it has no `error`. */
export const BARE_MESSAGE_NAMES = ['message', 'msg', 'detail', 'error_msg'];
/** Arrays and objects that are searched. Bounds the depth of the search too. */
const MAX_SEARCHED = 100;
const STATUS_NAMES = ['status_code', 'status', 'code'];
const STATUSES_BY_WORD: readonly (readonly [words: RegExp, status: number])[] = [
  [/invalidrequesterror|toolusefailed|unsupportedvalue|invalidparameter/, 400],
  [TOO_LONG, 400],
  [/contentpolicy|contentfilter/, 400],
  [/authenticationerror|invalidapikey/, 401],
  [/permission/, 403],
  [/notfound/, 404],
  [/ratelimit|insufficientquota/, 429],
  [/overloaded/, 503],
];
/** The text of an aggregator in place of its provider's message (OpenRouter). */
const SAYS_NOTHING = /^provider returned error\.?$/i;

/**
 * An error as the upstream reports it, in an error body or an error event. All of it is untrusted.
 */
type UpstreamFault = ReturnType<typeof readFault>;

/** Returns the client's error for the JSON of a 200, or of an event, that reports one. */
export function errorOf(json: unknown, context: AttemptContext, isEvent = false): GatewayError {
  return toProviderError(readFault(json), context, isEvent);
}

/**
 * Returns whether the JSON of a 200, or of an event before an answer, is an error, with an `error`
 * or without: `{"code":500,"msg":…}` (z.ai), `{"detail":…}` (FastAPI),
 * `{"base_resp":{"status_code":1004,"status_msg":…}}` (MiniMax). An object with `choices` is an
 * answer.
 */
export function reportsFailure(json: unknown): boolean {
  if ((memberOf(json, 'choices') ?? undefined) !== undefined) return false;
  if (reportsError(json)) return true;
  const state = memberOf(json, 'base_resp');
  if (isText(memberOf(state, 'status_msg')) && memberOf(state, 'status_code') !== 0) return true;
  return BARE_MESSAGE_NAMES.some((name) => firstText(memberOf(json, name)) !== undefined);
}

/** Maps a fault to the error that the client gets. */
export function toProviderError(
  fault: UpstreamFault,
  context: AttemptContext,
  isEvent = false,
): GatewayError {
  const { status } = fault;
  const { headers, model, provider } = context.attempt;
  const { config, redact } = context.services;
  const reason = toWord(fault.code ?? fault.type);
  const retryAfterSeconds = readRetryAfter(headers);
  const isBilling = status === 429 && BILLING.test(reason);
  const text = errorText(fault, redact);
  const { providerMessages } = config.logging;
  const isAboutModel = status === 404 && fault.isAboutModel;
  const isModelGone = isAboutModel && isNamed(config, provider, model);
  const isRejected = REJECTED_STATUSES.has(status) || (isAboutModel && !isModelGone);
  const problem = problemOf(reason, status) ?? (isModelGone ? 'model gone' : undefined);
  const details: ErrorDetails = {
    provider,
    cause: providerMessages ? loggedCause(fault, text, context.attempt) : namesOf(fault, redact),
    ...(status === 429 && { limit: 'upstream' }),
    status,
    upstreamStatus: status,
    scope: isRejected ? 'client' : 'model',
    headers: {
      ...(headers && returnedHeaders(headers, context)),
      ...(isBilling && { 'x-should-retry': 'false' }),
    },
    retry: !isEvent && !isBilling && RETRYABLE_STATUSES.has(status) ? 'later' : 'no',
    ...(problem && { problem }),
    ...(retryAfterSeconds === undefined ? {} : { retryAfterSeconds }),
  };
  if (status === 401) return new GatewayError('api', 'Authentication failed', details);
  if (status === 429) {
    return new GatewayError('rateLimit', `Rate limit exceeded at ${provider}: ${text}`, details);
  }
  const head = `API error: ${status}`;
  return new GatewayError('api', `${head} - ${text}`, { ...details, reason: head });
}

/** What the provider's code says of the request. */
function problemOf(reason: string, status: number): ErrorDetails['problem'] {
  if (REFUSED_BY_POLICY.test(reason)) return 'policy';
  return status === 400 && TOO_LONG.test(reason) ? 'length' : undefined;
}

/**
 * The upstream's message on one line, without keys and nothing of a page, or the status's reason
 * phrase; with the upstream's code behind it if it lacks it.
 */
function errorText({ message = '', code = '', status }: UpstreamFault, redact: Redactor): string {
  // Cut first, because everything after it takes time that grows with the text.
  const beginning = cutText(message, MAX_ERROR_TEXT_CHARACTERS + MAX_CUT_SECRET_CHARACTERS);
  const line = withoutControlCharacters(beginning).trim();
  const shown = cutText(redact(line), MAX_ERROR_TEXT_CHARACTERS).trimEnd();
  const text = (PAGE.test(shown) ? '' : shown) || (STATUS_CODES[status] ?? 'Unknown error');
  const isKnown = text.includes(code) || code === String(status);
  return CODE_WORD.test(code) && !isKnown ? `${text} (${redact(code)})` : text;
}

/**
 * The text; of an error without one, as of a page, what came instead: `502, text/html, "Bad
 * Gateway"`.
 */
function loggedCause({ message, status }: UpstreamFault, text: string, attempt: Attempt): string {
  if (message !== undefined || attempt.status !== status) return text;
  const [type] = (attempt.headers?.get('content-type') ?? '').split(';', 1);
  return `${status}, ${type || 'no content-type'}, ${JSON.stringify(text)}`;
}

/**
 * The upstream's type and code, or the status's reason phrase: what is told of an error without its
 * text.
 */
function namesOf({ code = '', type = '', status }: UpstreamFault, redact: Redactor): string {
  const names = [...new Set([type, code])].filter((name) => CODE_WORD.test(name));
  return redact(names.join(' ')) || (STATUS_CODES[status] ?? 'Unknown error');
}

/**
 * Seconds or a date (RFC 9110 10.2.3), as whole seconds from now, at least 1. Without it OpenAI's
 * `retry-after-ms`, which is not passed on: rounded differently, the two would contradict each
 * other.
 */
function readRetryAfter(headers: UpstreamHeaders | undefined): number | undefined {
  const inMs = headers?.get('retry-after-ms');
  const header = headers?.get('retry-after') || (inMs && `${Number(inMs) / 1000}`);
  if (!header) return undefined;
  // Repeated headers are joined by commas: take the first. An HTTP date contains one comma.
  const [value] = /^(?:[a-z]+,)?[^,]*/i.exec(header)!;
  const isNumber = /^\d+(?:\.\d+)?$/.test(value);
  const seconds = isNumber ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  if (!Number.isFinite(seconds)) return undefined;
  return Math.min(MAX_RETRY_AFTER_SECONDS, Math.max(1, Math.ceil(seconds)));
}

/**
 * Reads the JSON, or the text, of an error. `status` is the one that it, its code or its type
 * names, else 502.
 */
export function readFault(json: unknown) {
  const body = firstItem(json);
  const state = memberOf(body, 'base_resp');
  const sources = [memberOf(body, 'error'), firstItem(memberOf(body, 'errors')), body, state];
  const textOf = (name: string) => sources.map((source) => memberOf(source, name)).find(isText);
  const [code, type] = [textOf('code'), textOf('type')];
  const named = sources
    .flatMap((source) => STATUS_NAMES.map((name) => memberOf(source, name)))
    .find(isErrorStatus);
  const status = Number(named ?? statusOf(code) ?? statusOf(type) ?? 502);
  const message = firstText(json) ?? firstText(state);
  // A page, and the text of a proxy, is that of a wrong base_url.
  const isAboutModel = typeof json === 'object' && /model/i.test(`${message} ${code} ${type}`);
  return { message, code, type, status, isAboutModel };
}

/** The first text under one of the names, in arrays and objects inside them too. */
function firstText(value: unknown, search = { left: MAX_SEARCHED }): string | undefined {
  if (isText(value)) return value;
  if (typeof value !== 'object' || value === null || search.left === 0) return undefined;
  search.left -= 1;
  const isList = Array.isArray(value);
  const parts: unknown[] = isList ? value : MESSAGE_NAMES.map((name) => memberOf(value, name));
  let text: string | undefined;
  for (const part of parts) text ??= firstText(part, search);
  if (text === undefined || !SAYS_NOTHING.test(text)) return text;
  // Whose error it is, and what it says.
  const metadata = memberOf(value, 'metadata');
  const raw = memberOf(metadata, 'raw');
  const inner = firstText(typeof raw === 'string' ? parseUntrustedJson(raw) : raw, search) ?? raw;
  return [text, memberOf(metadata, 'provider_name'), inner].filter(isText).join(': ');
}

function statusOf(code: string | undefined): number | undefined {
  const word = toWord(code);
  return STATUSES_BY_WORD.find(([words]) => words.test(word))?.[1];
}

/** A code in lower case and without separators; '' if it is too long to be one. */
function toWord(code = ''): string {
  return code.length > MAX_CODE_CHARACTERS ? '' : code.toLowerCase().replace(/[^a-z\d]+/g, '');
}

/** A number or a text: to make text of a deep array would overflow the stack. */
function isErrorStatus(value: unknown): boolean {
  return (typeof value === 'number' || typeof value === 'string') && /^[45]\d\d$/.test(`${value}`);
}

function isText(value: unknown): value is string {
  return typeof value === 'string' && value.trim() !== '';
}
