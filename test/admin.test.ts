import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chatBody, providerToml, startGateway } from './support/gateway.ts';
import { completionEvents, sendEvents, startUpstream } from './support/upstream.ts';

test('try', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream, 'p', 'models = ["m"]') + '[admin]\nport = 0\n' });
  await gateway.chat(chatBody());
  upstream.script = (_, response) => sendEvents(response, completionEvents());
  await gateway.chat(chatBody({ stream: true, model: 'p/zzz' }));
  console.log((await gateway.admin('/metrics')).text);
  console.log((await gateway.admin('/ready')).text);
});
