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

test('HEAD /health has the headers of GET and no body', async (t) => {
  const gateway = await startGateway(t, {});
  const own = { authorization: undefined, 'x-request-id': 'same' };
  const [get, head] = [
    await gateway.send('/health', { headers: own }),
    await gateway.send('/health', { method: 'HEAD', headers: own }),
  ];
  assert.equal(head.text, '');
  assert.equal(head.status, get.status);
  const { date: _, ...expected } = get.headers;
  const { date: __, ...found } = head.headers;
  assert.deepEqual(found, expected);
});

// Each with a Bearer header: the status, or the methods that a 404 allows.
const targets: [method: string, target: string, result: number | string][] = [
  ['GET', '/health', 200],
  ['GET', '/health?', 200],
  ['GET', '/health?a=/v1/models', 200],
  ['GET', '/v1/models', 200],
  ['GET', '/v1/models?limit=1&x=%2F', 200],
  ['GET', 'http://other.example/v1/models', 200],
  ['GET', 'HTTPS://other.example:1/health?x', 200],
  ['POST', '/health', 'GET, HEAD'],
  ['PUT', '/health', 'GET, HEAD'],
  ['OPTIONS', '/health', 'GET, HEAD'],
  ['POST', '/v1/models', 'GET'],
  ['HEAD', '/v1/models', 'GET'],
  ['DELETE', '/v1/models?x', 'GET'],
  ['GET', CHAT, 'POST'],
  ['HEAD', CHAT, 'POST'],
  ['PATCH', CHAT, 'POST'],
  ['OPTIONS', `http://other.example${CHAT}`, 'POST'],
  ['GET', '/', 404],
  ['GET', '/?/health', 404],
  ['GET', '/health/', 404],
  ['GET', '/v1/models/', 404],
  ['GET', '//health', 404],
  ['GET', '/heal%74h', 404],
  ['GET', '/HEALTH', 404],
  ['GET', '/health;a', 404],
  ['GET', '/health%3Fa', 404],
  ['GET', '/./health', 404],
  ['GET', '/v1/../health', 404],
  ['GET', '/v1/models/p', 404],
  ['GET', '/v1', 404],
  ['GET', '/models', 404],
  ['POST', '/chat/completions', 404],
  ['POST', '/v1/completions', 404],
  ['POST', '/v1/embeddings', 404],
  ['GET', '/metrics', 404],
  ['GET', '/constructor', 404],
  ['OPTIONS', '*', 404],
  ['GET', 'http://health', 404],
  ['GET', 'http://other.example//health', 404],
  ['GET', 'http://other.example?/health', 404],
];
test('each method and target is answered by its endpoint, or with 404 and the methods it has', async (t) => {
  const gateway = await startGateway(t, {});
  for (const [method, target, result] of targets) {
    const head = [
      `${method} ${target} HTTP/1.1`,
      'Host: gateway',
      'Connection: close',
      `Authorization: Bearer ${CLIENT_TOKEN}`,
    ];
    const reply = parseRaw(await sendRaw(gateway.port, `${head.join('\r\n')}\r\n\r\n`));
    if (result === 200) {
      assert.equal(reply.status, 200, `${method} ${target}`);
    } else if (method === 'HEAD') {
      assert.deepEqual([reply.status, reply.headers['allow'], reply.text], [404, result, '']);
    } else {
      const allow = typeof result === 'string' ? { headers: { allow: result } } : {};
      assertError(reply, { ...NOT_FOUND, ...allow });
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
// Every request is wrong in more than one way; the first check that finds something answers.
const orders: Record<string, Wrong> = {
  'protocol before authorization': {
    headers: { ...noToken, expect: 'magic' },
    expected: refusal(/Expect/, 417),
  },
  'authorization before the route': {
    path: '/nothing',
    headers: noToken,
    expected: NOT_AUTHENTICATED,
  },
  'authorization before the method': {
    path: '/v1/models',
    headers: noToken,
    expected: NOT_AUTHENTICATED,
  },
  'authorization before the body size': {
    headers: noToken,
    body: big,
    expected: NOT_AUTHENTICATED,
  },
  'authorization before the parse': { headers: noToken, body: '{', expected: NOT_AUTHENTICATED },
  'the route before the body size': { path: '/nothing', body: big, expected: NOT_FOUND },
  'the route before the parse': { path: '/nothing', body: '{', expected: NOT_FOUND },
  'the body size before the parse': { body: big, expected: refusal(/1000/, 413) },
  'the parse before validation': { body: '{"stream":1,', expected: refusal(/JSON/) },
  'validation before the model is resolved': {
    body: '{"model":"q/m","messages":[]}',
    expected: refusal(/messages/),
  },
};
test('the checks come in their order, and nothing refused reaches upstream', async (t) => {
  const { p, gateway } = await scenario(t, { server: 'max_body_bytes = 1000' });
  for (const { path = CHAT, headers, body = '{}', expected } of Object.values(orders)) {
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

/** A model as requested; the upstream and model that are asked, or the refusal. */
const models: [
  model: string,
  result: readonly [provider: string, model: string] | ExpectedError,
][] = [
  ['p/m', ['p', 'm']],
  ['p/org/m:free@1', ['p', 'org/m:free@1']],
  ['p//m', ['p', '/m']],
  ['p/ m ', ['p', ' m ']],
  ['p/q/m', ['p', 'q/m']],
  ['q/m', ['q', 'm']],
  ['fast', ['q', 'org/small']],
  ['p/fast', ['p', 'fast']],
  ['with/slash', ['p', 'aliased']],
  ['chain', ['p', 'fast']],
  ['p', ['p', 'standard']],
  ['p/', ['p', 'standard']],
  ['q', refusal(/default_model/)],
  ['q/', refusal(/default_model/)],
  ['FAST', refusal(/model/)],
  ['gpt', refusal(/model/)],
  ['constructor', refusal(/model/)],
  ['__proto__', refusal(/model/)],
  ['toString', refusal(/model/)],
  ['P/m', unknownProvider('P')],
  [' p/m', unknownProvider(' p')],
  ['/m', refusal(/model/)],
  ['off/m', unknownProvider('off')],
  ['dangling', unknownProvider('openai')],
  ['__proto__/x', unknownProvider('__proto__')],
  ['constructor/x', unknownProvider('constructor')],
  ['hasOwnProperty/x', unknownProvider('hasOwnProperty')],
  ['unknown/a/b', unknownProvider('unknown')],
  [`${mib}/m`, unknownProvider('x'.repeat(128))],
  [mib, refusal(/model/)],
  ['a\u0000b\u001b[31m\n\u2028/m', unknownProvider('a\\u0000b\\u001b[31m\\u000a\\u2028')],
];
test('a model is asked of the provider and under the name that it says, or refused', async (t) => {
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
  for (const [model, result] of models) {
    const reply = await gateway.chat(chatBody({ model }));
    const asked = Object.entries({ p, q }).flatMap(([id, { requests }]) =>
      requests.splice(0).map((request) => [id, modelOf(request)]),
    );
    if ('length' in result) {
      assert.equal(reply.status, 200, reply.text);
      assert.deepEqual(asked, [result]);
      assert.equal(reply.headers['x-gateway-provider'], result[0]);
    } else {
      assertError(reply, result);
      assert.ok(reply.text.length < 1000);
      assert.deepEqual(asked, []);
    }
  }
});

const toPrimary: [model: string, asked: string | ExpectedError][] = [
  ['gpt', 'gpt'],
  ['constructor', 'constructor'],
  ['p', 'standard'],
  ['p/m', 'm'],
  ['fast', 'aliased'],
  ['other/m', unknownProvider('other')],
  ['/m', refusal(/model/)],
];
test('with a primary provider a model without a provider is asked there', async (t) => {
  const { p, gateway } = await scenario(t, {
    providers: { p: { lines: 'default_model = "standard"' } },
    more: '[providers]\nprimary = "p"\n[aliases]\nfast = "p/aliased"',
  });
  for (const [model, asked] of toPrimary) {
    const reply = await gateway.chat(chatBody({ model }));
    if (typeof asked === 'string') assert.deepEqual(p.requests.splice(0).map(modelOf), [asked]);
    else assertError(reply, asked);
  }
  assert.equal(p.requests.length, 0);
});

test('the body goes upstream byte for byte, but for the model', async (t) => {
  const { p: upstream, gateway } = await scenario(t);
  const body = (model: string) =>
    ` {"z":1.0e+2,"big":12345678901234567890,"nested":{"model":"p/m","a":1,"a":2,"stream":1},` +
    `\n"mod\\u0065l" :\t${model} ,"messages":[{"role":"user","content":"\\u00e9é\\/ \\ud800 p/m"}],"x":null}\r\n`;
  for (const written of ['"p/m"', '"p\\/m"', '"\\u0070/m"']) {
    assert.equal((await gateway.chat(body(written))).status, 200);
    assert.equal(upstream.requests.pop()!.body.toString(), body('"m"'));
  }
});

const hello = { role: 'user', content: 'hello' };
const accepted: [what: string, fields: object][] = [
  ['content as parts', { messages: [{ role: 'user', content: [{ type: 'text', text: 'x' }] }] }],
  ['empty content', { messages: [{ role: 'user', content: '' }] }],
  ['an assistant without content', { messages: [hello, { role: 'assistant', tool_calls: [] }] }],
  ['an assistant with null content', { messages: [{ role: 'assistant', content: null }] }],
  ['roles of any kind', { messages: [{ role: 'developer', content: 'x' }] }],
  ['a function without content', { messages: [hello, { role: 'function', name: 'f' }] }],
  ['a function with null content', { messages: [{ role: 'function', content: null }] }],
  ['a name', { messages: [{ ...hello, name: 'Ann' }] }],
  ['a name that is null', { messages: [{ ...hello, name: null }] }],
  ['stream false', { stream: false }],
  ['stream null, for a complete answer', { stream: null }],
  ['unknown fields', { temperature: 'hot', tools: null, stream_options: 7 }],
];
test('what OpenAI accepts in a request is accepted and passed on', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [what, fields] of accepted) {
    const reply = await gateway.chat(chatBody(fields));
    assert.equal(reply.status, 200, `${what}: ${reply.text}`);
    const sent = JSON.parse(p.requests.pop()!.body.toString()) as object;
    assert.deepEqual(sent, { ...chatBody(fields), model: 'm' });
  }
});

// Values that a field must not have; `undefined` is its absence.
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
  [/content/, (content) => ({ messages: [{ role: 'tool', content }] }), [undefined, null]],
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

test('the last of two members of a message counts, whatever the first one is', async (t) => {
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
const notObjects = ['null', 'true', '1', '"canary"', '[]', `[${valid}]`];
test('a body that is JSON and no object is refused', async (t) => {
  const gateway = await startGateway(t, {});
  for (const body of notObjects) await assertUnquoted(gateway, body, refusal(/object/));
});

/** Sends the body, and finds the expected error with nothing of the body in it. */
async function assertUnquoted(
  gateway: TestGateway,
  body: string,
  expected: ExpectedError,
): Promise<string> {
  const reply = await gateway.chat(body);
  assertError(reply, expected);
  assert.ok(!reply.text.includes('canary'), body);
  return reply.text;
}

// The bytes before the `¦` are JSON so far; the first wrong byte comes after it.
const malformed = [
  '¦',
  '  \n¦',
  '¦canary',
  '¦<canary/>',
  '{¦canary:1}',
  "{¦'canary':1}",
  '{"canary"¦}',
  '{"canary"¦,1}',
  '{"canary":¦}',
  '{"canary":¦',
  '{"canary":1,¦}',
  '{"canary":[1,¦]}',
  '{"canary":[1¦}',
  '{"canary":1 ¦"b":2}',
  '{"canary":1¦',
  '{"canary":"open¦',
  '{"canary":{}}¦}',
  '{"canary":1} ¦{}',
  '{"canary":1}¦//x',
  '{"canary":"é"¦é}',
  '{"canary" ¦1}',
  '["\\¦x"]',
  '["\\u12¦g4"]',
  '["a¦\tb"]',
  '["a¦\nb"]',
  '[¦01]',
  '[¦1.]',
  '[¦+1]',
  '[¦.5]',
  '[¦1e]',
  '[1¦x]',
  '[¦NaN]',
  '[¦Infinity]',
  '[¦True]',
  '[¦nul]',
  '[¦trux]',
  `[¦${'0'.repeat(100)}]`,
  '1¦\u0000',
  '1 ¦\u0000',
];
test('a malformed body is refused with the position of its first wrong byte and no quote', async (t) => {
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
test('a body that is not UTF-8, or has a byte order mark, is refused', async (t) => {
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
test('a second model or stream is refused by name, and other members may be there twice', async (t) => {
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
test('max_body_bytes holds for a body with Content-Length and for one in chunks', async (t) => {
  const { p, gateway } = await scenario(t, { server: `max_body_bytes = ${LIMIT}` });
  for (const headers of [{}, { 'transfer-encoding': 'chunked' }]) {
    assert.equal((await gateway.chat(sized(LIMIT), { headers })).status, 200);
    for (const size of [LIMIT + 1, 3_000_000]) {
      assertError(await gateway.chat(sized(size), { headers }), refusal(/300/, 413));
    }
    assert.equal(p.requests.splice(0).length, 1);
  }
});

test('a Content-Length over max_body_bytes is refused before a byte of the body came', async (t) => {
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
const nested = (open: string, close: string, levels: number) =>
  within(open.repeat(levels) + (open === '[' ? '' : '1') + close.repeat(levels));
const commas = (count: number) => within(`[${'1,'.repeat(count - 1)}1]`);
const measures: [what: string, body: string, refusedFor: RegExp | undefined][] = [
  ['256 levels of arrays', nested('[', ']', 255), undefined],
  ['257 levels of arrays', nested('[', ']', 256), /256/],
  ['256 levels of objects', nested('{"a":', '}', 255), undefined],
  ['257 levels of objects', nested('{"a":', '}', 256), /256/],
  ['a million opening brackets', '['.repeat(1_000_000), /256/],
  ['a million brackets in a string', within(`"${'['.repeat(1_000_000)}"`), undefined],
  ['a little less than 500,000 elements', commas(499_900), undefined],
  ['more than 500,000 elements', commas(500_001), /500,?000/],
  ['more than 500,000 objects', within(`[${'{},'.repeat(500_000)}{}]`), /500,?000/],
  ['more than 500,000 members', within(`{${'"a":1,'.repeat(500_000)}"a":1}`), /500,?000/],
  ['a million commas in a string', within(`"${',{'.repeat(500_000)}"`), undefined],
  ['a number of 1,024 bytes', within('1'.repeat(1024)), undefined],
  ['a number of 1,025 bytes', within('1'.repeat(1025)), /longer than 1024 bytes/],
];
test('a body of more than 256 levels or 500,000 elements, or with a number of more than 1,024 bytes, is refused', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [what, body, refusedFor] of measures) {
    const reply = await gateway.chat(body);
    if (refusedFor) assertError(reply, refusal(refusedFor));
    else assert.equal(reply.status, 200, `${what}: ${reply.text}`);
    assert.equal(p.requests.splice(0).length, refusedFor ? 0 : 1, what);
  }
});

const contentHeaders: [Record<string, string | string[] | undefined>, isAccepted: boolean][] = [
  [{}, true],
  [{ 'content-type': 'application/json; charset=utf-8' }, true],
  [{ 'content-type': 'Application/JSON;charset="UTF-8"' }, true],
  [{ 'content-type': 'application/json; charset = utf-8' }, true],
  [{ 'content-type': 'text/plain' }, false],
  [{ 'content-type': 'application/x-www-form-urlencoded' }, false],
  [{ 'content-type': 'application/jsonp' }, false],
  [{ 'content-type': 'text/plain; a=application/json' }, false],
  [{ 'content-type': 'application/json; charset=utf-16' }, false],
  [{ 'content-type': undefined }, false],
  [{ 'content-type': ['text/plain', 'application/json'] }, false],
  [{ 'content-encoding': 'identity' }, true],
  [{ 'content-encoding': 'Identity' }, true],
  [{ 'content-encoding': 'gzip' }, false],
  [{ 'content-encoding': 'br' }, false],
  [{ 'content-encoding': 'identity, gzip' }, false],
];
test('a body is JSON in UTF-8, not encoded, and its headers say so', async (t) => {
  const { p, gateway } = await scenario(t);
  for (const [headers, isAccepted] of contentHeaders) {
    const reply = await gateway.chat(chatBody(), { headers });
    if (isAccepted) assert.equal(reply.status, 200, reply.text);
    else assertError(reply, refusal(/Content-/));
    assert.equal(p.requests.splice(0).length, isAccepted ? 1 : 0, JSON.stringify(headers));
  }
});
