import assert from 'node:assert/strict';
import { createServer, type AddressInfo, type Socket } from 'node:net';
import { after, before, describe, test, type TestContext } from 'node:test';

import { MAX_JSON_ELEMENTS } from '../src/lib/json-scanner.ts';
import { idle, replaceNow, useManualTimers } from './support/clock.ts';
import {
  assertError,
  NOT_AUTHENTICATED,
  NOT_FOUND,
  parseRaw,
  refusal,
  unknownProvider,
  type ExpectedError,
} from './support/errors.ts';
import {
  chatBody,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type TestGateway,
} from './support/gateway.ts';
import { sendRaw } from './support/raw.ts';
import { createScope } from './support/scope.ts';
import { eventually } from './support/streams.ts';
import { sweep } from './support/sweep.ts';
import {
  NOBODY_LISTENS,
  completion,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
  type Script,
} from './support/upstream.ts';

const chosen = { 'x-gateway-provider': 'p' };

const PROVIDER_FAILED: ExpectedError = {
  httpStatus: 502,
  type: 'provider_error',
  code: 'PROVIDER_ERROR',
  provider: 'p',
  message: /^Provider error: \S/,
  headers: chosen,
};
const TIMED_OUT: ExpectedError = {
  httpStatus: 504,
  type: 'timeout_error',
  code: 'TIMEOUT',
  message: 'Request timed out',
  headers: { ...chosen, 'x-should-retry': 'false' },
};
const NOT_JSON: ExpectedError = {
  httpStatus: 500,
  type: 'internal_error',
  code: 'SERIALIZATION_ERROR',
  message: /^Serialization error: \S/,
  headers: chosen,
};
const NO_STREAMING: ExpectedError = {
  httpStatus: 501,
  type: 'unsupported_feature',
  code: 'UNSUPPORTED_FEATURE',
  message: /\S/,
  headers: { ...chosen, 'x-should-retry': 'false' },
};
const INTERNAL: ExpectedError = {
  httpStatus: 500,
  type: 'internal_error',
  code: 'INTERNAL_ERROR',
  message: 'Internal server error',
};
const KEY_REJECTED: ExpectedError = {
  httpStatus: 401,
  type: 'provider_error',
  code: 'API_ERROR',
  provider: 'p',
  status: 401,
  message: 'Authentication failed',
  headers: chosen,
};

function apiError(status: number, text: string | RegExp): ExpectedError {
  const message = `API error: ${status} - `;
  return {
    httpStatus: status,
    type: 'provider_error',
    code: 'API_ERROR',
    provider: 'p',
    status,
    message: typeof text === 'string' ? message + text : new RegExp(`^${message}${text.source}`),
    headers: status === 504 ? { ...chosen, 'x-should-retry': 'false' } : chosen,
  };
}

function rateLimited(seconds: number, headers: Record<string, string> = chosen): ExpectedError {
  return {
    httpStatus: 429,
    type: 'rate_limit_error',
    code: 'RATE_LIMIT_ERROR',
    message: /\S/,
    retry_after: seconds,
    headers: { ...headers, 'retry-after': String(seconds) },
  };
}

const withoutToken = { headers: { authorization: undefined } };
const busy = '[rate_limit]\nenabled = true\n';
const oneGlobally = `${busy}requests_per_second = 1\nburst_capacity = 1\n`;
const oneAtP = `${busy}[rate_limit.providers.p]\nrequests_per_second = 1\nburst_capacity = 1\n`;

// What the gateway refuses by itself. `first` requests use up what there is of a limit.
const refusals: {
  name: string;
  path?: string;
  body?: object | string;
  options?: object;
  toml?: string;
  first?: number;
  expected: ExpectedError;
}[] = [
  { name: 'no Authorization', options: withoutToken, expected: NOT_AUTHENTICATED },
  {
    name: 'another scheme than Bearer',
    options: { headers: { authorization: 'Basic dTpw' } },
    expected: NOT_AUTHENTICATED,
  },
  { name: 'the global rate limit', toml: oneGlobally, first: 1, expected: rateLimited(1, {}) },
  { name: "a provider's rate limit", toml: oneAtP, first: 1, expected: rateLimited(1) },
  { name: 'malformed JSON', body: '{"model":', expected: refusal() },
  { name: 'no model', body: { messages: [] }, expected: refusal(/model/) },
  { name: 'no messages', body: { model: 'p/m' }, expected: refusal(/messages/) },
  { name: 'an unknown model', body: chatBody({ model: 'nothing' }), expected: refusal(/model/) },
  { name: 'a bad parameter', body: chatBody({ stream: 'yes' }), expected: refusal(/stream/) },
  {
    name: 'an unregistered provider',
    body: chatBody({ model: 'q/m' }),
    expected: unknownProvider('q'),
  },
  { name: 'an unknown endpoint', path: '/v1/embeddings', expected: NOT_FOUND },
  {
    name: 'a method that the endpoint does not have',
    path: '/v1/models',
    expected: { ...NOT_FOUND, headers: { allow: 'GET' } },
  },
];
for (const { name, path, body, options, toml = '', first = 0, expected } of refusals) {
  test(`${name} is answered with ${expected.httpStatus} ${expected.type}`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: toml + providerToml(upstream) });
    // No new token, however slow the machine is.
    if (first > 0) replaceNow(t, () => 1000);
    for (let sent = 0; sent < first; sent += 1) {
      assert.equal((await gateway.chat(chatBody())).status, 200);
    }
    const reply = path
      ? await gateway.send(path, { method: 'POST', body: '{}', ...options })
      : await gateway.chat(body ?? chatBody(), options);
    assertError(reply, expected);
    assert.equal(upstream.requests.length, first);
  });
}

test('an invalid header name is answered with 400 invalid_request_error', async (t) => {
  const gateway = await startGateway(t, {});
  const reply = await sendRaw(
    gateway.port,
    'GET /health HTTP/1.1\r\nHost: x\r\nbad name: 1\r\n\r\n',
  );
  assertError(parseRaw(reply), refusal());
});

test('an exception before a provider is chosen is a fixed 500', async (t) => {
  const gateway = await startGateway(t, {
    adjust: (config) => ({ ...config, server: failing(config.server, 'maxBodyBytes') }),
  });
  assertError(await gateway.chat(chatBody()), INTERNAL);
});

test("an exception amid a provider's answer is the same fixed 500", async (t) => {
  const upstream = await startUpstream(t, (_, response) =>
    sendEvents(response, 'data: {"choices":[]}\n\n'),
  );
  const gateway = await startGateway(t, {
    toml: providerToml(upstream),
    adjust: (config) => ({ ...config, server: failing(config.server, 'streamIdleTimeoutMs') }),
  });
  const reply = await gateway.chat(chatBody({ stream: true }));
  assertError(reply, { ...INTERNAL, headers: chosen });
});

test('a request that causes an exception leaves the gateway serving', async (t) => {
  const gateway = await startGateway(t, {
    adjust: (config) => ({ ...config, server: failing(config.server, 'maxBodyBytes') }),
  });
  assert.equal((await gateway.chat(chatBody())).status, 500);
  assert.equal((await gateway.send('/health')).status, 200);
});

/** Settings of which one cannot be read. */
function failing<T extends object>(settings: T, name: keyof T): T {
  return Object.defineProperty({ ...settings }, name, {
    get: () => {
      throw new TypeError('canary at /srv/secret/path.ts:1');
    },
  });
}

const answers = (body: unknown, status = 200, headers = {}): Script => {
  return (_, response) => sendJson(response, body, { status, headers });
};
const text = (content: string, contentType: string, status = 200): Script => {
  return (_, response) => {
    response.writeHead(status, { 'content-type': contentType });
    response.end(content);
  };
};
const html = '<!DOCTYPE html><html><head><title>504</title></head><body>nginx/1.2</body></html>';

interface Row {
  readonly upstream: string;
  readonly script: Script;
  readonly expected: ExpectedError;
  /** Where the row is about one kind of request only. */
  readonly stream?: boolean;
}

const rows: Row[] = [
  ...['', '{"choices":[', 'hello', html].map((content) => ({
    upstream: `200 with the text ${JSON.stringify(content.slice(0, 14))} as JSON`,
    script: text(content, 'application/json'),
    expected: NOT_JSON,
    stream: false,
  })),
  {
    upstream: '200 with HTML',
    script: text(html, 'text/html'),
    expected: NOT_JSON,
    stream: false,
  },
  {
    upstream: '200 with an error of numeric code 503',
    script: answers({ error: { message: 'overloaded', code: 503 } }),
    expected: apiError(503, 'overloaded'),
  },
  {
    upstream: '200 with an error of numeric status 422',
    script: answers({ error: { message: 'no', status: 422 } }),
    expected: apiError(422, 'no'),
  },
  {
    upstream: '200 with an error of numeric code 200',
    script: answers({ error: { message: 'no', code: 200 } }),
    expected: apiError(502, 'no'),
  },
  {
    upstream: '200 with an error of code "oops"',
    script: answers({ error: { message: 'no', code: 'oops' } }),
    expected: apiError(502, 'no (oops)'),
  },
  {
    // Deeper than a conversion to text can go.
    upstream: '200 with an error whose code is an array in an array, 50,000 times',
    script: text(
      `{"error":{"message":"no","code":${'['.repeat(50_000)}${']'.repeat(50_000)}}}`,
      'application/json',
    ),
    expected: apiError(502, 'no'),
  },
  {
    upstream: '200 with an error that is text',
    script: answers({ error: 'no' }),
    expected: apiError(502, 'no'),
  },
  {
    upstream: '200 with a JSON completion',
    script: answers(completion()),
    expected: NO_STREAMING,
    stream: true,
  },
  {
    upstream: '200 with an event stream',
    script: (_, response) => sendEvents(response, 'data: {"choices":[]}\n\n'),
    expected: PROVIDER_FAILED,
    stream: false,
  },
  {
    upstream: '401',
    script: answers({ error: { message: `bad key ${PROVIDER_KEY}` } }, 401),
    expected: KEY_REJECTED,
  },
  ...[
    { sent: {}, seconds: 1 },
    { sent: { 'retry-after': '17' }, seconds: 17 },
    { sent: { 'retry-after': '0' }, seconds: 1 },
    { sent: { 'retry-after': '1.2' }, seconds: 2 },
    { sent: { 'retry-after': 'soon' }, seconds: 1 },
    { sent: { 'retry-after': '-5' }, seconds: 1 },
    { sent: { 'retry-after': 'Wed, 21 Oct 2015 07:28:00 GMT' }, seconds: 1 },
    { sent: { 'retry-after-ms': '6100.5' }, seconds: 7 },
    { sent: { 'retry-after-ms': 'soon' }, seconds: 1 },
    { sent: { 'retry-after': '3', 'retry-after-ms': '6100' }, seconds: 3 },
  ].map(({ sent, seconds }) => ({
    upstream: `429 with the headers ${JSON.stringify(sent)}`,
    script: answers({ error: { message: 'slow down' } }, 429, sent),
    expected: rateLimited(seconds),
  })),
  {
    upstream: '429 with a Retry-After of more than a minute',
    script: answers({}, 429, { 'retry-after': '61' }),
    expected: rateLimited(61, { ...chosen, 'x-should-retry': 'false' }),
  },
  {
    upstream: '429 with a code',
    script: answers({ error: { message: 'slow down', code: 'tokens_per_minute' } }, 429),
    expected: {
      ...rateLimited(1),
      message: 'Rate limit exceeded at p: slow down (tokens_per_minute)',
    },
  },
  {
    upstream: '429 with the code of an empty account',
    script: answers({ error: { message: 'no money', code: 'insufficient_quota' } }, 429),
    expected: {
      ...rateLimited(1, { ...chosen, 'x-should-retry': 'false' }),
      message: 'Rate limit exceeded at p: no money (insufficient_quota)',
    },
  },
  {
    upstream: '503 with Retry-After',
    script: answers({ message: 'later' }, 503, { 'retry-after': '7' }),
    expected: { ...apiError(503, 'later'), headers: { ...chosen, 'retry-after': '7' } },
  },
  ...[400, 402, 403, 404, 408, 409, 413, 422, 451, 500, 502, 503, 504, 529, 599].map((status) => ({
    upstream: `${status} with error.message`,
    script: answers({ error: { message: 'own words', type: 'x', code: 'yes' } }, status),
    expected: apiError(status, 'own words (yes)'),
  })),
  ...[
    { shape: 'error as text', body: { error: 'own words' }, expected: 'own words' },
    { shape: 'message', body: { message: 'own words' }, expected: 'own words' },
    { shape: 'detail', body: { detail: 'own words' }, expected: 'own words' },
    { shape: 'none of these', body: { what: 'own words' }, expected: 'Bad Request' },
    { shape: 'an empty message', body: { error: { message: '' } }, expected: 'Bad Request' },
    { shape: 'a message of another type', body: { message: 7 }, expected: 'Bad Request' },
    { shape: 'HTML as its message', body: { error: { message: html } }, expected: 'Bad Request' },
    { shape: 'nothing but null', body: null, expected: 'Bad Request' },
    {
      shape: 'a code',
      body: { message: 'too long', code: 'context_length_exceeded' },
      expected: 'too long (context_length_exceeded)',
    },
    {
      shape: 'a code and no message',
      body: { error: { code: 'model_not_found' } },
      expected: 'Bad Request (model_not_found)',
    },
    {
      shape: 'a code that the message names',
      body: { error: { message: 'own words: bad_word', code: 'bad_word' } },
      expected: 'own words: bad_word',
    },
    {
      shape: 'a number as text for its code',
      body: { error: { message: 'own words', code: '1113' } },
      expected: 'own words (1113)',
    },
    {
      shape: 'a code beside a text',
      body: { error: 'own words', code: 'bad_word' },
      expected: 'own words (bad_word)',
    },
    {
      shape: 'a code that is the status',
      body: { error: { message: 'own words', code: '400' } },
      expected: 'own words',
    },
    {
      shape: 'message.detail[].msg',
      body: { object: 'error', message: { detail: [{ loc: ['body'] }, { msg: 'own words' }] } },
      expected: 'own words',
    },
    { shape: 'detail[].msg', body: { detail: [{ msg: 'own words' }] }, expected: 'own words' },
    {
      shape: 'errors[].message',
      body: { errors: [{ code: 7003, message: 'own words' }] },
      expected: 'own words',
    },
    { shape: 'errors.message', body: { errors: { message: 'own words' } }, expected: 'own words' },
    { shape: 'error[]', body: { error: ['', 'own words', 'others'] }, expected: 'own words' },
    { shape: 'Message', body: { Message: 'own words' }, expected: 'own words' },
    {
      shape: 'error_description',
      body: { error: null, error_description: 'own words' },
      expected: 'own words',
    },
    {
      shape: 'an error of a framework',
      body: { status: 400, error: 'Bad Request', message: 'own words' },
      expected: 'own words',
    },
    {
      shape: 'a message behind 100 objects',
      body: [...Array.from({ length: 99 }, () => ({})), { message: 'own words' }],
      expected: 'Bad Request',
    },
    ...[
      { raw: 'own words', expected: 'Provider returned error: DeepInfra: own words' },
      {
        raw: JSON.stringify({ error: { message: 'own words' } }),
        expected: 'Provider returned error: DeepInfra: own words',
      },
      { raw: { detail: 'own words' }, expected: 'Provider returned error: DeepInfra: own words' },
      { raw: '{"a":1}', expected: 'Provider returned error: DeepInfra: {"a":1}' },
      { raw: null, expected: 'Provider returned error: DeepInfra' },
      { raw: html, expected: 'Bad Request' },
    ].map(({ raw, expected }) => ({
      shape: `"Provider returned error" and metadata.raw ${JSON.stringify(raw)}`,
      body: {
        error: {
          message: 'Provider returned error',
          code: 400,
          metadata: { raw, provider_name: 'DeepInfra' },
        },
      },
      expected,
    })),
    {
      shape: 'a code that is no word',
      body: { error: { message: 'own words', code: 'not a word' } },
      expected: 'own words',
    },
    {
      shape: 'a type and no code',
      body: { error: { message: 'own words', type: 'bad_thing', code: null } },
      expected: 'own words',
    },
    ...[
      "got <class 'str'>",
      "<class 'int'> is wrong",
      'At most 1 <image>',
      'x is <nil>',
      'a<b',
      '<400> InternalError.Algo.InvalidParameter: wrong',
      '<b>wrong</b>',
    ].map((words) => ({
      shape: words,
      body: { message: words },
      expected: words,
    })),
    ...['so: <!DOCTYPE html>', 'x <HTML lang>', 'x<head>', 'x<body>', 'x<script>'].map((page) => ({
      shape: page,
      body: { message: page },
      expected: 'Bad Request',
    })),
  ].map(({ shape, body, expected }) => ({
    upstream: `400 with ${shape}`,
    script: answers(body, 400),
    expected: apiError(400, expected),
  })),
  {
    upstream: '504 with HTML',
    script: text(html, 'text/html', 504),
    expected: apiError(504, 'Gateway Timeout'),
  },
  {
    upstream: '503 with an empty body',
    script: text('', 'text/plain', 503),
    expected: apiError(503, 'Service Unavailable'),
  },
  ...[
    { type: 'text/plain', body: ' own words\n', expected: 'own words' },
    { type: 'Text/Plain; charset=utf-8', body: "<400> got <class 'int'>" },
    { type: 'text/plain', body: '{"detail":"own words"}', expected: 'own words' },
    { type: 'text/plain', body: '<h1>503</h1>', expected: 'Service Unavailable' },
    { type: 'text/plain', body: html, expected: 'Service Unavailable' },
    { type: 'application/octet-stream', body: 'own words', expected: 'Service Unavailable' },
    { type: 'text/html', body: '{"message":"own words"}', expected: 'Service Unavailable' },
    { type: 'text/html; charset=utf-8', body: 'own words', expected: 'Service Unavailable' },
  ].map(({ type, body, expected = body }) => ({
    upstream: `503 of ${type} with ${body.slice(0, 24)}`,
    script: text(body, type, 503),
    expected: apiError(503, expected),
  })),
  {
    upstream: '400 with a very long message',
    script: answers({ message: 'x'.repeat(10_000) }, 400),
    expected: apiError(400, 'x'.repeat(500)),
  },
  {
    upstream: '400 with a message that has <html> behind its first 500 characters',
    script: answers({ message: `${'x'.repeat(500)}<html>` }, 400),
    expected: apiError(400, 'x'.repeat(500)),
  },
  {
    upstream: '400 with control characters in its message',
    script: answers({ message: 'a\u0000b\u001b[31mc\r\nd\u0085e\u2028f' }, 400),
    // oxlint-disable-next-line no-control-regex
    expected: apiError(400, /a[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+f$/),
  },
  ...[300, 301, 302, 303, 304, 307, 308].map((status) => ({
    upstream: `${status}`,
    script: ((_, response) => {
      response.writeHead(status, { location: '/v1/elsewhere' }).end();
    }) satisfies Script,
    expected: PROVIDER_FAILED,
  })),
  ...[204, 205, 600, 999].map((status) => ({
    upstream: `${status}`,
    script: ((_, response) => {
      response.writeHead(status).end();
    }) satisfies Script,
    expected: PROVIDER_FAILED,
  })),
];

test('a 200 with an error message of 8 million characters is a 502 without it', async (t) => {
  const message = `sk-${'x'.repeat(8_000_000)}`;
  const { p: upstream, gateway } = await scenario(t, { providers: { p: answers({ error: { message } }) } });
  assertError(await gateway.chat(chatBody()), apiError(502, 'Bad Gateway'));
});

describe('an answer', () => {
  // One for all rows: a gateway for each would take half of this file's time.
  const scope = createScope();
  after(async () => scope.close());
  let upstream: FakeUpstream;
  let gateway: TestGateway;
  before(async () => {
    upstream = await startUpstream(scope.t);
    gateway = await startGateway(scope.t, { toml: providerToml(upstream) });
  });

  for (const { upstream: what, script, expected, stream: only } of rows) {
    const streams = only === undefined ? [false, true] : [only];
    for (const stream of streams) {
      const { httpStatus, code } = expected;
      const kind = stream ? 'a streamed' : 'a complete';
      test(`${what} from upstream to ${kind} request becomes ${httpStatus} ${code}`, async () => {
        upstream.script = script;
        const already = upstream.requests.length;
        const reply = await gateway.chat(chatBody({ stream }));
        assertError(reply, expected);
        assert.equal(upstream.requests.length - already, 1);
        assert.doesNotMatch(reply.text, new RegExp(`${PROVIDER_KEY}|<html`, 'i'));
      });
    }
  }
});

test('a Retry-After date becomes the whole seconds until then', async (t) => {
  const date = new Date(Date.now() + 40_000).toUTCString();
  const { p: upstream, gateway } = await scenario(t, { providers: { p: answers({}, 429, { 'retry-after': date }) } });
  const reply = await gateway.chat(chatBody());
  const seconds = Number(reply.headers['retry-after']);
  assert.ok(Number.isInteger(seconds) && seconds >= 20 && seconds <= 40, `${seconds}`);
  assertError(reply, rateLimited(seconds));
});

test('of several Retry-After headers the first counts', async (t) => {
  const { p: upstream, gateway } = await scenario(t);
  const date = new Date(Date.now() + 40_000).toUTCString();
  for (const values of [
    ['30', '30'],
    ['30', date],
    [date, '300'],
    [date, date],
  ]) {
    upstream.script = (_, response) =>
      response
        .writeHead(
          429,
          values.flatMap((value) => ['retry-after', value]),
        )
        .end('{}');
    const seconds = Number((await gateway.chat(chatBody())).headers['retry-after']);
    assert.ok(seconds >= 30 && seconds <= 40, `${values.join()}: ${seconds}`);
  }
});

/** Has no shape that tells it is a key. */
const KEY = 'canary+of/no.shape';

const keys = [PROVIDER_KEY, 'sk-proj-abcdefghijklmnop', 'Bearer abcdefghijklmnop'];
for (const key of keys) {
  test(`a message of upstream's reaches the client without ${key.slice(0, 7)}…`, async (t) => {
    const { p: upstream, gateway } = await scenario(t, { providers: { p: answers({ message: `key ${key} is wrong` }, 403) } });
    const reply = await gateway.chat(chatBody());
    assertError(reply, apiError(403, /key .+ is wrong$/));
    assert.ok(!reply.text.includes(key.slice(-10)), reply.text);
  });
}

test('where one key begins with another, nothing of the longer one is left', async (t) => {
  const [short, long] = ['canary-key-1', 'canary-key-1-and-more'];
  const upstream = await startUpstream(t, answers({ message: `key ${long} is wrong` }, 403));
  const toml = [short, long].map((key, index) =>
    providerToml(upstream, ['p', 'q'][index]).replace(PROVIDER_KEY, key),
  );
  const gateway = await startGateway(t, { toml: toml.join('') });
  const reply = await gateway.chat(chatBody());
  assertError(reply, apiError(403, 'key [secret] is wrong'));
});

test('a key that the cut at 500 characters divides does not reach the client in part', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, {
    toml: providerToml(upstream).replace(PROVIDER_KEY, KEY),
  });
  for (let length = 8; length <= KEY.length; length += 1) {
    const start = 'x '.repeat(250).slice(0, 500 - length);
    upstream.script = answers({ message: `${start}${KEY} is wrong` }, 403);
    assertError(await gateway.chat(chatBody()), apiError(403, `${start}[secret]`.slice(0, 500)));
  }
});

test('markup in a message is part of a JSON text that no browser takes for HTML', async (t) => {
  const message = '<img src=x onerror=alert(1)>';
  const { p: upstream, gateway } = await scenario(t, { providers: { p: answers({ error: { message } }, 400) } });
  const reply = await gateway.chat(chatBody());
  assertError(reply, apiError(400, message));
  assert.equal(reply.headers['x-content-type-options'], 'nosniff');
});

for (const status of [200, 201, 202, 203]) {
  test(`${status} with JSON keeps its status, bytes and content type`, async (t) => {
    const body = '{ "choices" : [] ,"big":12345678901234567890, "x":"\\u00e9é", "x":1.0}\n';
    const contentType = 'application/json; charset=UTF-8';
    const { p: upstream, gateway } = await scenario(t, { providers: { p: text(body, contentType, status) } });
    const reply = await gateway.chat(chatBody());
    assert.equal(reply.status, status);
    assert.equal(reply.text, body);
    assert.equal(reply.headers['content-type'], contentType);
    assert.equal(reply.headers['x-gateway-provider'], 'p');
  });
}

test('an answer that has choices is passed on although it also has an error', async (t) => {
  const body = { ...completion(), error: { message: 'partial', code: 500 } };
  const { p: upstream, gateway } = await scenario(t, { providers: { p: answers(body) } });
  const reply = await gateway.chat(chatBody());
  assert.equal(reply.status, 200);
  assert.deepEqual(reply.json(), body);
});

for (const status of [200, 400, 429]) {
  test(`of upstream's headers on ${status} only the allow-listed reach the client`, async (t) => {
    const upstream = await startUpstream(
      t,
      answers(completion(), status, {
        'x-request-id': 'up-1',
        'x-ratelimit-remaining-requests': '9',
        'retry-after-ms': '6100',
        'set-cookie': 'a=b',
        server: 'nginx',
        'x-powered-by': 'php',
        'alt-svc': 'h3',
        'openai-organization': 'org',
        'access-control-allow-origin': '*',
        'x-gateway-provider': 'forged',
      }),
    );
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    const { headers } = await gateway.chat(chatBody(), { headers: { 'x-request-id': 'mine' } });
    const transport = ['date', 'connection', 'keep-alive', 'content-length', 'content-type'];
    const own = ['x-content-type-options', 'retry-after', 'server-timing'];
    const named = Object.entries(headers).filter(
      ([name]) => ![...transport, ...own].includes(name),
    );
    assert.deepEqual(Object.fromEntries(named), {
      'x-request-id': 'mine',
      'x-upstream-request-id': 'up-1',
      'x-gateway-provider': 'p',
      'x-ratelimit-remaining-requests': '9',
    });
  });
}

test("the first of upstream's request ids there is is passed on and logged", async (t) => {
  const { p: upstream, gateway } = await scenario(t);
  const ids = Object.entries({
    'x-request-id': 'id-1',
    'request-id': 'id-2',
    'mistral-correlation-id': 'id-3',
    'x-ds-trace-id': 'id-4',
    'x-generation-id': 'id-5',
    'apim-request-id': 'id-6',
    'x-amzn-requestid': 'id-7',
    'cf-ray': 'id-8',
  });
  for (const [index, [, id]] of ids.entries()) {
    for (const status of [200, 503]) {
      const headers = Object.fromEntries(ids.slice(index).toReversed());
      upstream.script = answers(completion(), status, headers);
      const reply = await gateway.chat(chatBody());
      assert.equal(reply.headers['x-upstream-request-id'], id);
      await eventually(() => gateway.accessLines().at(-1)?.['status'] === status, 'its line');
      assert.equal(gateway.accessLines().at(-1)?.['upstream_request_id'], id);
    }
  }
});

const requestIds: [sent: string, isKept: boolean][] = [
  ['abc-123', true],
  ['~'.repeat(128), true],
  ['~'.repeat(129), false],
  ['two words', false],
  ['caf\u00e9', false],
];
for (const [sent, isKept] of requestIds) {
  test(`the request id "${sent.slice(0, 12)}" of ${sent.length} is ${isKept ? 'kept' : 'replaced'}`, async (t) => {
    const gateway = await startGateway(t, {});
    for (const path of ['/health', '/nothing']) {
      const { headers } = await gateway.send(path, { headers: { 'x-request-id': sent } });
      const id = headers['x-request-id'] as string;
      if (isKept) assert.equal(id, sent);
      else assert.match(id, /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/);
    }
  });
}

/** A TCP server that does this once a request has come. */
async function startRawUpstream(t: TestContext, onRequest: (socket: Socket) => void) {
  const server = createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => onRequest(socket));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
}

const head = 'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n';
const raw = (bytes: string) => async (t: TestContext) =>
  startRawUpstream(t, (socket) => socket.end(bytes));
const broken: Record<string, (t: TestContext) => Promise<string>> = {
  'a refused connection': async () => `${NOBODY_LISTENS}/v1`,
  'a host that cannot be resolved': async () => 'http://no-such-host.invalid/v1',
  'a connection closed before the headers': raw(''),
  'a connection reset before the headers': async (t) =>
    startRawUpstream(t, (socket) => socket.resetAndDestroy()),
  'a connection closed amid the headers': raw(head),
  'text that is not HTTP': raw('SSH-2.0-OpenSSH_9.6\r\n\r\n'),
  'a status of two digits': raw('HTTP/1.1 20 OK\r\n\r\n'),
  '101 for a plain request': raw(
    'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n',
  ),
  'a body shorter than its Content-Length': raw(`${head}content-length: 99\r\n\r\n{"choices":[]}`),
  'a chunked body without its end': raw(
    `${head}transfer-encoding: chunked\r\n\r\ne\r\n{"choices":[]}\r\n`,
  ),
  'a chunked body that is not': raw(`${head}transfer-encoding: chunked\r\n\r\n{"choices":[]}`),
  'TLS where there is none': async (t) =>
    (await startRawUpstream(t, (socket) => socket.end('HTTP/1.1 400 No\r\n\r\n'))).replace(
      'http:',
      'https:',
    ),
};
for (const [what, start] of Object.entries(broken)) {
  for (const stream of [false, true]) {
    const kind = stream ? 'a streamed' : 'a complete';
    test(`${what} for ${kind} request is 502 and names no host or library`, async (t) => {
      const baseUrl = await start(t);
      const gateway = await startGateway(t, {
        toml: `[providers.p]\nbase_url = "${baseUrl}"\napi_key = "${PROVIDER_KEY}"\n`,
      });
      const reply = await gateway.chat(chatBody({ stream }));
      assertError(reply, PROVIDER_FAILED);
      const { port, hostname } = new URL(baseUrl);
      assert.ok(!reply.text.includes(hostname) && !(port && reply.text.includes(port)), reply.text);
      assert.doesNotMatch(
        reply.text,
        /\bE[A-Z]{4,}|HPE_|UND_|[Uu]ndici|fetch|socket|node:|getaddrinfo|SSL|routines/,
      );
    });
  }
}

for (const isReused of [false, true]) {
  const what = isReused ? 'a reused' : 'a new';
  test(`an answer cut inside its headers on ${what} connection is not retried`, async (t) => {
    let requests = 0;
    const baseUrl = await startRawUpstream(t, (socket) => {
      const answer = () => {
        requests += 1;
        if (isReused && requests === 1)
          socket.write(`${head}content-length: 14\r\n\r\n{"choices":[]}`);
        else socket.end(head);
      };
      answer();
      socket.on('data', answer);
    });
    const gateway = await startGateway(t, {
      toml: `[providers.p]\nbase_url = "${baseUrl}"\napi_key = "${PROVIDER_KEY}"\n`,
    });
    if (isReused) assert.equal((await gateway.chat(chatBody())).status, 200);
    const reply = await gateway.chat(chatBody());
    assert.equal(requests, isReused ? 2 : 1);
    assertError(reply, PROVIDER_FAILED);
  });
}

test('an upstream that takes longer than the timeout, in any phase, is answered with 504', async (t) => {
  const phases: Record<string, { stream: boolean; script: Script }> = {
    silent: { stream: false, script: () => {} },
    'silent-stream': { stream: true, script: () => {} },
    'half-body': {
      stream: false,
      script: (_, response) => {
        response.writeHead(200, { 'content-type': 'application/json' });
        response.write('{"choices":');
      },
    },
    'no-first-event': {
      stream: true,
      script: (_, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(': still here\n\n');
      },
    },
  };
  const upstream = await startUpstream(t, (request, response) => {
    const { model } = JSON.parse(request.body.toString()) as { model: string };
    phases[model]!.script(request, response);
  });
  const gateway = await startGateway(t, {
    toml: `[server]\ntimeout = 1\n${providerToml(upstream)}`,
  });
  const replies = Object.entries(phases).map(async ([model, { stream }]) =>
    gateway.chat(chatBody({ model: `p/${model}`, stream })),
  );
  for (const reply of await Promise.all(replies)) assertError(reply, TIMED_OUT);
  await Promise.all(upstream.requests.map(async ({ closed }) => closed));
  assert.equal(upstream.requests.length, replies.length);
});

for (const isChunked of sweep([false, true], [true])) {
  const kind = isChunked ? 'in chunks' : 'with Content-Length';
  test(`a complete answer ${kind} may have 64 MiB, and a longer one is a 502`, async (t) => {
    const limit = 64 * 1024 * 1024;
    const { p: upstream, gateway } = await scenario(t, { providers: { p: (request, response) => {
      const { model } = JSON.parse(request.body.toString()) as { model: string };
      const body = Buffer.alloc(Number(model), ' ');
      body.write('{"choices":[]}');
      response.setHeader('content-type', 'application/json');
      if (isChunked) response.write(body.subarray(0, 1000));
      response.end(isChunked ? body.subarray(1000) : body);
    } } });
    const whole = await gateway.chat(chatBody({ model: `p/${limit}` }));
    assert.deepEqual([whole.status, whole.bytes.length], [200, limit]);
    assertError(await gateway.chat(chatBody({ model: `p/${limit + 1}` })), {
      ...PROVIDER_FAILED,
      message: /^Provider error: .*too large/,
    });
  });
}

test('an error body is waited for one second', async (t) => {
  const timers = useManualTimers(t);
  const { p: upstream, gateway } = await scenario(t, { providers: { p: (_, response) => {
    response.writeHead(400, { 'content-type': 'application/json' });
    response.write('{"error":');
  } } });
  let isAnswered = false;
  const reply = gateway.chat(chatBody()).finally(() => (isAnswered = true));
  const isReading = () => upstream.requests.length === 1 && timers.running().length > 0;
  await eventually(isReading, 'the head of the error');
  assert.deepEqual(timers.running(), [1000]);
  timers.advance(999);
  await idle(100);
  assert.equal(isAnswered, false);
  timers.advance(1);
  assertError(await reply, apiError(400, 'Bad Request'));
  await upstream.requests[0]?.closed;
});

const ELEMENTS = `[${'{},'.repeat(MAX_JSON_ELEMENTS)}{}]`;
const longAnswers: [what: string, body: string, expected: ExpectedError | undefined][] = [
  ['a completion', `{"choices":${ELEMENTS}}`, undefined],
  ['a completion with an error', `{"error":${ELEMENTS},"choices":[]}`, undefined],
  ['other JSON', `{"answers":${ELEMENTS}}`, undefined],
  ['other JSON whose error is null', `{"answers":${ELEMENTS},"error":null}`, undefined],
  [
    'an error',
    `{"error":{"message":"canary ${'x'.repeat(1_000_000)}"},"choices":null}`,
    {
      httpStatus: 502,
      type: 'provider_error',
      code: 'API_ERROR',
      message: 'API error: 502 - Bad Gateway',
      provider: 'p',
      status: 502,
      headers: { 'x-gateway-provider': 'p' },
    },
  ],
  ['JSON that is cut off', `{"choices":${ELEMENTS}`, NOT_JSON],
  ['text', `{"choices":[]} ${'canary '.repeat(100_000)}`, NOT_JSON],
];
for (const [what, body, expected] of longAnswers) {
  const result = expected ? `answered as ${expected.code}` : 'passed on';
  test(`a 200 of more than 256 KiB is ${result} if it is ${what}`, async (t) => {
    const { p: upstream, gateway } = await scenario(t, { providers: { p: (_, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.end(body);
    } } });
    const reply = await gateway.chat(chatBody());
    if (expected) assertError(reply, expected);
    else assert.ok(reply.status === 200 && reply.text === body, reply.text.slice(0, 300));
  });
}

test('a 200 whose choices are null becomes the error beside them', async (t) => {
  const upstream = await startUpstream(t, (_, response) =>
    sendJson(response, { choices: null, error: { message: 'overloaded', code: 503 } }),
  );
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const reply = await gateway.chat(chatBody());
  assert.equal(reply.status, 503);
  assert.match(reply.text, /API error: 503 - overloaded/);
});
