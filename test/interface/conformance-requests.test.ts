import assert from 'node:assert/strict';
import { test } from 'node:test';

import { VERSION } from '../../src/lib/version.ts';
import {
  assertError,
  NOT_AUTHENTICATED,
  NOT_FOUND,
  parseRaw,
  refusal,
  unknownProvider,
  type ExpectedError,
} from '../support/errors.ts';
import { chatBody, CLIENT_TOKEN, startGateway, type TestGateway } from '../support/gateway.ts';
import { sendRaw } from '../support/raw.ts';
import { modelOf, scenario } from '../support/scenario.ts';
import { completion } from '../support/upstream.ts';

const CHAT = '/v1/chat/completions';

test('the three endpoints answer as documented', async (t) => {
  const { gateway } = await scenario(t, { providers: { p: { lines: 'models = ["m"]' } } });
  const health = await gateway.send('/health');
  assert.equal(health.status, 200);
  assert.deepEqual(health.json(), { status: 'healthy', version: VERSION });
  assert.match(health.headers['content-type'] ?? '', /^application\/json\b/);

  const models = await gateway.send('/v1/models');
  assert.equal(models.status, 200);
  assert.match(models.headers['content-type'] ?? '', /^application\/json\b/);
  const list = models.json() as { object: string; data: { created: unknown }[] };
  assert.equal(list.object, 'list');
  assert.equal(list.data.length, 1);
  const { created, ...entry } = list.data[0]!;
  assert.ok(Number.isInteger(created));
  assert.deepEqual(entry, { id: 'p/m', object: 'model', owned_by: 'p' });

  const chat = await gateway.chat(chatBody());
  assert.equal(chat.status, 200);
  assert.deepEqual(chat.json(), completion());
  assert.equal(chat.headers['x-gateway-provider'], 'p');
});

// Requests with a Bearer header, by their 404's `Allow`, or by their status.
const targets: Record<string, string> = {
  '200': `GET /health, GET /health?, GET /health?a=/v1/models, GET /v1/models,
    GET /v1/models?limit=1&x=%2F, GET http://other.example/v1/models,
    GET HTTPS://other.example:1/health?x`,
  'GET, HEAD': 'POST /health, PUT /health, OPTIONS /health',
  GET: 'POST /v1/models, HEAD /v1/models, DELETE /v1/models?x',
  POST: `GET ${CHAT}, HEAD ${CHAT}, PATCH ${CHAT}, OPTIONS http://other.example${CHAT}`,
  '404': `GET /, GET /?/health, GET /health/, GET /v1/models/, GET //health, GET /heal%74h,
    GET /HEALTH, GET /health;a, GET /health%3Fa, GET /./health, GET /v1/../health,
    GET /v1/models/p, GET /v1, GET /models, POST /chat/completions, POST /v1/completions,
    POST /v1/embeddings, GET /metrics, GET /constructor, OPTIONS *, GET http://health,
    GET http://other.example//health, GET http://other.example?/health`,
};
test('each method and target gets its endpoint, or a 404 with the allowed methods', async (t) => {
  const gateway = await startGateway(t, {});
  for (const [result, lines] of Object.entries(targets)) {
    for (const line of lines.split(/,\s+/)) {
      const head = [
        `${line} HTTP/1.1`,
        'Host: gateway',
        'Connection: close',
        `Authorization: Bearer ${CLIENT_TOKEN}`,
      ];
      const reply = parseRaw(await sendRaw(gateway.port, `${head.join('\r\n')}\r\n\r\n`));
      if (result === '200') assert.equal(reply.status, 200, line);
      else if (line.startsWith('HEAD')) {
        assert.deepEqual([reply.status, reply.headers['allow'], reply.text], [404, result, '']);
      } else {
        const allow = result === '404' ? {} : { headers: { allow: result } };
        assertError(reply, { ...NOT_FOUND, ...allow });
      }
    }
  }
});

const big = 'x'.repeat(2000);
const noToken = { authorization: undefined };

interface Wrong {
  readonly path?: string;
  readonly headers?: Record<string, string | undefined>;
  readonly body?: string;
  readonly expected: ExpectedError;
}
// Each request fails several checks. The first check must answer.
const orders: readonly Wrong[] = [
  { headers: { ...noToken, expect: 'magic' }, expected: refusal(/Expect/, 417) },
  { path: '/nothing', headers: noToken, expected: NOT_AUTHENTICATED },
  { path: '/v1/models', headers: noToken, expected: NOT_AUTHENTICATED },
  { headers: noToken, body: big, expected: NOT_AUTHENTICATED },
  { headers: noToken, body: '{', expected: NOT_AUTHENTICATED },
  { path: '/nothing', body: big, expected: NOT_FOUND },
  { path: '/nothing', body: '{', expected: NOT_FOUND },
  { body: big, expected: refusal(/1000/, 413) },
  { body: '{"stream":1,', expected: refusal(/JSON/) },
  { body: '{"model":"q/m","messages":[]}', expected: refusal(/messages/) },
];
test('the checks run in their order, and no refused request reaches upstream', async (t) => {
  const { p, gateway } = await scenario(t, { server: 'max_body_bytes = 1000' });
  for (const { path = CHAT, headers, body = '{}', expected } of orders) {
    const reply = await gateway.send(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body,
    });
    assertError(reply, expected);
  }
  assert.equal(p.requests.length, 0);
});

const mib = 'x'.repeat(1_048_576);

/** Requested models with JSON's escapes, by the asked provider and model, or by the refusal. */
const models: Record<string, string> = {
  'p m': 'p/m',
  'p org/m:free@1': 'p/org/m:free@1',
  'p /m': 'p//m',
  'p  m ': 'p/\\u0020m\\u0020',
  'p q/m': 'p/q/m',
  'q m': 'q/m',
  'q org/small': 'fast',
  'p fast': 'p/fast chain',
  'p aliased': 'with/slash',
  'p standard': 'p p/',
  'no default_model': 'q q/',
  'no model': `FAST gpt constructor __proto__ toString /m ${mib}`,
  'unknown P': 'P/m',
  'unknown  p': '\\u0020p/m',
  'unknown off': 'off/m',
  'unknown openai': 'dangling',
  'unknown __proto__': '__proto__/x',
  'unknown constructor': 'constructor/x',
  'unknown hasOwnProperty': 'hasOwnProperty/x',
  'unknown unknown': 'unknown/a/b',
  [`unknown ${'x'.repeat(128)}`]: `${mib}/m`,
  'unknown a\\u0000b\\u001b[31m\\u000a\\u2028': 'a\\u0000b\\u001b[31m\\n\\u2028/m',
};

/** Returns a row's expected error. */
function errorOf(row: string): ExpectedError | undefined {
  const [, kind, what = ''] = /^(unknown|no) (.*)$/.exec(row) ?? [];
  if (kind === 'no') return refusal(new RegExp(what));
  return kind === 'unknown' ? unknownProvider(what) : undefined;
}

test('a model is asked of the provider it names, or refused', async (t) => {
  const { p, q, gateway } = await scenario(t, {
    providers: {
      p: { lines: 'default_model = "standard"' },
      q: {},
      off: { lines: 'enabled = false' },
    },
    more: [
      '[aliases]',
      'fast = "q/org/small"',
      'chain = "p/fast"',
      'dangling = "openai/gpt"',
      '"with/slash" = "p/aliased"',
    ].join('\n'),
  });
  for (const [row, names] of Object.entries(models)) {
    const error = errorOf(row);
    for (const name of names.split(' ')) {
      const reply = await gateway.chat(chatBody({ model: JSON.parse(`"${name}"`) as string }));
      const asked = Object.entries({ p, q }).flatMap(([id, { requests }]) =>
        requests.splice(0).map((request) => `${id} ${modelOf(request)}`),
      );
      assert.deepEqual(asked, error ? [] : [row]);
      if (error) assertError(reply, error);
      else assert.equal(reply.headers['x-gateway-provider'], row[0]);
      assert.ok(reply.text.length < 1000);
    }
  }
});

const hello = { role: 'user', content: 'hello' };
// Wrong values for a field. `undefined` stands for an absent field.
const wrongValues: [field: RegExp, wrap: (value: unknown) => object, values: unknown[]][] = [
  [/model/, (model) => ({ model }), [undefined, null, '', 1, true, [], {}, ['p/m']]],
  [/messages/, (messages) => ({ messages }), [undefined, null, '', 'hi', 1, true, [], {}]],
  [/messages/, (first) => ({ messages: [hello, first] }), [null, 'hi', 1, true, [], [hello]]],
  [/role/, (role) => ({ messages: [{ ...hello, role }] }), [undefined, null, 1, true, [], {}]],
  [
    /content/,
    (content) => ({ messages: [{ ...hello, content }] }),
    [undefined, null, 1, true, {}, { type: 'text' }],
  ],
  ...['tool', 'system', 'developer', 'x'].map((role): (typeof wrongValues)[number] => [
    /content/,
    (content) => ({ messages: [{ role, content }] }),
    [undefined, 1, true, {}],
  ]),
  [/content/, (content) => ({ messages: [{ role: 'assistant', content }] }), [1, true, {}]],
  [/name/, (name) => ({ messages: [{ ...hello, name }] }), [1, true, [], {}]],
  [/stream/, (stream) => ({ stream }), [0, 1, 'true', '', [], {}]],
];
test('a value of the wrong type is refused by name', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [field, wrap, values] of wrongValues) {
    for (const value of values) {
      assertError(await gateway.chat(chatBody(wrap(value))), refusal(field));
    }
  }
  assert.equal(p.requests.length, 0);
});

test('the content of a message may be null, unless its role is user', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const role of ['tool', 'system', 'developer', 'assistant', 'function', 'x']) {
    const body = JSON.stringify(chatBody({ messages: [hello, { role, content: null }] }));
    assert.equal((await gateway.chat(body)).status, 200, role);
    const sent = p.requests.splice(0).map((request) => request.body.toString());
    assert.deepEqual(sent, [body.replace('"p/m"', '"m"')]);
  }
});

test('the last of two equal members of a message counts', async (t) => {
  const { p: upstream, gateway } = await scenario(t);
  const ask = async (members: string) =>
    gateway.chat(`{"model":"p/m","messages":[{"content":"x",${members}}]}`);
  assertError(await ask('"role":"user","role":5'), refusal(/role/));
  assert.equal((await ask('"role":5,"role":"user"')).status, 200);
  assertError(await ask('"role":"user","content":5'), refusal(/content/));
  assertError(await ask('"role":"user","name":"a","name":5'), refusal(/name/));
  assert.equal(upstream.requests.length, 1);
});

const valid = JSON.stringify(chatBody());
test('a JSON body that is no object is refused', async (t) => {
  const gateway = await startGateway(t, {});
  for (const body of ['null', 'true', '1', '"canary"', '[]', `[${valid}]`])
    await assertUnquoted(gateway, body, refusal(/object/));
});

/** Sends the body, and checks that the error does not quote it. */
async function assertUnquoted(
  gateway: TestGateway,
  body: string,
  expected: ExpectedError,
): Promise<void> {
  const reply = await gateway.chat(body);
  assertError(reply, expected);
  assert.ok(!reply.text.includes('canary'), body);
}

// Two spaces separate the bodies. `¦` marks the first wrong byte, which comes after it.
const malformed =
  String.raw`¦canary  ¦<canary/>  {¦canary:1}  {¦'canary':1}  {"canary"¦}  {"canary"¦,1}  {"canary":¦}
    {"canary":¦  {"canary":1,¦}  {"canary":[1,¦]}  {"canary":[1¦}  {"canary":1 ¦"b":2}  {"canary":1¦
    {"canary":"open¦  {"canary":{}}¦}  {"canary":1} ¦{}  {"canary":1}¦//x  {"canary":"é"¦é}
    {"canary" ¦1}  ["\¦x"]  ["\u12¦g4"]  [¦01]  [¦1.]  [¦+1]  [¦.5]  [¦1e]  [1¦x]  [¦NaN]  [¦Infinity]
    [¦True]  [¦nul]  [¦trux]  [¦${'0'.repeat(100)}]`.split(/\s{2,}/);
malformed.push('¦', '  \n¦', '["a¦\tb"]', '["a¦\nb"]', '1¦\u0000', '1 ¦\u0000');
test("a malformed body is refused with its first wrong byte's position and no quote", async (t) => {
  const gateway = await startGateway(t, {});
  for (const body of malformed) {
    const position = Buffer.byteLength(body.slice(0, body.indexOf('¦')));
    await assertUnquoted(gateway, body.replace('¦', ''), {
      ...refusal(),
      message: new RegExp(`^Invalid request: request body is not valid JSON\\D*\\b${position}\\b`),
    });
  }
});

const encodings: [what: string, body: Buffer][] = [
  ['a byte order mark', Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), Buffer.from(valid)])],
  ['UTF-16', Buffer.from(valid, 'utf16le')],
  ['a Latin-1 letter', Buffer.from(valid.replace('hello', 'caf\u00e9'), 'latin1')],
  ['an overlong slash', bytesIn(0xc0, 0xaf)],
  ['an encoded surrogate', bytesIn(0xed, 0xa0, 0x80)],
  ['half a character', bytesIn(0xe2, 0x82)],
  ['a lone continuation byte', bytesIn(0x80)],
];
test('a body that is not UTF-8 or has a byte order mark is refused', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [what, body] of encodings) {
    const reply = await gateway.chat(body);
    assert.equal(reply.status, 400, what);
    assertError(reply, refusal());
  }
  assert.equal(p.requests.length, 0);
});

function bytesIn(...bytes: number[]): Buffer {
  const [before, after] = valid.split('hello') as [string, string];
  return Buffer.concat([Buffer.from(before), Buffer.from(bytes), Buffer.from(after)]);
}

const duplicates: [members: string, name: string | undefined][] = [
  ['"model":"p/other"', 'model'],
  ['"model":"p/m"', 'model'],
  ['"mod\\u0065l":"p/other"', 'model'],
  ['"\\u006d\\u006f\\u0064\\u0065\\u006C":"p/other"', 'model'],
  ['"stream":true,"stream":true', 'stream'],
  ['"stream":false,"\\u0073tream":true', 'stream'],
  ['"stream":false,"x":[],"strea\\u006d" : false', 'stream'],
  ['"models":["p/other"],"model ":"p/other"', undefined],
  ['"x":{"model":1,"model":2,"stream":1,"stream":2}', undefined],
  ['"x":1,"x":2', undefined],
];
test('only a second model or stream is refused, by name', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [members, name] of duplicates) {
    const reply = await gateway.chat(valid.replace(/\}$/, `,${members}}`));
    if (name) assertError(reply, refusal(new RegExp(name)));
    else assert.equal(reply.status, 200, reply.text);
    assert.equal(p.requests.splice(0).length, name ? 0 : 1, members);
  }
});

const LIMIT = 300;
const sized = (size: number) =>
  JSON.stringify(chatBody({ x: '' })).replace('""', (empty) => {
    const rest = size - JSON.stringify(chatBody({ x: '' })).length;
    return `"${'y'.repeat(rest)}${empty[0]}`;
  });
test('max_body_bytes limits bodies with Content-Length and in chunks', async (t) => {
  const { p, gateway } = await scenario(t, { server: `max_body_bytes = ${LIMIT}` });
  for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
    assert.equal((await gateway.chat(sized(LIMIT), { headers })).status, 200);
    for (const size of [LIMIT + 1, 3_000_000]) {
      assertError(await gateway.chat(sized(size), { headers }), refusal(/300/, 413));
    }
    assert.equal(p.requests.splice(0).length, 1);
  }
});

test('a Content-Length over max_body_bytes is refused before the body comes', async (t) => {
  const gateway = await startGateway(t, {});
  const head = [
    `POST ${CHAT} HTTP/1.1`,
    'Host: x',
    `Authorization: Bearer ${CLIENT_TOKEN}`,
    'Content-Type: application/json',
    'Content-Length: 33554433',
    'Connection: close',
  ];
  const reply = await sendRaw(gateway.port, `${head.join('\r\n')}\r\n\r\n`);
  assertError(parseRaw(reply), refusal(/33554432/, 413));
});

const within = (json: string) => valid.replace(/\}$/, `,"x":${json}}`);
const nested = (levels: number) => within('['.repeat(levels) + ']'.repeat(levels));
const commas = (count: number) => within(`[${'1,'.repeat(count - 1)}1]`);
const measures: [what: string, body: string, refusedFor: RegExp | undefined][] = [
  ['256 levels of arrays', nested(255), undefined],
  ['257 levels of arrays', nested(256), /256/],
  ['a million opening brackets', '['.repeat(1_000_000), /256/],
  ['a million brackets in a string', within(`"${'['.repeat(1_000_000)}"`), undefined],
  ['more than 500,000 elements', commas(500_001), /500,?000/],
  ['a number of 1,024 bytes', within('1'.repeat(1024)), undefined],
  ['a number of 1,025 bytes', within('1'.repeat(1025)), /longer than 1024 bytes/],
];
test('a body with too many levels or elements, or too long a number, is refused', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [what, body, refusedFor] of measures) {
    const reply = await gateway.chat(body);
    if (refusedFor) assertError(reply, refusal(refusedFor));
    else assert.equal(reply.status, 200, `${what}: ${reply.text}`);
    const sent = p.requests.splice(0).map((request) => request.body.toString());
    assert.ok(sent.join() === (refusedFor ? '' : body.replace('"p/m"', '"m"')), what);
  }
});

const acceptedHeaders = [
  'content-type: application/json; charset=utf-8',
  'content-type: Application/JSON;charset="UTF-8"',
  'content-type: application/json; charset = utf-8',
  'content-encoding: identity',
  'content-encoding: Identity',
];
const refusedHeaders = [
  'content-type: text/plain',
  'content-type: application/x-www-form-urlencoded',
  'content-type: application/jsonp',
  'content-type: text/plain; a=application/json',
  'content-type: application/json; charset=utf-16',
  'content-encoding: gzip',
  'content-encoding: br',
  'content-encoding: identity, gzip',
];
test('the headers of a body must announce JSON in UTF-8 without a coding', async (t) => {
  const { p, gateway } = await scenario(t);
  const headersOf = (line: string) => Object.fromEntries([line.split(': ')]) as object;
  for (const line of acceptedHeaders)
    assert.equal((await gateway.chat(chatBody(), { headers: { ...headersOf(line) } })).status, 200);
  assert.equal(p.requests.splice(0).length, acceptedHeaders.length);
  const others = [undefined, ['text/plain', 'application/json']];
  for (const headers of [
    ...refusedHeaders.map(headersOf),
    ...others.map((value) => ({ 'content-type': value })),
  ]) {
    assertError(await gateway.chat(chatBody(), { headers: { ...headers } }), refusal(/Content-/));
  }
  assert.equal(p.requests.length, 0);
});
