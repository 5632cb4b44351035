import assert from 'node:assert/strict';
import type { IncomingHttpHeaders } from 'node:http';
import { test } from 'node:test';

import { assertError, parseRaw, refusal } from '../support/errors.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  startGateway,
  type Reply,
  type SendOptions,
} from '../support/gateway.ts';
import { sendRaw } from '../support/raw.ts';
import { byModel, scenario } from '../support/scenario.ts';
import { completion, failWith, sendJson } from '../support/upstream.ts';

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

const wordsOf = (text: string) => text.trim().split(/\s+/);

function listed(value: unknown): string[] {
  return String(value)
    .split(',')
    .map((name) => name.trim().toLowerCase());
}

test('without cors no answer has a CORS header', async (t) => {
  const gateway = await startGateway(t, { env: { GATEWAY_AUTH_KEYS: CLIENT_TOKEN } });
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

test('with cors = true a preflight of each path needs no authorization', async (t) => {
  const gateway = await startGateway(t, { toml: withCors });
  for (const path of [CHAT, '/v1/models', '/health']) {
    const { status, headers, text } = await gateway.send(path, preflight);
    assert.deepEqual([status, text], [204, '']);
    assert.equal(headers['access-control-allow-origin'], '*');
    assert.equal(headers['access-control-max-age'], '86400');
    assert.equal(headers['vary'], 'access-control-request-headers');
    const allowed = listed(headers['access-control-allow-headers']);
    assert.deepEqual(allowed, ['authorization', 'content-type', 'x-stainless-lang']);
    const methods = listed(headers['access-control-allow-methods']);
    assert.ok(methods.includes('get') && methods.includes('post'), methods.join());
    assert.ok(!('access-control-allow-credentials' in headers));
    assert.match(headers['x-request-id'] as string, /\S/);
  }
});

test('OPTIONS that is no preflight is refused like any other request, and one that asks for no headers is allowed none', async (t) => {
  const gateway = await startGateway(t, { toml: withCors });
  const options = { method: 'OPTIONS', headers: { origin: ORIGIN, authorization: undefined } };
  assert.equal((await gateway.send(CHAT, options)).status, 401);
  const reply = await gateway.send(CHAT, { method: 'OPTIONS', headers: { origin: ORIGIN } });
  assert.deepEqual([reply.status, reply.headers.allow], [404, 'POST']);
  const { 'access-control-request-headers': _, ...fewer } = preflight.headers!;
  const { status, headers } = await gateway.send(CHAT, { ...preflight, headers: fewer });
  assert.ok(status < 300, `${status}`);
  assert.ok(!('access-control-allow-headers' in headers));
});

/** What scripts can read of any answer (Fetch standard), and what is between browser and gateway only. */
const READABLE = ['content-type', 'content-length', 'cache-control'];
const NOT_FOR_SCRIPTS = wordsOf(`
  date connection keep-alive transfer-encoding vary x-content-type-options x-accel-buffering allow
  www-authenticate
`);

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

test('with cors = true a script on any origin can read every answer and every header of it', async (t) => {
  const { gateway } = await scenario(t, {
    server: 'cors = true\nmax_body_bytes = 500',
    providers: {
      p: byModel({
        whole: (_, response) => sendJson(response, completion(), { headers: limits }),
        busy: failWith(429, { headers: limits }),
        broken: (_, response) => response.destroy(),
      }),
    },
  });
  const headers = { origin: ORIGIN };
  const chat = async (more: object = {}) => gateway.chat(chatBody(more), { headers });
  const replies: readonly (readonly [status: number, reply: Reply])[] = [
    [200, await chat({ model: 'p/stream', stream: true })],
    [200, await gateway.send('/v1/models', { headers })],
    [200, await gateway.send('/health', { headers })],
    [401, await gateway.send('/v1/models', { headers: { ...headers, authorization: undefined } })],
    [404, await gateway.send('/nothing', { headers })],
    [400, await gateway.chat({}, { headers })],
    [413, await chat({ x: 'y'.repeat(1000) })],
    [400, await chat({ model: 'q/m' })],
    [429, await chat({ model: 'p/busy' })],
    [502, await chat({ model: 'p/broken' })],
    [200, await chat({ model: 'p/whole' })],
  ];
  for (const [status, reply] of replies) {
    assert.equal(reply.status, status, reply.text);
    assert.equal(reply.headers['access-control-allow-origin'], '*');
    assert.ok(!('access-control-allow-credentials' in reply.headers));
    const exposed = listed(reply.headers['access-control-expose-headers']);
    const shown = [...READABLE, ...NOT_FOR_SCRIPTS, ...corsHeaders(reply.headers), ...exposed];
    const hidden = Object.keys(reply.headers).filter((name) => !shown.includes(name));
    assert.deepEqual(exposed.includes('*') ? [] : hidden, []);
  }
});

const BROKEN = {
  'a request that is not HTTP': { bytes: 'canary\r\n\r\n', status: 400 },
  'headers that are too large': {
    bytes: `GET /health HTTP/1.1\r\na: ${'b'.repeat(20_000)}\r\n\r\n`,
    status: 431,
  },
};
for (const cors of [true, false]) {
  test(`with cors = ${cors} the refusal of ${Object.keys(BROKEN).join(', or ')} has ${cors ? 'the' : 'no'} CORS headers`, async (t) => {
    const gateway = await startGateway(t, { toml: `[server]\ncors = ${cors}\n` });
    for (const { bytes, status } of Object.values(BROKEN)) {
      const reply = parseRaw(await sendRaw(gateway.port, bytes));
      assertError(reply, refusal(/./, status));
      assert.equal(reply.headers['access-control-allow-origin'], cors ? '*' : undefined);
      const exposed = listed(reply.headers['access-control-expose-headers']);
      assert.equal(exposed.includes('x-request-id'), cors);
    }
  });
}

const OWN_ORIGINS = wordsOf(`
  null http://localhost http://localhost:3000 https://localhost:8443 http://app.localhost:5173
  HTTP://LOCALHOST:3000 http://127.0.0.1:1 http://127.1.2.3 http://[::1] http://[::1]:3000
  chrome-extension://abcdefghijklmnop moz-extension://1234 vscode-webview://abc app://obsidian.md
  tauri://localhost
`);
const FOREIGN_ORIGINS = wordsOf(`
  https://evil.example http://evil.example:8080 HTTPS://EVIL.EXAMPLE http://localhost.evil.example
  http://evillocalhost http://127.0.0.1.evil.example http://127.0.0.1:1@evil.example
  http://192.168.1.2 http://0.0.0.0 http://[::2] http://
`);
const HOSTS = ['127.0.0.1', 'localhost', '::1', '127.0.0.2', '127.1', '0.0.0.0', '192.168.1.2'];
for (const host of HOSTS) {
  test(`on ${host} without keys a page on another host is refused, and pages of the same machine, editors and extensions are served`, async (t) => {
    const { gateway, p } = await scenario(t, { server: `host = "${host}"` });
    for (const origin of [...FOREIGN_ORIGINS, 'http://localhost, https://evil.example']) {
      // Before authorization is looked at, and whatever the path.
      const headers = { origin, authorization: undefined };
      for (const path of [CHAT, '/v1/models', '/health', '/nothing']) {
        assertError(await gateway.send(path, { headers }), refusal(/Origin/));
      }
      assertError(await gateway.chat(chatBody(), { headers: { origin } }), refusal(/Origin/));
    }
    assert.equal(p.requests.length, 0);
    for (const origin of [undefined, ...OWN_ORIGINS]) {
      const { status } = await gateway.chat(chatBody(), { headers: { origin } });
      assert.equal(status, 200, String(origin));
    }
  });
}

const LOCAL = '[server]\nhost = "127.0.0.1"\n';
const TRUSTED_PROXY = `${LOCAL}trusted_proxies = ["127.0.0.1"]\n`;
const KEYS_OFF = `${LOCAL}[server.auth]\nenabled = false\nkeys = ["k"]\n`;
const OPEN_TO_PAGES = [
  `${LOCAL}cors = true\n`,
  `${LOCAL}[server.auth]\nkeys = ["${CLIENT_TOKEN}"]\n`,
];

test('a page on another host is served with cors = true and with keys, and refused with keys that are switched off or behind a trusted proxy', async (t) => {
  const headers = { origin: FOREIGN_ORIGINS[0] };
  for (const toml of OPEN_TO_PAGES) {
    const gateway = await startGateway(t, { toml });
    assert.equal((await gateway.send('/v1/models', { headers })).status, 200, toml);
  }
  for (const toml of [KEYS_OFF, TRUSTED_PROXY]) {
    const gateway = await startGateway(t, { toml });
    const expected = refusal(/Origin.*\[server\.auth\] keys/);
    assertError(await gateway.send('/v1/models', { headers }), expected);
  }
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

test('requests for any Host are served on all interfaces, on an address of the network, behind a trusted proxy, with cors and with keys', async (t) => {
  const network = ['0.0.0.0', '192.168.1.2'].map((host) => `[server]\nhost = "${host}"\n`);
  for (const toml of [...network, TRUSTED_PROXY, ...OPEN_TO_PAGES]) {
    const gateway = await startGateway(t, { toml });
    const headers = { host: FOREIGN_HOSTS[0] };
    assert.equal((await gateway.send('/v1/models', { headers })).status, 200, toml);
  }
});
