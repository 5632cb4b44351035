/**
 * `forward_headers`: the client's headers for a provider. The worlds check it too, and
 * `return_headers` (`headers`).
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { chatBody, CLIENT_TOKEN, PROVIDER_KEY } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { answerWell, completion, sendJson } from '../support/upstream.ts';

const BOTH = 'forward_headers = ["X-Session-Id", "openai-beta"]';
const LONGEST = 'x'.repeat(4096);
/** Values that never pass: the gateway's two keys, key-like, too long, beyond ASCII. */
const NEVER = [
  `x ${CLIENT_TOKEN}`,
  `x${PROVIDER_KEY}y`,
  'Bearer abcdefgh',
  `${LONGEST}x`,
  'caf\u00e9',
];
const AUTH = `[server.auth]\nkeys = ["${CLIENT_TOKEN}"]`;

test('forward_headers passes exactly the named headers, and none for the models', async (t) => {
  const providers = { p: { lines: BOTH } };
  const { gateway, p } = await scenario(t, { providers, more: AUTH });
  const rows: readonly (readonly [sent: Record<string, string | string[]>, ...string[]])[] = [
    [{ 'x-session-id': 's 1', 'OpenAI-Beta': 'a=1, b', 'x-other': 'o' }, 's 1', 'a=1, b'],
    [{}],
    [{ 'openai-beta': ['a', 'b'], 'x-session-id': LONGEST }, LONGEST, 'a, b'],
    ...NEVER.map((value) => [{ 'x-session-id': value, 'openai-beta': 'b' }, '', 'b'] as const),
  ];
  for (const [headers, session, beta] of rows) {
    for (const stream of [false, true]) {
      assert.equal((await gateway.chat(chatBody({ stream }), { headers })).status, 200);
      const got = p.requests.at(-1)!.headers;
      assert.equal(got['x-session-id'] ?? '', session ?? '');
      assert.equal(got['openai-beta'], beta);
      assert.equal(got['x-other'], undefined);
      assert.equal(got.authorization, `Bearer ${PROVIDER_KEY}`);
    }
  }
  await gateway.send('/v1/models', { headers: { 'x-session-id': 's' } });
  assert.equal(p.requests.at(-1)!.headers['x-session-id'], undefined);
});

test('a header that Connection names passes in neither direction', async (t) => {
  const returned = {
    'x-returned': 'r',
    'x-kept': 'k',
    'x-ratelimit-limit-requests': '9',
    'x-request-id': 'up-1',
    'cf-ray': 'up-2',
  };
  const lines = `${BOTH}\nreturn_headers = ["x-returned", "x-kept"]`;
  const { gateway, p } = await scenario(t, { providers: { p: { lines } } });
  // Any letter case and white space. Repeated headers form a single list.
  const spellings = [
    ['x-returned, x-ratelimit-limit-requests, X-Request-Id, x-session-id'],
    ['close', 'X-RETURNED ,\tX-RateLimit-Limit-Requests,x-request-id, X-Session-ID'],
    ['keep-alive, x-returned', 'x-request-id,x-ratelimit-limit-requests,x-session-id'],
  ];
  for (const connection of [undefined, ...spellings]) {
    p.script = (request, response) => {
      for (const [name, value] of Object.entries(returned)) response.setHeader(name, value);
      if (connection) response.setHeader('connection', connection);
      return answerWell(request, response);
    };
    for (const stream of [false, true]) {
      const headers = {
        'x-session-id': 's',
        'openai-beta': 'b',
        ...(connection && { connection }),
      };
      const reply = await gateway.chat(chatBody({ stream }), { headers });
      assert.equal(reply.status, 200, reply.text);
      const isNamed = connection !== undefined;
      assert.equal(reply.headers['x-returned'], isNamed ? undefined : 'r');
      assert.equal(reply.headers['x-ratelimit-limit-requests'], isNamed ? undefined : '9');
      assert.equal(reply.headers['x-upstream-request-id'], isNamed ? 'up-2' : 'up-1');
      assert.equal(reply.headers['x-kept'], 'k');
      const got = p.requests.at(-1)!.headers;
      assert.equal(got['x-session-id'], isNamed ? undefined : 's');
      assert.equal(got['openai-beta'], 'b');
    }
  }
});

test('a content type passes up to 1,024 characters', async (t) => {
  const { gateway, p } = await scenario(t);
  const type = `application/json; a=${'x'.repeat(5000)}`;
  p.script = (_, response) =>
    sendJson(response, completion(), { headers: { 'content-type': type } });
  const { headers } = await gateway.chat(chatBody());
  assert.equal(headers['content-type'], type.slice(0, 1024));
});
