/** The headers that pass between clients and providers. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  addClientHeaders,
  returnedHeaders,
  forwardedHeaders,
  upstreamRequestId,
} from '../../src/upstream/answers/headers.ts';
import { fixedHeaders } from '../../src/upstream/connections/upstream-request.ts';
import { newReplyContext } from '../support/reply-context.ts';

const fixed = fixedHeaders('http://p', {});

const LONGEST = 'x'.repeat(4096);

/** A context with these settings. The only key is `secret`. */
function contextWith(settings: { forwardHeaders?: string[]; returnHeaders?: string[] }) {
  const context = newReplyContext();
  const redact = Object.assign((text: string) => text.replaceAll('secret', '***'), {
    mayChange: () => true,
  });
  return {
    ...context,
    settings: { ...context.settings, ...settings },
    services: { ...context.services, redact },
  };
}

test('rate limits and x-should-retry pass to the client, without keys in their values', () => {
  const passed = {
    'x-ratelimit-limit-requests': '9',
    'ratelimit-reset': '1',
    'anthropic-ratelimit-tokens-remaining': '***',
    'x-should-retry': 'true',
  };
  const others = {
    'my-x-ratelimit-limit': '1',
    'x-should-retry-after': '1',
    'retry-after-ms': '1',
    'x-rate-limit': '1',
    server: 'x',
  };
  const sent = { ...passed, 'anthropic-ratelimit-tokens-remaining': 'secret', ...others };
  assert.deepEqual(returnedHeaders(new Map(Object.entries(sent)), contextWith({})), passed);
});

test('named headers pass if they are visible ASCII without keys, up to 4,096 bytes', () => {
  const values: Record<string, boolean> = {
    'a\tb c': true,
    [LONGEST]: true,
    [`${LONGEST}x`]: false,
    'caf\u00e9': false,
    'a secret': false,
    '': false,
  };
  for (const [value, passes] of Object.entries(values)) {
    const context = contextWith({ forwardHeaders: ['x-a'], returnHeaders: ['x-a'] });
    const headers = new Map([
      ['x-a', value],
      ['x-b', value],
    ]);
    assert.deepEqual(returnedHeaders(headers, context), passes ? { 'x-a': value } : {}, value);
    const call = { ...context.call, headers: { 'x-a': value, 'x-b': value } };
    const request = {
      method: 'POST',
      origin: '',
      path: '',
      fixed,
      headers: ['x-own', '1'],
    } as const;
    const forwarded = addClientHeaders(request, { ...context, call }).headers;
    assert.deepEqual(forwarded, passes ? ['x-own', '1', 'x-a', value] : ['x-own', '1'], value);
    const unset = addClientHeaders(request, { ...contextWith({}), call });
    assert.equal(unset, request);
  }
});

test('a header that Connection names passes in neither direction', () => {
  const connection = 'close , X-A,x-ratelimit-limit';
  const context = contextWith({ forwardHeaders: ['x-a', 'x-b'], returnHeaders: ['x-a', 'x-b'] });
  const headers = { connection, 'x-a': '1', 'x-b': '2', 'x-ratelimit-limit': '3' };
  assert.deepEqual(returnedHeaders(new Map(Object.entries(headers)), context), { 'x-b': '2' });
  const call = { ...context.call, headers };
  const request = { method: 'POST', origin: '', path: '', fixed, headers: [] } as const;
  assert.deepEqual(addClientHeaders(request, { ...context, call }).headers, ['x-b', '2']);
});

test('a long value is cut before it is searched for keys, unless settings name it', () => {
  const long = 'y'.repeat(15_000);
  const searched: number[] = [];
  const redact = Object.assign(
    (text: string) => {
      searched.push(text.length);
      return text;
    },
    { mayChange: () => true },
  );
  const context = contextWith({ returnHeaders: ['x-a'] });
  const services = { ...context.services, redact };
  const names = ['x-ratelimit-limit-requests', 'x-should-retry', 'x-request-id', 'content-type'];
  const headers = new Map(names.map((name) => [name, long]));
  headers.set('x-a', LONGEST);
  assert.deepEqual(returnedHeaders(headers, { ...context, services }), {
    'x-ratelimit-limit-requests': long.slice(0, 1024),
    'x-should-retry': long.slice(0, 1024),
    'x-a': LONGEST,
  });
  assert.deepEqual(searched, [1024, 1024, LONGEST.length]);
  assert.equal(upstreamRequestId(headers), long.slice(0, 1024));
});

test('Connection is read once for all headers of an answer', () => {
  const asked: string[] = [];
  const names = Array.from({ length: 100 }, (_, at): [string, string] => [`ratelimit-${at}`, '1']);
  const headers = new Map([...names, ['connection', 'ratelimit-7']] as const);
  const counted = Object.assign(new Map(headers), {
    get(name: string) {
      asked.push(name);
      return headers.get(name);
    },
  });
  assert.equal(Object.keys(returnedHeaders(counted, contextWith({}))).length, 99);
  assert.deepEqual(
    asked.filter((name) => name === 'connection'),
    ['connection'],
  );
});

test("the provider's own id is preferred to its cloud's, unless Connection names it", () => {
  const names = 'x-request-id request-id apim-request-id x-amzn-requestid cf-ray'.split(' ');
  const headers = new Map(names.map((name) => [name, `id of ${name}`]));
  for (const name of names) {
    assert.equal(upstreamRequestId(headers), `id of ${name}`);
    headers.set(name, '');
  }
  assert.equal(upstreamRequestId(headers), undefined);
  headers.set('cf-ray', 'a').set('x-request-id', 'b');
  assert.equal(upstreamRequestId(headers.set('connection', 'X-Request-Id')), 'a');
});

test('a valid traceparent is kept with its tracestate, any other is replaced', () => {
  const trace = '0af7651916cd43dd8448eb211c80319c';
  const parent = `00-${trace}-b7ad6b7169203331-00`;
  const tracestate = 'a=1,b=2';
  assert.deepEqual(forwardedHeaders('r', { traceparent: parent, tracestate }), {
    traceId: trace,
    headers: ['x-request-id', 'r', 'traceparent', parent, 'tracestate', tracestate],
  });
  for (const state of ['', 'x'.repeat(513), '\u00e9']) {
    const { headers } = forwardedHeaders('r', { traceparent: parent, tracestate: state });
    assert.deepEqual(headers, ['x-request-id', 'r', 'traceparent', parent], state);
  }
  const wrong = [
    '',
    `ff${parent.slice(2)}`,
    parent.toUpperCase(),
    `${parent}, ${parent}`,
    `${parent}-1`,
    `00-${'0'.repeat(32)}-b7ad6b7169203331-00`,
    `00-${trace}-${'0'.repeat(16)}-00`,
  ];
  for (const traceparent of wrong) {
    const { traceId, headers } = forwardedHeaders('r', {
      traceparent,
      tracestate,
    });
    const [, , , made = ''] = headers;
    assert.equal(headers.length, 4, traceparent);
    assert.match(made, /^00-[\da-f]{32}-[\da-f]{16}-01$/);
    assert.equal(traceId, made.slice(3, 35));
    assert.notEqual(traceId, trace);
  }
});
