import assert from 'node:assert/strict';
import { test } from 'node:test';

import { ConfigError, loadConfig } from '../src/config/config.ts';
import { assertError, NOT_AUTHENTICATED, parseRaw, unknownProvider } from './support/errors.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
} from './support/gateway.ts';
import { TRANSPORT_ENV } from './support/transport.ts';
import { sendRaw } from './support/raw.ts';
import { sendJson, startUpstream, type FakeUpstream } from './support/upstream.ts';
import { eventually } from './support/streams.ts';

const KEY = 'gateway-key-one';
const OTHER_KEY = 'gateway-key-two';
const withKeys = `[server.auth]\nenabled = true\nkeys = ["${KEY}", "\${OTHER}"]\n`;

interface Row {
  readonly auth: string;
  readonly toml: string;
  /** Each Authorization header and whether it opens the gateway. */
  readonly opens: readonly (readonly [authorization: string | undefined, isOpen: boolean])[];
}

const anyToken = [
  [undefined, false],
  ['Basic dTpw', false],
  ['Bearer whatever', true],
  ['Bearer My API Key', true],
  [`Bearer ${KEY}`, true],
] as const;
const noAuth = [
  [undefined, true],
  ['Basic dTpw', true],
  ['Bearer whatever', true],
] as const;
const onlyKeys = [
  [undefined, false],
  ['Basic dTpw', false],
  [`Basic ${KEY}`, false],
  [`Bearer ${KEY}`, true],
  [`bearer ${OTHER_KEY}`, true],
  ['Bearer whatever', false],
  [`Bearer ${KEY} `, true],
  [`Bearer ${KEY}x`, false],
  [`Bearer ${KEY} x`, false],
  [`Bearer x ${KEY}`, false],
  ['Bearer My API Key', false],
  [`Bearer ${KEY.slice(0, -1)}`, false],
  [`Bearer ${KEY.toUpperCase()}`, false],
  [`Bearer ${KEY},${OTHER_KEY}`, false],
  ['Bearer ${OTHER}', false],
] as const;

const rows: Row[] = [
  { auth: 'no [server.auth]', toml: '', opens: anyToken },
  { auth: 'enabled = false', toml: '[server.auth]\nenabled = false\n', opens: noAuth },
  {
    auth: 'enabled = false with keys',
    toml: `[server.auth]\nenabled = false\nkeys = ["${KEY}"]\n`,
    opens: noAuth,
  },
  {
    auth: 'enabled = true without keys',
    toml: '[server.auth]\nenabled = true\n',
    opens: anyToken,
  },
  {
    auth: 'enabled = true with an empty list',
    toml: '[server.auth]\nenabled = true\nkeys = []\n',
    opens: anyToken,
  },
  { auth: 'enabled = true with keys', toml: withKeys, opens: onlyKeys },
  {
    auth: 'keys alone',
    toml: withKeys.replace('enabled = true\n', ''),
    opens: onlyKeys,
  },
];

for (const { auth, toml, opens } of rows) {
  test(`${auth} opens the gateway to exactly the requests it should`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, {
      toml: toml + providerToml(upstream),
      env: { OTHER: OTHER_KEY },
    });
    for (const [authorization, isOpen] of opens) {
      const options = { headers: { authorization } };
      upstream.requests.length = 0;
      const replies = [
        await gateway.chat(chatBody(), options),
        await gateway.send('/v1/models', options),
      ];
      for (const reply of replies) {
        if (isOpen) assert.equal(reply.status, 200, `${authorization}`);
        else assertError(reply, NOT_AUTHENTICATED);
      }
      const chats = upstream.requests.filter(({ method }) => method === 'POST');
      assert.equal(chats.length, isOpen ? 1 : 0, `${authorization}`);
      const health = await gateway.send('/health', options);
      assert.equal(health.status, 200);
    }
  });
}

// Header lines as they are sent to a gateway without configured keys.
const bearerForms: [lines: string[], isOpen: boolean][] = [
  [['Authorization: Bearer x'], true],
  [['authorization: bearer x'], true],
  [['AUTHORIZATION: BEARER x'], true],
  [['Authorization:Bearer   x'], true],
  [['Authorization: Bearer !~+/='], true],
  [[], false],
  [['Authorization:'], false],
  [['Authorization: Bearer'], false],
  [['Authorization: Bearer '], false],
  [['Authorization: Bearerx'], false],
  [['Authorization: Bearer:x'], false],
  [['Authorization: Bearer My API Key'], true],
  [['Authorization: Bearer  a  b '], true],
  [['Authorization: Bearer a, Bearer b'], true],
  [['Authorization: Bearer\ta'], false],
  [['Authorization: x'], false],
  [['Authorization: Basic Bearer x'], false],
  [['Authorization: Basic dTpw'], false],
  [['Authorization: Bearer caf\u00e9'], true],
  [['Authorization: Bearer a', 'Authorization: Bearer a'], false],
  [['Authorization: Basic dTpw', 'Authorization: Bearer a'], false],
  [['Authorization: Bearer a', 'authorization: Basic dTpw'], false],
  [['Proxy-Authorization: Bearer a'], false],
  [['X-Api-Key: a'], false],
  [['Cookie: Authorization=Bearer a'], false],
];
for (const [lines, isOpen] of bearerForms) {
  test(`${JSON.stringify(lines)} is ${isOpen ? 'accepted' : 'refused'}`, async (t) => {
    const gateway = await startGateway(t, {});
    const head = ['GET /v1/models HTTP/1.1', 'Host: x', 'Connection: close', ...lines];
    const reply = parseRaw(await sendRaw(gateway.port, `${head.join('\r\n')}\r\n\r\n`));
    if (isOpen) assert.equal(reply.status, 200);
    else assertError(reply, NOT_AUTHENTICATED);
  });
}

test('the 401 is the same bytes whatever is wrong, and never has a code', async (t) => {
  const gateway = await startGateway(t, { toml: withKeys, env: { OTHER: OTHER_KEY } });
  const body = '{"error":{"type":"authentication_error","message":"Invalid authentication"}}';
  for (const authorization of [undefined, 'Basic x', 'Bearer', 'Bearer wrong']) {
    for (const path of ['/v1/models', '/nothing', '/health/']) {
      const reply = await gateway.send(path, { headers: { authorization } });
      assertError(reply, NOT_AUTHENTICATED);
      assert.equal(reply.text, body);
    }
  }
});

const openHealth: [method: string, path: string, status: number][] = [
  ['GET', '/health', 200],
  ['HEAD', '/health', 200],
  ['GET', '/health?full=1', 200],
  ['POST', '/health', 401],
  ['OPTIONS', '/health', 401],
  ['GET', '/health/', 401],
  ['GET', '//health', 401],
  ['GET', '/HEALTH', 401],
  ['GET', '/heal%74h', 401],
  ['GET', '/v1/../health', 401],
];
for (const [method, path, status] of openHealth) {
  test(`${method} ${path} without Authorization is answered with ${status}`, async (t) => {
    const gateway = await startGateway(t, {});
    const reply = await gateway.send(path, { method, headers: { authorization: undefined } });
    assert.equal(reply.status, status);
  });
}

const unusableKeys: [why: string, keys: string, message: RegExp, secret: string][] = [
  ['a variable that is not set', '["a", "${NOT_SET}"]', /server\.auth\.keys.*NOT_SET/, '"a"'],
  ['a variable inside of text', '["x-${NOT_SET}"]', /server\.auth\.keys.*NOT_SET/, 'x-'],
  ['a variable that is empty', '["${EMPTY}"]', /server\.auth\.keys/, 'gateway-key'],
  ['an empty key', '[""]', /server\.auth\.keys/, 'gateway-key'],
  ['a key with a space', '["gateway key"]', /server\.auth\.keys/, 'gateway key'],
  ['a key that is a number', '[12345678]', /server\.auth\.keys/, '12345678'],
  ['keys that are one text', '"gateway-key"', /server\.auth\.keys/, 'gateway-key'],
];
for (const [why, keys, message, secret] of unusableKeys) {
  test(`${why} in [server.auth] keys is a startup error that shows no value`, () => {
    assert.throws(
      () => loadConfig({ toml: `[server.auth]\nkeys = ${keys}\n`, env: { EMPTY: '' } }),
      (error: unknown) => {
        assert.ok(error instanceof ConfigError);
        assert.match(error.message, message);
        assert.ok(!error.message.includes(secret), error.message);
        return true;
      },
    );
  });
}

/** Which key the upstream is shown; `undefined` if the provider is not registered. */
const keySources: {
  name: string;
  id?: string;
  settings: string;
  env: Record<string, string>;
  key: string | undefined;
}[] = [
  { name: 'a literal api_key', settings: 'api_key = "own"', env: {}, key: 'own' },
  {
    name: 'api_key before the conventional variable',
    settings: 'api_key = "own"',
    env: { P_API_KEY: 'env' },
    key: 'own',
  },
  {
    name: 'api_key after expansion',
    settings: 'api_key = "${MINE}"',
    env: { MINE: 'expanded', P_API_KEY: 'env' },
    key: 'expanded',
  },
  {
    name: 'a variable within api_key',
    settings: 'api_key = "a-${MINE}-${MINE}"',
    env: { MINE: 'b' },
    key: 'a-b-b',
  },
  {
    name: 'a value that looks like a variable, as it is',
    settings: 'api_key = "${MINE}"',
    env: { MINE: '${P_API_KEY}', P_API_KEY: 'env' },
    key: '${P_API_KEY}',
  },
  {
    name: 'api_key as written if its variable is not set',
    settings: 'api_key = "${MINE}"',
    env: { P_API_KEY: 'env' },
    key: '${MINE}',
  },
  {
    name: 'the conventional variable without api_key',
    settings: '',
    env: { P_API_KEY: 'env' },
    key: 'env',
  },
  {
    name: 'the conventional variable of an id with a hyphen',
    id: 'my-llm',
    settings: '',
    env: { MY_LLM_API_KEY: 'env' },
    key: 'env',
  },
  { name: 'no key without either', settings: '', env: { API_KEY: 'env' }, key: undefined },
  {
    name: 'no key if the variable is empty',
    settings: '',
    env: { P_API_KEY: '' },
    key: undefined,
  },
  {
    name: 'no key if enabled = false, api_key or not',
    settings: 'enabled = false\napi_key = "own"',
    env: { P_API_KEY: 'env' },
    key: undefined,
  },
  {
    name: 'the key if enabled = true',
    settings: 'enabled = true\napi_key = "own"',
    env: {},
    key: 'own',
  },
  { name: 'ZED_API_KEY for zed', id: 'zed', settings: '', env: { ZED_API_KEY: 'z' }, key: 'z' },
  {
    name: 'ZED_API_KEY for zed_coding',
    id: 'zed_coding',
    settings: '',
    env: { ZED_API_KEY: 'z', ZED_CODING_API_KEY: 'other' },
    key: 'z',
  },
  {
    name: 'no key for zed_coding from a variable of its own',
    id: 'zed_coding',
    settings: '',
    env: { ZED_CODING_API_KEY: 'other' },
    key: undefined,
  },
  {
    name: 'no key for zed if enabled = false',
    id: 'zed',
    settings: 'enabled = false',
    env: { ZED_API_KEY: 'z' },
    key: undefined,
  },
];
for (const { name, id = 'p', settings, env, key } of keySources) {
  test(`a provider gets ${name}`, async (t) => {
    const upstream = await startUpstream(t);
    const toml = `[providers.${id}]\nbase_url = "${upstream.baseUrl}"\n${settings}\n`;
    const gateway = await startGateway(t, { toml, env });
    const reply = await gateway.chat(chatBody({ model: `${id}/m` }));
    if (key === undefined) assertError(reply, unknownProvider(id));
    else assert.equal(reply.status, 200, reply.text);
    const shown = upstream.requests.map(({ headers }) => headers.authorization);
    assert.deepEqual(shown, key === undefined ? [] : [`Bearer ${key}`]);
  });
}

test('a variable that is not set is a warning that names it and no value', () => {
  const { warnings } = loadConfig({
    toml: '[providers.openai]\napi_key = "literal-part-${MINE}"\n',
    env: { OPENAI_API_KEY: 'env-value' },
  });
  assert.equal(warnings.length, 1);
  assert.match(warnings[0]!, /providers\.openai\.api_key.*\bMINE\b/);
  assert.doesNotMatch(warnings[0]!, /literal-part|env-value/);
});

test('a key in the environment registers a built-in provider without a section', async (t) => {
  const gateway = await startGateway(t, { env: { ZED_API_KEY: 'z' } });
  const unregistered = await gateway.chat(chatBody({ model: 'openai/m' }));
  assertError(unregistered, unknownProvider('openai'));
  for (const id of ['zed', 'zed_coding']) {
    // Without a default_model this is refused before any provider is asked.
    const reply = await gateway.chat(chatBody({ model: `${id}/` }));
    assert.equal(reply.status, 400);
    assert.doesNotMatch(reply.text, /Unknown provider/);
  }
});

test('a provider that is not built in and has no base_url is a startup error', () => {
  assert.throws(
    () => loadConfig({ toml: '[providers.mine]\napi_key = "own"\n', env: {} }),
    (error) => error instanceof ConfigError && /providers\.mine\.base_url/.test(error.message),
  );
});

const fromClient = {
  'x-request-id': 'mine-1',
  traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
  tracestate: 'a=1',
  accept: 'text/html',
  'accept-encoding': 'gzip, br',
  'accept-language': 'de',
  'user-agent': `curl ${CLIENT_TOKEN}`,
  cookie: `session=${CLIENT_TOKEN}`,
  'x-api-key': CLIENT_TOKEN,
  'api-key': CLIENT_TOKEN,
  'proxy-authorization': `Bearer ${CLIENT_TOKEN}`,
  'x-forwarded-for': '10.1.2.3',
  forwarded: 'for=10.1.2.3',
  referer: 'https://app.example/secret',
  origin: 'http://localhost:3000',
  'openai-organization': 'org-1',
  'anthropic-version': '2023-06-01',
  connection: 'keep-alive, x-api-key',
  te: 'trailers',
};

for (const stream of [false, true]) {
  test(`a ${stream ? 'streamed' : 'complete'} request reaches upstream with the allow-listed headers alone`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    await gateway.chat(chatBody({ stream }), { headers: fromClient });
    const { headers, body } = onlyRequest(upstream);
    const { host, connection, 'content-length': length, ...named } = headers;
    assert.equal(host, new URL(upstream.baseUrl).host);
    assert.equal(connection, 'keep-alive');
    assert.equal(length, String(body.length));
    assert.match(named['user-agent'] ?? '', /gateway/i);
    delete named['user-agent'];
    assert.deepEqual(named, {
      'content-type': 'application/json',
      accept: stream ? 'text/event-stream' : 'application/json',
      authorization: `Bearer ${PROVIDER_KEY}`,
      'accept-encoding': 'identity',
      'x-request-id': 'mine-1',
      traceparent: fromClient.traceparent,
      tracestate: 'a=1',
      // fetch itself adds these two.
      ...(TRANSPORT_ENV['GATEWAY_UPSTREAM'] === 'fetch'
        ? { 'accept-language': '*', 'sec-fetch-mode': 'cors' }
        : {}),
    });
  });
}

const NEW_TRACEPARENT = /^00-(?!0+-)[\da-f]{32}-(?!0+-)[\da-f]{16}-01$/;

test('a traceparent that is repeated, or not valid, is replaced by a new one, and its tracestate left out', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const { traceparent } = fromClient;
  for (const value of [
    [traceparent, traceparent],
    `${traceparent}-00`,
    traceparent.toUpperCase(),
    traceparent.replace('c-b', 'cb'),
    traceparent.replace(/^00/, 'ff'),
    traceparent.replace(/-[\da-f]{32}-/, `-${'0'.repeat(32)}-`),
    traceparent.replace(/-[\da-f]{16}-/, `-${'0'.repeat(16)}-`),
    'anything',
  ]) {
    const headers = { traceparent: value, tracestate: ['a=1', 'b=2'] };
    assert.equal((await gateway.chat(chatBody(), { headers })).status, 200);
    const received = upstream.requests.at(-1)!.headers;
    assert.match(received['traceparent'] as string, NEW_TRACEPARENT);
    assert.ok(!received['traceparent']!.includes(traceparent.slice(3, 35)));
    assert.equal(received['tracestate'], undefined);
  }
});

test('a request without trace headers gets a traceparent of its own, and a request id of the gateway', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const reply = await gateway.chat(chatBody());
  const { headers } = onlyRequest(upstream);
  assert.match(headers['traceparent'] as string, NEW_TRACEPARENT);
  assert.equal(gateway.accessLines()[0]?.['trace_id'], headers['traceparent']!.slice(3, 35));
  assert.ok(!('tracestate' in headers));
  assert.equal(headers['x-request-id'], reply.headers['x-request-id']);
});

test("fetching a model list shows upstream the provider's key and nothing of the client", async (t) => {
  const upstream = await startUpstream(t, (_, response) => sendJson(response, { data: [] }));
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  await gateway.send('/v1/models', { headers: fromClient });
  const { headers } = onlyRequest(upstream);
  assert.equal(headers.authorization, `Bearer ${PROVIDER_KEY}`);
  assert.doesNotMatch(
    JSON.stringify(headers),
    new RegExp(`${CLIENT_TOKEN}|10\\.1\\.2\\.3|app\\.ex`),
  );
});

test('neither token nor key is logged, nor sent to the other side', async (t) => {
  const upstream = await startUpstream(t, (request, response) =>
    sendJson(response, { error: { message: JSON.stringify(request.headers) } }, { status: 400 }),
  );
  const gateway = await startGateway(t, {
    toml: `[server.auth]\nkeys = ["${CLIENT_TOKEN}"]\n[logging]\nlevel = "trace"\nverbose = true\n${providerToml(upstream)}`,
  });
  const reply = await gateway.chat(chatBody(), { headers: fromClient });
  assert.equal(reply.status, 400);
  const replied = reply.text + JSON.stringify(reply.headers);
  assert.ok(!replied.includes(PROVIDER_KEY), replied);
  assert.ok(!JSON.stringify(onlyRequest(upstream)).includes(CLIENT_TOKEN));
  await eventually(() => gateway.accessLines().length === 1, 'the access line');
  assert.doesNotMatch(gateway.log.join(''), new RegExp(`${CLIENT_TOKEN}|${PROVIDER_KEY}`));
});

function onlyRequest({ requests }: FakeUpstream) {
  assert.equal(requests.length, 1);
  return requests[0]!;
}
