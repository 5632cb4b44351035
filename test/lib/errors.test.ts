/** The error table: bodies, headers and outcomes. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError, invalidRequest } from '../../src/lib/errors.ts';

type Kind = ConstructorParameters<typeof GatewayError>[0];

test('each kind has its status, type, code, outcome and scope', () => {
  const rows: Record<Kind, string> = {
    authentication: '401 authentication_error undefined refused client',
    rateLimit: '429 rate_limit_error RATE_LIMIT_ERROR rate_limited gateway',
    invalidRequest: '400 invalid_request_error INVALID_REQUEST refused client',
    unknownProvider: '400 invalid_request_error INVALID_REQUEST refused client',
    notFound: '404 not_found_error NOT_FOUND refused client',
    provider: '502 provider_error PROVIDER_ERROR upstream_error model',
    api: '502 provider_error API_ERROR upstream_error model',
    timeout: '504 timeout_error TIMEOUT timeout model',
    internal: '500 internal_error INTERNAL_ERROR internal_error gateway',
    serialization: '500 internal_error SERIALIZATION_ERROR upstream_error model',
    unsupported: '501 unsupported_feature UNSUPPORTED_FEATURE upstream_error model',
  };
  for (const [kind, expected] of Object.entries(rows)) {
    const failure = new GatewayError(kind as Kind, 'boom');
    const { error } = JSON.parse(failure.toBody()) as { error: Record<string, string> };
    const { status, outcome, scope } = failure;
    const actual = [status, error['type'], error['code'], outcome, scope].map(String).join(' ');
    assert.equal(actual, expected, kind);
    assert.equal(error['message'], failure.message);
  }
});

test('details replace the status, scope and retry of the table', () => {
  const details = { status: 400, upstreamStatus: 400, scope: 'client', retry: 'later' } as const;
  const failure = new GatewayError('api', 'a', details);
  assert.deepEqual([failure.status, failure.scope, failure.retry], [400, 'client', 'later']);
  assert.equal(failure.outcome, 'rejected');
  const limited = { upstreamStatus: 429, scope: 'client' } as const;
  assert.equal(new GatewayError('rateLimit', 'a', limited).outcome, 'rejected');
  assert.equal(new GatewayError('api', 'a', { status: 504 }).outcome, 'upstream_error');
  assert.equal(new GatewayError('provider', 'a', { scope: 'gateway' }).outcome, 'internal_error');
  assert.equal(new GatewayError('timeout', 'a', { scope: 'client' }).outcome, 'timeout');
  assert.equal(new GatewayError('provider', 'a').retry, 'no');
  assert.equal(invalidRequest('a', { status: 413 }).status, 413);
  assert.equal(invalidRequest('a').message, 'Invalid request: a');
});

test('the body names the provider and its status only for errors of a provider', () => {
  const details = { upstreamStatus: 503, retryAfterSeconds: 7 };
  const shown = (kind: Kind) => {
    const failure = new GatewayError(kind, 'a', details);
    failure.provider = 'p';
    const { error } = JSON.parse(failure.toBody()) as { error: Record<string, unknown> };
    return [error['provider'], error['status'], error['retry_after']];
  };
  assert.deepEqual(shown('api'), ['p', 503, undefined]);
  assert.deepEqual(shown('provider'), ['p', undefined, undefined]);
  assert.deepEqual(shown('timeout'), [undefined, undefined, undefined]);
  assert.deepEqual(shown('rateLimit'), [undefined, undefined, 7]);
});

test('the headers say when and whether a repetition can help', () => {
  const headersOf = (kind: Kind, details = {}) => {
    const headers = new GatewayError(kind, 'a', details).toHeaders();
    return [headers['retry-after'], headers['x-should-retry'], headers['www-authenticate']];
  };
  assert.deepEqual(headersOf('rateLimit'), ['1', undefined, undefined]);
  assert.deepEqual(headersOf('rateLimit', { retryAfterSeconds: 60 }), ['60', undefined, undefined]);
  assert.deepEqual(headersOf('rateLimit', { retryAfterSeconds: 61 }), ['61', 'false', undefined]);
  assert.deepEqual(headersOf('provider', { retryAfterSeconds: 5 }), ['5', undefined, undefined]);
  assert.deepEqual(headersOf('timeout'), [undefined, 'false', undefined]);
  assert.deepEqual(headersOf('unsupported'), [undefined, 'false', undefined]);
  for (const status of [501, 504]) {
    assert.deepEqual(headersOf('api', { status }), [undefined, undefined, undefined]);
  }
  assert.deepEqual(headersOf('authentication'), [undefined, undefined, 'Bearer']);
  assert.deepEqual(headersOf('api', { status: 401 }), [undefined, undefined, undefined]);
  const allow = { headers: { allow: 'GET' } };
  assert.deepEqual(new GatewayError('notFound', 'a', allow).toHeaders(), {
    'content-type': 'application/json',
    'x-content-type-options': 'nosniff',
    allow: 'GET',
  });
});

test('any other thrown value becomes the cause of a fixed 500', () => {
  const failure = invalidRequest('a');
  assert.equal(GatewayError.from(failure), failure);
  for (const thrown of [new TypeError('secret'), 'secret', undefined]) {
    const { kind, message, cause } = GatewayError.from(thrown);
    assert.deepEqual([kind, message, cause], ['internal', 'Internal server error', thrown]);
  }
});
