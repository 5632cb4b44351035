import assert from 'node:assert/strict';
import type { IncomingHttpHeaders } from 'node:http';
import { test } from 'node:test';

import { replaceNow } from './support/clock.ts';
import { assertError, parseRaw, refusal } from './support/errors.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  providerToml,
  startGateway,
  type SendOptions,
} from './support/gateway.ts';
import { sendRaw } from './support/raw.ts';
import { completionEvents, sendEvents, sendJson, startUpstream } from './support/upstream.ts';

const ORIGIN = 'https://app.example';
const CHAT = '/v1/chat/completions';
const withCors = '[server]\ncors = true\n';
const preflight: SendOptions = {
  method: 'OPTIONS',
  headers: {
    authorization: undefined,
    origin: ORIGIN,
    'access-control-request-method': 'POST',
    'access-control-request-headers': 'authorization,content-type,x-stainless-lang',
  },
};

function corsHeaders(headers: IncomingHttpHeaders): string[] {
  return Object.keys(headers).filter((name) => name.startsWith('access-control-'));
}

function listed(value: unknown): string[] {
  return String(value)
    .split(',')
    .map((name) => name.trim().toLowerCase());
}

const off = [
  { toml: '' },
  { toml: '[server]\ncors = false\n' },
  { env: { GATEWAY_CORS: 'false' } },
];
for (const settings of off) {
  test(`with ${JSON.stringify(settings)} no answer has a CORS header`, async (t) => {
    const env = { ...settings.env, GATEWAY_AUTH_KEYS: CLIENT_TOKEN };
    const gateway = await startGateway(t, { ...settings, env });
    const origin = { headers: { origin: ORIGIN } };
    const replies = [
      await gateway.send('/health', origin),
      await gateway.send('/v1/models', origin),
      await gateway.send('/nothing', origin),
      await gateway.send(CHAT, preflight),
    ];
    assert.deepEqual(
      replies.map(({ status, headers }) => [status, corsHeaders(headers)]),
      [200, 200, 404, 401].map((status) => [status, []]),
    );
  });
}

for (const settings of [{ toml: withCors }, { env: { GATEWAY_CORS: 'true' } }]) {
  for (const path of [CHAT, '/v1/models', '/health']) {
    test(`with ${JSON.stringify(settings)} a preflight of ${path} needs no authorization`, async (t) => {
      const gateway = await startGateway(t, settings);
      const { status, headers, text } = await gateway.send(path, preflight);
      assert.ok(status === 200 || status === 204, `${status}`);
      assert.equal(text, '');
      assert.equal(headers['access-control-allow-origin'], '*');
      assert.equal(headers['access-control-max-age'], '86400');
      assert.equal(headers['vary'], 'access-control-request-headers');
      assert.deepEqual(listed(headers['access-control-allow-headers']), [
        'authorization',
        'content-type',
        'x-stainless-lang',
      ]);
      const methods = listed(headers['access-control-allow-methods']);
      assert.ok(methods.includes('get') && methods.includes('post'), methods.join());
      assert.ok(!('access-control-allow-credentials' in headers));
      assert.match(headers['x-request-id'] as string, /\S/);
    });
  }
}

test('a preflight reaches no upstream and uses up no rate limit', async (t) => {
  const upstream = await startUpstream(t);
  const limit = '[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 1\n';
  const gateway = await startGateway(t, { toml: withCors + limit + providerToml(upstream) });
  // No new token, however slow the machine is.
  replaceNow(t, () => 1000);
  for (let i = 0; i < 3; i += 1) {
    const { status } = await gateway.send(CHAT, preflight);
    assert.ok(status < 300, `${status}`);
  }
  assert.equal(upstream.requests.length, 0);
  assert.equal((await gateway.chat(chatBody())).status, 200);
  assert.equal((await gateway.chat(chatBody())).status, 429);
});

test('OPTIONS that is no preflight is refused like any other request', async (t) => {
  const gateway = await startGateway(t, { toml: withCors });
  const options = { method: 'OPTIONS', headers: { origin: ORIGIN, authorization: undefined } };
  assert.equal((await gateway.send(CHAT, options)).status, 401);
  const reply = await gateway.send(CHAT, { method: 'OPTIONS', headers: { origin: ORIGIN } });
  assert.deepEqual([reply.status, reply.headers.allow], [404, 'POST']);
});

test('a preflight that asks for no headers is allowed none', async (t) => {
  const gateway = await startGateway(t, { toml: withCors });
  const { 'access-control-request-headers': _, ...fewer } = preflight.headers!;
  const { status, headers } = await gateway.send(CHAT, { ...preflight, headers: fewer });
  assert.ok(status < 300, `${status}`);
  assert.ok(!('access-control-allow-headers' in headers));
});

/** What scripts can read of any answer (Fetch standard), and what is between browser and gateway only. */
const READABLE = ['content-type', 'content-length', 'cache-control'];
const NOT_FOR_SCRIPTS = [
  'date',
  'connection',
  'keep-alive',
  'transfer-encoding',
  'vary',
  'x-content-type-options',
  'x-accel-buffering',
  'allow',
  'www-authenticate',
];

const limits = {
  'x-request-id': 'up-1',
  'retry-after': '2',
  'x-should-retry': 'true',
  'x-ratelimit-limit-requests': '9',
  'x-ratelimit-remaining-tokens': '9',
  'x-ratelimit-reset-requests': '1s',
  'ratelimit-remaining': '9',
  'anthropic-ratelimit-requests-remaining': '9',
};

const exchanges: Record<string, { status: number; path?: string; body?: object; noToken?: true }> =
  {
    'a completion': { status: 200 },
    'a stream': { status: 200, body: chatBody({ stream: true }) },
    'the model list': { status: 200, path: '/v1/models' },
    'the health check': { status: 200, path: '/health' },
    'a refused token': { status: 401, path: '/v1/models', noToken: true },
    'a wrong path': { status: 404, path: '/nothing' },
    'a wrong body': { status: 400, body: {} },
    'too large a body': { status: 413, body: chatBody({ x: 'y'.repeat(1000) }) },
    'an unknown provider': { status: 400, body: chatBody({ model: 'q/m' }) },
    "upstream's 429": { status: 429, body: chatBody({ model: 'p/busy' }) },
    'a failed upstream': { status: 502, body: chatBody({ model: 'p/broken' }) },
  };
for (const [what, { status, path, body = chatBody(), noToken }] of Object.entries(exchanges)) {
  test(`with cors = true a script on any origin can read ${what}`, async (t) => {
    const upstream = await startUpstream(t, (request, response) => {
      if (request.url.endsWith('/models')) return sendJson(response, { data: [] });
      const { model, stream } = JSON.parse(request.body.toString()) as Record<string, unknown>;
      if (model === 'broken') return response.destroy();
      if (stream) return sendEvents(response, completionEvents());
      return sendJson(response, {}, { status: model === 'busy' ? 429 : 200, headers: limits });
    });
    const gateway = await startGateway(t, {
      toml: `${withCors}max_body_bytes = 500\n${providerToml(upstream)}`,
    });
    const own = { origin: ORIGIN, ...(noToken ? { authorization: undefined } : {}) };
    const reply = path
      ? await gateway.send(path, { headers: own })
      : await gateway.chat(body, { headers: own });
    const { headers } = reply;
    assert.equal(reply.status, status, reply.text);
    assert.equal(headers['access-control-allow-origin'], '*');
    assert.ok(!('access-control-allow-credentials' in headers));
    const exposed = listed(headers['access-control-expose-headers']);
    const isExposed = (name: string) => exposed.includes('*') || exposed.includes(name);
    const hidden = Object.keys(headers)
      .filter((name) => ![...READABLE, ...NOT_FOR_SCRIPTS, ...corsHeaders(headers)].includes(name))
      .filter((name) => !isExposed(name));
    assert.deepEqual(hidden, []);
  });
}

const BROKEN = {
  'a request that is not HTTP': { bytes: 'canary\r\n\r\n', status: 400 },
  'headers that are too large': {
    bytes: `GET /health HTTP/1.1\r\na: ${'b'.repeat(20_000)}\r\n\r\n`,
    status: 431,
  },
};
for (const [what, { bytes, status }] of Object.entries(BROKEN)) {
  for (const cors of [true, false]) {
    test(`with cors = ${cors} the refusal of ${what} has ${cors ? 'the' : 'no'} CORS headers`, async (t) => {
      const gateway = await startGateway(t, { toml: `[server]\ncors = ${cors}\n` });
      const reply = parseRaw(await sendRaw(gateway.port, bytes));
      assertError(reply, refusal(/./, status));
      assert.equal(reply.headers['access-control-allow-origin'], cors ? '*' : undefined);
      const exposed = listed(reply.headers['access-control-expose-headers']);
      assert.equal(exposed.includes('x-request-id'), cors);
    });
  }
}

const OWN_ORIGINS = [
  undefined,
  'null',
  'http://localhost',
  'http://localhost:3000',
  'https://localhost:8443',
  'http://app.localhost:5173',
  'HTTP://LOCALHOST:3000',
  'http://127.0.0.1:1',
  'http://127.1.2.3',
  'http://[::1]',
  'http://[::1]:3000',
  'chrome-extension://abcdefghijklmnop',
  'moz-extension://1234',
  'vscode-webview://abc',
  'app://obsidian.md',
  'tauri://localhost',
];
const FOREIGN_ORIGINS = [
  'https://evil.example',
  'http://evil.example:8080',
  'HTTPS://EVIL.EXAMPLE',
  'http://localhost.evil.example',
  'http://evillocalhost',
  'http://127.0.0.1.evil.example',
  'http://127.0.0.1:1@evil.example',
  'http://192.168.1.2',
  'http://0.0.0.0',
  'http://[::2]',
  'http://localhost, https://evil.example',
  'http://',
];
const HOSTS = ['127.0.0.1', 'localhost', '::1', '127.0.0.2', '127.1', '0.0.0.0', '192.168.1.2'];
for (const host of HOSTS) {
  test(`on ${host} without keys a page on another host is refused, and its request asks no provider`, async (t) => {
    const upstream = await startUpstream(t);
    const toml = `[server]\nhost = "${host}"\n${providerToml(upstream)}`;
    const gateway = await startGateway(t, { toml });
    for (const origin of FOREIGN_ORIGINS) {
      // Before authorization is looked at, and whatever the path.
      const headers = { origin, authorization: undefined };
      for (const path of [CHAT, '/v1/models', '/health', '/nothing']) {
        assertError(await gateway.send(path, { headers }), refusal(/Origin/));
      }
      assertError(await gateway.chat(chatBody(), { headers: { origin } }), refusal(/Origin/));
    }
    assert.equal(upstream.requests.length, 0);
  });

  test(`on ${host} without keys pages of the same machine, editors and extensions are served`, async (t) => {
    const upstream = await startUpstream(t);
    const toml = `[server]\nhost = "${host}"\n${providerToml(upstream)}`;
    const gateway = await startGateway(t, { toml });
    for (const origin of OWN_ORIGINS) {
      const { status } = await gateway.chat(chatBody(), { headers: { origin } });
      assert.equal(status, 200, String(origin));
    }
  });
}

const OPEN_TO_PAGES = {
  'with cors = true': '[server]\nhost = "127.0.0.1"\ncors = true\n',
  'with keys': `[server]\nhost = "127.0.0.1"\n[server.auth]\nkeys = ["${CLIENT_TOKEN}"]\n`,
};
for (const [what, settings] of Object.entries(OPEN_TO_PAGES)) {
  test(`${what}, a page on another host is served`, async (t) => {
    const upstream = await startUpstream(t);
    const gateway = await startGateway(t, { toml: settings + providerToml(upstream) });
    const { status } = await gateway.chat(chatBody(), { headers: { origin: FOREIGN_ORIGINS[0] } });
    assert.equal(status, 200);
  });
}

test('with keys that are switched off a page on another host is refused', async (t) => {
  const auth = '[server.auth]\nenabled = false\nkeys = ["k"]\n';
  const gateway = await startGateway(t, { toml: `[server]\nhost = "127.0.0.1"\n${auth}` });
  const headers = { origin: FOREIGN_ORIGINS[0] };
  assertError(await gateway.send('/v1/models', { headers }), refusal(/Origin/));
});

const OWN_HOSTS = ['127.0.0.1', '10.1.2.3:9090', '[::1]:9090', 'LOCALHOST:1', 'App.localhost:8080'];
const FOREIGN_HOSTS = ['evil.test', 'evil.test:8080', 'localhost.evil.test', '1.2.3.4.evil.test'];

test('on loopback without keys a Host that is no address, not localhost and not the configured host is refused', async (t) => {
  const gateway = await startGateway(t, { toml: '[server]\nhost = "app.localhost"\n' });
  for (const host of OWN_HOSTS) {
    assert.equal((await gateway.send('/v1/models', { headers: { host } })).status, 200, host);
  }
  for (const host of FOREIGN_HOSTS) {
    for (const path of ['/v1/models', '/health', '/nothing']) {
      assertError(await gateway.send(path, { headers: { host } }), refusal(/Host/));
    }
  }
  const withoutHost = 'GET /health HTTP/1.0\r\n\r\n';
  assert.equal((await sendRaw(gateway.port, withoutHost)).status, 200);
});

const UNDER_ANY_NAME = {
  'listening on all interfaces': '[server]\nhost = "0.0.0.0"\n',
  'listening on an address of the network': '[server]\nhost = "192.168.1.2"\n',
  'behind a proxy that is trusted':
    '[server]\nhost = "127.0.0.1"\ntrusted_proxies = ["127.0.0.1"]\n',
  ...OPEN_TO_PAGES,
};
for (const [what, settings] of Object.entries(UNDER_ANY_NAME)) {
  test(`${what}, requests for any Host are served`, async (t) => {
    const gateway = await startGateway(t, { toml: settings });
    const headers = { host: FOREIGN_HOSTS[0] };
    assert.equal((await gateway.send('/v1/models', { headers })).status, 200);
  });
}

test('behind a proxy that is trusted, without keys, a page on another host is refused', async (t) => {
  const toml = UNDER_ANY_NAME['behind a proxy that is trusted'];
  const gateway = await startGateway(t, { toml });
  const headers = { origin: FOREIGN_ORIGINS[0] };
  assertError(
    await gateway.send('/v1/models', { headers }),
    refusal(/Origin.*\[server\.auth\] keys/),
  );
});
