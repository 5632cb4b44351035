import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { openFeed } from '../support/feed.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  providerToml,
  PROVIDER_KEY,
  startGateway,
  type Reply,
  STREAM,
} from '../support/gateway.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { scenario } from '../support/scenario.ts';
import { errorAfter } from '../support/streams.ts';
import { sweep } from '../support/sweep.ts';
import { CHUNK, completion, sendEvents, sendJson, type Script } from '../support/upstream.ts';

/** Settings that print as much as possible. */
const LOUD = '[logging]\nlevel = "trace"\nverbose = true\n';
const OTHER_KEYS = ['sk-proj-AbC123_dEf456', 'sk-ant-api03-****abcd', 'Bearer eyJhbGciOi.J9-x_y=='];
/** The keys quoted by the fake providers. */
const QUOTED_KEYS = sweep(OTHER_KEYS, OTHER_KEYS.slice(0, 1));
const STATUSES = sweep(
  [
    [300, 302, 307, 400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 415, 418, 422, 429, 451, 499],
    [500, 501, 502, 503, 504, 511, 529, 599],
  ].flat(),
  [302, 400, 401, 429, 500, 503],
);

/** The ways in which upstreams quote a key. */
const ECHOES: Record<string, (key: string) => unknown> = {
  'error.message': (key) => ({ error: { message: `Incorrect API key provided: ${key}. Sorry.` } }),
  'error string': (key) => ({ error: `bad ${key}` }),
  message: (key) => ({ message: `(${key})` }),
  detail: (key) => ({ detail: [{ msg: `key=${key}` }, { msg: key }] }),
  list: (key) => [{ error: { message: `"${key}"`, code: 403 } }],
  'vLLM object': (key) => ({ object: 'error', message: `x ${key}`, code: 400 }),
  code: (key) => ({ error: { message: 'no', code: key, type: key, param: key } }),
  'upper case': (key) => ({ error: { message: key.toUpperCase() } }),
  'long text': (key) => ({ error: { message: `${'x'.repeat(490)} ${key}` } }),
  'the middle of a word': (key) => ({
    error: { message: key === PROVIDER_KEY ? `x${key}y` : 'x' },
  }),
  'line breaks': (key) => ({ error: { message: `\u001b${key}\r\n${key}\u2028${key}` } }),
};

function bytesOf({ status, headers, text }: Reply): string {
  return `${status} ${JSON.stringify(headers)} ${text}`;
}

/** Checks the bytes for keys, and for the provider's host and port. */
function assertSilent(
  bytes: string,
  { baseUrl }: { readonly baseUrl: string },
  where: string,
): void {
  const { hostname, port } = new URL(baseUrl);
  for (const secret of [PROVIDER_KEY, PROVIDER_KEY.slice(3), ...OTHER_KEYS]) {
    assert.ok(!bytes.toLowerCase().includes(secret.toLowerCase()), `${where}: ${bytes}`);
  }
  assert.ok(!bytes.includes(hostname) && !bytes.includes(`:${port}`), `${where}: ${bytes}`);
}

function assertLogSilent(log: readonly string[]): void {
  const text = log.join('').toLowerCase();
  assert.notEqual(text, '');
  assert.ok(!text.includes(PROVIDER_KEY) && !text.includes(CLIENT_TOKEN), text);
}

describe("the provider's key", () => {
  for (const [shape, echo] of Object.entries(ECHOES)) {
    test(`reaches no client when any error quotes it as ${shape}`, async (t) => {
      const { p: upstream, gateway } = await scenario(t, { more: LOUD });
      for (const key of [PROVIDER_KEY, ...QUOTED_KEYS]) {
        for (const status of [...STATUSES, 200]) {
          const location = `${upstream.baseUrl}/elsewhere?key=${PROVIDER_KEY}`;
          const headers = { location, 'set-cookie': `k=${key}`, server: key };
          upstream.script = (_, response) => sendJson(response, echo(key), { status, headers });
          for (const body of key === PROVIDER_KEY ? [chatBody(), STREAM] : [chatBody()]) {
            const reply = await gateway.chat(body);
            // A 200 without an error in its dialect is an answer, and passes unchanged.
            if (status === 200 && reply.status === 200) continue;
            assert.ok(reply.status >= 400, `${status} -> ${reply.status}`);
            assertSilent(bytesOf(reply), upstream, `${status} ${key}`);
          }
        }
        const event = `event: error\ndata: ${JSON.stringify(echo(key))}\n\n`;
        for (const before of ['', CHUNK]) {
          upstream.script = (_, response) => sendEvents(response, before + event);
          const reply = await gateway.chat(STREAM);
          if (before) errorAfter(reply.text, CHUNK);
          else assert.ok(reply.status >= 400, shape);
          assertSilent(bytesOf(reply), upstream, shape);
        }
      }
      const { authorization } = upstream.requests[0]!.headers;
      assert.equal(authorization, `Bearer ${PROVIDER_KEY}`);
      assertLogSilent(gateway.log);
    });
  }

  test('reaches no client in a header that passes', async (t) => {
    const names = ['x-request-id', 'x-ratelimit-limit-requests', 'x-should-retry'];
    const headers = Object.fromEntries(
      [...names, 'www-authenticate'].map((name) => [name, `r-${PROVIDER_KEY}`]),
    );
    const { p: upstream, gateway } = await scenario(t, { more: LOUD });
    for (const status of [200, 401, 429, 500]) {
      upstream.script = (_, response) => sendJson(response, completion(), { status, headers });
      const reply = await gateway.chat(chatBody());
      assertSilent(JSON.stringify(reply.headers), upstream, String(status));
    }
    assertLogSilent(gateway.log);
  });

  test('is quoted by no error of the network, of HTTP or of a wrong answer', async (t) => {
    const answers = [
      '',
      `HTTP/1.1 ${PROVIDER_KEY}\r\n\r\n`,
      `SSH-2.0 ${PROVIDER_KEY}\r\n`,
      `HTTP/1.1 200 OK\r\nx: ${PROVIDER_KEY}\u0000\r\n\r\n`,
      `HTTP/1.1 200 OK\r\n${PROVIDER_KEY}\r\n\r\n`,
      `HTTP/1.1 500 ${PROVIDER_KEY}\r\ncontent-length: 0\r\n\r\n`,
      `HTTP/1.1 204 No Content\r\nx: ${PROVIDER_KEY}\r\n\r\n`,
      rawResponse(`not JSON ${PROVIDER_KEY}`),
      rawResponse(`<html><p>${PROVIDER_KEY}</p></html>`, { status: '502 Bad', type: 'text/html' }),
      rawResponse(PROVIDER_KEY, { status: '400 Bad', type: 'text/plain' }),
      rawResponse(`{"a":"${PROVIDER_KEY}`, { status: '403 No' }),
      rawResponse(`${CHUNK}data: ${PROVIDER_KEY.slice(0, 9)}`, { type: 'text/event-stream' }).slice(
        0,
        -4,
      ),
    ];
    let answer = '';
    const upstream = await startRawUpstream(t, ({ socket }) => socket.end(answer));
    const gateway = await startGateway(t, { toml: LOUD + providerToml(upstream) });
    for (answer of answers) {
      for (const body of [chatBody(), STREAM]) {
        const reply = await gateway.chat(body);
        if (reply.status === 200) errorAfter(reply.text, CHUNK);
        assertSilent(bytesOf(reply), upstream, answer);
      }
    }
    assertLogSilent(gateway.log);
  });

  test("is in no answer of the gateway's own", async (t) => {
    const script: Script = (_, response) =>
      sendJson(response, { error: { message: PROVIDER_KEY } }, { status: 500 });
    const { p: upstream, gateway } = await scenario(t, {
      providers: { p: { script, lines: 'default_model = "m"' } },
      more: LOUD,
    });
    const replies = [
      await gateway.send('/health'),
      await gateway.send('/v1/models'),
      await gateway.send('/unknown'),
      await gateway.chat('{"model":'),
      await gateway.chat(chatBody({ model: 'nobody/m' })),
      await gateway.chat(chatBody(), { headers: { authorization: undefined } }),
    ];
    for (const reply of replies) assertSilent(bytesOf(reply), upstream, bytesOf(reply));
    assert.equal(replies[1]?.json().data[0].id, 'p/m');
    assertLogSilent(gateway.log);
  });

  test('is nowhere on the admin port, and neither are tokens or content', async (t) => {
    let answer: Script = () => {};
    const shapes = Object.entries(ECHOES);
    for (const [shape, echo] of sweep(shapes, shapes.slice(0, 4))) {
      const script: Script = (request, response) => answer(request, response);
      const { gateway } = await scenario(t, {
        providers: { p: script, q: script },
        fallback: ['p', 'q'],
        server: `auth.keys = ["${CLIENT_TOKEN}"]`,
        more: `${LOUD}[admin]\nport = 0\n`,
      });
      const messages = [{ role: 'user', content: 'canary-of-content' }];
      for (const key of [...QUOTED_KEYS, PROVIDER_KEY]) {
        const event = `event: error\ndata: ${JSON.stringify(echo(key))}\n\n`;
        answer = (_, response) => sendEvents(response, CHUNK + event);
        await gateway.chat(chatBody({ messages, stream: true }));
        answer = (_, response) => sendJson(response, echo(key), { status: 503 });
        // Opens the circuits, so the page shows their causes.
        for (let at = 0; at < 3; at += 1) await gateway.chat(chatBody({ messages }));
        const feed = await openFeed(t, gateway.adminPort);
        const { providers } = await feed.next('state');
        feed.close();
        assert.notEqual(providers[0].details, undefined);
        const shown = [
          JSON.stringify(feed.events),
          (await gateway.admin('/metrics')).text,
          (await gateway.admin('/')).text,
          (await gateway.admin('/status')).text,
          (await gateway.admin('/requests')).text,
          (await gateway.admin('/requests?number=1')).text,
        ].join('');
        for (const secret of [PROVIDER_KEY, CLIENT_TOKEN, ...OTHER_KEYS, 'canary-of-content']) {
          const at = shown.toLowerCase().indexOf(secret.toLowerCase());
          assert.equal(at, -1, `${shape}: ${shown.slice(at - 300, at + 100)}`);
        }
      }
    }
  });

  test('is in no circuit and no incident of the feed', async (t) => {
    let location = '';
    const redirect: Script = (_, response) =>
      sendJson(response, {}, { status: 302, headers: { location } });
    const { gateway } = await scenario(t, {
      providers: { p: redirect, q: redirect },
      fallback: ['q'],
      more: '[admin]\nport = 0\n',
    });
    const keys = [PROVIDER_KEY, ...OTHER_KEYS];
    for (const key of keys) {
      location = `https://x/login/${key}`;
      for (let at = 0; at < 3; at += 1) await gateway.chat(chatBody({ model: `p/${key}` }));
    }
    gateway.judge();
    const feed = await openFeed(t, gateway.adminPort);
    const { incidents, order, providers } = await feed.next('state');
    assert.equal(providers[0].details.length, keys.length);
    assert.match(incidents[order[0]].causes[0], /\/login\//);
    assert.ok(incidents[order[0]].affected.length > 0);
    const status = (await gateway.admin('/status')).text;
    const shown = `${JSON.stringify(feed.events)}${status}`.toLowerCase();
    for (const key of keys) assert.ok(!shown.includes(key.toLowerCase()), shown);
  });
});

describe("the client's token", () => {
  test('reaches no provider, whatever header carries it', async (t) => {
    const upstream = await startRawUpstream(t, ({ socket }) =>
      socket.write(rawResponse('{"choices":[]}')),
    );
    const gateway = await startGateway(t, { toml: LOUD + providerToml(upstream) });
    const names = [
      ['x-api-key', 'api-key', 'cookie', 'proxy-authorization', 'x-forwarded-host', 'forwarded'],
      ['openai-organization', 'x-portkey-custom-host', 'referer', 'origin', 'x-goog-api-key', 'te'],
    ].flat();
    const path = `/v1/chat/completions?api_key=${CLIENT_TOKEN}`;
    for (const name of names) {
      const headers = { 'content-type': 'application/json', [name]: CLIENT_TOKEN };
      const body = JSON.stringify(chatBody());
      const reply = await gateway.send(path, { method: 'POST', headers, body });
      assert.equal(reply.status, 200, name);
    }
    assert.equal((await gateway.send('/v1/models')).status, 200);
    assert.equal(upstream.requests.length, names.length + 1);
    for (const { text } of upstream.requests) {
      assert.ok(!text.includes(CLIENT_TOKEN), text);
      assert.ok(text.includes(`Bearer ${PROVIDER_KEY}`), text);
    }
    assertLogSilent(gateway.log);
  });
});
