/** A network failure's scope, and whether its request may be repeated. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { gatewayKindOf } from '../../src/request/incident-kind.ts';
import { tooLargeError } from '../../src/upstream/answers/answer-errors.ts';
import {
  type ConnectionFailure,
  TransportError,
  upstreamFailure,
} from '../../src/upstream/connections/network-error.ts';

/** Returns a failure's kind, scope, retry and problem. */
function failureOf(code: string, connectionFailure?: ConnectionFailure) {
  const cause = Object.assign(new Error(code), { code });
  const failure = upstreamFailure(new TransportError(cause, connectionFailure));
  assert.ok(failure instanceof GatewayError);
  const { details, kind, retry, scope } = failure;
  return [kind, scope, retry, details.problem].filter(Boolean);
}

test('a failed connection is a failure of the whole provider, and may be retried', () => {
  for (const code of ['ECONNREFUSED', 'ECONNRESET', 'EPIPE']) {
    assert.deepEqual(failureOf(code, 'unconnected'), ['provider', 'provider', 'later']);
  }
});

test('a connection that times out fails the whole provider, and is not retried', () => {
  assert.deepEqual(failureOf('ETIMEDOUT', 'unconnected'), ['timeout', 'provider', 'no']);
  assert.deepEqual(failureOf('UND_ERR_CONNECT_TIMEOUT'), ['timeout', 'provider', 'no']);
});

test('a timeout on a connection that was made is a failure of the model', () => {
  for (const at of ['stale', 'inHead', 'inBody', undefined] as const) {
    assert.deepEqual(failureOf('ETIMEDOUT', at), ['timeout', 'model', 'no']);
  }
});

test('a request is repeated at once if its connection had been closed before', () => {
  assert.deepEqual(failureOf('ECONNRESET', 'stale'), ['provider', 'model', 'at once', 'cut']);
  assert.deepEqual(failureOf('ECONNRESET'), ['provider', 'model', 'later', 'cut']);
});

test('a request whose answer has begun is not repeated', () => {
  for (const at of ['inHead', 'inBody'] as const) {
    assert.deepEqual(failureOf('ECONNRESET', at), ['provider', 'model', 'no', 'cut']);
  }
});

test('an answer that is not HTTP is not cut off, and is not repeated', () => {
  assert.deepEqual(failureOf('HPE_INVALID_CONSTANT', 'inHead'), ['provider', 'model', 'no']);
});

test('an answer or event that can never fit is a failure of the gateway', () => {
  const shown = (part: 'answer' | 'event', maxBufferedBytes: number) => {
    const failure = tooLargeError(part, maxBufferedBytes);
    const { message, outcome, retry, scope } = failure;
    assert.deepEqual([scope, outcome, retry], ['gateway', 'internal_error', 'no']);
    assert.equal(failure.provider, undefined);
    assert.equal(gatewayKindOf(failure), undefined, 'no incident');
    return message.replace(/^The (?:answer|event) is larger than /, '');
  };
  const mebibytes = (count: number) => count * 1_048_576;
  assert.equal(shown('answer', mebibytes(256)), '268435456 bytes');
  assert.equal(shown('event', mebibytes(64)), '67108864 bytes');
  const bytes = mebibytes(64) - 1;
  for (const part of ['answer', 'event'] as const)
    assert.equal(shown(part, bytes), `max_buffered_bytes, ${bytes} bytes`);
});
