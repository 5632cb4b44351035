/** `forward_headers`: what a provider needs of a client. Worlds hold it too, and `return_headers` (`headers`). */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { chatBody, CLIENT_TOKEN, PROVIDER_KEY } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';

const BOTH = 'forward_headers = ["X-Session-Id", "openai-beta"]';
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

test('forward_headers passes the headers that it names, in any case, and no others, and none to the list of models', async (t) => {
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
