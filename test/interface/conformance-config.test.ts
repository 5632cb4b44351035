import assert from 'node:assert/strict';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { after, before, describe, mock, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import type { Rows } from '../../src/config/setting-kinds.ts';
import { SETTINGS } from '../../src/config/settings-table.ts';
import { checkHere } from '../support/check.ts';
import { atSomeScale } from '../support/clock.ts';
import { assertError, unknownProvider } from '../support/errors.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  startGateway,
  type TestGateway,
  STREAM,
} from '../support/gateway.ts';
import { buildOnce, emptyFolder, freePort, runProgram, startServing } from '../support/process.ts';
import { isRedisMissing, startRedis } from '../support/redis-server.ts';
import { createGate, errorAfter, eventually, openChat } from '../support/streams.ts';
import {
  CHUNK,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
  answerWell,
  beginStream,
} from '../support/upstream.ts';

/** Each setting, and what can be seen of it from outside. */
type Observation = (t: TestContext) => Promise<void>;

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

/** A limit of requests. */
const oneAt = (requests_per_second: number, burst_capacity = 1) => ({
  requests_per_second,
  burst_capacity,
});

interface Settings {
  readonly script?: Script;
  readonly env?: Record<string, string>;
  /** Settings under their whole names. */
  readonly [
    name: `${'server' | 'clients' | 'admin' | 'logging' | 'providers' | 'aliases' | 'rate_limit'}${string}`
  ]: unknown;
}

/** Of requests at the same time, the second is answered and the third is refused. */
const limitsConcurrency =
  (settings: Settings): Observation =>
  async (t) => {
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
    const beside = [await statusOf(gateway)];
    await hold();
    beside.push(await statusOf(gateway));
    finish();
    assert.deepEqual(await Promise.all(held), [200, 200]);
    assert.equal(await statusOf(gateway), 200);
    assert.deepEqual(beside, [200, 429]);
  };

/** Provider `p`, which does as it is told, provider `q`, which answers, and these settings. */
async function start(t: TestContext, { script, env = {}, ...settings }: Settings) {
  const [p, q] = await Promise.all([startUpstream(t, script), startUpstream(t)]);
  q.script = (request, response) =>
    request.body.includes('"stream":true')
      ? answerWell(request, response)
      : sendJson(response, completion('from q'));
  const tomlOf = (own: object) => {
    const providers = {
      'providers.p.base_url': p.baseUrl,
      'providers.p.api_key': PROVIDER_KEY,
      'providers.q.base_url': q.baseUrl,
      'providers.q.api_key': PROVIDER_KEY,
    };
    return linesOf('', { ...providers, ...own }).join('');
  };
  const gateway = await startGateway(t, { toml: tomlOf(settings), env });
  /** Other settings; with the environment and the script of the start. */
  const reload = async ({ script: _script, env: _env, ...others }: Settings) => {
    await gateway.reload(tomlOf(others));
    assert.doesNotMatch(gateway.log.join(''), /reload failed/);
    gateway.log.splice(0);
    p.requests.splice(0);
  };
  return { p, q, gateway, reload };
}

/** TOML's lines for these settings, a line for each under its whole name. */
function linesOf(path: string, settings: object): string[] {
  return Object.entries(settings).flatMap(([key, value]: [string, unknown]) => {
    const name = path === '' ? key : `${path}.${key}`;
    const isTable = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isTable ? linesOf(name, value) : [`${name} = ${JSON.stringify(value)}\n`];
  });
}

type Started = Awaited<ReturnType<typeof start>>;

/**
 * A gateway with the first value of a setting, or with the settings for it, which is reloaded with each of the others:
 * expects what is seen of each. Settings that need a restart, or another environment, have a gateway for each.
 */
function each<Value>(
  settings: keyof Settings | ((value: Value) => Settings),
  observe: (started: Started) => unknown,
  ...cases: readonly (readonly [NoInfer<Value>, expected: unknown])[]
): Observation {
  const settingsOf = (value: Value) =>
    typeof settings === 'function' ? settings(value) : { [settings]: value };
  return async (t) => {
    let started: Started | undefined;
    let env: string | undefined;
    for (const [value, expected] of cases) {
      const own = settingsOf(value);
      const isRestarted = 'server.upstream' in own || env !== JSON.stringify(own.env);
      env = JSON.stringify(own.env);
      if (started && !isRestarted) await started.reload(own);
      else started = await start(t, own);
      assert.deepEqual(await observe(started), expected, JSON.stringify(value));
    }
  };
}

/** A variable and what the file says instead: the variable wins. */
function wins(
  variable: string,
  settingsOf: (inFile: never) => Settings,
  observe: (started: Started) => unknown,
  ...cases: readonly (readonly [text: string, inFile: unknown, expected: unknown])[]
): Observation {
  return each<string>(
    (text) => {
      const [, inFile] = cases.find(([other]) => other === text)!;
      return { ...settingsOf(inFile as never), env: { [variable]: text } };
    },
    observe,
    ...cases.map(([text, , expected]) => [text, expected] as const),
  );
}

/** The statuses of so many requests, one after the other. */
const statuses =
  (count: number, body?: object) =>
  async ({ gateway }: Started) => {
    const found = [];
    for (let sent = 0; sent < count; sent += 1) found.push(await statusOf(gateway, body));
    return found;
  };

/** fetch sends headers of its own. */
const usesFetch = async ({ gateway, p }: Started) => {
  await gateway.chat(chatBody());
  return 'sec-fetch-mode' in p.requests[0]!.headers;
};

const corsOrigin = async ({ gateway }: Started) =>
  (await gateway.send('/health')).headers['access-control-allow-origin'];

/** The first line of the log, after one request. */
const firstLine = async ({ gateway }: Started) => {
  await gateway.chat(chatBody());
  await eventually(() => gateway.log.length > 0, 'the log');
  return gateway.log[0]!;
};

const keyShown = async ({ gateway, p }: Started) => {
  assert.equal(await statusOf(gateway), 200);
  return p.requests[0]!.headers.authorization;
};

async function statusOf(gateway: TestGateway, body: object = chatBody()): Promise<number> {
  return (await gateway.chat(body)).status;
}

/** What comes of a request: the status, who answered, and the words of `q`. */
const answeredBy = async ({ gateway }: Started) => {
  const { status, headers, text } = await gateway.chat(chatBody());
  return [status, headers['x-gateway-provider'], /from q/.exec(text)?.[0]];
};

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

const [NODE_MAJOR = 0, NODE_MINOR = 0] = process.versions.node.split('.').map(Number);
const CAN_SHARE = NODE_MAJOR > 22 || (NODE_MAJOR === 22 && NODE_MINOR >= 12);

/** Two processes listen at one port; where the system cannot have that, the start fails with the reason. */
async function assertSharesPort(t: TestContext, line: string, env = {}): Promise<void> {
  const port = await freePort();
  const toml = `[server]\nport = ${port}\nhost = "127.0.0.1"\n${line}\n`;
  const options = { cwd: emptyFolder(t, { 'gateway.toml': toml }), env };
  if (!CAN_SHARE) {
    const { code, stderr } = await runProgram(t, [], options);
    assert.equal(code, 78);
    assert.match(stderr, /: needs Linux and Node 22\.12 or newer; this is Node /);
    return;
  }
  for (const _ of [1, 2]) assert.equal((await startServing(t, [], options)).port, port);
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

  'server.reuse_port': (t) => assertSharesPort(t, 'reuse_port = true'),

  'server.timeout': async (t) => {
    const { gateway, reload } = await start(t, { 'server.timeout': 600, script: hang });
    await reload({ 'server.timeout': 1 });
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
      const fallback = { 'providers.fallback': ['q'], 'server.first_token_timeout': scale };
      const { gateway: other } = await start(t, { ...settings, ...fallback, script: hang });
      const { status, headers } = await other.chat(STREAM);
      assert.deepEqual([status, headers['x-gateway-provider']], [200, 'q']);
    });
  },

  'server.stream_idle_timeout': async (t) => {
    const script = beginStream(CHUNK);
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

  'server.stream_keepalive': async (t) => {
    const script: Script = async (_, response) => {
      await sleep(1500);
      sendEvents(response, completionEvents());
    };
    await each(
      (seconds: number) => ({ 'server.stream_keepalive': seconds, script }),
      // A busy machine may take so long that there is more than one.
      async ({ gateway }) =>
        (await gateway.chat(STREAM)).text.replace(/^(?:: keep-alive\n\n)+/, '+'),
      [1, `+${completionEvents()}`],
      [0, completionEvents()],
    )(t);
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

  'server.retries': each(
    (retries: number) => ({ 'server.retries': retries, script: fail }),
    async ({ gateway, p }) => [await statusOf(gateway), p.requests.length],
    [2, [503, 3]],
    [0, [503, 1]],
  ),

  'server.max_concurrent_requests': limitsConcurrency({ 'server.max_concurrent_requests': 2 }),

  'server.max_body_bytes': each(
    'server.max_body_bytes',
    statuses(1),
    [JSON.stringify(chatBody()).length, [200]],
    [JSON.stringify(chatBody()).length - 1, [413]],
  ),

  'server.max_buffered_bytes': each(
    'server.max_buffered_bytes',
    statuses(1, chatBody({ x: 'x'.repeat(1_500_000) })),
    [2_000_000, [200]],
    [1_200_000, [413]],
  ),

  'server.cors': each('server.cors', corsOrigin, [true, '*'], [false, undefined]),

  'server.upstream': each(
    // An empty variable counts as unset, even if the tests themselves run over one transport.
    (upstream: string) => ({ 'server.upstream': upstream, env: { GATEWAY_UPSTREAM: '' } }),
    usesFetch,
    ['auto', false],
    ['fetch', true],
  ),

  'server.trusted_proxies': each(
    'server.trusted_proxies',
    async ({ gateway }) => {
      await gateway.chat(chatBody(), { headers: { 'x-forwarded-for': '10.0.0.1, 192.0.2.7' } });
      await eventually(() => gateway.log.length > 0, 'the log');
      return gateway.accessLines()[0]!['remote'];
    },
    [['127.0.0.0/8'], '192.0.2.7'],
    [['10.0.0.0/8'], '127.0.0.1'],
  ),

  'server.auth.enabled': each(
    (enabled: boolean) => ({ 'server.auth.enabled': enabled, 'server.auth.keys': ['another'] }),
    async ({ gateway }) => {
      const reply = await gateway.chat(chatBody(), { headers: { authorization: undefined } });
      return [await statusOf(gateway), reply.status];
    },
    [true, [401, 401]],
    [false, [200, 200]],
  ),

  'server.auth.keys': each(
    'server.auth.keys',
    statuses(1),
    [[], [200]],
    [['another', CLIENT_TOKEN], [200]],
    [['another'], [401]],
  ),

  'clients.z.key': each(
    'clients.alice.key',
    statuses(1),
    [CLIENT_TOKEN, [200]],
    ['another', [401]],
  ),

  'clients.z.keys': each(
    'clients.alice.keys',
    statuses(1),
    [['another', CLIENT_TOKEN], [200]],
    [['another'], [401]],
  ),

  'clients.z.models': each(
    (models: string[]) => ({ 'clients.alice': { key: CLIENT_TOKEN, models } }),
    async ({ gateway }) => [
      await statusOf(gateway, chatBody({ model: 'p/abc' })),
      await statusOf(gateway, chatBody({ model: 'p/b' })),
    ],
    [['p/a*'], [200, 404]],
  ),

  'clients.z.requests_per_second': each(
    (rps: number) => ({ 'clients.alice': { key: CLIENT_TOKEN, ...oneAt(rps) } }),
    statuses(2),
    [1, [200, 429]],
    [0, [200, 200]],
  ),

  'clients.z.burst_capacity': each(
    (burst: number) => ({ 'clients.alice': { key: CLIENT_TOKEN, ...oneAt(1, burst) } }),
    statuses(3),
    [2, [200, 200, 429]],
  ),

  'clients.z.requests_per_minute': each(
    (limit: number) => ({ 'clients.alice': { key: CLIENT_TOKEN, requests_per_minute: limit } }),
    statuses(3),
    [1, [200, 429, 429]],
    [0, [200, 200, 200]],
  ),

  ...Object.fromEntries(
    (['tokens_per_minute', 'tokens_per_day'] as const).map((key) => [
      `clients.z.${key}`,
      each(
        // An answer has two tokens, and no more than three a minute come back.
        (limit: number) => ({ 'clients.alice': { key: CLIENT_TOKEN, [key]: limit } }),
        statuses(4),
        [3, [200, 200, 429, 429]],
        [0, [200, 200, 200, 200]],
      ),
    ]),
  ),

  'clients.z.max_concurrent_requests': limitsConcurrency({
    'clients.alice': { key: CLIENT_TOKEN, max_concurrent_requests: 2 },
  }),

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

  'logging.level': each(
    'logging.level',
    async ({ gateway }) => {
      await gateway.send('/health');
      await gateway.chat(chatBody());
      await gateway.send('/health', { method: 'HEAD' });
      return gateway.accessLines().map(({ path, level }) => `${String(path)} ${String(level)}`);
    },
    ['error', []],
    ['warn', []],
    ['info', ['/v1/chat/completions info']],
    ...['debug', 'trace'].map(
      (level) => [level, ['/health debug', '/v1/chat/completions info', '/health debug']] as const,
    ),
  ),

  'logging.format': each(
    'logging.format',
    async (started) =>
      /^(?:(\{"time":)|[\d:.]{12} (ok) )/
        .exec(await firstLine(started))
        ?.slice(1)
        .join(''),
    ['json', '{"time":'],
    ['text', 'ok'],
    ['auto', '{"time":'],
  ),

  'logging.verbose': each(
    'logging.verbose',
    async ({ gateway }) => {
      await gateway.chat('{}', { headers: { 'user-agent': 'tester/1' } });
      await eventually(() => gateway.log.length > 0, 'the log');
      const [{ request_bytes, user_agent } = {}] = gateway.accessLines();
      return [request_bytes, user_agent];
    },
    [true, [2, 'tester/1']],
    [false, [undefined, undefined]],
  ),

  'logging.provider_messages': each(
    (isShown: boolean) => ({
      script: (_, response) =>
        sendJson(response, { error: { message: 'in its own words' } }, { status: 400 }),
      'logging.provider_messages': isShown,
    }),
    async (started) => (await firstLine(started)).includes('in its own words'),
    [true, true],
    [false, false],
  ),

  'providers.primary': async (t) => {
    const { gateway, q } = await start(t, { 'providers.primary': 'q' });
    assert.equal(await statusOf(gateway, chatBody({ model: 'some-model' })), 200);
    assert.equal(modelAsked(q), 'some-model');
    const { gateway: without } = await start(t, {});
    assert.equal(await statusOf(without, chatBody({ model: 'some-model' })), 400);
  },

  'providers.fallback': each(
    (fallback: string[]) => ({ 'providers.fallback': fallback, script: fail }),
    answeredBy,
    [['q'], [200, 'q', 'from q']],
    [[], [503, 'p', undefined]],
  ),

  'providers.fallback_on': each(
    (statusesOn: number[]) => ({
      'providers.fallback': ['q'],
      'providers.fallback_on': statusesOn,
      script: (_, response) => sendJson(response, {}, { status: 404 }),
    }),
    answeredBy,
    [[404], [200, 'q', 'from q']],
    [
      [401, 403],
      [404, 'p', undefined],
    ],
  ),

  'providers.z.enabled': async (t) => {
    const { gateway, p } = await start(t, { 'providers.p.enabled': false });
    assertError(await gateway.chat(chatBody()), unknownProvider('p'));
    assert.equal(p.requests.length, 0);
  },

  'providers.z.api_key': async (t) => {
    const env = { P_API_KEY: 'from-env', OTHER: 'from-other' };
    await each(
      (key: string) => ({ env, 'providers.p.api_key': key }),
      keyShown,
      ['literal', 'Bearer literal'],
      ['${OTHER}', 'Bearer from-other'],
      ['', 'Bearer from-env'],
      // Not as written: it could only be refused.
      ['${NO}', 'Bearer from-env'],
    )(t);
    for (const key of ['', '${NO}']) {
      const { gateway } = await start(t, { 'providers.p.api_key': key });
      assertError(await gateway.chat(chatBody()), unknownProvider('p'));
    }
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
    const withUnset = { 'providers.p.api_key': '', 'providers.p.api_keys': ['${NO}', 'the-other'] };
    const { gateway: other, p: asked } = await start(t, withUnset);
    assert.deepEqual([await statusOf(other), await statusOf(other)], [200, 200]);
    const shown = asked.requests.map(({ headers }) => headers.authorization);
    assert.deepEqual(shown, ['Bearer the-other', 'Bearer the-other']);
  },

  'providers.z.key_affinity': each(
    (key_affinity: boolean) => ({
      'providers.p.api_key': '',
      'providers.p.api_keys': ['k1', 'k2'],
      'providers.p.key_affinity': key_affinity,
    }),
    async (started) => {
      assert.deepEqual(await statuses(4)(started), [200, 200, 200, 200]);
      return new Set(started.p.requests.map(({ headers }) => headers.authorization)).size;
    },
    [true, 1],
    [false, 2],
  ),

  'providers.z.stream_usage': each(
    (stream_usage: boolean) => ({ 'providers.p.stream_usage': stream_usage, script: answerWell }),
    async ({ gateway, p }) => {
      await gateway.chat(STREAM);
      return p.requests[0]!.body.includes('include_usage');
    },
    [true, true],
    [false, false],
  ),

  'providers.z.forward_headers': each(
    'providers.p.forward_headers',
    async ({ gateway, p }) => {
      await gateway.chat(chatBody(), { headers: { 'x-session-id': 's', 'x-other': 'o' } });
      return ['x-session-id', 'x-other'].map((name) => p.requests[0]!.headers[name]);
    },
    [['X-Session-Id'], ['s', undefined]],
  ),

  'providers.z.return_headers': each(
    (return_headers: string[]) => ({
      'providers.p.return_headers': return_headers,
      script: (_, response) =>
        sendJson(response, completion(), { headers: { 'x-cost': '1', 'x-other': 'o' } }),
    }),
    async ({ gateway }) => {
      const { headers } = await gateway.chat(chatBody());
      return [headers['x-cost'], headers['x-other']];
    },
    [['X-Cost'], ['1', undefined]],
  ),

  'providers.z.headers': each(
    (headers: object) => ({ env: { N: '1' }, 'providers.p.headers': headers }),
    async ({ gateway, p }) => [
      await statusOf(gateway),
      p.requests[0]!.headers['openai-organization'],
    ],
    [{ 'OpenAI-Organization': 'org-${N}' }, [200, 'org-1']],
  ),

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

  'providers.z.model_details': async (t) => {
    const { gateway } = await start(t, {
      'providers.p.models': ['one'],
      'providers.q.models': [],
      'providers.p.model_details': { one: { context_length: 7 } },
    });
    const { data } = (await gateway.send('/v1/models')).json() as { data: object[] };
    assert.deepEqual(data, [
      { id: 'p/one', object: 'model', created: 0, owned_by: 'p', context_length: 7 },
    ]);
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

  'providers.z.retries': each(
    (own: number) => ({ 'server.retries': 2, 'providers.p.retries': own, script: fail }),
    async ({ gateway, p }) => [await statusOf(gateway), p.requests.length],
    [0, [503, 1]],
    [1, [503, 2]],
  ),

  'providers.z.max_concurrent_requests': limitsConcurrency({
    'providers.p.max_concurrent_requests': 2,
  }),

  'aliases.z': each(
    (fast: string | string[]) => ({ 'aliases.fast': fast, script: fail }),
    async ({ gateway, p, q }) => {
      await gateway.chat(chatBody({ model: 'fast' }));
      return [p, q].map((provider) => (provider.requests.length > 0 ? modelAsked(provider) : ''));
    },
    ['p/the/model', ['the/model', '']],
    ['p/other', ['other', '']],
    [
      ['p/one', 'q/two'],
      ['one', 'two'],
    ],
  ),

  'rate_limit.enabled': each(
    (enabled: boolean) => ({ rate_limit: { enabled, ...oneAt(1) } }),
    statuses(2),
    [true, [200, 429]],
    [false, [200, 200]],
  ),

  'rate_limit.requests_per_second': each(
    (rps: number) => ({ rate_limit: { enabled: true, ...oneAt(rps) } }),
    statuses(2),
    [1, [200, 429]],
    [0, [200, 200]],
    [1_000_000, [200, 200]],
  ),

  'rate_limit.burst_capacity': each(
    (burst: number) => ({ rate_limit: { enabled: true, ...oneAt(1, burst) } }),
    statuses(4),
    [3, [200, 200, 200, 429]],
  ),

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

  'rate_limit.providers.z.requests_per_second': each(
    (rps: number) => ({ rate_limit: { enabled: true, providers: { p: oneAt(rps) } } }),
    async (started) => [
      ...(await statuses(2)(started)),
      await statusOf(started.gateway, chatBody({ model: 'q/m' })),
    ],
    [1, [200, 429, 200]],
    [0, [200, 200, 200]],
  ),

  'rate_limit.providers.z.burst_capacity': each(
    (burst: number) => ({ rate_limit: { enabled: true, providers: { p: oneAt(1, burst) } } }),
    statuses(3),
    [2, [200, 200, 429]],
  ),
};

const IN_ENVIRONMENT: Record<string, Observation> = {
  GATEWAY_UPSTREAM: wins(
    'GATEWAY_UPSTREAM',
    (inFile) => ({ 'server.upstream': inFile }),
    usesFetch,
    ['auto', 'fetch', false],
    ['fetch', 'auto', true],
  ),

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

  GATEWAY_ADMIN_PORT: async (t) => {
    const port = await freePort();
    const toml = `[server]\nport = 0\nhost = "127.0.0.1"\n[admin]\nport = ${await freePort()}`;
    const options = {
      cwd: emptyFolder(t, { 'gateway.toml': toml }),
      env: { GATEWAY_ADMIN_PORT: `${port}` },
    };
    await startServing(t, [], options);
    const isReady = async () =>
      (await fetch(`http://127.0.0.1:${port}/ready`).catch(() => undefined)) !== undefined;
    await eventually(isReady, 'the admin listener');
  },

  GATEWAY_REUSE_PORT: (t) => assertSharesPort(t, '', { GATEWAY_REUSE_PORT: 'true' }),

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

  GATEWAY_AUTH_KEYS: wins(
    'GATEWAY_AUTH_KEYS',
    (inFile) => ({ 'server.auth.keys': [inFile] }),
    statuses(1),
    [`another, ${CLIENT_TOKEN}`, 'another', [200]],
    ['another', CLIENT_TOKEN, [401]],
  ),

  GATEWAY_PRIMARY: async (t) => {
    const settings = { 'providers.primary': 'p', env: { GATEWAY_PRIMARY: 'q' } };
    const { gateway, q } = await start(t, settings);
    assert.equal(await statusOf(gateway, chatBody({ model: 'some-model' })), 200);
    assert.equal(modelAsked(q), 'some-model');
  },

  GATEWAY_FALLBACK: wins(
    'GATEWAY_FALLBACK',
    (inFile) => ({ 'providers.fallback': inFile, script: fail }),
    answeredBy,
    ['p, q', [], [200, 'q', 'from q']],
  ),

  GATEWAY_TIMEOUT: async (t) => {
    const settings = { 'server.timeout': 600, script: hang, env: { GATEWAY_TIMEOUT: '1' } };
    const { gateway } = await start(t, settings);
    assertError(await gateway.chat(chatBody()), TIMEOUT);
  },

  GATEWAY_CORS: wins(
    'GATEWAY_CORS',
    (inFile) => ({ 'server.cors': inFile }),
    corsOrigin,
    ['true', false, '*'],
    ['false', true, undefined],
  ),

  GATEWAY_LOG_LEVEL: async (t) => {
    const settings = { 'logging.level': 'error', env: { GATEWAY_LOG_LEVEL: 'DeBug' } };
    const { gateway } = await start(t, settings);
    await gateway.send('/health');
    await eventually(() => gateway.log.length === 1, 'the log');
  },

  GATEWAY_RATE_LIMIT_ENABLED: wins(
    'GATEWAY_RATE_LIMIT_ENABLED',
    (inFile) => ({ rate_limit: { enabled: inFile, ...oneAt(1) } }),
    statuses(2),
    ['true', false, [200, 429]],
    ['false', true, [200, 200]],
  ),

  GATEWAY_RATE_LIMIT_RPS: wins(
    'GATEWAY_RATE_LIMIT_RPS',
    (inFile) => ({ rate_limit: { enabled: true, ...oneAt(inFile) } }),
    statuses(2),
    ['1', 0, [200, 429]],
    ['0', 1, [200, 200]],
  ),

  GATEWAY_RATE_LIMIT_BURST: wins(
    'GATEWAY_RATE_LIMIT_BURST',
    (inFile) => ({ rate_limit: { enabled: true, ...oneAt(1, inFile) } }),
    statuses(2),
    ['1', 9, [200, 429]],
    ['9', 1, [200, 200]],
  ),
};

before(buildOnce);

/** Variables that the file wins over. */
const AFTER_THE_FILE: Record<string, Observation> = {
  '<ID>_API_KEY': each(
    (inFile: string) => ({ env: { P_API_KEY: 'from-env' }, 'providers.p.api_key': inFile }),
    keyShown,
    ['', 'Bearer from-env'],
    ['from-file', 'Bearer from-file'],
  ),

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
  /timeout|port|host|retries|config|drain|reuse|store|prefix/i.test(name);
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
