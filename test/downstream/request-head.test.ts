/** The checks of a request's head beyond those of Node's parser. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { checkProtocol, pathOf, soleHeader, toAddress } from '../../src/downstream/request-head.ts';
import type { GatewayError } from '../../src/lib/errors.ts';

type Headers = Readonly<Record<string, string>>;

/** Returns the refusal's status and text; undefined if the head is accepted. */
function refusalOf(
  headers: Headers,
  { version = '1.1', raw = Object.entries(headers).flat(), isHealthCheck = false } = {},
): string | undefined {
  try {
    checkProtocol(
      { httpVersion: version, headers: { ...headers }, rawHeaders: raw },
      isHealthCheck,
    );
    return undefined;
  } catch (error) {
    const { status, message } = error as GatewayError;
    return `${status} ${message.replace('Invalid request: ', '')}`;
  }
}

test('a header counts only if it was sent once, in any letter case', () => {
  const rawHeaders = ['Host', 'a', 'X-One', '1', 'hosts', 'b', 'COOKIE', 'c', 'cookie', 'd'];
  const head = { rawHeaders };
  assert.equal(soleHeader(head, 'host'), 'a');
  assert.equal(soleHeader(head, 'x-one'), '1');
  assert.equal(soleHeader(head, 'cookie'), undefined);
  // Values at the odd places are no names.
  assert.equal(soleHeader({ rawHeaders: ['a', 'host', 'b', 'x'] }, 'host'), undefined);
  assert.equal(soleHeader({ rawHeaders: ['host', '', 'Host', ''] }, 'host'), undefined);
});

test('the path is the text before the query, without scheme and authority', () => {
  const paths: Record<string, string> = {
    '/v1/models': '/v1/models',
    '/v1/models?a=/b': '/v1/models',
    '/a/../%62//c': '/a/../%62//c',
    'http://host:80/health': '/health',
    'HTTPS://host/a?b': '/a',
    'http://host': '/',
    'http://host?a': '/',
    '?a': '/',
    '*': '*',
    'ftp://host/a': 'ftp://host/a',
    '//host/a': '//host/a',
    '': '/',
  };
  for (const [target, path] of Object.entries(paths)) assert.equal(pathOf(target), path, target);
});

test('exactly one valid Host is required, except from probes and HTTP/1.0', () => {
  const missing = '400 exactly one valid Host header is required';
  for (const host of ['a', 'a:80', '[::1]:80', '192.0.2.1', 'a_b.c']) {
    assert.equal(refusalOf({ host }), undefined, host);
  }
  for (const host of ['', 'a b', 'a,b', 'a/b', 'u@a', 'a?b', 'a#b', 'a\\b']) {
    assert.equal(refusalOf({ host }), missing, host);
  }
  assert.equal(refusalOf({}), missing);
  assert.equal(refusalOf({}, { isHealthCheck: true }), missing);
  assert.equal(refusalOf({ host: '' }, { isHealthCheck: true }), undefined);
  assert.equal(refusalOf({ host: 'a b' }, { isHealthCheck: true }), missing);
  assert.equal(refusalOf({}, { version: '1.0' }), undefined);
  assert.equal(refusalOf({ host: '' }, { version: '1.0' }), missing);
  const twice = { raw: ['Host', 'a', 'host', 'a'] };
  assert.equal(refusalOf({ host: 'a' }, twice), missing);
  assert.equal(refusalOf({ host: 'a' }, { ...twice, version: '1.0' }), missing);
});

test('versions, header counts, codings and expectations that Node accepts are refused', () => {
  const host = 'a';
  for (const version of ['0.9', '1.2', '2.0']) {
    assert.equal(refusalOf({ host }, { version }), '400 HTTP version must be 1.0 or 1.1');
  }
  const many = (count: number) => ['host', 'a', ...Array<string>(2 * count).fill('x')];
  assert.equal(refusalOf({ host }, { raw: many(999) }), undefined);
  assert.equal(refusalOf({ host }, { raw: many(1000) }), '431 too many headers');

  const coding = (value: string, version?: string) =>
    refusalOf({ host, 'transfer-encoding': value }, { ...(version && { version }) });
  const onlyChunked = '400 Transfer-Encoding must be chunked';
  assert.equal(coding('Chunked'), undefined);
  for (const value of ['gzip, chunked', 'chunked, chunked', 'identity', '']) {
    assert.equal(coding(value), onlyChunked, value);
  }
  assert.equal(coding('chunked', '1.0'), onlyChunked);

  assert.equal(refusalOf({ host, expect: '100-Continue' }), undefined);
  for (const expect of ['', '200-ok', '100-continue, a']) {
    assert.equal(refusalOf({ host, expect }), '417 Expect must be 100-continue', expect);
  }
});

test('an address loses its port, brackets and mapping, and any other text is none', () => {
  const addresses: Record<string, string | undefined> = {
    '192.0.2.1': '192.0.2.1',
    '192.0.2.1:80': '192.0.2.1',
    '2001:db8::1': '2001:db8::1',
    '[2001:db8::1]': '2001:db8::1',
    '[2001:db8::1]:65535': '2001:db8::1',
    '::ffff:192.0.2.1': '192.0.2.1',
    '::FFFF:192.0.2.1': '192.0.2.1',
    '[::ffff:192.0.2.1]:80': '192.0.2.1',
    '::ffff:999.0.2.1': undefined,
    'fe80::1%eth0': 'fe80::1%eth0',
    [`fe80::1%${'x'.repeat(56)}`]: `fe80::1%${'x'.repeat(56)}`,
    [`fe80::1%${'x'.repeat(57)}`]: undefined,
    '192.0.2.1:': undefined,
    '192.0.2.1:123456': undefined,
    '192.0.2.256': undefined,
    '192.0.2.1, 192.0.2.2': undefined,
    localhost: undefined,
    '[192.0.2.1': undefined,
    ' 192.0.2.1': undefined,
    '': undefined,
  };
  for (const [text, address] of Object.entries(addresses)) {
    assert.equal(toAddress(text), address, text);
  }
});
