import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';

import type { Config } from '../../src/config/config.ts';
import { MAX_JSON_ELEMENTS } from '../../src/lib/json.ts';
import { assertError, type ExpectedError } from '../support/errors.ts';
import {
  chatBody,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { modelOf, scenario } from '../support/scenario.ts';
import { createScope } from '../support/scope.ts';
import { linesOf } from '../support/streams.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';
import {
  completion,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';

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
  headers: chosen,
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

/** `stream` is set if the row is about streams only, or complete answers only. */
type Row = readonly [upstream: string, Script, ExpectedError, stream?: boolean];

const okRows: Row[] = [
  ...['', '{"choices":[', 'hello', html].map((content): Row => {
    const script = text(content, 'application/json');
    return [`200 with ${JSON.stringify(content.slice(0, 14))} as JSON`, script, NOT_JSON, false];
  }),
  ['200 with HTML', text(html, 'text/html'), NOT_JSON, false],
  ...(
    [
      ['{"message":"overloaded","code":503}', 503, 'overloaded'],
      ['{"message":"no"}', 502, 'no'],
      ['{"message":"no","status":422}', 422, 'no'],
      ['{"message":"no","code":200}', 502, 'no'],
      ['{"message":"no","code":"oops"}', 502, 'no (oops)'],
      ['"no"', 502, 'no'],
      // Deeper than a conversion to text can go.
      [`{"message":"no","code":${'['.repeat(50_000)}${']'.repeat(50_000)}}`, 502, 'no'],
      [`{"message":"sk-${'x'.repeat(1_000_000)}"}`, 502, '[secret]'],
      ['{"message":"overloaded","code":503},"choices":null', 503, 'overloaded'],
    ] as const
  ).map(([error, status, message]): Row => [
    `200 with the error ${error.slice(0, 50)}`,
    text(`{"error":${error}}`, 'application/json'),
    apiError(status, message),
  ]),
  ...(
    [
      ['{"code":500,"msg":"404 NOT_FOUND","success":false}', 500, '404 NOT_FOUND'],
      ['{"base_resp":{"status_code":1000,"status_msg":"unknown error"}}', 502, 'unknown error'],
      ['{"base_resp":{"status_code":1004,"status_msg":"login fail"}}', 401],
      ['{"base_resp":{"status_code":1008,"status_msg":"no balance"}}', 402, 'no balance'],
      ['{"base_resp":{"status_code":"401","status_msg":"login fail"}}', 401],
      ['{"detail":"Not Found"}', 502, 'Not Found'],
      ['{"detail":[{"loc":["body"],"msg":"missing"}]}', 502, 'missing'],
      ['{"error_code":336003,"error_msg":"too long"}', 502, 'too long'],
      ['{"message":"no such route","status":"404","choices":null}', 404, 'no such route'],
      ['{"error":{},"errors":[],"message":"busy"}', 502, 'busy'],
    ] as const
  ).map(([body, status, message]): Row => [
    `200 with ${body.slice(0, 50)}`,
    text(body, 'application/json'),
    message === undefined ? KEY_REJECTED : apiError(status, message),
  ]),
  ['200 with a JSON completion', answers(completion()), NO_STREAMING, true],
  ...['text/event-stream', 'application/json', 'text/plain'].map((type): Row => [
    `200 with an event stream of ${type}`,
    text('\n: hello\n\ndata: {"choices":[]}\n\n', type),
    PROVIDER_FAILED,
    false,
  ]),
  ...['text/html', 'application/json', 'text/event-stream'].map((type): Row => [
    `200 with a page of ${type}`,
    text(html, type),
    { ...PROVIDER_FAILED, message: 'Provider error: the answer was no stream of events' },
    true,
  ]),
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

/** A row for a 429: its headers, its error, and the answer's `Retry-After`. */
const limited = (sent: object, error: object, seconds: number, more: object = {}): Row => [
  `429 with the headers ${JSON.stringify(sent)} and the error ${JSON.stringify(error)}`,
  answers({ error }, 429, sent),
  { ...rateLimited(seconds), ...more },
];

const final = (seconds: number) => ({
  headers: { ...chosen, 'retry-after': String(seconds), 'x-should-retry': 'false' },
});
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
  ).map(([sent, seconds]) => limited(sent, { message: 'slow down' }, seconds)),
  limited({ 'retry-after': '61' }, {}, 61, final(61)),
  limited({}, { message: 'slow down', details: [{ retryDelay: '26.66s' }] }, 27),
  limited({ 'retry-after': '3' }, { message: 'slow down', details: [{ retryDelay: '9s' }] }, 3),
  limited({}, { message: 'slow down', code: 'tokens_per_minute' }, 1, {
    message: 'Rate limit exceeded at p: slow down (tokens_per_minute)',
  }),
  limited({}, { message: 'no money', code: 'insufficient_quota' }, 1, {
    ...final(1),
    message: 'Rate limit exceeded at p: no money (insufficient_quota)',
  }),
  [
    '503 with Retry-After',
    answers({ message: 'later' }, 503, { 'retry-after': '7' }),
    { ...apiError(503, 'later'), headers: { ...chosen, 'retry-after': '7' } },
  ],
];

/** Bodies for a 400, each with the message to the client. */
const SHAPES = String.raw`
{"error":"own words"} => own words
{"message":"own words"} => own words
{"detail":"own words"} => own words
{"what":"own words"} => Bad Request
{"error":{"message":""}} => Bad Request
{"message":7} => Bad Request
null => Bad Request
{"message":"too long","code":"too_long"} => too long (too_long)
{"error":{"code":"no_model"}} => Bad Request (no_model)
{"message":"own: bad_word","code":"bad_word"} => own: bad_word
{"message":"own words","code":"1113"} => own words (1113)
{"error":"own words","code":"bad_word"} => own words (bad_word)
{"error":{"message":"own words","code":"400"}} => own words
{"error":{"message":"own words","code":"not a word"}} => own words
{"error":{"message":"own words","type":"bad","code":null}} => own words
{"object":"error","message":{"detail":[{"loc":["body"]},{"msg":"own words"}]}} => own words
{"detail":[{"msg":"own words"}]} => own words
{"errors":[{"code":7003,"message":"own words"}]} => own words
{"errors":{"message":"own words"}} => own words
{"error":["","own words","others"]} => own words
{"Message":"own words"} => own words
{"error":null,"error_description":"own words"} => own words
{"status":400,"error":"Bad Request","message":"own words"} => own words
[${'{},'.repeat(99)}{"message":"own words"}] => Bad Request
{"message":"got <class 'str'>"} => got <class 'str'>
{"message":"<class 'int'> is wrong"} => <class 'int'> is wrong
{"message":"At most 1 <image>"} => At most 1 <image>
{"message":"x is <nil>"} => x is <nil>
{"message":"a<b"} => a<b
{"message":"<400> InternalError.Algo: wrong"} => <400> InternalError.Algo: wrong
{"message":"<b>wrong</b>"} => <b>wrong</b>
{"message":"<img src=x onerror=alert(1)>"} => <img src=x onerror=alert(1)>
{"message":"so: <!DOCTYPE html>"} => Bad Request
{"message":"x <HTML lang>"} => Bad Request
{"message":"x<head>"} => Bad Request
{"message":"x<body>"} => Bad Request
{"message":"x<script>"} => Bad Request
{"message":"${'x'.repeat(10_000)}"} => ${'x'.repeat(500)}
{"message":"${'x'.repeat(500)}<html>"} => ${'x'.repeat(500)}
`;
/** `metadata.raw` values, used if the message is generic. */
const RAW = String.raw`
"own words" => Provider returned error: DeepInfra: own words
{"detail":"own words"} => Provider returned error: DeepInfra: own words
"{\"error\":{\"message\":\"own words\"}}" => Provider returned error: DeepInfra: own words
"{\"a\":1}" => Provider returned error: DeepInfra: {"a":1}
null => Provider returned error: DeepInfra
${JSON.stringify(html)} => Bad Request
`;
const rowsOf = (table: string) =>
  table
    .trim()
    .split('\n')
    .map((row) => row.split(' => ') as [json: string, expected: string]);
const shapes: (readonly [body: string, expected: string | RegExp])[] = [
  ...rowsOf(SHAPES),
  ...rowsOf(RAW).map(([raw, expected]) => {
    const metadata = `{"raw":${raw},"provider_name":"DeepInfra"}`;
    const message = '"message":"Provider returned error"';
    return [`{"error":{${message},"code":400,"metadata":${metadata}}}`, expected] as const;
  }),
  [
    JSON.stringify({ message: 'a\u0000b\u001b[31mc\r\nd\u0085e\u2028f' }),
    // oxlint-disable-next-line no-control-regex
    /a[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+f$/,
  ],
];

const IS_FETCH = process.env['GATEWAY_UPSTREAM'] === 'fetch';
const OVERLOADED = '{"error":{"message":"own words","code":"insufficient_quota"}}';
const errorRows: Row[] = [
  ['401', answers({ error: { message: `bad key ${PROVIDER_KEY}` } }, 401), KEY_REJECTED],
  ...[400, 402, 403, 404, 408, 409, 413, 422, 451, 500, 502, 503, 504, 529, 599].map(
    (status): Row => [
      `${status} with error.message`,
      answers({ error: { message: 'own words', type: 'x', code: 'yes' } }, status),
      apiError(status, 'own words (yes)'),
    ],
  ),
  ...shapes.map(([body, expected]): Row => [
    `400 with ${body.slice(0, 80)}`,
    text(body, 'application/json', 400),
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
  // Errors from a server prepared for a stream.
  ...[
    `data: ${OVERLOADED}\n\n`,
    `event: error\ndata: ${OVERLOADED}`,
    `: ping\n\nid: 1\ndata:${OVERLOADED}\n\ndata: [DONE]\n\n`,
    `error: ${OVERLOADED}\r\n\r\n`,
    `\ufeffdata: ${OVERLOADED.replace(',', ',\ndata:')}\n\n`,
    `data: "${'x'.repeat(9)}"\n\n${OVERLOADED}\n`,
    `\ufeff${OVERLOADED}`,
  ].flatMap((body) =>
    ['text/event-stream', 'application/json', 'text/plain'].map((type): Row => [
      `429 of ${type} with ${JSON.stringify(body.slice(0, 30))}`,
      text(body, type, 429),
      { ...rateLimited(1, final(1).headers), message: /: own words \(insufficient_quota\)$/ },
    ]),
  ),
  // fetch hides a 407's headers, because it may be a proxy's.
  [
    '407 of its own',
    answers({ message: 'own words' }, 407),
    IS_FETCH
      ? { ...PROVIDER_FAILED, message: 'Provider error: unexpected status 407' }
      : apiError(407, 'own words'),
  ],
  [
    '407 of a proxy',
    answers({ message: 'own words' }, 407, { 'proxy-authenticate': 'Basic' }),
    { ...PROVIDER_FAILED, message: 'Provider error: unexpected status 407' },
  ],
  ...[204, 205, 300, 301, 302, 303, 304, 307, 308, 600, 999].map((status): Row => {
    const script: Script = (_, response) =>
      response.writeHead(status, { location: '/v1/elsewhere' }).end();
    return [`${status}`, script, PROVIDER_FAILED];
  }),
];

/** A key without the shape of a key. */
const KEY = 'canary+of/no.shape';

describe('an answer', () => {
  // All rows share a gateway, because starting a gateway for each row takes half of the time.
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
        // Otherwise a browser might take markup in a message for HTML.
        assert.equal(reply.headers['x-content-type-options'], 'nosniff');
      }
    });
  }

  test('with a Retry-After date has the whole seconds until then', async () => {
    const date = new Date(Date.now() + 40_000).toUTCString();
    const reply = await ask(answers({}, 429, { 'retry-after': date }));
    const seconds = Number(reply.headers['retry-after']);
    assert.ok(Number.isInteger(seconds) && seconds >= 20 && seconds <= 40, `${seconds}`);
    assertError(reply, rateLimited(seconds));
  });

  test('with several Retry-After headers uses the first', async () => {
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

  test("has the client's request id if it is a word of 128 characters, else a new id", async () => {
    const idFor = async (sent: string, path: string) =>
      (await gateway.send(path, { headers: { 'x-request-id': sent } })).headers['x-request-id'];
    for (const path of ['/health', '/nothing']) {
      for (const sent of ['abc-123', '~'.repeat(128)]) assert.equal(await idFor(sent, path), sent);
      for (const sent of ['~'.repeat(129), 'two words', 'caf\u00e9']) {
        const id = await idFor(sent, path);
        assert.match(String(id), /^[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}$/);
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
    ['other JSON whose errors are empty', `{"error":{},"errors":[],"answers":${FEWER},"msg":""}`],
    ['other JSON behind a byte order mark', `\ufeff{"answers":${FEWER}}`],
    ['a message alone', `{"msg":"no","x":"${'x'.repeat(300_000)}"}`, apiError(502, 'no')],
    [
      'an error',
      `{"error":{"message":"${'no '.repeat(100_000)}","code":503},"choices":null}`,
      apiError(503, `${'no '.repeat(166)}no`),
    ],
    ['JSON that is cut off', `{"choices":${FEWER}`, NOT_JSON],
    ['text', `{"choices":[]} ${'canary '.repeat(100_000)}`, NOT_JSON],
  ];
  for (const [what, body, expected] of longAnswers) {
    const result = expected ? `answered as ${expected.code}` : 'passed on';
    test(`of more than 256 KiB with status 200 is ${result} if it is ${what}`, async () => {
      const reply = await ask(text(body, 'application/json'));
      if (expected) assertError(reply, expected);
      else assert.ok(reply.status === 200 && reply.text === body, reply.text.slice(0, 300));
    });
  }
});

test("an exception during a provider's answer is a fixed 500", async (t) => {
  const adjust = (config: Config): Config => ({
    ...config,
    server: Object.defineProperty({ ...config.server }, 'emptyAnswers', {
      get: () => assert.fail('canary at /srv/secret/path.ts:1'),
    }),
  });
  const { gateway } = await scenario(t, { providers: { p: events }, adjust });
  assertError(await gateway.chat(chatBody({ stream: true })), INTERNAL);
});

test('a key that begins with another key is hidden whole', async (t) => {
  const [short, long] = ['canary-key-1', 'canary-key-1-and-more'];
  const upstream = await startUpstream(t, answers({ message: `key ${long} is wrong` }, 403));
  const toml = [short, long].map((key, index) =>
    providerToml(upstream, ['p', 'q'][index]).replace(PROVIDER_KEY, key),
  );
  const gateway = await startGateway(t, { toml: toml.join('') });
  const reply = await gateway.chat(chatBody());
  assertError(reply, apiError(403, 'key [secret] is wrong'));
});

test('a key that the cut at 500 characters divides is hidden whole', async (t) => {
  const upstream = await startUpstream(t);
  const toml = providerToml(upstream).replace(PROVIDER_KEY, KEY);
  const gateway = await startGateway(t, { toml });
  for (let length = 8; length <= KEY.length; length += 1) {
    const start = 'x '.repeat(250).slice(0, 500 - length);
    upstream.script = answers({ message: `${start}${KEY} is wrong` }, 403);
    assertError(
      await gateway.chat(chatBody()),
      apiError(403, `${start}[secret] is wrong`.slice(0, 500).trimEnd()),
    );
  }
});

test('a secret header that the cut at 500 characters divides is hidden whole', async (t) => {
  const secret = 'Zq8-tenant-header-0123456789abcdef';
  const upstream = await startUpstream(t);
  const more = `[providers.p.headers]\n"x-tenant" = "${secret}"\n`;
  const gateway = await startGateway(t, { toml: providerToml(upstream, 'p', more) });
  for (const length of [8, secret.length - 1]) {
    const start = 'x '.repeat(250).slice(0, 500 - length);
    upstream.script = answers({ message: `${start}${secret} is wrong` }, 400);
    const shown = `${start}[secret] is wrong`.slice(0, 500).trimEnd();
    assertError(await gateway.chat(chatBody()), apiError(400, shown));
  }
});

const MIB = 1_048_576;
const MAX_ANSWER_BYTES = 256 * MIB;
const LARGE = `max_buffered_bytes = ${2 * MAX_ANSWER_BYTES}`;
/** It names no provider, because the limit is the gateway's. */
const TOO_LARGE: ExpectedError = {
  httpStatus: 500,
  type: 'internal_error',
  code: 'INTERNAL_ERROR',
  message: /^The answer is larger than 268435456 bytes$/,
  headers: { ...chosen, 'x-should-retry': 'false' },
};

test('an answer beyond 256 MiB is refused at its Content-Length, and nobody is asked again', async (t) => {
  const { asked, gateway } = await scenario(t, {
    server: `${LARGE}\nretries = 1`,
    providers: {
      p: (request, response) => {
        const length = modelOf(request);
        response.writeHead(200, { 'content-type': 'application/json', 'content-length': length });
        response.write('{"choices":[]}', () => setImmediate(() => response.destroy()));
      },
      q: {},
    },
    fallback: ['q'],
  });
  const ask = async (bytes: number) => gateway.chat(chatBody({ model: `p/${bytes}` }));
  for (let count = 0; count < 4; count += 1)
    assertError(await ask(MAX_ANSWER_BYTES + 1), TOO_LARGE);
  assert.deepEqual(asked(), [4, 0]);
  const [{ outcome, tries } = assert.fail()] = await linesOf(gateway, 4);
  const [{ outcome: ofTry } = assert.fail()] = tries as { outcome: string }[];
  assert.deepEqual([outcome, ofTry], ['internal_error', 'internal_error']);
  gateway.judge();
  assert.deepEqual(gateway.lines('incident', 'breaker opened'), []);
  assert.equal((await ask(MAX_ANSWER_BYTES)).headers['x-gateway-provider'], 'q', 'it was cut off');
});

test('an answer may have 88 MB, as 2,048 embeddings have', { skip: LEFT_TO_SWEEPS }, async (t) => {
  const piece = Buffer.alloc(MIB, ' ');
  const { gateway } = await scenario(t, {
    server: LARGE,
    providers: {
      p: async (_, response) => {
        response.setHeader('content-type', 'application/json');
        response.write('{"choices":[]}');
        for (let count = 0; count < 88 && !response.destroyed; count += 1)
          if (!response.write(piece)) await once(response, 'drain').catch(() => {});
        response.end();
      },
    },
  });
  const whole = await gateway.chat(chatBody());
  assert.deepEqual([whole.status, whole.bytes.length], [200, 88 * MIB + 14]);
});
