import assert from 'node:assert/strict';
import { test } from 'node:test';

import { assertError, NOT_AUTHENTICATED, NOT_FOUND, unknownProvider } from '../support/errors.ts';
import { chatBody, startGateway } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import type { FakeUpstream } from '../support/upstream.ts';

const KEY = 'gateway-key-one';
const OTHER_KEY = 'gateway-key-two';
const withKeys = `auth.keys = ["${KEY}", "\${OTHER}"]`;
const env = { OTHER: OTHER_KEY };

/** Accepted (`open`) and refused (`shut`) `Authorization` headers. */
type Opens = Readonly<Record<'open' | 'shut', readonly (string | undefined)[]>>;

const anyToken: Opens = {
  open: ['Bearer whatever', 'Bearer My API Key', `Bearer ${KEY}`],
  shut: [undefined, 'Basic dTpw'],
};
const noAuth: Opens = { open: [undefined, 'Basic dTpw', 'Bearer whatever'], shut: [] };
const onlyKeys: Opens = {
  open: [`Bearer ${KEY}`, `bearer ${OTHER_KEY}`, `Bearer ${KEY} `],
  shut: [
    undefined,
    'Basic dTpw',
    `Basic ${KEY}`,
    ...['x', ' x', `,${OTHER_KEY}`].map((more) => `Bearer ${KEY}${more}`),
    ...[`x ${KEY}`, KEY.slice(0, -1), KEY.toUpperCase(), '${OTHER}', 'My API Key'].map(
      (one) => `Bearer ${one}`,
    ),
  ],
};

const auths: [what: string, server: string, opens: Opens][] = [
  ['no [server.auth]', '', anyToken],
  ['enabled = false', 'auth.enabled = false', noAuth],
  ['enabled = false with keys', `auth.enabled = false\nauth.keys = ["${KEY}"]`, noAuth],
  ['enabled = true without keys', 'auth.enabled = true', anyToken],
  ['enabled = true with an empty list', 'auth.enabled = true\nauth.keys = []', anyToken],
  ['enabled = true with keys', `auth.enabled = true\n${withKeys}`, onlyKeys],
  ['keys alone', withKeys, onlyKeys],
];
for (const [what, server, opens] of auths) {
  test(`${what} accepts exactly the right requests`, async (t) => {
    const { p, gateway } = await scenario(t, { server, env });
    for (const authorization of [...opens.open, ...opens.shut]) {
      const isOpen = opens.open.includes(authorization);
      const options = { headers: { authorization } };
      const replies = [
        await gateway.chat(chatBody(), options),
        await gateway.send('/v1/models', options),
      ];
      for (const reply of replies) {
        if (isOpen) assert.equal(reply.status, 200, `${authorization}`);
        else assertError(reply, NOT_AUTHENTICATED);
      }
      const unknown = await gateway.send('/nothing', options);
      assertError(unknown, isOpen ? NOT_FOUND : NOT_AUTHENTICATED);
      const chats = p.requests.splice(0).filter(({ method }) => method === 'POST');
      assert.equal(chats.length, isOpen ? 1 : 0, `${authorization}`);
      assert.equal((await gateway.send('/health', options)).status, 200);
    }
  });
}

test('a key in the environment registers a built-in provider without a section', async (t) => {
  const gateway = await startGateway(t, { env: { ZED_API_KEY: 'z' } });
  const unregistered = await gateway.chat(chatBody({ model: 'openai/m' }));
  assertError(unregistered, unknownProvider('openai'));
  for (const id of ['zed', 'zed_coding']) {
    // Without a default_model, the request is refused before any provider is asked.
    const reply = await gateway.chat(chatBody({ model: `${id}/` }));
    assert.equal(reply.status, 400);
    assert.doesNotMatch(reply.text, /Unknown provider/);
  }
});

const NEW_TRACEPARENT = /^00-(?!0+-)[\da-f]{32}-(?!0+-)[\da-f]{16}-01$/;

test('a request without trace headers gets a traceparent and a request id', async (t) => {
  const { p: upstream, gateway } = await scenario(t);
  const reply = await gateway.chat(chatBody());
  const { headers } = onlyRequest(upstream);
  assert.match(headers['traceparent'] as string, NEW_TRACEPARENT);
  assert.equal(gateway.accessLines()[0]?.['trace_id'], headers['traceparent']!.slice(3, 35));
  assert.ok(!('tracestate' in headers));
  assert.equal(headers['x-request-id'], reply.headers['x-request-id']);
});

function onlyRequest({ requests }: FakeUpstream) {
  assert.equal(requests.length, 1);
  return requests[0]!;
}
