/** The admin listener: who may use it, readiness, the page and the feed. */

import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import perfHooks from 'node:perf_hooks';
import { test, type TestContext } from 'node:test';

import { patchOf } from '../../src/admin/feed.ts';
import { Traffic } from '../../src/admin/traffic.ts';
import { quantile } from '../../src/admin/series.ts';
import {
  replaceDate,
  replaceNow,
  stopClock,
  untilSteady,
  useManualTimers,
} from '../support/clock.ts';
import { parseMetrics } from '../support/exposition.ts';
import type { Notice } from '../../src/incidents/notice.ts';
import { merge, openFeed } from '../support/feed.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { openRaw, sendRaw } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually, lineOf } from '../support/streams.ts';
import {
  completion,
  completionEvents,
  NOBODY_LISTENS,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

const ADMIN_KEY = 'admin-key-canary-5544332211';
const ADMIN = '[admin]\nport = 0\n';
const PATHS = ['/', '/events', '/metrics', '/status', '/requests', '/ready'];

async function startAdmin(t: TestContext, more = ''): Promise<TestGateway> {
  return startGateway(t, { toml: more + ADMIN });
}

/** A gateway with a provider whose chats stay unanswered until the returned function is called. */
async function startHeld(t: TestContext) {
  const released = createGate();
  const asked = createGate();
  const p: Script = async (_, response) => {
    asked.open();
    await released.opened;
    sendJson(response, { choices: [] });
  };
  const { gateway } = await scenario(t, { providers: { p }, more: ADMIN });
  return { gateway, asked: asked.opened, release: released.open };
}

/** What a page that has just been opened is told. */
async function readState(t: TestContext, { adminPort }: TestGateway) {
  const feed = await openFeed(t, adminPort);
  const state = await feed.next('state');
  feed.close();
  return state;
}

async function readJson(gateway: TestGateway, path: string) {
  return JSON.parse((await gateway.admin(path)).text);
}

const basic = (userAndPassword: string) =>
  `Basic ${Buffer.from(userAndPassword).toString('base64')}`;

test('without [admin] there is no second server, and no watch of the event loop', async (t) => {
  const servers = t.mock.method(http, 'createServer');
  const watches = t.mock.method(perfHooks, 'monitorEventLoopDelay');
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  const counts = () => [servers.mock.callCount(), watches.mock.callCount()];
  const without = await startGateway(t, {});
  assert.equal(without.adminPort, 0);
  assert.deepEqual(counts(), [1, 0]);
  const { adminPort } = await startAdmin(t);
  assert.notEqual(adminPort, 0);
  assert.deepEqual(counts(), [3, 1]);
});

test('the public port has none of the admin paths', async (t) => {
  const gateway = await startAdmin(t);
  for (const path of PATHS) assert.equal((await gateway.send(path)).status, 404, path);
});

test('GET and HEAD are served, other paths and methods are the documented 404', async (t) => {
  const gateway = await startAdmin(
    t,
    'providers.p = { base_url = "http://127.0.0.2:2", api_key = "k" }\n',
  );
  for (const path of PATHS) {
    const head = await gateway.admin(path, { method: 'HEAD' });
    assert.deepEqual([head.status, head.text], [200, ''], path);
    // RFC 9110 9.3.2: the length of the answer to GET, or none.
    const get = path === '/events' ? undefined : await gateway.admin(path);
    assert.equal(head.headers['content-length'], get?.headers['content-length'], path);
    const post = await gateway.admin(path, { method: 'POST', body: 'x' });
    assert.equal(post.status, 404, path);
    assert.equal(post.headers.allow, 'GET, HEAD');
  }
  for (const path of ['/health', '/v1/models', '//metrics', '/metrics/', '/requests?number=9']) {
    const reply = await gateway.admin(path);
    assert.equal(reply.status, 404, path);
    assert.deepEqual(reply.json(), {
      error: { type: 'not_found_error', message: 'Resource not found', code: 'NOT_FOUND' },
    });
    assert.equal(reply.headers.allow, undefined);
  }
});

test('bytes that are not HTTP get the documented error on the admin port too', async (t) => {
  const { adminPort } = await startAdmin(t);
  const reply = await sendRaw(adminPort, 'nonsense\r\n\r\n');
  assert.equal(reply.status, 400);
  assert.match(reply.body, /invalid_request_error/);
});

test('a foreign name in Host is refused without a key', async (t) => {
  const keyed = await startGateway(t, {
    toml: `[admin]\nport = 0\nhost = "Metrics.internal"\nkeys = ["${ADMIN_KEY}"]\n`,
  });
  const gateway = await startGateway(t, { toml: ADMIN });
  const statusOf = async (to: TestGateway, host: string, path = '/metrics', key = '') => {
    const headers = { host, ...(key && { authorization: `Bearer ${key}` }) };
    return (await to.admin(path, { headers })).status;
  };
  const allowed = ['127.0.0.1', '10.1.2.3:9090', '[::1]:9090', 'LOCALHOST:1'];
  for (const host of allowed) assert.equal(await statusOf(gateway, host), 200, host);
  assert.equal(await statusOf(keyed, 'metrics.internal:9', '/ready'), 503);
  const others = [
    'evil.example',
    'localhost.evil.example',
    '1.2.3.4.evil.example',
    '[evil]',
    '::1',
  ];
  for (const host of others) {
    assert.equal(await statusOf(gateway, host), 400, host);
    // Scrapers in Compose and Kubernetes use names of services.
    assert.equal(await statusOf(keyed, host, '/metrics', ADMIN_KEY), 200, host);
    for (const path of ['/metrics', '/', '/ready']) {
      assert.equal(await statusOf(keyed, host, path), 401, `${host} ${path}`);
    }
  }
  const reply = await gateway.admin('/', { headers: { host: 'evil.example' } });
  assert.equal(reply.json().error.type, 'invalid_request_error');
});

test('with keys, all but /ready needs a key, as Bearer token or Basic password', async (t) => {
  const gateway = await startAdmin(t, '');
  const guarded = await startGateway(t, { toml: `${ADMIN}keys = ["other-key", "${ADMIN_KEY}"]\n` });
  const statusOf = async (authorization: string | string[] | undefined, path = '/metrics') =>
    (await guarded.admin(path, { headers: { authorization } })).status;
  assert.equal((await gateway.admin('/metrics')).status, 200);

  for (const value of [`Bearer ${ADMIN_KEY}`, basic(`any:${ADMIN_KEY}`), basic(`:${ADMIN_KEY}`)]) {
    assert.equal(await statusOf(value), 200, value);
  }
  const wrong = [
    undefined,
    `Bearer ${CLIENT_TOKEN}`,
    `Bearer ${ADMIN_KEY}x`,
    basic(`${ADMIN_KEY}:`),
    basic(ADMIN_KEY),
    basic(`a:b:${ADMIN_KEY}`),
    'Basic ***',
    `Digest ${ADMIN_KEY}`,
    [`Bearer ${ADMIN_KEY}`, 'Bearer x'],
  ];
  for (const value of wrong) assert.equal(await statusOf(value), 401, String(value));
  // An unknown path is not told from a known one.
  for (const path of ['/', '/events', '/other']) assert.equal(await statusOf(undefined, path), 401);
  assert.equal(await statusOf(undefined, '/ready'), 503);

  const reply = await guarded.admin('/');
  assert.equal(reply.headers['www-authenticate'], 'Basic realm="inference-gateway"');
  assert.equal(reply.json().error.message, 'Invalid authentication');
});

test('a page of another origin can open no feed, and links to the page are followed', async (t) => {
  const gateway = await startAdmin(t);
  const host = `127.0.0.1:${gateway.adminPort}`;
  const statusOf = async (headers: Record<string, string | undefined>, path = '/ready') =>
    (await gateway.admin(path, { method: 'HEAD', headers: { host, ...headers } })).status;
  const typed = { 'sec-fetch-site': 'none', 'sec-fetch-dest': 'document' };
  const linked = { 'sec-fetch-site': 'cross-site', 'sec-fetch-dest': 'document' };
  const own = { 'sec-fetch-site': 'same-origin', 'sec-fetch-dest': 'empty' };
  const allowed = [
    own,
    { 'sec-fetch-site': 'same-origin', origin: 'https://proxy.example' },
    { origin: `http://${host}` },
    { origin: `https://${host}` },
  ];
  const refused = [
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' },
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image' },
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'iframe' },
    { 'sec-fetch-site': 'same-site', 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' },
    { origin: 'https://evil.example' },
    { origin: `https://evil.example/http://${host}` },
    { origin: 'http://127.0.0.1:1' },
    { origin: 'null' },
    // Speculation rules of another origin's page, in Chromium.
    { ...typed, 'sec-purpose': 'prefetch' },
    { ...linked, 'sec-purpose': 'prefetch;prerender' },
    { ...own, 'sec-purpose': 'prefetch' },
    { 'sec-purpose': 'prefetch' },
  ];
  for (const headers of allowed) {
    assert.equal(await statusOf(headers, '/events'), 200, JSON.stringify(headers));
  }
  for (const headers of [typed, linked]) {
    assert.equal(await statusOf(headers, '/'), 200, JSON.stringify(headers));
    for (const path of ['/events', '/metrics', '/none']) {
      const reply = await gateway.admin(path, { headers: { host, ...headers } });
      assert.equal(reply.status, 400);
      const { message } = reply.json().error;
      assert.match(
        message,
        /^Invalid request: browsers may open only the page at \/, .* scrapers$/,
      );
    }
  }
  for (const headers of refused) {
    for (const path of ['/events', '/metrics', '/']) {
      assert.equal(await statusOf(headers, path), 400, `${path} ${JSON.stringify(headers)}`);
    }
    const reply = await gateway.admin('/', { headers: { host, ...headers } });
    assert.match(
      reply.json().error.message,
      /is a prefetch, or comes from a page of another origin$/,
    );
  }
});

test('wrong keys are logged once a minute, with their number and last address', async (t) => {
  const gateway = await startGateway(t, { toml: `${ADMIN}keys = ["${ADMIN_KEY}"]\n` });
  const lines = () =>
    gateway
      .lines('wrong admin key')
      .map(({ level, failures, remote }) => [level, failures, remote]);
  const refuse = async (authorization?: string) =>
    assert.equal((await gateway.admin('/metrics', { headers: { authorization } })).status, 401);
  // As browsers ask at first.
  await refuse();
  assert.deepEqual(lines(), []);
  for (const key of ['a', 'b', 'c']) await refuse(`Bearer ${key}`);
  assert.deepEqual(lines(), [['warn', 1, '127.0.0.1']]);
  const now = performance.now.bind(performance);
  replaceNow(t, () => now() + 60_000);
  await refuse(basic('user:d'));
  assert.deepEqual(lines().slice(1), [['warn', 3, '127.0.0.1']]);
  assert.ok(!gateway.log.join('').includes(ADMIN_KEY));
});

test('no answer of the admin port lets other origins read it', async (t) => {
  const gateway = await startAdmin(t, '[server]\ncors = true\n');
  for (const path of ['/', '/metrics', '/status', '/requests', '/ready', '/none']) {
    const { headers } = await gateway.admin(path, { headers: { origin: 'https://evil.example' } });
    const names = Object.keys(headers).filter((name) => name.startsWith('access-control'));
    assert.deepEqual(names, [], path);
    assert.equal(headers['cache-control'], 'no-store', path);
  }
});

test('the page may load nothing but its own script and style', async (t) => {
  const gateway = await startAdmin(t);
  const { status, headers } = await gateway.admin('/');
  assert.equal(status, 200);
  assert.equal(headers['content-type'], 'text/html; charset=utf-8');
  assert.match(
    String(headers['content-security-policy']),
    /^default-src 'none'; script-src 'sha256-[\w+/]{43}='; style-src 'sha256-[\w+/]{43}='; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'$/,
  );
  assert.equal(headers['referrer-policy'], 'no-referrer');
  assert.equal(headers['x-content-type-options'], 'nosniff');
});

test('GET /ready is 200 once a provider is registered, unless all rest', async (t) => {
  const none = await startAdmin(t);
  const unready = await none.admin('/ready');
  assert.deepEqual([unready.status, unready.json()], [503, { status: 'no provider' }]);

  const upstream = await startUpstream(t);
  const down = { baseUrl: NOBODY_LISTENS };
  const toml = providerToml(down) + providerToml(upstream, 'q');
  const gateway = await startAdmin(t, `${toml}[providers]\nfallback = ["p", "q"]\n`);
  const ready = async () => (await gateway.admin('/ready')).status;
  assert.equal(await ready(), 200);
  for (let at = 0; at < 3; at += 1) await gateway.chat(chatBody());
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_breaker_circuits', { provider: 'p', state: 'open' }), 1);
  assert.equal(sum('gateway_breaker_circuits', { provider: 'p', state: 'half-open' }), 0);
  assert.equal(sum('gateway_breaker_circuits', { provider: 'q' }), 0);
  assert.equal(await ready(), 200);

  // Other models may work.
  upstream.script = (_, response) => sendJson(response, {}, { status: 503 });
  const both = providerToml(upstream) + providerToml(upstream, 'q');
  const busy = await startAdmin(t, `${both}[providers]\nfallback = ["p", "q"]\n`);
  for (let at = 0; at < 3; at += 1) await busy.chat(chatBody());
  const circuits = parseMetrics((await busy.admin('/metrics')).text);
  assert.equal(circuits.sum('gateway_breaker_circuits', { state: 'open' }), 2);
  assert.equal((await busy.admin('/ready')).status, 200);

  const bothDown = providerToml(down) + providerToml(down, 'q');
  const dead = await startAdmin(t, `${bothDown}[providers]\nfallback = ["p", "q"]\n`);
  for (let at = 0; at < 3; at += 1) await dead.chat(chatBody());
  const open = await dead.admin('/ready');
  assert.deepEqual([open.status, open.json()], [503, { status: 'all circuits open' }]);
});

test('while the gateway drains, GET /ready is 503 and the feed says so', async (t) => {
  const { gateway, asked, release } = await startHeld(t);
  const reply = gateway.chat(chatBody());
  await asked;
  const feed = await openFeed(t, gateway.adminPort);
  assert.equal((await feed.next('state')).draining, false);
  const drained = gateway.drain(20_000);
  const ready = await gateway.admin('/ready');
  assert.deepEqual([ready.status, ready.json()], [503, { status: 'draining' }]);
  await feed.next('state', ({ draining, figures }) => draining && figures.in_flight === 1);
  release();
  assert.equal((await reply).status, 200);
  await drained;
  await feed.ended;
});

test('the feed begins with masked settings, the last requests and the state', async (t) => {
  const upstream = await startUpstream(t);
  const toml = `${providerToml(upstream)}[server.auth]\nkeys = ["${CLIENT_TOKEN}"]\n[providers.groq]\nenabled = false\n`;
  const gateway = await startAdmin(t, toml);
  await gateway.chat(chatBody());
  upstream.script = (_, response) => sendEvents(response, completionEvents());
  await gateway.chat(chatBody({ stream: true, model: 'p/unlisted' }));
  const feed = await openFeed(t, gateway.adminPort);
  await feed.next('state');
  const [settings, requests, state] = feed.events;
  assert.deepEqual(
    [settings!.name, requests!.name, state!.name],
    ['settings', 'requests', 'state'],
  );

  assert.equal(new Map(settings!.data.settings).get('server.timeout'), 60);
  const all = JSON.stringify(feed.events);
  for (const secret of [CLIENT_TOKEN, PROVIDER_KEY]) assert.ok(!all.includes(secret));

  assert.equal(requests!.data.length, 2);
  assert.equal(requests!.data[0].outcome, 'ok');
  assert.equal(requests!.data[1].model, 'p/unlisted');
  assert.deepEqual(requests!.data[0].tried, [['', 'p']]);
  assert.match(requests!.data[0].time, /^\d{4}-.*Z$/);

  const { steps, minute: sums, providers, models, clients } = state!.data;
  const counts = Object.values(steps as Record<string, { requests?: number; time: number }>);
  assert.equal(counts.length, 90);
  assert.ok(counts.every(({ time }, at) => at === 0 || time - counts[at - 1]!.time === 10_000));
  assert.equal((counts.at(-1)!.requests ?? 0) + (counts.at(-2)?.requests ?? 0), 2);
  const [p, groq] = providers;
  assert.deepEqual([p.id, p.requests, p.failed], ['p', 2, undefined]);
  assert.ok(p.p50 >= 0);
  assert.ok(p.p50 <= sums.p50);
  assert.deepEqual([groq.id, groq.details], ['groq', ['enabled = false']]);
  assert.deepEqual(
    models.map(({ id, requests: count }: { id: string; requests: number }) => [id, count]),
    [['other', 2]],
  );
  assert.deepEqual(
    clients.map(({ id }: { id: string }) => id),
    ['without a name'],
  );
});

test('a key in a model name or an answer is not in the feed or the metrics', async (t) => {
  const key = 'sk-proj-AbC123_dEf456';
  const upstream = await startUpstream(t);
  upstream.script = (_, response) => {
    response.writeHead(502, { 'content-type': `text/${key}` }).end('down');
  };
  const alias = `[aliases]\n"${key}" = "p/m"\n`;
  const gateway = await startAdmin(t, providerToml(upstream) + alias);
  await gateway.chat(chatBody({ model: key }));
  await gateway.chat(chatBody({ model: `p/${key}` }));
  const { requests, providers, models } = await readState(t, gateway);
  assert.match(requests[1].model, /^p\/.*\[secret\]$/);
  assert.match(requests[1].cause, /^502, text\/\[secret\]/);
  const { tries } = await readJson(gateway, '/requests?number=2');
  assert.match(tries[0].cause, /^502, text\/\[secret\]/);
  const metrics = (await gateway.admin('/metrics')).text;
  const status = await readJson(gateway, '/status');
  for (const shown of [requests, tries, providers, models, metrics, status]) {
    assert.ok(!JSON.stringify(shown).includes('AbC123'));
  }
  assert.match(metrics, /gen_ai_original_model="other"/);
});

test('the feed tells of each request that ends, and what became of a provider', async (t) => {
  const down = { baseUrl: NOBODY_LISTENS };
  const upstream = await startUpstream(t);
  const toml = `${providerToml(down)}${providerToml(upstream, 'q')}[providers]\nfallback = ["q"]\n`;
  const gateway = await startAdmin(t, toml);
  const feed = await openFeed(t, gateway.adminPort);
  assert.deepEqual(await feed.next('requests'), []);
  for (let at = 0; at < 3; at += 1) await gateway.chat(chatBody());
  const seen: unknown[] = [];
  while (seen.length < 3) seen.push(...(await feed.next('requests')));
  assert.equal(seen.length, 3);
  const { incidents, order, providers } = await feed.next(
    'state',
    (state) => state.order.length > 0,
  );
  const [p, q] = providers;
  const { causes, since } = incidents[order[0]];
  assert.match(causes[0], /ECONNREFUSED/);
  const [, until = ''] = /^kept away until (.*)$/.exec(p.details[0]) ?? [];
  assert.ok(Date.parse(until) > Date.parse(since));
  assert.equal(p.failed, 3);
  assert.deepEqual([q.requests, q.failed], [3, undefined]);
  await feed.next('state');
  const told = feed.events.filter(({ name }) => name === 'requests').flatMap(({ data }) => data);
  assert.equal(told.length, 3);
  const now = performance.now.bind(performance);
  replaceNow(t, () => now() + 10_000);
  await feed.next('state', (state) => state.providers[0].details.length === 0);
});

test('requests that hang are told with the age of the oldest one at their provider', async (t) => {
  let nowMs = Math.ceil(performance.now());
  replaceNow(t, () => nowMs);
  const { gateway, asked, release } = await startHeld(t);
  const told = async () => {
    const [{ details, inFlight }] = (await readState(t, gateway)).providers;
    const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
    return {
      inFlight,
      details,
      metric: sum('gateway_provider_oldest_request_seconds'),
    };
  };
  const answered = gateway.chat(chatBody());
  await asked;
  nowMs += 14_000;
  assert.deepEqual(await told(), { inFlight: 1, details: ['oldest request 14 s'], metric: 14 });
  release();
  await answered;
  await lineOf(gateway);
  const nothing = { inFlight: 0, details: [], metric: 0 };
  assert.deepEqual(await told(), nothing);
});

test('the feed has refused keys, failed lists and failed reloads until they end', async (t) => {
  const clock = stopClock(t);
  const upstream = await startUpstream(t, ({ headers, method }, response) => {
    const works = headers.authorization === 'Bearer key-canary-3' && method === 'POST';
    if (works) sendJson(response, completion());
    else sendJson(response, { error: { message: 'no' } }, { status: 403 });
  });
  const keys = 'api_keys = ["key-canary-1", "key-canary-2", "key-canary-3"]';
  const provider = providerToml(upstream, 'p').replace(/^api_key = .*$/m, keys);
  const toml = `${ADMIN}[server]\nhost = "127.0.0.1"\n${provider}`;
  const gateway = await startGateway(t, { toml });
  const told = async (isOver = false) => {
    gateway.judge();
    const { incidents } = await readJson(gateway, '/status');
    return (incidents as Notice[])
      .filter(({ ended }) => (ended !== undefined) === isOver)
      .flatMap(({ title, causes }) => [`${title}: ${causes[0]}`, ...causes.slice(1)]);
  };
  assert.deepEqual(await told(), []);
  await gateway.chat(chatBody());
  await gateway.send('/v1/models');
  await gateway.reload(toml.replace('host =', 'port = "x"\ntimeout = "y"\nhost ='));
  const [refused, reload, list, ...others] = (await told()).toSorted();
  assert.deepEqual(others, []);
  assert.equal(list, 'no list of models: status 403');
  assert.match(reload!, /^new settings refused.*server\.port.*, and 1 more$/);
  assert.equal(
    refused,
    '2 of 3 keys refused: 2 of 3 keys, the others are used: key 1: 403, key 2: 403',
  );
  await gateway.reload(toml);
  upstream.script = (_, response) => sendJson(response, { data: [] });
  clock.nowMs += 76_000;
  await gateway.chat(chatBody());
  while ((await told()).length > 0);
  assert.equal((await told(true)).length, 3);
});

test('the page warns of a gateway that serves everybody beyond this machine', async (t) => {
  const open = await startGateway(t, { toml: `${ADMIN}[server]\nhost = "0.0.0.0"\n` });
  const { warnings } = await (await openFeed(t, open.adminPort)).next('settings');
  assert.match(warnings[0], /^any client that can reach 0\.0\.0\.0 is served/);
});

test('the feed sends under 10 kB a second with 30 providers and 300 models', async (t) => {
  const upstream = await startUpstream(t);
  const models = (id: number) => Array.from({ length: 10 }, (_, at) => `m-${id}-${at}`);
  const ids = Array.from({ length: 30 }, (_, id) => id);
  const gateway = await startAdmin(
    t,
    ids
      .map((id) => providerToml(upstream, `p${id}`, `models = ${JSON.stringify(models(id))}`))
      .join('\n'),
  );
  for (const id of ids)
    for (const model of models(id)) await gateway.chat(chatBody({ model: `p${id}/${model}` }));
  const feed = await openFeed(t, gateway.adminPort);
  const { providers, models: rows } = await feed.next('state');
  assert.deepEqual([providers.length, rows.length], [30, 300]);
  for (const id of [7, 8, 9]) {
    const requests = feed.next('requests');
    for (let at = 0; at < 4; at += 1)
      await gateway.chat(chatBody({ model: `p${id}/m-${id}-${at}` }));
    await requests;
  }
  // A second of a busy gateway.
  const busy = feed.next('requests');
  await Promise.all(
    ids.flatMap((id) =>
      [0, 1, 2].map(async (at) => gateway.chat(chatBody({ model: `p${id}/m-${id}-${at}` }))),
    ),
  );
  await busy;
  await feed.next('state');
  const [whole = 0, ...changes] = feed.sizes;
  assert.ok(whole > 20_000, `${whole}`);
  assert.ok(Math.max(...changes) < 10_000, `${changes.join()} characters`);
});

test('the last 200 failures are kept, however many requests come after them', async (t) => {
  const upstream = await startUpstream(t, (_, response) => sendJson(response, {}, { status: 503 }));
  const gateway = await startAdmin(t, `[server]\nretries = 0\n${providerToml(upstream)}`);
  await gateway.chat(chatBody());
  for (let count = 0; count < 205; count += 1) await gateway.send('/v1/models');
  const { kept, requests } = await readState(t, gateway);
  assert.deepEqual([kept, requests.length], [201, 10]);
  const all = await readJson(gateway, '/requests');
  assert.equal(all.length, 201);
  assert.deepEqual([all[0].number, all[200].number, all[200].outcome], [206, 1, 'upstream_error']);
  const failed = await readJson(gateway, '/requests?kind=Failed');
  assert.deepEqual(
    failed.map(({ number }: { number: number }) => number),
    [1],
  );
});

test('the history goes on when the clock is set', async (t) => {
  const gateway = await startAdmin(t);
  const read = async () => (await readState(t, gateway)).step as number;
  const before = await read();
  const now = Date.now;
  replaceDate(t, () => now() + 3_600_000);
  assert.ok((await read()) - before < 180);
});

test('a patch makes the view before it to the view after it: what is gone is gone', () => {
  const before = { a: 1, gone: { b: 2 }, rows: { same: [1], less: { x: 1, y: 2 }, last: 3 } };
  const after = { a: 2, rows: { same: [1], less: { y: 2 }, more: {} }, undefined };
  const patch = patchOf(before, after);
  assert.deepEqual(patch, { a: 2, gone: null, rows: { less: { x: null }, last: null, more: {} } });
  assert.deepEqual(merge(before, patch), { a: 2, rows: { same: [1], less: { y: 2 }, more: {} } });
  assert.equal(patchOf(after, { ...after }), undefined);
});

test('a ninth feed is refused with 429 until one of the eight is closed', async (t) => {
  const gateway = await startAdmin(t);
  const feeds = [];
  for (let at = 0; at < 8; at += 1) feeds.push(await openFeed(t, gateway.adminPort));
  const ninth = await gateway.admin('/events');
  assert.equal(ninth.status, 429);
  assert.equal(ninth.json().error.type, 'rate_limit_error');
  assert.equal((await gateway.admin('/events', { method: 'HEAD' })).status, 200);
  feeds[3]!.close();
  const isOpened = async () =>
    openFeed(t, gateway.adminPort).then(
      () => true,
      () => false,
    );
  await eventually(isOpened, 'another feed is open');
});

test('a timer runs only while a feed is open', async (t) => {
  const timers = useManualTimers(t);
  const gateway = await startAdmin(t);
  const feedTimers = () => timers.repeating().filter((ms) => ms === 1000).length;
  assert.equal(feedTimers(), 0);
  const feed = await openFeed(t, gateway.adminPort);
  await feed.next('state');
  assert.equal(feedTimers(), 1);
  feed.close();
  while (feedTimers() > 0) await new Promise((resolve) => setImmediate(resolve));
});

test('eight feeds share one view a second, which lists no descriptors', async (t) => {
  const timers = useManualTimers(t);
  const gateway = await startAdmin(t);
  const usages = t.mock.method(process, 'cpuUsage');
  const listings = t.mock.method(fs, 'readdirSync');
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  const feeds: Awaited<ReturnType<typeof openFeed>>[] = [];
  for (let at = 0; at < 8; at += 1) {
    feeds.push(await openFeed(t, gateway.adminPort));
    await feeds.at(-1)!.next('state');
  }
  assert.equal(usages.mock.callCount(), 8);
  for (let second = 1; second <= 3; second += 1) {
    timers.advance(1000);
    const views = await Promise.all(feeds.map(async (feed) => feed.next('state')));
    assert.equal(new Set(views.map(({ now }) => now)).size, 1);
    assert.equal(usages.mock.callCount(), 8 + second);
  }
  assert.equal(listings.mock.callCount(), 0);
  const { figures } = feeds[0]!.events.at(-1)!.data;
  assert.match(
    figures.about,
    /^Node \d+\.\d+\.\d+ · up \d.* · CPU \d+ % · [\d,]+ MB · bodies hold 0 of [\d,]+ MB$/,
  );
});

test('a feed begins with the present state, not with another feed\u2019s last view', async (t) => {
  useManualTimers(t);
  const gateway = await startAdmin(t);
  const upstream = await startUpstream(t);
  const other = await openFeed(t, gateway.adminPort);
  assert.equal((await other.next('state')).providers.length, 0);
  await gateway.reload(providerToml(upstream) + ADMIN);
  assert.equal((await readState(t, gateway)).providers.length, 1);
});

test('a client that does not read its feed misses states, and none are queued', async (t) => {
  const timers = useManualTimers(t);
  const toml = (number: number) =>
    `[aliases]\n"${number}${'x'.repeat(1_000_000)}" = "p/m"\n${ADMIN}`;
  const gateway = await startGateway(t, {
    toml: toml(0),
    clientTimeLimits: { sendTimeoutMs: 3_600_000 },
  });
  const { socket, text } = openRaw(t, gateway.adminPort);
  // Each has the settings whole, a megabyte.
  const states = () => text().split('"settings":{').length - 1;
  socket.write('GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n');
  await eventually(() => states() > 0, 'the first state');
  socket.pause();
  const RELOADS = 30;
  const tell = async (number: number) => {
    await gateway.reload(toml(number));
    timers.advance(1000);
    for (let turn = 0; turn < 5; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  };
  for (let number = 1; number <= RELOADS; number += 1) await tell(number);
  socket.resume();
  await untilSteady(() => text().length);
  const received = states();
  assert.ok(received < RELOADS / 2, `${received} states`);
  // It is told of the present again.
  await tell(RELOADS + 1);
  await eventually(() => states() > received, 'another state');
});

test('the history has the last 15 minutes in steps of ten seconds, without a timer', (t) => {
  let now = 1_700_000_000_000;
  let isSetBackMs = 0;
  replaceDate(t, () => now - isSetBackMs);
  const traffic = new Traffic(() => now);
  const facts = { request_id: 'x', method: 'GET', path: '/', duration_ms: 1, bytes: 1 };
  const ended = { endTime: 1, durationMs: 1, firstByteMs: 100 };
  const add = (more: { outcome: 'ok' | 'timeout'; status?: number; stream?: boolean }) =>
    traffic.add({ facts: { ...facts, ...more }, ...ended }, undefined);
  add({ outcome: 'ok', status: 200, stream: true });
  // The clock is set within the step, which keeps the time of its first request.
  isSetBackMs = 3_600_000;
  add({ outcome: 'timeout' });
  now += 10_000;
  add({ outcome: 'ok' });
  now += 30_000;
  const { step, steps: all90 } = traffic.report();
  const asked = Object.entries(all90).filter(([, { requests }]) => requests);
  const steps = Object.fromEntries(asked);
  const times = Object.values(all90).map(({ time }) => time);
  assert.deepEqual(times.slice(-5, -2), [
    1_700_000_000_000,
    1_700_000_010_000 - 3_600_000,
    1_700_000_020_000 - 3_600_000,
  ]);
  const counts = (one: object) => JSON.parse(JSON.stringify(one)) as object;
  assert.equal(step, 170_000_004);
  assert.deepEqual(counts(steps), {
    // The middle of its bucket.
    170_000_000: { requests: 2, failed: 1, p50: 90, p95: 99, time: 1_700_000_000_000 },
    170_000_001: { requests: 1, time: 1_700_000_010_000 - 3_600_000 },
  });
  const all = { requests: 3, failed: 1, p50: 90, p95: 99 };
  assert.deepEqual(counts(traffic.report().all), all);
  assert.deepEqual(counts(traffic.report().minute), all);
  now += 850_000;
  assert.deepEqual(counts(traffic.report().all), all, 'the first step is still in the window');
  assert.deepEqual(counts(traffic.report().minute), {});
  now += 10_000;
  assert.deepEqual(counts(traffic.report().all), { requests: 1 });
  add({ outcome: 'ok' });
  assert.deepEqual(counts(traffic.report().all), { requests: 2 });
  now += 10_000;
  assert.deepEqual(counts(traffic.report().all), { requests: 1 });
});

test('connect, lookup, first token and gateway times are apart, each for its provider', () => {
  const traffic = new Traffic(() => 1_700_000_000_000);
  const facts = { request_id: 'x', method: 'GET', path: '/', duration_ms: 1, bytes: 1 };
  // A lookup counts neither as connect time nor as a provider's time to the first token.
  const found = { duration_ms: 4100, connect_ms: 4010 };
  const tries = [
    { provider: 'p', model: 'm', outcome: 'timeout', duration_ms: 2000, connect_ms: 1900 },
    { provider: 'q', model: 'm', outcome: 'ok', status: 200, ...found, lookup_ms: 4000 },
  ] as const;
  const more = { outcome: 'ok', status: 200, stream: true, provider: 'q', tries } as const;
  const times = { endTime: 1, durationMs: 6200, firstByteMs: 6104, gatewayMs: 4 };
  traffic.add({ facts: { ...facts, ...more }, ...times }, undefined);
  const { all, minute, providers } = traffic.report();
  type Times = Partial<Record<'p50' | 'connect' | 'lookup' | 'gateway', number>>;
  const timesOf = ({ p50, connect, lookup, gateway }: Times) => [p50, connect, lookup, gateway];
  assert.deepEqual(timesOf(providers['p'] as Times), [undefined, 1750, undefined, undefined]);
  assert.deepEqual(timesOf(providers['q'] as Times), [90, 8, undefined, undefined]);
  assert.deepEqual(timesOf(minute), [6250, 10, 4250, 3]);
  assert.deepEqual(all, minute);
});

test('a median of first tokens needs ten, in the last minute and before', () => {
  let now = 1_700_000_000_000;
  const traffic = new Traffic(() => now);
  const facts = { request_id: 'x', method: 'GET', path: '/', duration_ms: 1, bytes: 1 };
  const add = (count: number, firstByteMs: number) => {
    const more = { outcome: 'ok', status: 200, stream: true, provider: 'p' } as const;
    const request = { facts: { ...facts, ...more }, endTime: 1, durationMs: 1, firstByteMs };
    for (let at = 0; at < count; at += 1) traffic.add(request, undefined);
  };
  const medians = (id = 'p') => traffic.typicalTimes(id, 'first_token');
  add(10, 100);
  assert.deepEqual(medians(), { newestMs: 90, formerMs: undefined });
  now += 60_000;
  add(9, 1000);
  assert.deepEqual(medians(), { newestMs: undefined, formerMs: 90 });
  add(1, 1000);
  assert.deepEqual(medians(), { newestMs: 875, formerMs: 90 });
  assert.deepEqual(medians('q'), { newestMs: undefined, formerMs: undefined });
  const nothing = { newestMs: undefined, formerMs: undefined };
  assert.deepEqual(traffic.typicalTimes('p', 'connect'), nothing);
});

type Finished = Parameters<Traffic['add']>[0];

test('a connect time is typical if a quarter of four or more new connections take longer', () => {
  const traffic = new Traffic(() => 1_700_000_000_000);
  const facts = { request_id: 'x', method: 'GET', path: '/', duration_ms: 1, bytes: 1 };
  const newest = [4000, 1, 1, 1, 4000, 4000].map((connect_ms) => {
    const one = { provider: 'p', model: 'm', outcome: 'ok', connect_ms };
    const request = { facts: { ...facts, outcome: 'ok', tries: [one] } };
    traffic.add({ ...request, endTime: 1, durationMs: 1 } as Finished, undefined);
    return traffic.typicalTimes('p', 'connect').newestMs;
  });
  assert.deepEqual(newest, [undefined, undefined, undefined, 1, 4063, 4250]);
});

test('percentiles are read from the buckets of the histogram, as Prometheus does it', () => {
  const bounds = [1, 2, 4];
  const cases: [buckets: number[], share: number, value: number][] = [
    [[0, 0, 0, 0], 0.5, 0],
    [[10, 0, 0, 0], 0.5, 0.5],
    [[0, 10, 0, 0], 0.1, 1.1],
    [[5, 0, 5, 0], 0.75, 3],
    [[5, 0, 5, 0], 0.5, 1],
    [[1, 0, 0, 9], 0.95, 4],
  ];
  for (const [buckets, share, value] of cases) {
    assert.equal(
      quantile(share, bounds, Int32Array.from(buckets)),
      value,
      `${buckets.join()}: ${share}`,
    );
  }
});

test('an answer of the admin port says whether its connection closes', async (t) => {
  const gateway = await startAdmin(t);
  for (const [asked, told] of [
    ['close', 'close'],
    ['keep-alive', 'keep-alive'],
  ]) {
    const head = `GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: ${asked}\r\n\r\n`;
    const { socket, text } = openRaw(t, gateway.adminPort);
    socket.write(head);
    await eventually(() => text() !== '', 'the answer');
    assert.match(text(), new RegExp(`\\r\\nconnection: ${told}\\r\\n`, 'i'));
  }
});
