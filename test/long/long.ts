/**
 * Tests that take minutes: silences beyond fetch's own limit, idle connections closing as they are
 * needed, and idle connections after a minute.
 *
 *   npm run test:long   about five and a half minutes
 */

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

import { chatBody, providerToml, startGateway } from '../support/gateway.ts';
import { startHttpProxy } from '../support/http-proxy.ts';
import { buildOnce, emptyFolder, startServing } from '../support/process.ts';
import { createRandom } from '../support/random.ts';
import { rawResponse, startRawUpstream, type RawRequest } from '../support/raw-upstream.ts';
import { createScope } from '../support/scope.ts';
import { openChat } from '../support/streams.ts';
import {
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  beginStream,
  type Script,
} from '../support/upstream.ts';
import { scenario } from '../support/scenario.ts';

const SILENCE_MS = 310_000;
const REUSED_REQUESTS = 1000;
const UPSTREAM_IDLE_MS = 300;
const QUIET_MS = 61_000;
const GIVE_UP_MS = 345_000;

const scope = createScope();
const { t } = scope;
const startedAt = performance.now();
const elapsed = () => `${((performance.now() - startedAt) / 1000).toFixed(1)} s`;

/**
 * Returns a provider's raw answer, a stream if the request asks for it. The connection stays open.
 */
function rawAnswer({ text }: RawRequest): string {
  return text.includes('"stream":true')
    ? rawResponse(completionEvents(), { type: 'text/event-stream' })
    : rawResponse(JSON.stringify(completion()));
}

async function survivesSilence(kind: 'complete' | 'first event' | 'stream'): Promise<string> {
  const [begun, rest] = [completionEvents().slice(0, 200), completionEvents().slice(200)];
  const p: Script = async (request, response) => {
    if (kind === 'stream') beginStream(begun)(request, response);
    await sleep(SILENCE_MS);
    if (kind === 'complete') sendJson(response, completion());
    else if (kind === 'first event') sendEvents(response, begun + rest);
    else response.end(rest);
  };
  const server = 'timeout = 400\nstream_idle_timeout = 400';
  const { gateway, asked } = await scenario(t, { providers: { p }, server });
  const reply = await gateway.chat(chatBody(kind === 'complete' ? {} : { stream: true }));
  assert.equal(reply.status, 200, reply.text);
  if (kind === 'complete') assert.deepEqual(reply.json(), completion());
  else assert.equal(reply.text, completionEvents());
  assert.deepEqual(asked(), [1]);
  return `answered whole after ${elapsed()}`;
}

async function survivesSilenceBehindProxy(): Promise<string> {
  const upstream = await startUpstream(t, async (_, response) => {
    await sleep(SILENCE_MS);
    sendJson(response, completion());
  });
  const proxy = await startHttpProxy(t, upstream);
  const server = `[server]\nhost = "127.0.0.1"\nport = 0\ntimeout = 400\n`;
  const settings = `${server}${providerToml(upstream)}`;
  const cwd = emptyFolder(t, { 'gateway.toml': settings });
  const env = { NODE_USE_ENV_PROXY: '1', HTTP_PROXY: proxy.url };
  await buildOnce();
  const { port } = await startServing(t, [], { cwd, env });
  const { response, ended } = openChat(port, chatBody());
  assert.equal((await response).statusCode, 200);
  assert.deepEqual(JSON.parse(await ended), completion());
  const [asked = 'nothing: this Node knows no NODE_USE_ENV_PROXY'] = proxy.asked;
  return `answered whole after ${elapsed()}, the proxy was asked ${asked}`;
}

async function survivesClosing(): Promise<string> {
  const upstream = await startRawUpstream(t, (request) => {
    const { socket } = request;
    socket.write(rawAnswer(request));
    const idle = setTimeout(() => socket.destroy(), UPSTREAM_IDLE_MS);
    socket.once('data', () => clearTimeout(idle));
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const random = createRandom(Date.now());
  let failures = 0;
  for (let round = 0; round < REUSED_REQUESTS; round += 1) {
    const { status, text } = await gateway.chat(chatBody({ stream: round % 2 === 1 }));
    if (status !== 200 || !/\[DONE\]|"finish_reason":"stop"/.test(text)) failures += 1;
    // Just before and after the moment of closing.
    await sleep(UPSTREAM_IDLE_MS - random.integer(0, 4));
  }
  const repeated = gateway
    .accessLines()
    .filter((line) => ((line['tries'] as unknown[] | undefined) ?? []).length > 1).length;
  const connections = upstream.requests.at(-1)!.connection;
  const figures =
    `${REUSED_REQUESTS} requests, ${failures} failed, ${repeated} needed a new attempt, ` +
    `${connections} connections`;
  assert.equal(failures, 0, figures);
  // Without reuse, the test would prove nothing.
  assert.ok(connections < REUSED_REQUESTS, figures);
  return figures;
}

async function reusesAfterQuiet(): Promise<string> {
  const upstream = await startRawUpstream(t, (request) => request.socket.write(rawAnswer(request)));
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  for (const quietMs of [QUIET_MS, 0]) {
    assert.equal((await gateway.chat(chatBody())).status, 200);
    await sleep(quietMs);
  }
  const used = upstream.requests.map(({ connection }) => connection);
  assert.deepEqual(used, [1, 1]);
  return `the same connection after ${QUIET_MS / 1000} s`;
}

const checks: Record<string, () => Promise<string>> = {
  'a complete answer after 310 s': () => survivesSilence('complete'),
  'a stream that begins after 310 s': () => survivesSilence('first event'),
  'a stream silent for 310 s': () => survivesSilence('stream'),
  'a complete answer after 310 s, behind a proxy': survivesSilenceBehindProxy,
  'idle connections closed after 300 ms': survivesClosing,
  'an idle connection after a minute': reusesAfterQuiet,
};

let failed = 0;
function report(name: string, isGood: boolean, what: string): void {
  if (!isGood) failed += 1;
  console.log(`${isGood ? 'ok    ' : 'FAILED'}  ${name}: ${what}`);
}

setTimeout(() => {
  report('everything', false, `not done after ${elapsed()}`);
  process.exit(1);
}, GIVE_UP_MS).unref();

console.log(`node ${process.version}`);
await Promise.all(
  Object.entries(checks).map(async ([name, check]) => {
    try {
      report(name, true, await check());
    } catch (error) {
      report(name, false, String(error));
    }
  }),
);
await scope.close();
console.log(`${failed} failed, ${elapsed()}`);
process.exitCode = failed === 0 ? 0 : 1;
