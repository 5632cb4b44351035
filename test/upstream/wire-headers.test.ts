/** `forward_headers` and `return_headers`: what a provider needs of a client, and a client of a provider. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { chatBody, CLIENT_TOKEN, PROVIDER_KEY, triesOf } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import {
  answerWell,
  completion,
  failWith,
  sendJson,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';

const BOTH = 'forward_headers = ["X-Session-Id", "openai-beta"]\nreturn_headers = ["x-cost"]';
/** Values that are never passed on, of a gateway with these two keys. */
const NEVER: Readonly<Record<string, string>> = {
  "the client's token": `x ${CLIENT_TOKEN}`,
  "a provider's key": `x${PROVIDER_KEY}y`,
  'what has the shape of a key': 'Bearer abcdefgh',
  'a value of 4,097 characters': 'x'.repeat(4097),
  'a value beyond ASCII': 'caf\u00e9',
};
const AUTH = `[server.auth]\nkeys = ["${CLIENT_TOKEN}"]`;

/** The last request's headers whose names begin with `x-` or are those that the tests send. */
function receivedBy({ requests }: FakeUpstream, names: readonly string[]) {
  const { headers } = requests.at(-1)!;
  return names.map((name) => headers[name]);
}

/** An answer, a stream or an error as asked for by the model, with these headers. */
function answerWith(headers: Record<string, string>): Script {
  return async (request, response) => {
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
    const { model } = JSON.parse(request.body.toString()) as { model: string };
    if (model === 'error') await failWith(400)(request, response);
    else if (model === 'limit') await failWith(429)(request, response);
    else await answerWell(request, response);
  };
}

describe('forward_headers', { concurrency: true }, () => {
  test('passes the headers that it names, in any case, and no others', async (t) => {
    const { gateway, p } = await scenario(t, { providers: { p: { lines: BOTH } } });
    const headers = { 'x-session-id': 's 1', 'OpenAI-Beta': 'a=1, b', 'x-other': 'o' };
    for (const stream of [false, true]) {
      assert.equal((await gateway.chat(chatBody({ stream }), { headers })).status, 200);
      const received = receivedBy(p, ['x-session-id', 'openai-beta', 'x-other']);
      assert.deepEqual(received, ['s 1', 'a=1, b', undefined]);
    }
    assert.equal((await gateway.chat(chatBody())).status, 200);
    assert.deepEqual(receivedBy(p, ['x-session-id', 'openai-beta']), [undefined, undefined]);
    assert.equal(p.requests[0]!.headers.authorization, `Bearer ${PROVIDER_KEY}`);
  });

  test('passes a repeated header as a list', async (t) => {
    const { gateway, p } = await scenario(t, { providers: { p: { lines: BOTH } } });
    await gateway.chat(chatBody(), { headers: { 'openai-beta': ['a', 'b'] } });
    assert.deepEqual(receivedBy(p, ['openai-beta']), ['a, b']);
  });

  test('of each provider of a fallback decides what that provider gets, for retries too', async (t) => {
    const providers = {
      p: { script: failWith(503), lines: 'forward_headers = ["x-a", "x-c"]\nretries = 1' },
      q: { script: failWith(503) },
      r: { lines: 'forward_headers = ["x-b", "x-c"]' },
    };
    const { gateway, p, q, r } = await scenario(t, { providers, fallback: ['q', 'r'] });
    const names = ['x-a', 'x-b', 'x-c'];
    const headers = { 'x-a': '1', 'x-b': '2', 'x-c': '3' };
    assert.equal((await gateway.chat(chatBody(), { headers })).status, 200);
    assert.equal(triesOf(gateway.accessLines()[0]), 'p:503 p:503 q:503 r:200');
    for (const { headers: sent } of p.requests) {
      assert.deepEqual([sent['x-a'], sent['x-b'], sent['x-c']], ['1', undefined, '3']);
    }
    assert.deepEqual(receivedBy(q, names), [undefined, undefined, undefined]);
    assert.deepEqual(receivedBy(r, names), [undefined, '2', '3']);
  });

  test('passes up to 4,096 characters', async (t) => {
    const { gateway, p } = await scenario(t, { providers: { p: { lines: BOTH } } });
    const longest = 'x'.repeat(4096);
    await gateway.chat(chatBody(), { headers: { 'x-session-id': longest } });
    assert.deepEqual(receivedBy(p, ['x-session-id']), [longest]);
  });

  for (const [what, value] of Object.entries(NEVER)) {
    test(`does not pass ${what}`, async (t) => {
      const { gateway, p } = await scenario(t, { providers: { p: { lines: BOTH } }, more: AUTH });
      const headers = { 'x-session-id': value, 'openai-beta': 'b' };
      assert.equal((await gateway.chat(chatBody(), { headers })).status, 200);
      assert.deepEqual(receivedBy(p, ['x-session-id', 'openai-beta']), [undefined, 'b']);
    });
  }

  test('does not concern the list of models', async (t) => {
    const { gateway, p } = await scenario(t, { providers: { p: { lines: BOTH } } });
    await gateway.send('/v1/models', { headers: { 'x-session-id': 's' } });
    assert.deepEqual(receivedBy(p, ['x-session-id']), [undefined]);
  });
});

describe('return_headers', { concurrency: true }, () => {
  test('passes the headers that it names with answers, streams and errors, and no others', async (t) => {
    const script = answerWith({ 'X-Cost': '7 cents', 'x-other': 'o', 'set-cookie': 'c=1' });
    const { gateway } = await scenario(t, { providers: { p: { script, lines: BOTH } } });
    const cases: readonly (readonly [body: object, status: number])[] = [
      [{}, 200],
      [{ stream: true }, 200],
      [{ model: 'p/error' }, 400],
      [{ model: 'p/error', stream: true }, 400],
      [{ model: 'p/limit' }, 429],
    ];
    for (const [body, expected] of cases) {
      const { status, headers } = await gateway.chat(chatBody(body));
      assert.equal(status, expected);
      assert.equal(headers['x-cost'], '7 cents', JSON.stringify(body));
      assert.ok(!('x-other' in headers) && !('set-cookie' in headers));
    }
  });

  test('passes those of the provider that has answered, if that provider lists them', async (t) => {
    const failing: Script = (_, response) =>
      sendJson(response, {}, { status: 503, headers: { 'x-cost': '1', 'x-time': '1' } });
    const { gateway } = await scenario(t, {
      providers: {
        p: { script: failing, lines: 'return_headers = ["x-cost"]' },
        q: {
          script: answerWith({ 'x-cost': '2', 'x-time': '2' }),
          lines: 'return_headers = ["x-time"]',
        },
      },
      fallback: ['q'],
    });
    const { status, headers } = await gateway.chat(chatBody());
    assert.deepEqual([status, headers['x-cost'], headers['x-time']], [200, undefined, '2']);
  });

  for (const [what, value] of Object.entries(NEVER)) {
    test(`does not pass ${what}`, async (t) => {
      const script = answerWith({ 'x-cost': value, 'x-time': '1' });
      const lines = 'return_headers = ["x-cost", "x-time"]';
      const { gateway } = await scenario(t, { providers: { p: { script, lines } }, more: AUTH });
      for (const model of ['p/m', 'p/error']) {
        const { headers } = await gateway.chat(chatBody({ model }));
        assert.deepEqual([headers['x-cost'], headers['x-time']], [undefined, '1']);
      }
    });
  }

  test('lets pages on other origins read what it names', async (t) => {
    const { gateway } = await scenario(t, {
      server: 'cors = true',
      providers: { p: { script: answerWith({ 'x-cost': '1' }), lines: BOTH } },
    });
    const { headers } = await gateway.chat(chatBody(), { headers: { origin: 'http://a.example' } });
    assert.match(headers['access-control-expose-headers']!, /\bx-cost\b/);
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
  const names = ['x-session-id', 'x-new'];
  const first = gateway.chat(chatBody(), { headers });
  await eventually(() => p.requests.length === 1, 'the provider is asked');
  assert.deepEqual(receivedBy(p, names), ['s', undefined]);
  await gateway.reload(toml.replace(BOTH, 'forward_headers = ["x-new"]'));
  const second = gateway.chat(chatBody(), { headers });
  await eventually(() => p.requests.length === 2, 'the provider is asked again');
  assert.deepEqual(receivedBy(p, names), [undefined, 'n']);
  gate.open();
  assert.deepEqual(
    [(await first).headers['x-cost'], (await second).headers['x-cost']],
    ['1', undefined],
  );
});
