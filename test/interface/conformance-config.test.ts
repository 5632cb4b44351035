/** Each setting's effect in a running gateway, and its new effect after a reload. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, describe, mock, test, type TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

import type { Rows } from '../../src/config/setting-kinds.ts';
import { SETTINGS } from '../../src/config/settings-table.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  startGateway,
  STREAM,
  type TestGateway,
} from '../support/gateway.ts';
import {
  buildOnce,
  emptyFolder,
  freePort,
  ROOT,
  runProgram,
  startServing,
} from '../support/process.ts';
import { isRedisMissing, startRedis } from '../support/redis-server.ts';
import { modelOf } from '../support/scenario.ts';
import { createGate, errorAfter, eventually } from '../support/streams.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  completion,
  completionEvents,
  failWith,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

/** Settings by their full names, and provider `p`'s script. */
interface Given {
  readonly script?: Script;
  readonly env?: Record<string, string>;
  readonly [name: string]: unknown;
}

/** Returns TOML lines for these settings, each with its full name. */
function linesOf(path: string, settings: object): string[] {
  return Object.entries(settings).flatMap(([key, value]: [string, unknown]) => {
    const name = path === '' ? key : `${path}.${key}`;
    const isTable = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isTable ? linesOf(name, value) : [`${name} = ${JSON.stringify(value)}\n`];
  });
}

/**
 * Starts provider `p` with this script, an answering provider `q`, and a gateway with these
 * settings.
 */
async function start(t: TestContext, { script = answerWell, env = {}, ...settings }: Given) {
  const q = await startUpstream(t, (request, response) =>
    request.body.includes('"stream":true')
      ? answerWell(request, response)
      : sendJson(response, completion('from q')),
  );
  const p = await startUpstream(t, script);
  const tomlOf = (own: object) => {
    const provider = ({ baseUrl }: { baseUrl: string }) => ({
      base_url: baseUrl,
      api_key: PROVIDER_KEY,
    });
    const providers = {
      ...linesByName({ 'providers.p': provider(p), 'providers.q': provider(q) }),
    };
    return Object.values({ ...providers, ...linesByName(own) }).join('');
  };
  const gateway = await startGateway(t, { toml: tomlOf(settings), env });
  /** Loads other settings, with the first environment and script. */
  const reload = async ({ script: _script, env: _env, ...others }: Given) => {
    await gateway.reload(tomlOf(others));
    assert.doesNotMatch(gateway.log.join(''), /reload failed/);
    gateway.log.splice(0);
    p.requests.splice(0);
  };
  return { p, q, gateway, reload };
}

const linesByName = (settings: object): Record<string, string> =>
  Object.fromEntries(linesOf('', settings).map((line) => [line.split(' = ')[0], line]));

type Started = Awaited<ReturnType<typeof start>>;
/** The settings with effects here that a reload does not change. */
const NEED_RESTART = new Set(['server.upstream', 'telemetry.traces']);

type Effect = (t: TestContext, name: string) => Promise<void>;

/**
 * Starts a gateway with a setting's first value, and reloads it with each further value. Compares
 * the observation after each. If a setting needs a restart, starts a gateway for each value.
 */
function acts<Value>(
  given: Given,
  observe: (started: Started, value: Value) => unknown,
  ...cases: readonly (readonly [value: NoInfer<Value>, expected: unknown])[]
): Effect {
  return async (t, name) => {
    let started: Started | undefined;
    for (const [value, expected] of cases) {
      const settings = { ...given, [name]: value };
      if (started && !NEED_RESTART.has(name)) await started.reload(settings);
      else started = await start(t, settings);
      assert.deepEqual(await observe(started, value), expected, JSON.stringify(value));
    }
  };
}

const all =
  (...effects: readonly Effect[]): Effect =>
  async (t, name) => {
    for (const effect of effects) await effect(t, name);
  };

/** Sends a request. Returns the status and the error's code. */
async function outcomeOf(gateway: TestGateway, body: object = chatBody()): Promise<string> {
  const { status, text } = await gateway.chat(body);
  const { error } = status === 200 ? {} : (JSON.parse(text) as { error?: { code?: string } });
  return [status, ...(error ? [error.code] : [])].join(' ');
}

/** Outcomes for a complete answer and a stream. */
const outcomes = async ({ gateway }: Started) =>
  (await Promise.all([chatBody(), STREAM].map((body) => outcomeOf(gateway, body)))).join(', ');

async function statusOf(gateway: TestGateway, body: object = chatBody()): Promise<number> {
  return (await gateway.chat(body)).status;
}

/** The statuses for `count` requests in sequence. */
const statuses =
  (count: number, body?: object) =>
  async ({ gateway }: Started) => {
    const found = [];
    for (let sent = 0; sent < count; sent += 1) found.push(await statusOf(gateway, body));
    return found.join(' ');
  };

/** The status, and how often `p` was asked. */
const tries = async ({ gateway, p }: Started) =>
  `${await statusOf(gateway)}, ${p.requests.length} times`;

/** The status, the provider's name, and `from q` if `q` wrote the answer. */
const answeredBy = async ({ gateway }: Started) => {
  const { status, headers, text } = await gateway.chat(chatBody());
  return `${status} ${String(headers['x-gateway-provider'])} ${/from q/.exec(text)?.[0] ?? ''}`;
};

/** The requests to `p` and `q` for each of these models. */
const asked =
  (...models: readonly string[]) =>
  async ({ gateway, p, q }: Started) => {
    const found = [];
    for (const model of models) {
      const status = await statusOf(gateway, chatBody({ model }));
      const names = [p, q].map(({ requests }) => requests.splice(0).map(modelOf).join());
      found.push(`${status} ${names.join('|')}`);
    }
    return found.join(', ');
  };

/** Fields in a request's access line. */
const fields =
  (names: readonly string[], headers: Record<string, string>) =>
  async ({ gateway }: Started) => {
    await gateway.chat('{}', { headers });
    await eventually(() => gateway.log.length > 0, 'the log');
    return names.map((name) => gateway.accessLines()[0]![name]).join(' ');
  };

/** A request's first log line. */
const firstLine = async ({ gateway }: Started) => {
  await gateway.chat(chatBody());
  await eventually(() => gateway.log.length > 0, 'the log');
  return gateway.log[0]!;
};

const keyShown = async ({ gateway, p }: Started) =>
  `${await outcomeOf(gateway)} ${p.requests[0]?.headers.authorization}`;

/** The model list's entries. */
const listed = async ({ gateway, p }: Started) => {
  const { data } = (await gateway.send('/v1/models')).json() as { data: object[] };
  assert.equal(p.requests.length, 0);
  return data;
};

/** An entry for a model listed in the settings. */
const listedModel = (id: string) => ({ id: `p/${id}`, object: 'model', created: 0, owned_by: 'p' });

/** Checks that only two of three concurrent requests are answered. */
const limitsConcurrency =
  (given: Given = {}): Effect =>
  async (t, name) => {
    const { opened, open: finish } = createGate();
    const isHeld = ({ body }: { readonly body: Buffer }) => body.includes('held');
    const script: Script = async (request, response) => {
      if (isHeld(request)) await opened;
      sendJson(response, completion());
    };
    const { gateway, p } = await start(t, { ...given, [name]: 2, script });
    const held: Promise<number>[] = [];
    const beside: number[] = [];
    for (const count of [1, 2]) {
      held.push(statusOf(gateway, chatBody({ model: 'p/held' })));
      await eventually(() => p.requests.filter(isHeld).length === count, 'a held request');
      beside.push(await statusOf(gateway));
    }
    finish();
    assert.deepEqual(await Promise.all(held), [200, 200]);
    assert.deepEqual([...beside, await statusOf(gateway)], [200, 429, 200]);
  };

/**
 * The status of a request that is sent while `p` works on another: until the refusal with the value
 * `refusing`, else until the request has had time to wait.
 */
const besideAnother =
  (refusing: number) =>
  async ({ gateway, p }: Started, value: number) => {
    const { opened, open: finish } = createGate();
    p.script = async (request, response) => {
      await opened;
      return answerWell(request, response);
    };
    const first = statusOf(gateway);
    await eventually(() => p.requests.length === 1, 'the first request');
    const second = statusOf(gateway);
    await (value === refusing ? second : sleep(300));
    finish();
    assert.equal(await first, 200);
    return second;
  };

/** The built program's folder, with these lines in `[server]` and other sections. */
const programWith = (t: TestContext, lines: string) => {
  const [host] = lines.startsWith('host') ? [''] : ['host = "127.0.0.1"\n'];
  return { cwd: emptyFolder(t, { 'gateway.toml': `[server]\n${host}${lines}` }) };
};

/** An address that no machine has, because RFC 5737 reserves it for documentation. */
const NOWHERE = '192.0.2.1';

/** Checks for a failure to listen at this address, with the address in the message. */
const listensNowhere =
  (lines: string): Effect =>
  async (t) => {
    const { code, stderr } = await runProgram(t, [], programWith(t, lines));
    assert.equal(code, 1);
    assert.match(stderr, /192\.0\.2\.1/);
  };

/** A stored bucket, empty for the next quarter of an hour. */
const EMPTY_BUCKET = `903000000 ${Date.now()}000`;

/** Whether a stored bucket refuses under these settings, with a three request limit. */
async function isRefusedByStore(t: TestContext, store: object): Promise<boolean> {
  const { gateway } = await start(t, {
    rate_limit: { enabled: true, requests_per_second: 1, burst_capacity: 3, ...store },
  });
  for (let i = 0; i < 3; i += 1) {
    const { status, headers } = await gateway.chat(chatBody());
    // The gateway's own bucket has a token again after a second.
    if (status === 429) return Number(headers['retry-after']) > 100;
  }
  return false;
}

/** Empties the bucket with this prefix, and checks that `found` uses it, and `other` does not. */
const refusesByStore =
  (prefix: string, found: (url: string) => object, other: (url: string) => object): Effect =>
  async (t) => {
    if (isRedisMissing(t)) return;
    const redis = await startRedis(t);
    await redis.command('SET', `${prefix}:rate_limit:1/3`, EMPTY_BUCKET);
    const url = `redis://127.0.0.1:${redis.port}`;
    // A busy machine may exceed the store's 50 ms limit.
    await eventually(() => isRefusedByStore(t, found(url)), 'a refusal of the store');
    assert.equal(await isRefusedByStore(t, other(url)), false);
  };

const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
const ALICE = { 'clients.alice.key': CLIENT_TOKEN };
/** An answer costs 0.2. */
const PRICED = {
  ...ALICE,
  'clients.alice.models': ['p/m'],
  'providers.p.model_details.m.input_price_per_million': 100_000,
  'providers.p.model_details.m.output_price_per_million': 100_000,
};
const LIMITED = { 'rate_limit.enabled': true, 'rate_limit.burst_capacity': 1 };
const hang: Script = () => {};
const fail = failWith(503);
/** Answers after more than a second, the shortest possible timeout. */
const slow: Script = async (request, response) => {
  await sleep(1300);
  await answerWell(request, response);
};

const EFFECTS: Record<string, Effect> = {
  'server.port': async (t) => {
    const port = await freePort();
    await startServing(t, [], programWith(t, `port = ${port}`));
    assert.equal((await fetch(`http://127.0.0.1:${port}/health`)).status, 200);
  },

  'server.host': listensNowhere(`host = "${NOWHERE}"\nport = 0`),

  'server.timeout': acts<number>(
    {},
    async (started, value) => {
      started.p.script = value === 1 ? hang : answerWell;
      return outcomes(started);
    },
    [600, '200, 200'],
    [1, '504 TIMEOUT, 504 TIMEOUT'],
  ),

  'server.first_token_timeout': acts(
    { 'server.timeout': 600, script: slow },
    outcomes,
    [1, '200, 504 TIMEOUT'],
    [600, '200, 200'],
  ),

  'server.stream_idle_timeout': acts<number>(
    {},
    async ({ gateway, p }, value) => {
      p.script = async (request, response) => {
        beginStream(CHUNK)(request, response);
        if (value > 0) return;
        await sleep(50);
        response.end(completionEvents());
      };
      const { text } = await gateway.chat(STREAM);
      return value > 0 ? errorAfter(text, CHUNK).code : text;
    },
    [1, 'TIMEOUT'],
    [0, CHUNK + completionEvents()],
  ),

  'server.stream_keepalive': acts(
    {
      script: async (_, response) => {
        await sleep(1500);
        sendEvents(response, completionEvents());
      },
    },
    // A busy machine may take long enough for several comments.
    async ({ gateway }) => (await gateway.chat(STREAM)).text.replace(/^(?:: keep-alive\n\n)+/, '+'),
    [1, `+${completionEvents()}`],
    [0, completionEvents()],
  ),

  'server.empty_answers': acts(
    { script: (_, response) => sendJson(response, { choices: [] }) },
    statuses(1),
    ['fail', '502'],
    ['pass', '200'],
  ),

  'server.retries': acts({ script: fail }, tries, [2, '503, 3 times'], [0, '503, 1 times']),
  'server.max_concurrent_requests': limitsConcurrency(),
  'server.queue_timeout': acts(
    { 'providers.p.max_concurrent_requests': 1, 'providers.p.max_waiting': 1 },
    besideAnother(1),
    [1, 429],
    [600, 200],
  ),

  'server.max_body_bytes': acts(
    {},
    statuses(1),
    [JSON.stringify(chatBody()).length, '200'],
    [JSON.stringify(chatBody()).length - 1, '413'],
  ),

  'server.max_buffered_bytes': acts(
    {},
    statuses(1, chatBody({ x: 'x'.repeat(1_500_000) })),
    [2_000_000, '200'],
    [1_200_000, '413'],
  ),

  'server.keep_alive_timeout': acts(
    {},
    async ({ gateway }) => {
      const headers = { connection: 'keep-alive' };
      return (await gateway.send('/health', { headers })).headers['keep-alive'];
    },
    [620, 'timeout=620'],
    [30, 'timeout=30'],
  ),
  'server.cors': acts(
    {},
    async ({ gateway }) => (await gateway.send('/health')).headers['access-control-allow-origin'],
    [true, '*'],
    [false, undefined],
  ),

  'server.upstream': acts(
    // An empty variable counts as unset, even if the tests run over a chosen transport.
    { env: { GATEWAY_UPSTREAM: '' } },
    async ({ gateway, p }) => {
      await gateway.chat(chatBody());
      // Only fetch adds this header.
      return 'sec-fetch-mode' in p.requests[0]!.headers;
    },
    ['auto', false],
    ['fetch', true],
  ),

  'server.trusted_proxies': acts(
    {},
    fields(['remote'], { 'x-forwarded-for': '10.0.0.1, 192.0.2.7' }),
    [['127.0.0.0/8'], '192.0.2.7'],
    [['10.0.0.0/8'], '127.0.0.1'],
  ),

  'server.endpoints': acts(
    {},
    async ({ gateway }) => {
      const names = ['embeddings', 'completions', 'responses', 'chat/completions'];
      const replies = names.map((name) => gateway.send(`/v1/${name}`, { method: 'POST' }));
      return (await Promise.all(replies)).map(({ status }) => status).join(' ');
    },
    // A request without a body is refused by an endpoint that is there.
    [[], '404 404 404 400'],
    [['/v1/embeddings', '/v1/responses'], '400 404 400 400'],
    [['/v1/completions'], '404 400 404 400'],
    [['/v1/messages', '/v1/messages/count_tokens'], '404 404 404 400'],
  ),

  'server.auth.enabled': acts(
    { 'server.auth.keys': ['another'] },
    async ({ gateway }) => {
      const reply = await gateway.chat(chatBody(), { headers: { authorization: undefined } });
      return `${await statusOf(gateway)} ${reply.status}`;
    },
    [true, '401 401'],
    [false, '200 200'],
  ),

  'server.auth.keys': acts(
    {},
    statuses(1),
    [[], '200'],
    [['another', CLIENT_TOKEN], '200'],
    [['another'], '401'],
  ),

  'clients.z.key': acts({}, statuses(1), [CLIENT_TOKEN, '200'], ['another', '401']),
  'clients.z.keys': acts({}, statuses(1), [['another', CLIENT_TOKEN], '200'], [['another'], '401']),
  'clients.z.key_sha256': acts(
    {},
    statuses(1),
    [sha256(CLIENT_TOKEN), '200'],
    [sha256('another'), '401'],
  ),
  'clients.z.expires': acts(ALICE, statuses(1), ['2999-01-31', '200'], ['2001-01-31', '401']),
  'clients.z.models': acts(ALICE, asked('p/abc', 'p/b'), [['p/a*'], '200 abc|, 404 |']),

  'clients.z.requests_per_second': acts(
    { ...ALICE, 'clients.alice.burst_capacity': 1 },
    statuses(2),
    [1, '200 429'],
    [0, '200 200'],
  ),
  'clients.z.burst_capacity': acts(
    { ...ALICE, 'clients.alice.requests_per_second': 1 },
    statuses(3),
    [2, '200 200 429'],
  ),
  'clients.z.requests_per_minute': acts(ALICE, statuses(3), [1, '200 429 429'], [0, '200 200 200']),
  ...Object.fromEntries(
    ['tokens_per_minute', 'tokens_per_day', 'tokens_per_month'].map((key) => [
      `clients.z.${key}`,
      // An answer has two tokens, and at most three a minute come back.
      acts(ALICE, statuses(4), [3, '200 200 429 429'], [0, '200 200 200 200']),
    ]),
  ),
  ...Object.fromEntries(
    ['cost_per_day', 'cost_per_month'].map((key) => [
      `clients.z.${key}`,
      acts(PRICED, statuses(4), [0.3, '200 200 429 429'], [0, '200 200 200 200']),
    ]),
  ),
  // Without it, the start refuses a limit on cost for a model without a price.
  'clients.z.unpriced': acts({ ...ALICE, 'clients.alice.cost_per_day': 1 }, statuses(1), [
    'allow',
    '200',
  ]),
  'clients.z.max_concurrent_requests': limitsConcurrency(ALICE),

  'admin.port': async (t) => {
    const port = await freePort();
    await startServing(t, [], programWith(t, `port = 0\n[admin]\nport = ${port}`));
    assert.equal((await fetch(`http://127.0.0.1:${port}/metrics`)).status, 200);
  },

  'admin.host': listensNowhere(`port = 0\n[admin]\nport = 0\nhost = "${NOWHERE}"\nkeys = ["k"]`),

  'admin.keys': acts(
    { 'admin.port': 0 },
    async ({ gateway }) => {
      const found = [];
      for (const authorization of [undefined, 'Bearer three', 'Bearer two'])
        found.push((await gateway.admin('/metrics', { headers: { authorization } })).status);
      return found.join(' ');
    },
    [['one', 'two'], '401 401 200'],
  ),

  'logging.level': acts(
    {},
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

  'logging.format': acts(
    {},
    async (started) =>
      /^(?:\{"time":|[\d:.]{12} ok )/.exec(await firstLine(started))?.[0].slice(-4),
    ['json', 'me":'],
    ['text', ' ok '],
    ['auto', 'me":'],
  ),

  'logging.verbose': acts(
    {},
    fields(['request_bytes', 'user_agent'], { 'user-agent': 'tester/1' }),
    [true, '2 tester/1'],
    [false, ' '],
  ),

  'logging.headers': acts(
    {},
    async ({ gateway }) => {
      await gateway.chat(chatBody(), { headers: { 'x-a': '1', 'x-b': '2' } });
      await eventually(() => gateway.log.length > 0, 'the log');
      return gateway.accessLines()[0]!['headers'];
    },
    [['x-b', 'x-a'], { 'x-b': '2', 'x-a': '1' }],
    [['x-b'], { 'x-b': '2' }],
    [[], undefined],
  ),

  'logging.provider_messages': acts(
    { script: failWith(400) },
    async (started) => (await firstLine(started)).includes('p failed'),
    [true, true],
    [false, false],
  ),

  'providers.primary': acts(
    {},
    asked('some-model'),
    ['q', '200 |some-model'],
    ['p', '200 some-model|'],
  ),

  'providers.fallback': acts({ script: fail }, answeredBy, [['q'], '200 q from q'], [[], '503 p ']),

  'providers.fallback_on': acts(
    { 'providers.fallback': ['q'], script: failWith(404) },
    answeredBy,
    [[404], '200 q from q'],
    [[401, 403], '404 p '],
  ),

  'providers.z.enabled': acts({}, tries, [true, '200, 1 times'], [false, '400, 0 times']),

  'providers.z.api_key': all(
    acts(
      { env: { P_API_KEY: 'from-env', OTHER: 'from-other' } },
      keyShown,
      ['literal', '200 Bearer literal'],
      ['${OTHER}', '200 Bearer from-other'],
      ['', '200 Bearer from-env'],
      ['${NO}', '200 Bearer ${NO}'],
      ['a-${NO}-${OTHER}', '200 Bearer a-${NO}-from-other'],
    ),
    acts({}, tries, ['', '400, 0 times'], ['${NO}', '200, 1 times']),
  ),

  'providers.z.api_keys': acts(
    {
      'providers.p.api_key': '',
      script: (request, response) =>
        request.headers.authorization === 'Bearer key-number-1'
          ? sendJson(response, {}, { status: 401 })
          : answerWell(request, response),
    },
    async ({ gateway, p }) => {
      assert.equal(`${await statusOf(gateway)} ${await statusOf(gateway)}`, '200 200');
      return p.requests.map(({ headers }) => headers.authorization).join(' ');
    },
    [['key-number-1', 'key-2'], 'Bearer key-number-1 Bearer key-2 Bearer key-2'],
    [['${NO}', 'other'], 'Bearer ${NO} Bearer other'],
  ),

  'providers.z.key_affinity': acts(
    { 'providers.p.api_key': '', 'providers.p.api_keys': ['k1', 'k2'] },
    async (started) => {
      assert.equal(await statuses(4)(started), '200 200 200 200');
      return new Set(started.p.requests.map(({ headers }) => headers.authorization)).size;
    },
    [true, 1],
    [false, 2],
  ),

  'providers.z.stream_usage': acts(
    {},
    async ({ gateway, p }) => {
      await gateway.chat(STREAM);
      return p.requests[0]!.body.includes('include_usage');
    },
    [true, true],
    [false, false],
  ),

  'providers.z.forward_headers': acts(
    {},
    async ({ gateway, p }) => {
      await gateway.chat(chatBody(), { headers: { 'x-session-id': 's', 'x-other': 'o' } });
      const { headers } = p.requests[0]!;
      return `${String(headers['x-session-id'])} ${String(headers['x-other'])}`;
    },
    [['X-Session-Id'], 's undefined'],
  ),

  'providers.z.key_header': acts(
    { 'server.endpoints': ['/v1/messages'] },
    async ({ gateway, p }) => {
      const headers = { 'content-type': 'application/json' };
      const body = JSON.stringify(chatBody({ max_tokens: 1 }));
      await gateway.send('/v1/messages', { method: 'POST', headers, body });
      return p.requests.map((request) => typeof request.headers['x-api-key']);
    },
    ['x-api-key', ['string']],
  ),

  'providers.z.return_headers': acts(
    { script: failWith(400, { headers: { 'x-cost': '1', 'x-other': 'o' } }) },
    async ({ gateway }) => {
      const { headers } = await gateway.chat(chatBody());
      return `${String(headers['x-cost'])} ${String(headers['x-other'])}`;
    },
    [['X-Cost'], '1 undefined'],
  ),

  'providers.z.headers': acts(
    { env: { N: '1' } },
    async (started) => [
      await tries(started),
      started.p.requests[0]!.headers['openai-organization'],
    ],
    [{ 'OpenAI-Organization': 'org-${N}' }, ['200, 1 times', 'org-1']],
  ),

  'providers.z.base_url': async (t, name) => {
    const { baseUrl, requests } = await startUpstream(t);
    const values = ['/deep', '/deep/'].map((path) => [baseUrl + path, '200 |'] as const);
    await acts({}, asked('p/m'), ...values)(t, name);
    const paths = requests.map(({ url }) => url);
    assert.deepEqual(paths, ['/v1/deep/chat/completions', '/v1/deep/chat/completions']);
  },

  'providers.z.default_model': all(
    acts({}, asked('p', 'p/'), ['d/1', '200 d/1|, 200 d/1|'], ['', '400 |, 400 |']),
    async (t) => {
      const more = { 'providers.fallback': ['q'], 'providers.q.default_model': 'd2' };
      assert.deepEqual(await asked('p/m')(await start(t, { ...more, script: fail })), '200 m|d2');
    },
  ),

  'providers.z.models': acts(
    { 'providers.q.models': [] },
    listed,
    [['one'], [listedModel('one')]],
    [['two'], [listedModel('two')]],
  ),

  'providers.z.hide_models': acts(
    { 'providers.q.models': [], 'providers.p.models': ['one', 'two'] },
    listed,
    [['t*'], [listedModel('one')]],
    [['one'], [listedModel('two')]],
    [[], [listedModel('one'), listedModel('two')]],
  ),

  'providers.z.model_details': acts(
    { 'providers.q.models': [], 'providers.p.models': ['one'] },
    listed,
    [{ one: { context_length: 7 } }, [{ ...listedModel('one'), context_length: 7 }]],
  ),

  'providers.z.timeout': all(
    acts({ 'server.timeout': 600, script: hang }, outcomes, [1, '504 TIMEOUT, 504 TIMEOUT']),
    acts({ 'server.timeout': 1, script: slow }, outcomes, [600, '200, 200']),
  ),

  'providers.z.retries': acts(
    { 'server.retries': 2, script: fail },
    tries,
    [0, '503, 1 times'],
    [1, '503, 2 times'],
  ),
  'providers.z.max_concurrent_requests': limitsConcurrency(),
  'providers.z.max_waiting': acts(
    { 'providers.p.max_concurrent_requests': 1 },
    besideAnother(0),
    [1, 200],
    [0, 429],
  ),

  'aliases.z': acts<string | readonly string[]>(
    { script: fail },
    asked('fast'),
    ['p/the/model', '503 the/model|'],
    ['p/other', '503 other|'],
    [['p/one', 'q/two'], '200 one|two'],
  ),

  'rate_limit.enabled': acts(
    { ...LIMITED, 'rate_limit.requests_per_second': 1 },
    statuses(2),
    [true, '200 429'],
    [false, '200 200'],
  ),
  'rate_limit.requests_per_second': acts(
    LIMITED,
    statuses(2),
    [1, '200 429'],
    [0, '200 200'],
    [1_000_000, '200 200'],
  ),
  'rate_limit.burst_capacity': acts(
    { ...LIMITED, 'rate_limit.requests_per_second': 1 },
    statuses(4),
    [3, '200 200 200 429'],
  ),

  // Another database at the same server is another store.
  'telemetry.traces': acts(
    {},
    async ({ gateway, p }) => {
      const traceparent = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`;
      await gateway.chat(chatBody(), { headers: { traceparent } });
      return p.requests[0]!.headers['traceparent'] === traceparent;
    },
    [true, false],
    [false, true],
  ),

  'rate_limit.store': refusesByStore(
    'inference-gateway',
    (store) => ({ store }),
    (url) => ({ store: `${url}/1` }),
  ),
  'rate_limit.prefix': refusesByStore(
    'mine',
    (store) => ({ store, prefix: 'mine' }),
    (store) => ({ store, prefix: 'yours' }),
  ),

  'rate_limit.providers.z.requests_per_second': acts(
    { 'rate_limit.enabled': true, 'rate_limit.providers.p.burst_capacity': 1 },
    async (started) => {
      const ofQ = await statusOf(started.gateway, chatBody({ model: 'q/m' }));
      return `${await statuses(2)(started)} ${ofQ}`;
    },
    [1, '200 429 200'],
    [0, '200 200 200'],
  ),
  'rate_limit.providers.z.requests_per_minute': acts(
    { 'rate_limit.enabled': true },
    async (started) => {
      const ofQ = await statusOf(started.gateway, chatBody({ model: 'q/m' }));
      return `${await statuses(2)(started)} ${ofQ}`;
    },
    [1, '200 429 200'],
    [0, '200 200 200'],
  ),
  'rate_limit.providers.z.burst_capacity': acts(
    { 'rate_limit.enabled': true, 'rate_limit.providers.p.requests_per_second': 1 },
    statuses(3),
    [2, '200 200 429'],
  ),
};

/** Settings tested by other files, in processes and during a drain. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  'server.reuse_port': 'cli/port-sharing',
  'server.shutdown_timeout': 'cli/process',
  'server.drain_delay': 'cli/reload-process',
  'server.watch': 'cli/watch-process',
  'providers.<id>.ca_file': 'upstream/wire-tls',
  'providers.<id>.client_cert': 'upstream/wire-tls',
  'providers.<id>.client_key': 'upstream/wire-tls',
};

before(buildOnce);

const rows = Object.entries<Rows>(SETTINGS).flatMap(([section, keys]) =>
  Object.keys(keys).map((key) => `${section}.${key}`),
);
const OWN_NAMES = { '<id>': 'p', '<name>': 'alice', '<alias>': 'fast' };

/**
 * Whether a setting's test waits for a second or a process. In all other tests, a millisecond
 * passes at each clock reading, however long they take.
 */
const isWaiting = (name: string) =>
  /timeout|port|host|retries|keepalive|drain|reuse|store|prefix/.test(name);
for (const waiting of [true, false]) {
  const what = `in a running gateway, ${waiting ? 'in parallel' : 'in sequence'}`;
  describe(what, { concurrency: waiting }, () => {
    if (!waiting) {
      let nowMs = 0;
      before(() => void mock.method(performance, 'now', () => (nowMs += 1)));
      after(() => mock.restoreAll());
    }
    for (const row of rows.filter((name) => isWaiting(name) === waiting)) {
      test(`${row} acts`, async (t) => {
        if (ELSEWHERE[row]) {
          const other = readFileSync(`${ROOT}/test/${ELSEWHERE[row]}.test.ts`, 'utf8');
          return assert.match(other, new RegExp(`${row.replace(/.*\./, '')}(?: =|:) `));
        }
        const name = row.replace(/<\w+>/, (own) => OWN_NAMES[own as keyof typeof OWN_NAMES]);
        const effectName = row.replace(/<\w+>/, 'z');
        const effect = EFFECTS[effectName];
        if (!effect) return assert.fail(`add the effect of ${effectName} to EFFECTS`);
        return effect(t, name);
      });
    }
  });
}
