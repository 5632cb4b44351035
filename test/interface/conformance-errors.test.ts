import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { MAX_JSON_ELEMENTS } from '../../src/lib/json.ts';
import { idle, useManualTimers } from '../support/clock.ts';
import { assertError, type ExpectedError } from '../support/errors.ts';
import {
  chatBody,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { startRawUpstream } from '../support/raw-upstream.ts';
import { modelOf, scenario } from '../support/scenario.ts';
import { createScope } from '../support/scope.ts';
import { eventually } from '../support/streams.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';
import {
  completion,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';
import { OVER_FETCH } from '../support/transport.ts';

const chosen = { 'x-gateway-provider': 'p' };

const PROVIDER_FAILED: ExpectedError = {
  httpStatus: 502,
  type: 'provider_error',
  code: 'PROVIDER_ERROR',
  provider: 'p',
  message: /^Provider error: \S/,
  headers: chosen,
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
    headers: chosen,
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

test('an exception before a provider is chosen is a fixed 500, and leaves the gateway serving', async (t) => {
  const gateway = await startGateway(t, {
    adjust: (config) => ({ ...config, server: failing(config.server, 'maxBodyBytes') }),
  });
  assertError(await gateway.chat(chatBody()), INTERNAL);
  assert.equal((await gateway.send('/health')).status, 200);
});

test("an exception amid a provider's answer is the same fixed 500", async (t) => {
  const { gateway } = await scenario(t, {
    providers: { p: events },
    adjust: (config) => ({ ...config, server: failing(config.server, 'streamIdleTimeoutMs') }),
  });
  const reply = await gateway.chat(chatBody({ stream: true }));
  assertError(reply, { ...INTERNAL, headers: chosen });
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
const text = (content: string, contentType: string, status = 200, headers = {}): Script => {
  return (_, response) => {
    response.writeHead(status, { ...headers, 'content-type': contentType });
    response.end(content);
  };
};
const events: Script = (_, response) => sendEvents(response, 'data: {"choices":[]}\n\n');
const html = '<!DOCTYPE html><html><head><title>504</title></head><body>nginx/1.2</body></html>';

/** `stream` stands where the row is about one kind of request only. */
type Row = readonly [upstream: string, Script, ExpectedError, stream?: boolean];

const okRows: Row[] = [
  ...['', '{"choices":[', 'hello', html].map((content): Row => {
    const script = text(content, 'application/json');
    return [
      `200 with the text ${JSON.stringify(content.slice(0, 14))} as JSON`,
      script,
      NOT_JSON,
      false,
    ];
  }),
  ['200 with HTML', text(html, 'text/html'), NOT_JSON, false],
  ...(
    [
      [{ message: 'overloaded', code: 503 }, apiError(503, 'overloaded')],
      [{ message: 'no' }, apiError(502, 'no')],
      [{ message: 'no', status: 422 }, apiError(422, 'no')],
      [{ message: 'no', code: 200 }, apiError(502, 'no')],
      [{ message: 'no', code: 'oops' }, apiError(502, 'no (oops)')],
      ['no', apiError(502, 'no')],
    ] as const
  ).map(([error, expected]): Row => [
    `200 with the error ${JSON.stringify(error)}`,
    answers({ error }),
    expected,
  ]),
  [
    // Deeper than a conversion to text can go.
    '200 with an error whose code is an array in an array, 50,000 times',
    text(
      `{"error":{"message":"no","code":${'['.repeat(50_000)}${']'.repeat(50_000)}}}`,
      'application/json',
    ),
    apiError(502, 'no'),
  ],
  [
    '200 with an error message of a million characters',
    answers({ error: { message: `sk-${'x'.repeat(1_000_000)}` } }),
    apiError(502, 'Bad Gateway'),
  ],
  [
    '200 with an error beside choices that are null',
    answers({ choices: null, error: { message: 'overloaded', code: 503 } }),
    apiError(503, 'overloaded'),
  ],
  ['200 with a JSON completion', answers(completion()), NO_STREAMING, true],
  [
    '200 with an event stream',
    events,
    {
      ...PROVIDER_FAILED,
      message: 'Provider error: a stream was answered to a request for a complete answer',
    },
    false,
  ],
];

const limitRows: Row[] = [
  ...(
    [
      [{}, 1],
      [{ 'retry-after': '17' }, 17],
      [{ 'retry-after': '0' }, 1],
      [{ 'retry-after': '1.2' }, 2],
      [{ 'retry-after': 'soon' }, 1],
      [{ 'retry-after': '-5' }, 1],
      [{ 'retry-after': 'Wed, 21 Oct 2015 07:28:00 GMT' }, 1],
      [{ 'retry-after-ms': '6100.5' }, 7],
      [{ 'retry-after-ms': 'soon' }, 1],
      [{ 'retry-after': '3', 'retry-after-ms': '6100' }, 3],
    ] as const
  ).map(([sent, seconds]): Row => {
    const script = answers({ error: { message: 'slow down' } }, 429, sent);
    return [`429 with the headers ${JSON.stringify(sent)}`, script, rateLimited(seconds)];
  }),
  [
    '429 with a Retry-After of more than a minute',
    answers({}, 429, { 'retry-after': '61' }),
    rateLimited(61, { ...chosen, 'x-should-retry': 'false' }),
  ],
  [
    '429 with a code',
    answers({ error: { message: 'slow down', code: 'tokens_per_minute' } }, 429),
    { ...rateLimited(1), message: 'Rate limit exceeded at p: slow down (tokens_per_minute)' },
  ],
  [
    '429 with the code of an empty account',
    answers({ error: { message: 'no money', code: 'insufficient_quota' } }, 429),
    {
      ...rateLimited(1, { ...chosen, 'x-should-retry': 'false' }),
      message: 'Rate limit exceeded at p: no money (insufficient_quota)',
    },
  ],
  [
    '503 with Retry-After',
    answers({ message: 'later' }, 503, { 'retry-after': '7' }),
    { ...apiError(503, 'later'), headers: { ...chosen, 'retry-after': '7' } },
  ],
];

/** The body of a 400, and what the client reads of it. */
const shapes: [shape: string, body: unknown, expected: string | RegExp][] = [
  ['error as text', { error: 'own words' }, 'own words'],
  ['message', { message: 'own words' }, 'own words'],
  ['detail', { detail: 'own words' }, 'own words'],
  ['none of these', { what: 'own words' }, 'Bad Request'],
  ['an empty message', { error: { message: '' } }, 'Bad Request'],
  ['a message of another type', { message: 7 }, 'Bad Request'],
  ['HTML as its message', { error: { message: html } }, 'Bad Request'],
  ['nothing but null', null, 'Bad Request'],
  ['a code', { message: 'too long', code: 'too_long' }, 'too long (too_long)'],
  ['a code and no message', { error: { code: 'no_model' } }, 'Bad Request (no_model)'],
  [
    'a code that the message names',
    { message: 'own: bad_word', code: 'bad_word' },
    'own: bad_word',
  ],
  ['a number as text for its code', { message: 'own words', code: '1113' }, 'own words (1113)'],
  ['a code beside a text', { error: 'own words', code: 'bad_word' }, 'own words (bad_word)'],
  ['a code that is the status', { error: { message: 'own words', code: '400' } }, 'own words'],
  ['a code that is no word', { error: { message: 'own words', code: 'not a word' } }, 'own words'],
  ['a type and no code', { error: { message: 'own words', type: 'bad', code: null } }, 'own words'],
  [
    'message.detail[].msg',
    { object: 'error', message: { detail: [{ loc: ['body'] }, { msg: 'own words' }] } },
    'own words',
  ],
  ['detail[].msg', { detail: [{ msg: 'own words' }] }, 'own words'],
  ['errors[].message', { errors: [{ code: 7003, message: 'own words' }] }, 'own words'],
  ['errors.message', { errors: { message: 'own words' } }, 'own words'],
  ['error[]', { error: ['', 'own words', 'others'] }, 'own words'],
  ['Message', { Message: 'own words' }, 'own words'],
  ['error_description', { error: null, error_description: 'own words' }, 'own words'],
  [
    'an error of a framework',
    { status: 400, error: 'Bad Request', message: 'own words' },
    'own words',
  ],
  [
    'a message behind 100 objects',
    [...Array.from({ length: 99 }, () => ({})), { message: 'own words' }],
    'Bad Request',
  ],
  ...(
    [
      ['own words', 'Provider returned error: DeepInfra: own words'],
      [{ detail: 'own words' }, 'Provider returned error: DeepInfra: own words'],
      ['{"error":{"message":"own words"}}', 'Provider returned error: DeepInfra: own words'],
      ['{"a":1}', 'Provider returned error: DeepInfra: {"a":1}'],
      [null, 'Provider returned error: DeepInfra'],
      [html, 'Bad Request'],
    ] as const
  ).map(([raw, expected]): [string, unknown, string] => {
    const metadata = { raw, provider_name: 'DeepInfra' };
    const error = { message: 'Provider returned error', code: 400, metadata };
    return [
      `"Provider returned error" and metadata.raw ${JSON.stringify(raw)}`,
      { error },
      expected,
    ];
  }),
  ...[
    "got <class 'str'>",
    "<class 'int'> is wrong",
    'At most 1 <image>',
    'x is <nil>',
    'a<b',
    '<400> InternalError.Algo.InvalidParameter: wrong',
    '<b>wrong</b>',
    '<img src=x onerror=alert(1)>',
  ].map((words): [string, unknown, string] => [words, { message: words }, words]),
  ...['so: <!DOCTYPE html>', 'x <HTML lang>', 'x<head>', 'x<body>', 'x<script>'].map(
    (page): [string, unknown, string] => [page, { message: page }, 'Bad Request'],
  ),
  ['a very long message', { message: 'x'.repeat(10_000) }, 'x'.repeat(500)],
  [
    'a message that has <html> behind its first 500 characters',
    { message: `${'x'.repeat(500)}<html>` },
    'x'.repeat(500),
  ],
  [
    'control characters in its message',
    { message: 'a\u0000b\u001b[31mc\r\nd\u0085e\u2028f' },
    // oxlint-disable-next-line no-control-regex
    /a[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+f$/,
  ],
];

const errorRows: Row[] = [
  ['401', answers({ error: { message: `bad key ${PROVIDER_KEY}` } }, 401), KEY_REJECTED],
  ...[400, 402, 403, 404, 408, 409, 413, 422, 451, 500, 502, 503, 504, 529, 599].map(
    (status): Row => {
      const error = { message: 'own words', type: 'x', code: 'yes' };
      return [
        `${status} with error.message`,
        answers({ error }, status),
        apiError(status, 'own words (yes)'),
      ];
    },
  ),
  ...shapes.map(([shape, body, expected]): Row => [
    `400 with ${shape}`,
    answers(body, 400),
    apiError(400, expected),
  ]),
  ['504 with HTML', text(html, 'text/html', 504), apiError(504, 'Gateway Timeout')],
  ['503 with an empty body', text('', 'text/plain', 503), apiError(503, 'Service Unavailable')],
  ...(
    [
      ['text/plain', ' own words\n', 'own words'],
      ['Text/Plain; charset=utf-8', "<400> got <class 'int'>", "<400> got <class 'int'>"],
      ['text/plain', '{"detail":"own words"}', 'own words'],
      ['text/plain', '<h1>503</h1>', 'Service Unavailable'],
      ['text/plain', html, 'Service Unavailable'],
      ['application/octet-stream', 'own words', 'Service Unavailable'],
      ['text/html', '{"message":"own words"}', 'Service Unavailable'],
      ['text/html; charset=utf-8', 'own words', 'Service Unavailable'],
    ] as const
  ).map(([type, body, expected]): Row => [
    `503 of ${type} with ${body.slice(0, 24)}`,
    text(body, type, 503),
    apiError(503, expected),
  ]),
  ...[204, 205, 300, 301, 302, 303, 304, 307, 308, 600, 999].map((status): Row => {
    const script: Script = (_, response) =>
      response.writeHead(status, { location: '/v1/elsewhere' }).end();
    return [`${status}`, script, PROVIDER_FAILED];
  }),
];

/** Has no shape that tells it is a key. */
const KEY = 'canary+of/no.shape';

describe('an answer', () => {
  // One for all rows: a gateway for each would take half of this file's time.
  const scope = createScope();
  after(async () => scope.close());
  let upstream: FakeUpstream;
  let gateway: TestGateway;
  before(async () => {
    ({ p: upstream, gateway } = await scenario(scope.t));
  });
  const ask = async (script: Script, options = {}, body = chatBody()) => {
    upstream.script = script;
    return gateway.chat(body, options);
  };

  for (const [what, script, expected, only] of [...okRows, ...limitRows, ...errorRows]) {
    test(`${what} from upstream becomes ${expected.httpStatus} ${expected.code}`, async () => {
      upstream.script = script;
      for (const stream of only === undefined ? [false, true] : [only]) {
        const already = upstream.requests.length;
        const reply = await gateway.chat(chatBody({ stream }));
        assertError(reply, expected);
        assert.equal(upstream.requests.length - already, 1);
        assert.doesNotMatch(reply.text, new RegExp(`${PROVIDER_KEY}|<html`, 'i'));
        // Without it a browser might take markup in a message for HTML.
        assert.equal(reply.headers['x-content-type-options'], 'nosniff');
      }
    });
  }

  test('with a Retry-After date is told as the whole seconds until then', async () => {
    const date = new Date(Date.now() + 40_000).toUTCString();
    const reply = await ask(answers({}, 429, { 'retry-after': date }));
    const seconds = Number(reply.headers['retry-after']);
    assert.ok(Number.isInteger(seconds) && seconds >= 20 && seconds <= 40, `${seconds}`);
    assertError(reply, rateLimited(seconds));
  });

  test('with several Retry-After headers counts with the first', async () => {
    const date = new Date(Date.now() + 40_000).toUTCString();
    for (const [first, second] of [
      ['30', '30'],
      ['30', date],
      [date, '300'],
      [date, date],
    ] as const) {
      const headers = ['retry-after', first, 'retry-after', second];
      const reply = await ask((_, response) => response.writeHead(429, headers).end('{}'));
      const seconds = Number(reply.headers['retry-after']);
      assert.ok(seconds >= 30 && seconds <= 40, `${first} ${second}: ${seconds}`);
    }
  });

  test('with a key in its message reaches the client without it', async () => {
    for (const key of [PROVIDER_KEY, 'sk-proj-abcdefghijklmnop', 'Bearer abcdefghijklmnop']) {
      const reply = await ask(answers({ message: `key ${key} is wrong` }, 403));
      assertError(reply, apiError(403, /key .+ is wrong$/));
      assert.ok(!reply.text.includes(key.slice(-10)), reply.text);
    }
  });

  test('with JSON keeps its success status, bytes and content type', async () => {
    const body =
      ' { "choices" : [] ,\r\n"big":12345678901234567890, "x":"\\u00e9é\u{1F600}\\u0000", "x":[1.0,1e400,-0]}\n';
    const contentType = 'application/json; charset=UTF-8';
    for (const status of [200, 201, 202, 203]) {
      const reply = await ask(text(body, contentType, status));
      assert.equal(reply.status, status);
      assert.equal(reply.bytes.toString('latin1'), Buffer.from(body).toString('latin1'));
      assert.equal(reply.headers['content-type'], contentType);
      assert.equal(reply.headers['x-gateway-provider'], 'p');
    }
  });

  test('that has choices is passed on although it also has an error', async () => {
    const body = { ...completion(), error: { message: 'partial', code: 500 } };
    const reply = await ask(answers(body));
    assert.equal(reply.status, 200);
    assert.deepEqual(reply.json(), body);
  });

  test('keeps only the allow-listed of its headers', async () => {
    const sent = {
      'x-request-id': 'up-1',
      'x-ratelimit-remaining-requests': '9',
      'retry-after-ms': '6100',
      'own-x-ratelimit-limit': '9',
      'own-x-should-retry': 'false',
      'x-should-retry-own': 'false',
      'set-cookie': 'a=b',
      server: 'nginx',
      'x-powered-by': 'php',
      'alt-svc': 'h3',
      'openai-organization': 'org',
      'access-control-allow-origin': '*',
      'x-gateway-provider': 'forged',
    };
    const transport = ['date', 'connection', 'keep-alive', 'content-length', 'content-type'];
    const own = ['x-content-type-options', 'retry-after', 'server-timing'];
    for (const status of [200, 400, 429]) {
      const options = { headers: { 'x-request-id': 'mine' } };
      const { headers } = await ask(answers(completion(), status, sent), options);
      for (const name of [...transport, ...own]) delete headers[name];
      assert.deepEqual(headers, {
        'x-request-id': 'mine',
        'x-upstream-request-id': 'up-1',
        'x-gateway-provider': 'p',
        'x-ratelimit-remaining-requests': '9',
      });
    }
  });

  test('that is an error has the same headers with an error status, in a 200 and as a first event', async () => {
    const sent = { 'x-request-id': 'up-1', 'retry-after': '30', 'x-ratelimit-limit': '0' };
    const error = { error: { message: 'm', code: 429 } };
    const event = `data: ${JSON.stringify(error)}\n\n`;
    const eventHead = { ...sent, 'content-type': 'text/event-stream' };
    const scripts: [Script, boolean][] = [
      [answers(error, 429, sent), false],
      [answers(error, 200, sent), false],
      [answers(error, 200, sent), true],
      [(_, response) => response.writeHead(200, eventHead).end(event), true],
    ];
    for (const [script, stream] of scripts) {
      const { headers, status } = await ask(script, {}, chatBody({ stream }));
      const { 'retry-after': wait, 'x-upstream-request-id': id } = headers;
      assert.deepEqual([status, wait, id, headers['x-ratelimit-limit']], [429, '30', 'up-1', '0']);
    }
  });

  test('that is no completion is known by its id all the same', async () => {
    for (const stream of [false, true]) {
      const script = text('<html>', 'application/json', 200, { 'x-request-id': 'up-1' });
      const { headers, status } = await ask(script, {}, chatBody({ stream }));
      assert.deepEqual([status, headers['x-upstream-request-id']], [500, 'up-1']);
    }
  });

  test('is known by the first of its request ids, to the client and in the log', async () => {
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
        const lines = gateway.accessLines().length;
        const headers = Object.fromEntries(ids.slice(index).toReversed());
        const reply = await ask(answers(completion(), status, headers));
        assert.equal(reply.headers['x-upstream-request-id'], id);
        await eventually(() => gateway.accessLines().length > lines, 'its line');
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
  test("has the client's request id, or a new one if that is no word of 128 characters", async () => {
    for (const [sent, isKept] of requestIds) {
      for (const path of ['/health', '/nothing']) {
        const { headers } = await gateway.send(path, { headers: { 'x-request-id': sent } });
        const id = headers['x-request-id'] as string;
        if (isKept) assert.equal(id, sent);
        else assert.match(id, /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/);
      }
    }
  });

  const ELEMENTS = `[${'{},'.repeat(MAX_JSON_ELEMENTS)}{}]`;
  const FEWER = `[${'{},'.repeat(100_000)}{}]`;
  const longAnswers: [what: string, body: string, expected?: ExpectedError][] = [
    ['a completion', `{"choices":${ELEMENTS}}`],
    ['a completion with an error', `{"error":${FEWER},"choices":[]}`],
    ['other JSON', `{"answers":${FEWER}}`],
    ['other JSON whose error is null', `{"answers":${FEWER},"error":null}`],
    [
      'an error',
      `{"error":{"message":"canary ${'x'.repeat(1_000_000)}"},"choices":null}`,
      apiError(502, 'Bad Gateway'),
    ],
    ['JSON that is cut off', `{"choices":${FEWER}`, NOT_JSON],
    ['text', `{"choices":[]} ${'canary '.repeat(100_000)}`, NOT_JSON],
  ];
  for (const [what, body, expected] of longAnswers) {
    const result = expected ? `answered as ${expected.code}` : 'passed on';
    test(`of 200 and more than 256 KiB is ${result} if it is ${what}`, async () => {
      const reply = await ask(text(body, 'application/json'));
      if (expected) assertError(reply, expected);
      else assert.ok(reply.status === 200 && reply.text === body, reply.text.slice(0, 300));
    });
  }
});

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
  const toml = providerToml(upstream).replace(PROVIDER_KEY, KEY);
  const gateway = await startGateway(t, { toml });
  for (let length = 8; length <= KEY.length; length += 1) {
    const start = 'x '.repeat(250).slice(0, 500 - length);
    upstream.script = answers({ message: `${start}${KEY} is wrong` }, 403);
    assertError(await gateway.chat(chatBody()), apiError(403, `${start}[secret]`.slice(0, 500)));
  }
});

const head = 'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n';
for (const isReused of [false, true]) {
  const what = isReused ? 'a reused' : 'a new';
  test(`an answer cut inside its headers on ${what} connection is not retried`, async (t) => {
    const upstream = await startRawUpstream(t, ({ socket }) => {
      if (!isReused || upstream.requests.length > 1) socket.end(head);
      else socket.write(`${head}content-length: 14\r\n\r\n{"choices":[]}`);
    });
    const toml = providerToml(upstream, 'p', OVER_FETCH ? '' : 'retries = 1');
    const gateway = await startGateway(t, { toml });
    if (isReused) assert.equal((await gateway.chat(chatBody())).status, 200);
    const reply = await gateway.chat(chatBody());
    assert.equal(upstream.requests.at(-1)!.onConnection, isReused ? 2 : 1);
    assert.equal(upstream.requests.length, isReused ? 2 : 1);
    const message = OVER_FETCH ? /^Provider error: \S/ : 'Provider error: the answer was cut off';
    assertError(reply, { ...PROVIDER_FAILED, message });
  });
}

const MAX_ANSWER_BYTES = 64 * 1024 * 1024;
const TOO_LARGE = { ...PROVIDER_FAILED, message: /^Provider error: .*too large/ };

test('an answer whose Content-Length is beyond 64 MiB is a 502 at once', async (t) => {
  const { gateway } = await scenario(t, {
    providers: {
      p: (request, response) => {
        const length = modelOf(request);
        response.writeHead(200, { 'content-type': 'application/json', 'content-length': length });
        response.write('{"choices":[]}', () => setImmediate(() => response.destroy()));
      },
    },
  });
  const ask = async (bytes: number) => gateway.chat(chatBody({ model: `p/${bytes}` }));
  assertError(await ask(MAX_ANSWER_BYTES), { ...PROVIDER_FAILED, message: /cut off/ });
  assertError(await ask(MAX_ANSWER_BYTES + 1), TOO_LARGE);
});

test(
  'an answer in chunks may have 64 MiB, and a longer one is a 502',
  { skip: LEFT_TO_SWEEPS },
  async (t) => {
    const { gateway } = await scenario(t, {
      providers: {
        p: (request, response) => {
          const body = Buffer.alloc(Number(modelOf(request)), ' ');
          body.write('{"choices":[]}');
          response.setHeader('content-type', 'application/json');
          response.write(body.subarray(0, 1000));
          response.end(body.subarray(1000));
        },
      },
    });
    const ask = async (bytes: number) => gateway.chat(chatBody({ model: `p/${bytes}` }));
    const whole = await ask(MAX_ANSWER_BYTES);
    assert.deepEqual([whole.status, whole.bytes.length], [200, MAX_ANSWER_BYTES]);
    assertError(await ask(MAX_ANSWER_BYTES + 1), TOO_LARGE);
  },
);

test('an error body is waited for one second', async (t) => {
  const timers = useManualTimers(t);
  const { p: upstream, gateway } = await scenario(t, {
    providers: {
      p: (_, response) => {
        response.writeHead(400, { 'content-type': 'application/json' });
        response.write('{"error":');
      },
    },
  });
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
