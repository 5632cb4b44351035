import assert from 'node:assert/strict';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, mock, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import type { Rows } from '../src/config/setting-kinds.ts';
import { SETTINGS } from '../src/config/settings-table.ts';
import { checkHere } from './support/check.ts';
import { atSomeScale } from './support/clock.ts';
import { assertError, unknownProvider } from './support/errors.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  startGateway,
  type TestGateway,
} from './support/gateway.ts';
import { buildOnce, emptyFolder, freePort, runProgram, startServing } from './support/process.ts';
import { isRedisMissing, startRedis } from './support/redis-server.ts';
import { createGate, errorAfter, eventually, openChat } from './support/streams.ts';
import {
  CHUNK,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from './support/upstream.ts';
import { ONLY_ONE_WORKER } from './support/workers.ts';

/** Each setting, and what can be seen of it from outside. */
type Observation = (t: TestContext) => Promise<void>;

const STREAM = chatBody({ stream: true });
const hang: Script = () => {};
/** Longer than one second, the shortest time that can be set. */
const slow: Script = async (_, response) => {
  await sleep(1300);
  sendJson(response, completion());
};
const fail: Script = (_, response) => sendJson(response, {}, { status: 503 });
const TIMEOUT = {
  httpStatus: 504,
  type: 'timeout_error',
  code: 'TIMEOUT',
  message: 'Request timed out',
  headers: { 'x-gateway-provider': 'p', 'x-should-retry': 'false' },
};

interface Settings {
  readonly script?: Script;
  readonly env?: Record<string, string>;
  /** Settings under their whole names. */
  readonly [
    name: `${'server' | 'clients' | 'admin' | 'logging' | 'providers' | 'aliases' | 'rate_limit'}${string}`
  ]: unknown;
}

/** The statuses of two requests at the same time, one of them while another one is in flight and one while two are. */
async function statusesBeside(t: TestContext, settings: Settings): Promise<number[]> {
  const { opened, open: finish } = createGate();
  const script: Script = async ({ body }, response) => {
    if (body.includes('held')) await opened;
    sendJson(response, completion());
  };
  const { gateway, p } = await start(t, { ...settings, script });
  const held: Promise<number>[] = [];
  const hold = async () => {
    held.push(statusOf(gateway, chatBody({ model: 'p/held' })));
    await eventually(() => p.requests.filter(isHeld).length === held.length, 'a held request');
  };
  const isHeld = ({ body }: { readonly body: Buffer }) => body.includes('held');
  await hold();
  const statuses = [await statusOf(gateway)];
  await hold();
  statuses.push(await statusOf(gateway));
  finish();
  assert.deepEqual(await Promise.all(held), [200, 200]);
  assert.equal(await statusOf(gateway), 200);
  return statuses;
}

/** Provider `p`, which does as it is told, provider `q`, which answers, and these settings. */
async function start(t: TestContext, { script, env = {}, ...settings }: Settings) {
  const [p, q] = await Promise.all([startUpstream(t, script), startUpstream(t)]);
  q.script = ({ body }, response) =>
    body.includes('"stream":true')
      ? sendEvents(response, completionEvents())
      : sendJson(response, completion('from q'));
  const all = {
    'providers.p.base_url': p.baseUrl,
    'providers.p.api_key': PROVIDER_KEY,
    'providers.q.base_url': q.baseUrl,
    'providers.q.api_key': PROVIDER_KEY,
    ...settings,
  };
  return { p, q, gateway: await startGateway(t, { toml: linesOf('', all).join(''), env }) };
}

/** TOML's lines for these settings, a line for each under its whole name. */
function linesOf(path: string, settings: object): string[] {
  return Object.entries(settings).flatMap(([key, value]: [string, unknown]) => {
    const name = path === '' ? key : `${path}.${key}`;
    const isTable = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isTable ? linesOf(name, value) : [`${name} = ${JSON.stringify(value)}\n`];
  });
}

/** fetch sends headers of its own. */
async function assertUsesFetch(
  { gateway, p }: Awaited<ReturnType<typeof start>>,
  expected: boolean,
): Promise<void> {
  await gateway.chat(chatBody());
  assert.equal('sec-fetch-mode' in p.requests[0]!.headers, expected);
}

async function statusOf(gateway: TestGateway, body: object = chatBody()): Promise<number> {
  return (await gateway.chat(body)).status;
}

/** The model that the upstream was last asked for. */
function modelAsked({ requests }: { requests: readonly { body: Buffer }[] }): unknown {
  return (JSON.parse(requests.at(-1)!.body.toString()) as { model: unknown }).model;
}

/** Starts the built program with this file and waits until /health answers there. */
async function assertServes(
  t: TestContext,
  toml: string,
  { env = {}, port }: { env?: Record<string, string>; port: number },
): Promise<void> {
  await startServing(t, [], { cwd: emptyFolder(t, { 'gateway.toml': toml }), env });
  assert.equal((await fetch(`http://127.0.0.1:${port}/health`)).status, 200);
}

/** The settings that `--check=offline` prints, or its problems. */
async function checked(
  t: TestContext,
  toml: string,
  { env = {}, args = [] }: { env?: Record<string, string>; args?: readonly string[] } = {},
): Promise<{ settings: Record<string, unknown>; problems: readonly string[] }> {
  const path = join(emptyFolder(t, { 'gateway.toml': toml }), 'gateway.toml');
  const options = ['--check=offline', '--json', '--config', path];
  const { result, stdout } = await checkHere([...options, ...args], env);
  const report = JSON.parse(stdout) as Awaited<ReturnType<typeof checked>>;
  assert.equal(result, report.problems.length > 0 ? 'settings wrong' : 'ok', stdout);
  return report;
}

interface Start {
  readonly env?: Record<string, string>;
  readonly args?: readonly string[];
}

/** So many threads listen on the port, and the log says so; if threads cannot share one, the start fails with one line. */
async function assertWorkers(
  t: TestContext,
  workers: number,
  inFile: number,
  { env = {}, args = [] }: Start = {},
): Promise<void> {
  const toml = `[server]\nport = 0\nhost = "127.0.0.1"\nworkers = ${inFile}\n`;
  const options = { cwd: emptyFolder(t, { 'gateway.toml': toml }), env };
  if (workers > 1 && ONLY_ONE_WORKER) {
    const { code, stderr } = await runProgram(t, args, options);
    assert.equal(code, 78);
    assert.match(stderr, /: \d+ workers need Node 22\.12 or newer on Linux; this is Node .*\n$/);
    return;
  }
  const { port, stdout } = await startServing(t, args, options);
  await eventually(() => stdout().includes('"message":"started"'), 'the start');
  assert.ok(stdout().includes(`"workers":${workers},`), stdout());
  if (process.platform === 'linux') assert.equal(countListeners(port), workers);
}

/** Sockets of this machine that listen on that port of 127.0.0.1. */
function countListeners(port: number): number {
  const address = `0100007F:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  const isListening = ([, local, , state]: readonly string[]) =>
    local === address && state === '0A';
  const sockets = readFileSync('/proc/net/tcp', 'utf8').split('\n');
  return sockets.filter((line) => isListening(line.trim().split(/\s+/))).length;
}

/** Refuses everything for a quarter of an hour. */
const EMPTY_BUCKET = `903000000 ${Date.now()}000`;

/** Settings of a limit of three requests, one per second, and whether a bucket of the store refuses with them. */
async function isRefusedByStore(t: TestContext, settings: Settings): Promise<boolean> {
  const limit = { 'rate_limit.enabled': true, 'rate_limit.requests_per_second': 1 };
  const { gateway } = await start(t, { ...limit, 'rate_limit.burst_capacity': 3, ...settings });
  for (let i = 0; i < 3; i += 1) {
    const { status, headers } = await gateway.chat(chatBody());
    // A bucket of the gateway's own has a token again after a second.
    if (status === 429) return Number(headers['retry-after']) > 100;
  }
  return false;
}

/** Reserved for documentation (RFC 5737): no machine has it. */
const NOWHERE = '192.0.2.1';

const IN_FILE: Record<string, Observation> = {
  'server.port': async (t) => {
    const port = await freePort();
    await assertServes(t, `[server]\nport = ${port}\nhost = "127.0.0.1"`, { port });
  },

  'server.host': async (t) => {
    const toml = `[server]\nport = 0\nhost = "${NOWHERE}"`;
    const cwd = emptyFolder(t, { 'gateway.toml': toml });
    const { code, stderr } = await runProgram(t, [], { cwd });
    assert.equal(code, 1);
    assert.match(stderr, /192\.0\.2\.1/);
  },

  'server.workers': async (t) => {
    // An empty variable counts as unset, even if the tests themselves run with workers.
    const env = { GATEWAY_WORKERS: '' };
    await assertWorkers(t, 1, 1, { env });
    await assertWorkers(t, 2, 2, { env });
  },

  'server.timeout': async (t) => {
    const { gateway } = await start(t, { 'server.timeout': 1, script: hang });
    assertError(await gateway.chat(chatBody()), TIMEOUT);
    assertError(await gateway.chat(STREAM), TIMEOUT);
  },

  'server.first_token_timeout': async (t) => {
    const settings = { 'server.first_token_timeout': 1, 'server.timeout': 600 };
    const { gateway, p } = await start(t, { ...settings, script: hang });
    assertError(await gateway.chat(STREAM), TIMEOUT);
    p.script = slow;
    assert.equal(await statusOf(gateway), 200);

    await atSomeScale(async (scale) => {
      const { gateway: other } = await start(t, {
        ...settings,
        'server.first_token_timeout': scale,
        script: hang,
        'providers.fallback': ['q'],
      });
      const { status, headers } = await other.chat(STREAM);
      assert.deepEqual([status, headers['x-gateway-provider']], [200, 'q']);
    });
  },

  'server.stream_idle_timeout': async (t) => {
    const script: Script = (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
    };
    const { gateway } = await start(t, { 'server.stream_idle_timeout': 1, script });
    const { status, text } = await gateway.chat(STREAM);
    assert.equal(status, 200);
    const { type, code } = errorAfter(text, CHUNK);
    assert.deepEqual([type, code], ['timeout_error', 'TIMEOUT']);

    const later: Script = async (request, response) => {
      script(request, response);
      await sleep(50);
      response.end(completionEvents());
    };
    const { gateway: off } = await start(t, { 'server.stream_idle_timeout': 0, script: later });
    assert.equal((await off.chat(STREAM)).text, CHUNK + completionEvents());
  },

  'server.shutdown_timeout': async (t) => {
    const gate = createGate();
    const upstream = await startUpstream(t, async (_, response) => {
      await gate.opened;
      sendJson(response, completion());
    });
    const provider = `[providers.p]\nbase_url = "${upstream.baseUrl}"\napi_key = "k"\n`;
    const [hasty, patient] = await Promise.all(
      [0, 600].map(async (seconds) => {
        const toml = `[server]\nport = 0\nhost = "127.0.0.1"\nshutdown_timeout = ${seconds}\n`;
        const cwd = emptyFolder(t, { 'gateway.toml': toml + provider });
        const program = await startServing(t, [], { cwd });
        return { ...program, stream: openChat(program.port, chatBody()) };
      }),
    );
    await eventually(() => upstream.requests.length === 2, 'both requests');
    for (const { child } of [hasty!, patient!]) child.kill('SIGTERM');
    assert.equal((await hasty!.stream.response).statusCode, 500);
    assert.equal(await hasty!.exit, 0);
    // Whoever was given time still has it.
    gate.open();
    assert.equal((await patient!.stream.response).statusCode, 200);
    assert.equal(await patient!.exit, 0);
  },

  'server.drain_delay': async (t) => {
    const toml = '[server]\nport = 0\nhost = "127.0.0.1"\n';
    const cwd = emptyFolder(t, { 'gateway.toml': `${toml}drain_delay = 600` });
    const { child, port, exit } = await startServing(t, [], { cwd });
    // Each on a connection of its own: one that is open is answered without a delay too.
    const status = async () => {
      const asked = get(`http://127.0.0.1:${port}/health`, { agent: false });
      const [response] = (await once(asked, 'response')) as [IncomingMessage];
      response.resume();
      return response.statusCode;
    };
    assert.equal(await status(), 200);
    child.kill('SIGTERM');
    await eventually(async () => (await status()) === 503, 'the drain');
    assert.equal(await status(), 503);
    child.kill('SIGINT');
    assert.equal(await exit, 1);
  },

  'server.retries': async (t) => {
    const { gateway, p } = await start(t, { 'server.retries': 2, script: fail });
    assert.equal(await statusOf(gateway), 503);
    assert.equal(p.requests.length, 3);
  },

  'server.max_concurrent_requests': async (t) => {
    assert.deepEqual(await statusesBeside(t, { 'server.max_concurrent_requests': 2 }), [200, 429]);
  },

  'server.max_body_bytes': async (t) => {
    const body = JSON.stringify(chatBody());
    for (const [limit, status] of [
      [body.length, 200],
      [body.length - 1, 413],
    ]) {
      const { gateway } = await start(t, { 'server.max_body_bytes': limit });
      assert.equal((await gateway.chat(body)).status, status);
    }
  },

  'server.max_buffered_bytes': async (t) => {
    const body = JSON.stringify(chatBody({ x: 'x'.repeat(1_500_000) }));
    for (const [limit, status] of [
      [2_000_000, 200],
      [1_200_000, 413],
    ]) {
      const { gateway } = await start(t, { 'server.max_buffered_bytes': limit });
      assert.equal((await gateway.chat(body)).status, status);
    }
  },

  'server.cors': async (t) => {
    for (const [cors, origin] of [
      [true, '*'],
      [false, undefined],
    ]) {
      const { gateway } = await start(t, { 'server.cors': cors });
      const { headers } = await gateway.send('/health');
      assert.equal(headers['access-control-allow-origin'], origin);
    }
  },

  'server.upstream': async (t) => {
    for (const upstream of ['auto', 'fetch']) {
      // An empty variable counts as unset, even if the tests themselves run over one transport.
      const settings = { 'server.upstream': upstream, env: { GATEWAY_UPSTREAM: '' } };
      await assertUsesFetch(await start(t, settings), upstream === 'fetch');
    }
  },

  'server.trusted_proxies': async (t) => {
    for (const [proxies, remote] of [
      [['127.0.0.0/8'], '192.0.2.7'],
      [['10.0.0.0/8'], '127.0.0.1'],
    ]) {
      const { gateway } = await start(t, { 'server.trusted_proxies': proxies });
      await gateway.chat(chatBody(), { headers: { 'x-forwarded-for': '10.0.0.1, 192.0.2.7' } });
      await eventually(() => gateway.log.length > 0, 'the log');
      assert.equal(gateway.accessLines()[0]!['remote'], remote);
    }
  },

  'server.auth.enabled': async (t) => {
    for (const [enabled, status] of [
      [true, 401],
      [false, 200],
    ]) {
      const settings = { 'server.auth.enabled': enabled, 'server.auth.keys': ['another'] };
      const { gateway } = await start(t, settings);
      assert.equal(await statusOf(gateway), status);
      const headers = { authorization: undefined };
      assert.equal((await gateway.chat(chatBody(), { headers })).status, status);
    }
  },

  'server.auth.keys': async (t) => {
    for (const [keys, status] of [
      [[], 200],
      [['another', CLIENT_TOKEN], 200],
      [['another'], 401],
    ]) {
      const { gateway } = await start(t, { 'server.auth.keys': keys });
      assert.equal(await statusOf(gateway), status);
    }
  },

  'clients.z.key': async (t) => {
    for (const [key, status] of [
      [CLIENT_TOKEN, 200],
      ['another', 401],
    ]) {
      const { gateway } = await start(t, { 'clients.alice.key': key });
      assert.equal(await statusOf(gateway), status);
    }
  },

  'clients.z.keys': async (t) => {
    for (const [keys, status] of [
      [['another', CLIENT_TOKEN], 200],
      [['another'], 401],
    ]) {
      const { gateway } = await start(t, { 'clients.alice.keys': keys });
      assert.equal(await statusOf(gateway), status);
    }
  },

  'clients.z.models': async (t) => {
    const settings = { 'clients.alice.key': CLIENT_TOKEN, 'clients.alice.models': ['p/a*'] };
    const { gateway } = await start(t, settings);
    assert.equal(await statusOf(gateway, chatBody({ model: 'p/abc' })), 200);
    assert.equal(await statusOf(gateway, chatBody({ model: 'p/b' })), 404);
  },

  'clients.z.requests_per_second': async (t) => {
    for (const [requests_per_second, status] of [
      [1, 429],
      [0, 200],
    ]) {
      const alice = { key: CLIENT_TOKEN, requests_per_second, burst_capacity: 1 };
      const { gateway } = await start(t, { 'clients.alice': alice });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
    }
  },

  'clients.z.burst_capacity': async (t) => {
    const alice = { key: CLIENT_TOKEN, requests_per_second: 1, burst_capacity: 2 };
    const { gateway } = await start(t, { 'clients.alice': alice });
    for (const status of [200, 200, 429]) assert.equal(await statusOf(gateway), status);
  },

  'clients.z.max_concurrent_requests': async (t) => {
    const alice = { key: CLIENT_TOKEN, max_concurrent_requests: 2 };
    assert.deepEqual(await statusesBeside(t, { 'clients.alice': alice }), [200, 429]);
  },

  'admin.port': async (t) => {
    const port = await freePort();
    const toml = `[server]\nport = 0\nhost = "127.0.0.1"\n[admin]\nport = ${port}`;
    await startServing(t, [], { cwd: emptyFolder(t, { 'gateway.toml': toml }) });
    const { status } = await fetch(`http://127.0.0.1:${port}/metrics`);
    assert.equal(status, 200);
  },

  'admin.host': async (t) => {
    const admin = `[admin]\nport = 0\nhost = "${NOWHERE}"\nkeys = ["k"]`;
    const toml = `[server]\nport = 0\nhost = "127.0.0.1"\n${admin}`;
    const cwd = emptyFolder(t, { 'gateway.toml': toml });
    const { code, stderr } = await runProgram(t, [], { cwd });
    assert.equal(code, 1);
    assert.match(stderr, /192\.0\.2\.1/);
  },

  'admin.keys': async (t) => {
    const { gateway } = await start(t, { 'admin.port': 0, 'admin.keys': ['one', 'two'] });
    const statusWith = async (headers: Record<string, string>) =>
      (await gateway.admin('/metrics', { headers })).status;
    assert.equal(await statusWith({}), 401);
    assert.equal(await statusWith({ authorization: 'Bearer three' }), 401);
    assert.equal(await statusWith({ authorization: 'Bearer two' }), 200);
  },

  'logging.level': async (t) => {
    for (const [level, count] of [
      ['warn', 0],
      ['info', 1],
      ['debug', 2],
    ]) {
      const { gateway } = await start(t, { 'logging.level': level });
      await gateway.send('/health');
      await gateway.chat(chatBody());
      await eventually(() => gateway.accessLines().length >= Number(count), 'the log');
      assert.equal(gateway.accessLines().length, count);
    }
  },

  'logging.format': async (t) => {
    const formats: [format: string, line: RegExp][] = [
      ['json', /^\{"time":/],
      ['text', /^\d\d:\d\d:\d\d\.\d{3} INFO {2}request /],
      ['auto', /^\{"time":/],
    ];
    for (const [format, line] of formats) {
      const { gateway } = await start(t, { 'logging.format': format });
      await gateway.chat(chatBody());
      await eventually(() => gateway.log.length > 0, 'the log');
      assert.match(gateway.log[0]!, line);
    }
  },

  'logging.verbose': async (t) => {
    for (const verbose of [true, false]) {
      const { gateway } = await start(t, { 'logging.verbose': verbose });
      await gateway.chat(chatBody());
      await eventually(() => gateway.log.length > 0, 'the log');
      assert.equal('request_bytes' in gateway.accessLines()[0]!, verbose);
    }
  },

  'logging.provider_messages': async (t) => {
    const script: Script = (_, response) =>
      sendJson(response, { error: { message: 'in its own words' } }, { status: 400 });
    for (const isShown of [true, false]) {
      const { gateway } = await start(t, { script, 'logging.provider_messages': isShown });
      await gateway.chat(chatBody());
      await eventually(() => gateway.log.length > 0, 'the log');
      assert.equal(gateway.log[0]!.includes('in its own words'), isShown);
    }
  },

  'providers.primary': async (t) => {
    const { gateway, q } = await start(t, { 'providers.primary': 'q' });
    assert.equal(await statusOf(gateway, chatBody({ model: 'some-model' })), 200);
    assert.equal(modelAsked(q), 'some-model');
    const { gateway: without } = await start(t, {});
    assert.equal(await statusOf(without, chatBody({ model: 'some-model' })), 400);
  },

  'providers.fallback': async (t) => {
    const { gateway } = await start(t, { 'providers.fallback': ['q'], script: fail });
    const { status, headers, text } = await gateway.chat(chatBody());
    assert.deepEqual([status, headers['x-gateway-provider']], [200, 'q']);
    assert.match(text, /from q/);
    const { gateway: without } = await start(t, { script: fail });
    assert.equal(await statusOf(without), 503);
  },

  'providers.z.enabled': async (t) => {
    const { gateway, p } = await start(t, { 'providers.p.enabled': false });
    assertError(await gateway.chat(chatBody()), unknownProvider('p'));
    assert.equal(p.requests.length, 0);
  },

  'providers.z.api_key': async (t) => {
    const env = { P_API_KEY: 'from-env', OTHER: 'from-other' };
    const keys = { literal: 'literal', '${OTHER}': 'from-other', '': 'from-env', '${NO}': '${NO}' };
    for (const [written, sent] of Object.entries(keys)) {
      const { gateway, p } = await start(t, { env, 'providers.p.api_key': written });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(p.requests[0]!.headers.authorization, `Bearer ${sent}`);
    }
    const { gateway } = await start(t, { 'providers.p.api_key': '' });
    assertError(await gateway.chat(chatBody()), unknownProvider('p'));
  },

  'providers.z.api_keys': async (t) => {
    const keys = ['key-number-1', 'key-number-2'];
    const { gateway, p } = await start(t, {
      'providers.p.api_key': '',
      'providers.p.api_keys': keys,
    });
    p.script = ({ headers }, response) =>
      headers.authorization === `Bearer ${keys[0]}`
        ? sendJson(response, {}, { status: 401 })
        : sendJson(response, completion());
    assert.equal(await statusOf(gateway), 200);
    assert.equal(p.requests.at(-1)!.headers.authorization, `Bearer ${keys[1]}`);
  },

  'providers.z.headers': async (t) => {
    const headers = { 'OpenAI-Organization': 'org-${N}' };
    const { gateway, p } = await start(t, { env: { N: '1' }, 'providers.p.headers': headers });
    assert.equal(await statusOf(gateway), 200);
    assert.equal(p.requests[0]!.headers['openai-organization'], 'org-1');
  },

  'providers.z.base_url': async (t) => {
    const upstream = await startUpstream(t);
    for (const slash of ['', '/']) {
      const base_url = `${upstream.baseUrl}/deep${slash}`;
      const { gateway } = await start(t, { 'providers.openai': { base_url, api_key: 'k' } });
      assert.equal(await statusOf(gateway, chatBody({ model: 'openai/m' })), 200);
      assert.equal(upstream.requests.at(-1)!.url, '/v1/deep/chat/completions');
    }
  },

  'providers.z.default_model': async (t) => {
    const { gateway, p, q } = await start(t, {
      'providers.p.default_model': 'd/1',
      'providers.q.default_model': 'd2',
      'providers.fallback': ['q'],
    });
    for (const model of ['p', 'p/']) {
      assert.equal(await statusOf(gateway, chatBody({ model })), 200);
      assert.equal(modelAsked(p), 'd/1');
    }
    p.script = fail;
    assert.equal(await statusOf(gateway), 200);
    assert.equal(modelAsked(q), 'd2');
    const { gateway: without } = await start(t, {});
    assert.equal(await statusOf(without, chatBody({ model: 'p' })), 400);
  },

  'providers.z.models': async (t) => {
    const { gateway, p } = await start(t, {
      'providers.p.models': ['one'],
      'providers.q.models': [],
    });
    const { data } = (await gateway.send('/v1/models')).json() as { data: { id: string }[] };
    assert.deepEqual(
      data.map(({ id }) => id),
      ['p/one'],
    );
    assert.equal(p.requests.length, 0);
  },

  'providers.z.timeout': async (t) => {
    const shorter = { 'server.timeout': 600, 'providers.p.timeout': 1, script: hang };
    const longer = { 'server.timeout': 1, 'providers.p.timeout': 600, script: slow };
    const [{ gateway: hasty }, { gateway: patient }] = await Promise.all([
      start(t, shorter),
      start(t, longer),
    ]);
    const [early, late] = await Promise.all([hasty.chat(chatBody()), patient.chat(chatBody())]);
    assertError(early, TIMEOUT);
    assert.equal(late.status, 200);
  },

  'providers.z.retries': async (t) => {
    for (const [own, count] of [
      [0, 1],
      [1, 2],
    ]) {
      const settings = { 'server.retries': 2, 'providers.p.retries': own, script: fail };
      const { gateway, p } = await start(t, settings);
      assert.equal(await statusOf(gateway), 503);
      assert.equal(p.requests.length, count);
    }
  },

  'providers.z.max_concurrent_requests': async (t) => {
    const settings = { 'providers.p.max_concurrent_requests': 2 };
    assert.deepEqual(await statusesBeside(t, settings), [200, 429]);
  },

  'aliases.z': async (t) => {
    const { gateway, p } = await start(t, { 'aliases.fast': 'p/the/model' });
    assert.equal(await statusOf(gateway, chatBody({ model: 'fast' })), 200);
    assert.equal(modelAsked(p), 'the/model');
    const list = { 'aliases.fast': ['p/one', 'q/two'], script: fail };
    const { gateway: other, q } = await start(t, list);
    assert.equal(await statusOf(other, chatBody({ model: 'fast' })), 200);
    assert.equal(modelAsked(q), 'two');
  },

  'rate_limit.enabled': async (t) => {
    for (const [enabled, status] of [
      [true, 429],
      [false, 200],
    ]) {
      const limit = { enabled, requests_per_second: 1, burst_capacity: 1 };
      const { gateway } = await start(t, { rate_limit: limit });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
    }
  },

  'rate_limit.requests_per_second': async (t) => {
    for (const [requests_per_second, status] of [
      [1, 429],
      [0, 200],
      [1_000_000, 200],
    ]) {
      const limit = { enabled: true, requests_per_second, burst_capacity: 1 };
      const { gateway } = await start(t, { rate_limit: limit });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
    }
  },

  'rate_limit.burst_capacity': async (t) => {
    const limit = { enabled: true, requests_per_second: 1, burst_capacity: 3 };
    const { gateway } = await start(t, { rate_limit: limit });
    for (const status of [200, 200, 200, 429]) assert.equal(await statusOf(gateway), status);
  },

  'rate_limit.store': async (t) => {
    const { settings } = await checked(t, '[rate_limit]\nstore = "redis://:password@h"\n');
    assert.equal(settings['rate_limit.store'], '[secret]');
    const { problems } = await checked(t, '[rate_limit]\nstore = "http://:password@h"\n');
    assert.equal(problems.length, 1);

    if (isRedisMissing(t)) return;
    const redis = await startRedis(t);
    const url = `redis://127.0.0.1:${redis.port}`;
    await redis.command('SET', 'inference-gateway:rate_limit:1/3', EMPTY_BUCKET);
    const isRefused = () => isRefusedByStore(t, { 'rate_limit.store': url });
    // A busy machine may be too slow for the store's limit of 50 ms.
    await eventually(isRefused, 'a refusal of the store');
    // Another database of it is another store.
    assert.equal(await isRefusedByStore(t, { 'rate_limit.store': `${url}/1` }), false);
  },

  'rate_limit.prefix': async (t) => {
    const { settings } = await checked(t, '[rate_limit]\nprefix = "mine"\n');
    assert.equal(settings['rate_limit.prefix'], 'mine');

    if (isRedisMissing(t)) return;
    const redis = await startRedis(t);
    await redis.command('SET', 'mine:rate_limit:1/3', EMPTY_BUCKET);
    const store = { 'rate_limit.store': `redis://127.0.0.1:${redis.port}` };
    const isRefused = (prefix: string) =>
      isRefusedByStore(t, { ...store, 'rate_limit.prefix': prefix });
    await eventually(() => isRefused('mine'), 'a refusal of the store');
    assert.equal(await isRefused('yours'), false);
  },

  'rate_limit.providers.z.requests_per_second': async (t) => {
    for (const [requests_per_second, status] of [
      [1, 429],
      [0, 200],
    ]) {
      const providers = { p: { requests_per_second, burst_capacity: 1 } };
      const { gateway } = await start(t, { rate_limit: { enabled: true, providers } });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
      assert.equal(await statusOf(gateway, chatBody({ model: 'q/m' })), 200);
    }
  },

  'rate_limit.providers.z.burst_capacity': async (t) => {
    const providers = { p: { requests_per_second: 1, burst_capacity: 2 } };
    const { gateway } = await start(t, { rate_limit: { enabled: true, providers } });
    for (const status of [200, 200, 429]) assert.equal(await statusOf(gateway), status);
  },
};

const limited = { enabled: true, requests_per_second: 1, burst_capacity: 1 };

const IN_ENVIRONMENT: Record<string, Observation> = {
  GATEWAY_UPSTREAM: async (t) => {
    for (const [text, inFile] of [
      ['auto', 'fetch'],
      ['fetch', 'auto'],
    ] as const) {
      const settings = { 'server.upstream': inFile, env: { GATEWAY_UPSTREAM: text } };
      await assertUsesFetch(await start(t, settings), text === 'fetch');
    }
  },

  GATEWAY_PORT: async (t) => {
    const [port, other] = [await freePort(), await freePort()];
    const toml = `[server]\nport = ${other}\nhost = "127.0.0.1"`;
    await assertServes(t, toml, { env: { GATEWAY_PORT: `${port}` }, port });
  },

  GATEWAY_HOST: async (t) => {
    const port = await freePort();
    const toml = `[server]\nport = ${port}\nhost = "${NOWHERE}"`;
    await assertServes(t, toml, { env: { GATEWAY_HOST: '127.0.0.1' }, port });
  },

  GATEWAY_WORKERS: async (t) => {
    await assertWorkers(t, 2, 1, { env: { GATEWAY_WORKERS: '2' } });
    await assertWorkers(t, 1, 2, { env: { GATEWAY_WORKERS: '3' }, args: ['--workers', '1'] });
  },

  GATEWAY_CONFIG: async (t) => {
    const port = await freePort();
    const other = emptyFolder(t, { 'my.toml': `[server]\nport = ${port}\nhost = "127.0.0.1"` });
    const toml = `[server]\nport = ${await freePort()}\nhost = "${NOWHERE}"`;
    await assertServes(t, toml, { env: { GATEWAY_CONFIG: `${other}/my.toml` }, port });
  },

  GATEWAY_CONFIG_TOML: async (t) => {
    const port = await freePort();
    const toml = `[server]\nport = ${await freePort()}\nhost = "${NOWHERE}"`;
    const text = `[server]\nport = ${port}\nhost = "127.0.0.1"`;
    await assertServes(t, toml, { env: { GATEWAY_CONFIG_TOML: text }, port });
  },

  GATEWAY_AUTH_KEYS: async (t) => {
    for (const [text, inFile, status] of [
      [`another, ${CLIENT_TOKEN}`, ['another'], 200],
      ['another', [CLIENT_TOKEN], 401],
    ] as const) {
      const settings = { 'server.auth.keys': inFile, env: { GATEWAY_AUTH_KEYS: text } };
      const { gateway } = await start(t, settings);
      assert.equal(await statusOf(gateway), status);
    }
  },

  GATEWAY_PRIMARY: async (t) => {
    const settings = { 'providers.primary': 'p', env: { GATEWAY_PRIMARY: 'q' } };
    const { gateway, q } = await start(t, settings);
    assert.equal(await statusOf(gateway, chatBody({ model: 'some-model' })), 200);
    assert.equal(modelAsked(q), 'some-model');
  },

  GATEWAY_FALLBACK: async (t) => {
    const settings = { 'providers.fallback': [], env: { GATEWAY_FALLBACK: 'p, q' } };
    const { gateway } = await start(t, { ...settings, script: fail });
    const { status, headers } = await gateway.chat(chatBody());
    assert.deepEqual([status, headers['x-gateway-provider']], [200, 'q']);
  },

  GATEWAY_TIMEOUT: async (t) => {
    const settings = { 'server.timeout': 600, script: hang };
    const { gateway } = await start(t, { ...settings, env: { GATEWAY_TIMEOUT: '1' } });
    assertError(await gateway.chat(chatBody()), TIMEOUT);
  },

  GATEWAY_CORS: async (t) => {
    for (const [text, inFile, origin] of [
      ['true', false, '*'],
      ['false', true, undefined],
    ] as const) {
      const settings = { 'server.cors': inFile, env: { GATEWAY_CORS: text } };
      const { gateway } = await start(t, settings);
      const { headers } = await gateway.send('/health');
      assert.equal(headers['access-control-allow-origin'], origin);
    }
  },

  GATEWAY_LOG_LEVEL: async (t) => {
    const settings = { 'logging.level': 'error', env: { GATEWAY_LOG_LEVEL: 'DeBug' } };
    const { gateway } = await start(t, settings);
    await gateway.send('/health');
    await eventually(() => gateway.log.length === 1, 'the log');
  },

  GATEWAY_RATE_LIMIT_ENABLED: async (t) => {
    for (const [text, inFile, status] of [
      ['true', false, 429],
      ['false', true, 200],
    ] as const) {
      const settings = { rate_limit: { ...limited, enabled: inFile } };
      const env = { GATEWAY_RATE_LIMIT_ENABLED: text };
      const { gateway } = await start(t, { ...settings, env });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
    }
  },

  GATEWAY_RATE_LIMIT_RPS: async (t) => {
    for (const [text, inFile, status] of [
      ['1', 0, 429],
      ['0', 1, 200],
    ] as const) {
      const settings = { rate_limit: { ...limited, requests_per_second: inFile } };
      const env = { GATEWAY_RATE_LIMIT_RPS: text };
      const { gateway } = await start(t, { ...settings, env });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
    }
  },

  GATEWAY_RATE_LIMIT_BURST: async (t) => {
    for (const [text, inFile, status] of [
      ['1', 9, 429],
      ['9', 1, 200],
    ] as const) {
      const settings = { rate_limit: { ...limited, burst_capacity: inFile } };
      const env = { GATEWAY_RATE_LIMIT_BURST: text };
      const { gateway } = await start(t, { ...settings, env });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(await statusOf(gateway), status);
    }
  },
};

before(buildOnce);

/** Variables that the file wins over. */
const AFTER_THE_FILE: Record<string, Observation> = {
  '<ID>_API_KEY': async (t) => {
    const env = { P_API_KEY: 'from-env' };
    for (const [inFile, sent] of [
      ['', 'from-env'],
      ['from-file', 'from-file'],
    ] as const) {
      const { gateway, p } = await start(t, { env, 'providers.p.api_key': inFile });
      assert.equal(await statusOf(gateway), 200);
      assert.equal(p.requests[0]!.headers.authorization, `Bearer ${sent}`);
    }
  },

  '<ID>_BASE_URL': async (t) => {
    const [inVariable, inFile] = [await startUpstream(t), await startUpstream(t)];
    const env = { GROQ_API_KEY: 'k', GROQ_BASE_URL: inVariable.baseUrl };
    const body = chatBody({ model: 'groq/m' });
    const { gateway } = await start(t, { env });
    assert.equal(await statusOf(gateway, body), 200);
    assert.equal(inVariable.requests.length, 1);
    const { gateway: other } = await start(t, { env, 'providers.groq.base_url': inFile.baseUrl });
    assert.equal(await statusOf(other, body), 200);
    assert.deepEqual([inVariable.requests.length, inFile.requests.length], [1, 1]);
  },

  '<ID>_DEFAULT_MODEL': async (t) => {
    const groq = await startUpstream(t);
    const env = { GROQ_API_KEY: 'k', GROQ_BASE_URL: groq.baseUrl, GROQ_DEFAULT_MODEL: 'in-env' };
    const body = chatBody({ model: 'groq' });
    const { gateway } = await start(t, { env });
    assert.equal(await statusOf(gateway, body), 200);
    assert.equal(modelAsked(groq), 'in-env');
    const { gateway: other } = await start(t, { env, 'providers.groq.default_model': 'in-file' });
    assert.equal(await statusOf(other, body), 200);
    assert.equal(modelAsked(groq), 'in-file');
  },
};

/** These wait, for a second or for a process. For the others a millisecond passes whenever the clock is read, however long they take. */
const isWaiting = (name: string) =>
  /timeout|port|host|retries|config|drain|workers|store|prefix/i.test(name);
for (const waiting of [true, false]) {
  const what = `in a running gateway, ${waiting ? 'at the same time' : 'one after the other'}`;
  describe(what, { concurrency: waiting }, () => {
    if (!waiting) {
      let nowMs = 0;
      before(() => void mock.method(performance, 'now', () => (nowMs += 1)));
      after(() => mock.restoreAll());
    }
    for (const [name, observe] of Object.entries(IN_FILE)) {
      if (isWaiting(name) === waiting) test(`${name.replace('.z', '.<id>')} acts`, observe);
    }
    for (const [name, observe] of Object.entries(IN_ENVIRONMENT)) {
      if (isWaiting(name) === waiting) test(`${name} acts, and wins over the file`, observe);
    }
    for (const [name, observe] of Object.entries(AFTER_THE_FILE)) {
      if (isWaiting(name) === waiting) test(`${name} acts, and the file wins over it`, observe);
    }
  });
}

describe('this file', () => {
  const sections = Object.entries<Rows>(SETTINGS);
  const rows = sections.flatMap(([section, settings]) =>
    Object.entries(settings).map(([key, row]) => ({ name: `${section}.${key}`, row })),
  );

  test('observes every key of the table of settings', () => {
    const names = rows.map(({ name }) => name.replace(/<\w+>/, 'z'));
    assert.deepEqual(Object.keys(IN_FILE).toSorted(), names.toSorted());
  });

  test('observes every variable of the table of settings, and those that name a file', () => {
    const names = rows.flatMap(({ row }) => row.env ?? row.providerEnv ?? []);
    const expected = [...names, 'GATEWAY_CONFIG', 'GATEWAY_CONFIG_TOML'];
    const observed = [...Object.keys(IN_ENVIRONMENT), ...Object.keys(AFTER_THE_FILE)];
    assert.deepEqual(observed.toSorted(), expected.toSorted());
  });
});
