/**
 * Pages that may send requests, and CORS for broken requests. The worlds check the rest (`headers`,
 * `truth`).
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { assertError, parseRaw, refusal } from '../support/errors.ts';
import { CLIENT_TOKEN, startGateway } from '../support/gateway.ts';
import { sendRaw } from '../support/raw.ts';

const BROKEN = {
  'a request that is not HTTP': { bytes: 'canary\r\n\r\n', status: 400 },
  'headers that are too large': {
    bytes: `GET /health HTTP/1.1\r\na: ${'b'.repeat(20_000)}\r\n\r\n`,
    status: 431,
  },
};
for (const cors of [true, false]) {
  const how = cors ? 'with' : 'without';
  test(`with cors = ${cors} a broken request is refused ${how} CORS headers`, async (t) => {
    const gateway = await startGateway(t, { toml: `[server]\ncors = ${cors}\n` });
    for (const { bytes, status } of Object.values(BROKEN)) {
      const reply = parseRaw(await sendRaw(gateway.port, bytes));
      assertError(reply, refusal(/./, status));
      assert.equal(reply.headers['access-control-allow-origin'], cors ? '*' : undefined);
      const exposed = String(reply.headers['access-control-expose-headers']).split(', ');
      assert.equal(exposed.includes('x-request-id'), cors);
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

test("another host's page is served with cors or keys, but not with keys turned off", async (t) => {
  const headers = { origin: 'https://evil.example' };
  for (const toml of OPEN_TO_PAGES) {
    const gateway = await startGateway(t, { toml });
    assert.equal((await gateway.send('/v1/models', { headers })).status, 200, toml);
  }
  const local = await startGateway(t, { toml: LOCAL });
  const ofHost = refusal(/Host.*\[server\.auth\] keys, \[clients\] or \[server\] trusted_proxies/);
  assertError(await local.send('/v1/models', { headers: { host: 'evil.example' } }), ofHost);
  assert.equal((await local.send('/health', { headers: { host: '' } })).status, 200);
  for (const toml of [KEYS_OFF, TRUSTED_PROXY]) {
    const gateway = await startGateway(t, { toml });
    const expected = refusal(/Origin.*\[server\.auth\] keys, \[clients\] or \[server\] cors/);
    assertError(await gateway.send('/v1/models', { headers }), expected);
  }
});
