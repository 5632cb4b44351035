import assert from 'node:assert/strict';
import { test } from 'node:test';

import { VERSION } from '../src/lib/version.ts';
import { replaceNow } from './support/clock.ts';
import {
  assertError,
  NOT_AUTHENTICATED,
  NOT_FOUND,
  parseRaw,
  refusal,
  unknownProvider,
  type ExpectedError,
} from './support/errors.ts';
import { chatBody, CLIENT_TOKEN, providerToml, startGateway } from './support/gateway.ts';
import { sendRaw } from './support/raw.ts';
import { completion, startUpstream } from './support/upstream.ts';

const CHAT = '/v1/chat/completions';

test('the three endpoints answer as documented', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, {
    toml: providerToml(upstream, 'p', 'models = ["m"]'),
  });
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
for (const [method, target, result] of targets) {
  const shown = typeof result === 'string' ? `404 and Allow: ${result}` : `${result}`;
  test(`${method} ${target} is answered with ${shown}`, async (t) => {
    const gateway = await startGateway(t, {});
    const head = [
      `${method} ${target} HTTP/1.1`,
      'Host: gateway',
      'Connection: close',
      `Authorization: Bearer ${CLIENT_TOKEN}`,
    ];
    const reply = parseRaw(await sendRaw(gateway.port, `${head.join('\r\n')}\r\n\r\n`));
    if (result === 200) {
      assert.equal(reply.status, 200);
    } else if (method === 'HEAD') {
      assert.deepEqual([reply.status, reply.headers['allow']], [404, result]);
      assert.equal(reply.text, '');
    } else {
      const allow = typeof result === 'string' ? { headers: { allow: result } } : {};
      assertError(reply, { ...NOT_FOUND, ...allow });
    }
  });
}

const big = 'x'.repeat(2000);
const noToken = { authorization: undefined };
const busy = '[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 1\n';

// Every request is wrong in more than one way; the first check that finds something answers.
const orders: {
  name: string;
  path?: string;
  method?: string;
  headers?: Record<string, string | undefined>;
  body?: string;
  isBusy?: boolean;
  expected: Partial<ExpectedError> & { httpStatus: number };
}[] = [
  {
    name: 'protocol before authorization',
    headers: { ...noToken, expect: 'magic' },
    expected: refusal(/Expect/, 417),
  },
  {
    name: 'authorization before the rate limit',
    headers: noToken,
    isBusy: true,
    expected: NOT_AUTHENTICATED,
  },
  {
    name: 'authorization before the route',
    path: '/nothing',
    headers: noToken,
    expected: NOT_AUTHENTICATED,
  },
  {
    name: 'authorization before the method',
    path: '/v1/models',
    headers: noToken,
    expected: NOT_AUTHENTICATED,
  },
  {
    name: 'authorization before the body size',
    headers: noToken,
    body: big,
    expected: NOT_AUTHENTICATED,
  },
  {
    name: 'authorization before the parse',
    headers: noToken,
    body: '{',
    expected: NOT_AUTHENTICATED,
  },
  {
    name: 'the rate limit before the route',
    path: '/nothing',
    isBusy: true,
    expected: { httpStatus: 429 },
  },
  {
    name: 'the rate limit before the parse',
    body: '{',
    isBusy: true,
    expected: { httpStatus: 429 },
  },
  { name: 'the route before the body size', path: '/nothing', body: big, expected: NOT_FOUND },
  { name: 'the route before the parse', path: '/nothing', body: '{', expected: NOT_FOUND },
  { name: 'the body size before the parse', body: big, expected: refusal(/1000/, 413) },
  { name: 'the parse before validation', body: '{"stream":1,', expected: refusal(/JSON/) },
  {
    name: 'validation before the model is resolved',
    body: '{"model":"q/m","messages":[]}',
    expected: refusal(/messages/),
  },
];
for (const { name, path = CHAT, isBusy = false, headers, body = '{}', expected } of orders) {
  test(`${name} is checked, and nothing refused reaches upstream`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, {
      toml: `[server]\nmax_body_bytes = 1000\n${isBusy ? busy : ''}${providerToml(upstream)}`,
    });
    // No new token, however slow the machine is.
    if (isBusy) replaceNow(t, () => 1000);
    if (isBusy) assert.equal((await gateway.chat(chatBody())).status, 200);
    const reply = await gateway.send(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body,
    });
    const { type, message } = expected;
    if (type && message) assertError(reply, { type, message, ...expected });
    else assert.equal(reply.status, expected.httpStatus);
    assert.equal(upstream.requests.length, isBusy ? 1 : 0);
  });
}

test('requests without a token, preflights and health checks use up no rate limit', async (t) => {
  const gateway = await startGateway(t, { toml: busy });
  for (let i = 0; i < 5; i += 1) {
    assert.equal((await gateway.send('/v1/models', { headers: noToken })).status, 401);
    assert.equal((await gateway.send('/health')).status, 200);
  }
  assert.equal((await gateway.send('/v1/models')).status, 200);
  assert.equal((await gateway.send('/v1/models')).status, 429);
  assert.equal((await gateway.send('/health')).status, 200);
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
for (const [model, result] of models) {
  const isAnswered = 'length' in result;
  const shown = JSON.stringify(model.slice(0, 40));
  test(`the model ${shown} of ${model.length} is ${isAnswered ? result.join(' and ') : 'refused'}`, async (t) => {
    const p = await startUpstream(t);
    const q = await startUpstream(t);
    const gateway = await startGateway(t, {
      toml: [
        providerToml(p, 'p', 'default_model = "standard"'),
        providerToml(q, 'q'),
        providerToml(q, 'off', 'enabled = false'),
        '[aliases]',
        'fast = "q/org/small"',
        'chain = "p/fast"',
        'dangling = "openai/gpt"',
        '"with/slash" = "p/aliased"',
      ].join('\n'),
    });
    const reply = await gateway.chat(chatBody({ model }));
    const asked = Object.entries({ p, q }).flatMap(([id, { requests }]) =>
      requests.map(({ body }) => [id, (JSON.parse(body.toString()) as { model: string }).model]),
    );
    if (isAnswered) {
      assert.equal(reply.status, 200, reply.text);
      assert.deepEqual(asked, [result]);
      assert.equal(reply.headers['x-gateway-provider'], result[0]);
    } else {
      assertError(reply, result);
      assert.ok(reply.text.length < 1000);
      assert.deepEqual(asked, []);
    }
  });
}

const toPrimary: [model: string, asked: string | ExpectedError][] = [
  ['gpt', 'gpt'],
  ['constructor', 'constructor'],
  ['p', 'standard'],
  ['p/m', 'm'],
  ['fast', 'aliased'],
  ['other/m', unknownProvider('other')],
  ['/m', refusal(/model/)],
];
for (const [model, asked] of toPrimary) {
  test(`with a primary provider the model "${model}" is ${typeof asked === 'string' ? `"${asked}"` : 'refused'}`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, {
      toml: `[providers]\nprimary = "p"\n${providerToml(upstream, 'p', 'default_model = "standard"')}[aliases]\nfast = "p/aliased"\n`,
    });
    const reply = await gateway.chat(chatBody({ model }));
    if (typeof asked !== 'string') return assertError(reply, asked);
    assert.equal(reply.status, 200);
    const { body } = upstream.requests[0]!;
    assert.equal((JSON.parse(body.toString()) as { model: string }).model, asked);
  });
}

test('the body goes upstream byte for byte, but for the model', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const body = (model: string) =>
    ` {"z":1.0e+2,"big":12345678901234567890,"nested":{"model":"p/m","a":1,"a":2,"stream":1},` +
    `\n"mod\\u0065l" :\t${model} ,"messages":[{"role":"user","content":"\\u00e9é\\/ \\ud800 p/m"}],"x":null}\r\n`;
  for (const written of ['"p/m"', '"p\\/m"', '"\\u0070/m"']) {
    assert.equal((await gateway.chat(body(written))).status, 200);
    assert.equal(upstream.requests.pop()!.body.toString(), body('"m"'));
  }
});

const message = { role: 'user', content: 'hello' };
const accepted: [what: string, fields: object][] = [
  ['content as parts', { messages: [{ role: 'user', content: [{ type: 'text', text: 'x' }] }] }],
  ['empty content', { messages: [{ role: 'user', content: '' }] }],
  ['an assistant without content', { messages: [message, { role: 'assistant', tool_calls: [] }] }],
  ['an assistant with null content', { messages: [{ role: 'assistant', content: null }] }],
  ['roles of any kind', { messages: [{ role: 'developer', content: 'x' }] }],
  ['a function without content', { messages: [message, { role: 'function', name: 'f' }] }],
  ['a function with null content', { messages: [{ role: 'function', content: null }] }],
  ['a name', { messages: [{ ...message, name: 'Ann' }] }],
  ['a name that is null', { messages: [{ ...message, name: null }] }],
  ['stream false', { stream: false }],
  ['stream null, for a complete answer', { stream: null }],
  ['unknown fields', { temperature: 'hot', tools: null, stream_options: 7 }],
];
for (const [what, fields] of accepted) {
  test(`${what} is accepted and passed on`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    const reply = await gateway.chat(chatBody(fields));
    assert.equal(reply.status, 200, reply.text);
    const sent = JSON.parse(upstream.requests[0]!.body.toString()) as object;
    assert.deepEqual(sent, { ...chatBody(fields), model: 'm' });
  });
}

// Values that a field must not have; `undefined` is its absence.
const wrongValues: [field: RegExp, wrap: (value: unknown) => object, values: unknown[]][] = [
  [/model/, (model) => ({ model }), [undefined, null, '', 1, true, [], {}, ['p/m']]],
  [/messages/, (messages) => ({ messages }), [undefined, null, '', 'hi', 1, true, [], {}]],
  [/messages/, (first) => ({ messages: [message, first] }), [null, 'hi', 1, true, [], [message]]],
  [/role/, (role) => ({ messages: [{ ...message, role }] }), [undefined, null, 1, true, [], {}]],
  [
    /content/,
    (content) => ({ messages: [{ ...message, content }] }),
    [undefined, null, 1, true, {}, { type: 'text' }],
  ],
  [/content/, (content) => ({ messages: [{ role: 'tool', content }] }), [undefined, null]],
  [/content/, (content) => ({ messages: [{ role: 'assistant', content }] }), [1, true, {}]],
  [/name/, (name) => ({ messages: [{ ...message, name }] }), [1, true, [], {}]],
  [/stream/, (stream) => ({ stream }), [0, 1, 'true', '', [], {}]],
];
for (const [field, wrap, values] of wrongValues) {
  const shape = JSON.stringify(wrap('…'));
  test(`a value of the wrong type in ${shape} is refused by name`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    for (const value of values) {
      assertError(await gateway.chat(chatBody(wrap(value))), refusal(field));
    }
    assert.equal(upstream.requests.length, 0);
  });
}

test('the last of two members of a message counts, whatever the first one is', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
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
for (const body of notObjects) {
  test(`the body ${body.slice(0, 20)} is refused as no object`, async (t) => {
    const gateway = await startGateway(t, {});
    const reply = await gateway.chat(body);
    assertError(reply, refusal(/object/));
    assert.ok(!reply.text.includes('canary'));
  });
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
];
for (const body of malformed) {
  test(`the malformed body ${JSON.stringify(body)} is refused with its position and no quote`, async (t) => {
    const gateway = await startGateway(t, {});
    const position = Buffer.byteLength(body.slice(0, body.indexOf('¦')));
    const reply = await gateway.chat(body.replace('¦', ''));
    assertError(reply, {
      ...refusal(),
      message: new RegExp(`^Invalid request: request body is not valid JSON\\D*\\b${position}\\b`),
    });
    assert.ok(!reply.text.includes('canary'));
  });
}

// Wrong inside of a token, where a parser may point at its start, its middle or its end.
const malformedTokens = [
  '{"canary":"\\x"}',
  '{"canary":"\\u12g4"}',
  '{"canary":"tab\there"}',
  '{"canary":"line\nhere"}',
  '{"canary":01}',
  '{"canary":1.}',
  '{"canary":+1}',
  '{"canary":.5}',
  '{"canary":1e}',
  '{"canary":NaN}',
  '{"canary":Infinity}',
  '{"canary":undefined}',
  '{"canary":True}',
  '{"canary":nul}',
];
for (const body of malformedTokens) {
  test(`the token in ${JSON.stringify(body)} is refused with a position inside the body and no quote`, async (t) => {
    const gateway = await startGateway(t, {});
    const reply = await gateway.chat(body);
    assertError(reply, {
      ...refusal(),
      message: /^Invalid request: request body is not valid JSON.*\d/,
    });
    const { error } = reply.json() as { error: { message: string } };
    const position = Number(/\d+/.exec(error.message)![0]);
    assert.ok(position >= '{"canary":'.length && position <= body.length, error.message);
    assert.ok(!reply.text.includes('canary'));
  });
}

const encodings: [what: string, body: Buffer][] = [
  ['a byte order mark', Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), Buffer.from(valid)])],
  ['UTF-16', Buffer.from(valid, 'utf16le')],
  ['a Latin-1 letter', Buffer.from(valid.replace('hello', 'caf\u00e9'), 'latin1')],
  ['an overlong slash', bytesIn(0xc0, 0xaf)],
  ['an encoded surrogate', bytesIn(0xed, 0xa0, 0x80)],
  ['half a character', bytesIn(0xe2, 0x82)],
  ['a lone continuation byte', bytesIn(0x80)],
];
for (const [what, body] of encodings) {
  test(`a body with ${what} is refused`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    assertError(await gateway.chat(body), refusal());
    assert.equal(upstream.requests.length, 0);
  });
}

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
for (const [members, name] of duplicates) {
  test(`with {"model",…,${members}} a request is ${name ? `refused for its second ${name}` : 'accepted'}`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    const reply = await gateway.chat(valid.replace(/\}$/, `,${members}}`));
    if (name) assertError(reply, refusal(new RegExp(name)));
    else assert.equal(reply.status, 200, reply.text);
    assert.equal(upstream.requests.length, name ? 0 : 1);
  });
}

const LIMIT = 300;
const sized = (size: number) =>
  JSON.stringify(chatBody({ x: '' })).replace('""', (empty) => {
    const rest = size - JSON.stringify(chatBody({ x: '' })).length;
    return `"${'y'.repeat(rest)}${empty[0]}`;
  });
for (const isChunked of [false, true]) {
  test(`max_body_bytes holds for a body ${isChunked ? 'in chunks' : 'with Content-Length'}`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, {
      toml: `[server]\nmax_body_bytes = ${LIMIT}\n${providerToml(upstream)}`,
    });
    const headers = isChunked ? { 'transfer-encoding': 'chunked' } : {};
    assert.equal((await gateway.chat(sized(LIMIT), { headers })).status, 200);
    for (const size of [LIMIT + 1, 3_000_000]) {
      assertError(await gateway.chat(sized(size), { headers }), refusal(/300/, 413));
    }
    assert.equal(upstream.requests.length, 1);
  });
}

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
];
for (const [what, body, refusedFor] of measures) {
  test(`a body with ${what} is ${refusedFor ? 'refused' : 'accepted'}`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    const reply = await gateway.chat(body);
    if (refusedFor) assertError(reply, refusal(refusedFor));
    else assert.equal(reply.status, 200, reply.text);
    assert.equal(upstream.requests.length, refusedFor ? 0 : 1);
  });
}

const contentHeaders: [
  headers: Record<string, string | string[] | undefined>,
  isAccepted: boolean,
][] = [
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
for (const [headers, isAccepted] of contentHeaders) {
  test(`a request with ${JSON.stringify(headers)} is ${isAccepted ? 'accepted' : 'refused'}`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    const reply = await gateway.chat(chatBody(), { headers });
    if (isAccepted) assert.equal(reply.status, 200, reply.text);
    else assertError(reply, refusal(/Content-/));
    assert.equal(upstream.requests.length, isAccepted ? 1 : 0);
  });
}
