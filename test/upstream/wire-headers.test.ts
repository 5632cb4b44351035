/** `forward_headers` and `return_headers`: what a provider needs of a client, and a client of a provider. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { chatBody, CLIENT_TOKEN, PROVIDER_KEY } from '../support/gateway.ts';
import { byModel, scenario } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { completion, failWith, sendJson, type Script } from '../support/upstream.ts';

const BOTH = 'forward_headers = ["X-Session-Id", "openai-beta"]\nreturn_headers = ["x-cost"]';
const LONGEST = 'x'.repeat(4096);
/** Values that are never passed on, of a gateway with these two keys: keys, their shape, too long, beyond ASCII. */
const NEVER = [
  `x ${CLIENT_TOKEN}`,
  `x${PROVIDER_KEY}y`,
  'Bearer abcdefgh',
  `${LONGEST}x`,
  'caf\u00e9',
];
const AUTH = `[server.auth]\nkeys = ["${CLIENT_TOKEN}"]`;

/** An answer, a stream or an error as asked for by the model, with these headers. */
function answerWith(headers: Record<string, string>): Script {
  const script = byModel({ error: failWith(400), limit: failWith(429) });
  return (request, response) => {
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    return script(request, response);
  };
}

describe('forward_headers', { concurrency: true }, () => {
  test('passes the headers that it names, in any case, and no others, and none to the list of models', async (t) => {
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
});

describe('return_headers', { concurrency: true }, () => {
  const kinds: readonly (readonly [body: object, status: number])[] = [
    [{}, 200],
    [{ stream: true }, 200],
    [{ model: 'p/error' }, 400],
    [{ model: 'p/error', stream: true }, 400],
    [{ model: 'p/limit' }, 429],
  ];
  test('passes the headers that it names with answers, streams and errors, and no others, to pages on other origins too', async (t) => {
    const lines = 'return_headers = ["x-cost", "x-time"]';
    const { gateway, p } = await scenario(t, {
      server: 'cors = true',
      providers: { p: { lines } },
      more: AUTH,
    });
    for (const value of ['7 cents', ...NEVER]) {
      const others = { 'X-Time': '1', 'x-other': 'o', 'set-cookie': 'c=1' };
      p.script = answerWith({ 'X-Cost': value, ...others });
      for (const [body, expected] of kinds) {
        const { status, headers } = await gateway.chat(chatBody(body), {
          headers: { origin: 'http://a.example' },
        });
        assert.equal(status, expected);
        assert.equal(headers['x-cost'], value === '7 cents' ? value : undefined);
        assert.equal(headers['x-time'], '1');
        assert.ok(!('x-other' in headers) && !('set-cookie' in headers));
        assert.match(headers['access-control-expose-headers']!, /\bx-time\b/);
      }
    }
  });
});

test('a reload changes which headers pass; a request in flight keeps those that it began with', async (t) => {
  const gate = createGate();
  const script: Script = async (_, response) => {
    await gate.opened;
    sendJson(response, completion(), { headers: { 'x-cost': '1' } });
  };
  const { gateway, p, toml } = await scenario(t, { providers: { p: { script, lines: BOTH } } });
  const headers = { 'x-session-id': 's', 'x-new': 'n' };
  const first = gateway.chat(chatBody(), { headers });
  await eventually(() => p.requests.length === 1, 'the provider is asked');
  await gateway.reload(toml.replace(BOTH, 'forward_headers = ["x-new"]'));
  const second = gateway.chat(chatBody(), { headers });
  await eventually(() => p.requests.length === 2, 'the provider is asked again');
  gate.open();
  const costs = (await Promise.all([first, second])).map((reply) => reply.headers['x-cost']);
  assert.deepEqual(costs, ['1', undefined]);
  const received = p.requests.map(({ headers: got }) => [got['x-session-id'], got['x-new']]);
  assert.deepEqual(received, [
    ['s', undefined],
    [undefined, 'n'],
  ]);
});
