/** The built program with traces: its variables, its report, its reload and its end. */

import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { before, test } from 'node:test';

import { startCollector } from '../support/collector.ts';
import { chatBody, providerToml, send } from '../support/gateway.ts';
import { buildOnce, emptyFolder, SERVER, startCommand, untilServing } from '../support/process.ts';
import { eventually } from '../support/streams.ts';
import { startUpstream } from '../support/upstream.ts';

before(buildOnce);

test('SIGTERM sends the spans that wait, and a reload does not switch traces off', async (t) => {
  const collector = await startCollector(t);
  const upstream = await startUpstream(t);
  const server = '[server]\nhost = "127.0.0.1"\nport = 0\n';
  const provider = providerToml(upstream);
  const cwd = emptyFolder(t, {
    'gateway.toml': `${server}[telemetry]\ntraces = true\n${provider}`,
  });
  const env = {
    OTEL_EXPORTER_OTLP_ENDPOINT: `${new URL(collector.baseUrl).origin}/base/?key=hunter-2`,
    OTEL_SERVICE_NAME: 'from-the-environment',
  };
  const program = await untilServing(startCommand(t, [process.execPath, SERVER], { env, cwd }));
  const { child, lines, stderr } = program;
  assert.match(stderr(), /^traces {5}http:\/\/127\.0\.0\.1:\d+\/base\/v1\/traces$/m);
  writeFileSync(join(cwd, 'gateway.toml'), server + provider);
  child.kill('SIGHUP');
  await eventually(() => lines('restart needed').length === 1, 'the reload');
  assert.deepEqual(lines('restart needed')[0]!['settings'], ['telemetry.traces']);
  const port = Number(new URL(String(lines('started')[0]!['url'])).port);
  const headers = { authorization: 'Bearer any-token', 'content-type': 'application/json' };
  const body = JSON.stringify(chatBody());
  const sentAtMs = performance.now();
  await send(port, '/v1/chat/completions', { method: 'POST', headers, body });
  const sentBatches = collector.requests.length;
  // A busy machine may take so long that the batch of 5 s has left.
  assert.ok(sentBatches === 0 || performance.now() - sentAtMs > 5000, `${sentBatches}`);
  child.kill('SIGTERM');
  assert.equal(await program.exit, 0);
  assert.equal(collector.spans().length, 2);
  assert.match(collector.messages()[0]!, /"from-the-environment"/);
  assert.equal(collector.requests[0]!.url, '/base/v1/traces?key=hunter-2');
  assert.deepEqual(lines('spans were not sent'), []);
  assert.ok(!stderr().includes('hunter-2'), stderr());
});
