/** Checks that an answer is documented, for tests that cannot know which answer they get. */

import assert from 'node:assert/strict';

import { dataOf } from './streams.ts';

/** Type, code and status of each documented error. `API_ERROR` has the provider's status. */
const ERRORS = [
  'authentication_error - 401',
  'rate_limit_error RATE_LIMIT_ERROR 429',
  ...[400, 408, 413, 417, 426, 431].map(
    (status) => `invalid_request_error INVALID_REQUEST ${status}`,
  ),
  'not_found_error NOT_FOUND 404',
  'provider_error PROVIDER_ERROR 502',
  'timeout_error TIMEOUT 504',
  'internal_error INTERNAL_ERROR 500',
  'internal_error SERIALIZATION_ERROR 500',
  'unsupported_feature UNSUPPORTED_FEATURE 501',
];
const PREFIXES: Readonly<Record<string, RegExp>> = {
  INVALID_REQUEST: /^(?:Invalid request: |Unknown provider: )/,
  PROVIDER_ERROR: /^Provider error: /,
  SERIALIZATION_ERROR: /^Serialization error: /,
  API_ERROR: /^(?:API error: \d{3} - .|Authentication failed$)/,
};

/** Checks an error object. Returns its code, or `-` if it has none. */
export function assertErrorObject(text: string, httpStatus?: number): string {
  const body = JSON.parse(text) as { error: Record<string, unknown> };
  assert.deepEqual(Object.keys(body), ['error'], text);
  const { type, message, code = '-', retry_after: wait, provider, status, ...rest } = body.error;
  assert.deepEqual(rest, {}, text);
  assert.ok(typeof type === 'string' && typeof message === 'string' && message !== '', text);
  assert.ok(typeof code === 'string', text);
  assert.match(message, PREFIXES[code] ?? /./, text);
  assert.equal(wait !== undefined, type === 'rate_limit_error', text);
  assert.ok(wait === undefined || (Number.isInteger(wait) && Number(wait) >= 1), text);
  assert.equal(provider !== undefined, type === 'provider_error', text);
  assert.equal(status !== undefined, code === 'API_ERROR', text);
  if (code === 'API_ERROR') {
    assert.equal(type, 'provider_error', text);
    assert.ok(Number(status) >= 400 && Number(status) <= 599, text);
    if (httpStatus !== undefined) assert.equal(httpStatus, status, text);
  } else {
    const rows = ERRORS.filter((row) => row.startsWith(`${type} ${code} `));
    assert.ok(rows.length > 0, text);
    const isListed = rows.includes(`${type} ${code} ${httpStatus}`);
    assert.ok(httpStatus === undefined || isListed, `${httpStatus} ${text}`);
  }
  return code;
}

/** Whether this is the data of the last event; spaces around the mark are allowed. */
export const isDoneMark = (data: string) => /^[ \t]*\[DONE\][ \t]*$/.test(data);

/**
 * Checks a stream's end: `[DONE]`, or an error object in the last event. Returns the error's code,
 * or `ok`.
 */
export function assertStreamEnd(text: string): string {
  const data = dataOf(text);
  if (data.some(isDoneMark)) return 'ok';
  return assertErrorObject(data.at(-1) ?? assert.fail('an empty stream'));
}
