import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { test } from 'node:test';

import { idle, useManualTimers } from './support/clock.ts';
import { startBlackHole } from './support/fault-proxy.ts';
import { chatBody, providerToml, startGateway } from './support/gateway.ts';
import { eventually } from './support/streams.ts';

test('a connection to a provider that is not made within ten seconds is a 504', async (t) => {
  const timers = useManualTimers(t);
  const { port } = await startBlackHole(t);
  const toml = providerToml({ baseUrl: `http://127.0.0.1:${port}/v1` });
  // fetch has a limit of its own.
  const gateway = await startGateway(t, { toml, env: { GATEWAY_UPSTREAM: 'auto' } });
  // The client's, and the gateway's.
  let sockets = 0;
  const count = () => (sockets += 1);
  subscribe('net.client.socket', count);
  t.after(() => unsubscribe('net.client.socket', count));
  let isAnswered = false;
  const reply = gateway.chat(chatBody()).finally(() => (isAnswered = true));
  await eventually(() => sockets === 2, 'the connection is being made');
  timers.advance(9999);
  await idle(100);
  assert.equal(isAnswered, false);
  timers.advance(1);
  const { status, text } = await reply;
  assert.equal(status, 504);
  assert.match(text, /"code":"TIMEOUT"/);
});
