import assert from 'node:assert/strict';
import { test } from 'node:test';

import { causeOf } from '../../src/request/cause.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import { TransportError, upstreamFailure } from '../../src/upstream/connections/network-error.ts';

const IPV4 = '192.0.2.1';
const IPV6 = '2001:db8::1';

function systemError(code: string, address?: string): Error {
  return Object.assign(new Error(`connect ${code}`), { code, address });
}

/** Combines errors as node:net does for several addresses: with the first error's code. */
function ofAll(...errors: NodeJS.ErrnoException[]): Error {
  return Object.assign(new AggregateError(errors), { code: errors[0]!.code });
}

function failureOf(cause: Error): GatewayError {
  const thrown = new TransportError(cause, 'unconnected');
  const failure = upstreamFailure(thrown);
  assert.ok(failure instanceof GatewayError);
  return failure;
}

test("connections that this machine cannot open are not the provider's fault", () => {
  const refused = systemError('ECONNREFUSED', IPV4);
  const noRoute = systemError('ENETUNREACH', IPV6);
  const causes: readonly [string, Error][] = [
    ['EMFILE', systemError('EMFILE', IPV4)],
    ['EMFILE', systemError('EMFILE')],
    ['EMFILE', ofAll(refused, systemError('EMFILE', IPV4))],
    ['ENFILE', systemError('ENFILE', IPV6)],
    ['EADDRNOTAVAIL', systemError('EADDRNOTAVAIL', IPV4)],
    ['EADDRNOTAVAIL', ofAll(noRoute, systemError('EADDRNOTAVAIL', IPV4))],
  ];
  for (const [code, cause] of causes) {
    const { kind, status, message, scope, details } = failureOf(cause);
    assert.deepEqual([kind, status, message], ['internal', 500, 'Internal server error']);
    assert.equal(scope, 'gateway');
    const { cause: text, ...rest } = details;
    assert.deepEqual(rest, { retry: 'later', problem: 'descriptors' });
    assert.match(String(text), new RegExp(`^${code}: (?:open files|local ports) .*\\)$`));
  }
});

test("other failed connections are the provider's fault, also without IPv6", () => {
  const noIPv6 = systemError('EADDRNOTAVAIL', IPV6);
  const refused = systemError('ECONNREFUSED', IPV4);
  for (const cause of [refused, noIPv6, ofAll(noIPv6, refused)]) {
    const { kind, scope } = failureOf(cause);
    assert.deepEqual([kind, scope], ['provider', 'provider']);
  }
});

test('a failure at several addresses has the cause of the first', () => {
  const cause = ofAll(systemError('ECONNREFUSED', IPV6), systemError('ETIMEDOUT', IPV4));
  assert.equal(causeOf(failureOf(cause)), 'ECONNREFUSED: connect ECONNREFUSED');
});
