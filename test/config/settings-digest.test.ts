/** The digest, which shows replicas with different settings. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { loadConfig } from '../../src/config/config.ts';

const digestOf = (toml: string, env: Record<string, string> = {}) =>
  loadConfig({ toml, env }).digest;
const PROVIDER = (key: string) =>
  `[providers.p]\nbase_url = "http://127.0.0.1:9"\napi_key = "${key}"\n`;

test('equal settings have the same digest, whatever their order and listeners', () => {
  const digest = digestOf(`${PROVIDER('sk-canary-1')}[server]\ntimeout = 70\n`);
  assert.match(digest, /^[0-9a-f]{8}$/);
  assert.equal(digestOf(`[server]\ntimeout = 70\n${PROVIDER('sk-canary-1')}`), digest);
  assert.equal(digestOf(PROVIDER('sk-canary-1'), { GATEWAY_TIMEOUT: '70' }), digest);
  const [p, q] = [PROVIDER('sk-canary-1'), PROVIDER('sk-canary-2').replace('.p]', '.q]')];
  assert.equal(digestOf(p + q), digestOf(q + p));
  const elsewhere = '[server]\nport = 9999\nhost = "127.0.0.1"\ntimeout = 70\n';
  assert.equal(digestOf(elsewhere + PROVIDER('sk-canary-1')), digest);
});

test('the digest differs if a key or any other setting differs', () => {
  const digests = [
    digestOf(PROVIDER('sk-canary-1')),
    digestOf(PROVIDER('sk-canary-2')),
    digestOf(`${PROVIDER('sk-canary-1')}[server]\ntimeout = 70\n`),
    digestOf(`${PROVIDER('sk-canary-1')}[admin]\nport = 8081\nhost = "127.0.0.1"\n`),
  ];
  assert.equal(new Set(digests.slice(0, 3)).size, 3);
  assert.equal(digests[3], digests[0]);
});
