import assert from 'node:assert/strict';
import { test } from 'node:test';

import { VERSION } from '../src/lib/version.ts';
import { startGateway } from './support/gateway.ts';

test('GET /health answers healthy and the version, without authorization', async (t) => {
  const gateway = await startGateway(t, {});
  const reply = await gateway.send('/health', { headers: { authorization: undefined } });
  assert.equal(reply.status, 200);
  assert.deepEqual(reply.json(), { status: 'healthy', version: VERSION });
});

test('HEAD /health answers as GET does, without a body', async (t) => {
  const gateway = await startGateway(t, {});
  const reply = await gateway.send('/health', {
    method: 'HEAD',
    headers: { authorization: undefined },
  });
  assert.equal(reply.status, 200);
  assert.equal(reply.text, '');
});
