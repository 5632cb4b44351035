/** Compares a whole error answer: an unexpected member or header fails like a missing one. */

import assert from 'node:assert/strict';
import type { IncomingHttpHeaders } from 'node:http';

import { parseReplies, type RawReply } from './raw.ts';

export interface ExpectedError {
  readonly httpStatus: number;
  readonly type: string;
  readonly message: string | RegExp;
  readonly code?: string;
  readonly retry_after?: number;
  readonly provider?: string;
  readonly status?: number;
  /** The headers of `SPECIAL_HEADERS` in the answer. */
  readonly headers?: Readonly<Record<string, string>>;
}

/** Headers of some errors. They must be absent from all others. */
const SPECIAL_HEADERS = [
  'retry-after',
  'www-authenticate',
  'allow',
  'x-should-retry',
  'x-gateway-provider',
];

interface AnyReply {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

export function assertError(
  reply: AnyReply,
  { httpStatus, headers = {}, message, ...fields }: ExpectedError,
): void {
  assert.equal(reply.status, httpStatus, reply.text);
  assert.match(reply.headers['content-type'] ?? '', /^application\/json(?:;|$)/);
  assert.match(reply.headers['x-request-id'] as string, /^[\x21-\x7e]{1,128}$/);
  const special = SPECIAL_HEADERS.map((name) => [name, reply.headers[name]]);
  assert.deepEqual(Object.fromEntries(special.filter(([, value]) => value !== undefined)), headers);
  const body = JSON.parse(reply.text) as { error: { message: string } };
  assert.deepEqual(Object.keys(body), ['error']);
  const { message: sent, ...others } = body.error;
  assert.deepEqual(others, fields);
  if (typeof message === 'string') assert.equal(sent, message);
  else assert.match(sent, message);
}

/** A refused request: 400, or the status defined by HTTP for a special case. */
export function refusal(about: RegExp = /./, httpStatus = 400): ExpectedError {
  return {
    httpStatus,
    type: 'invalid_request_error',
    code: 'INVALID_REQUEST',
    message: new RegExp(`^Invalid request: .*${about.source}`, about.flags),
  };
}

export const NOT_AUTHENTICATED: ExpectedError = {
  httpStatus: 401,
  type: 'authentication_error',
  message: 'Invalid authentication',
  headers: { 'www-authenticate': 'Bearer' },
};

export const NOT_FOUND: ExpectedError = {
  httpStatus: 404,
  type: 'not_found_error',
  code: 'NOT_FOUND',
  message: 'Resource not found',
};

export function unknownProvider(id: string): ExpectedError {
  return {
    httpStatus: 400,
    type: 'invalid_request_error',
    code: 'INVALID_REQUEST',
    message: `Unknown provider: ${id}`,
  };
}

/** Converts the first response of a raw exchange for `assertError`. */
export function parseRaw({ text, status, body }: Omit<RawReply, 'isClosed'>): AnyReply {
  return { status, headers: parseReplies(text)[0]?.headers ?? {}, text: body };
}

/** Checks for a 429 from the gateway's own limits. A provider's header must name `p`. */
export function assertLimited(reply: AnyReply, message: string): void {
  const seconds = String(reply.headers['retry-after']);
  assert.match(seconds, /^[1-9]\d*$/);
  const provider = reply.headers['x-gateway-provider'];
  assertError(reply, {
    httpStatus: 429,
    type: 'rate_limit_error',
    code: 'RATE_LIMIT_ERROR',
    message,
    retry_after: Number(seconds),
    headers: { 'retry-after': seconds, ...(provider && { 'x-gateway-provider': 'p' }) },
  });
}
