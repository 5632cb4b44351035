/** What is counted of finished requests, and its bounds. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { RequestMetrics } from '../../src/admin/metrics.ts';
import { AllNames } from '../../src/admin/names.ts';
import { RecentRequests } from '../../src/admin/recent-requests.ts';
import { inChunks } from '../../src/admin/series.ts';
import { Traffic } from '../../src/admin/traffic.ts';
import { CLIENT_BUCKETS, CLIENT_WINDOWS, LIMITS } from '../../src/lib/limits.ts';
import { createRedactor } from '../../src/lib/secrets.ts';
import type { FinishedRequest, RequestFacts } from '../../src/request/facts.ts';
import { idle, stopClock, useManualTimers } from '../support/clock.ts';
import { parseMetrics } from '../support/exposition.ts';
import { openFeed } from '../support/feed.ts';
import {
  CLIENT_TOKEN,
  chatBody,
  rawChat,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { buildOnce, emptyFolder, ROOT, startServing } from '../support/process.ts';
import { openRaw } from '../support/raw.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';
import {
  answerWell,
  completion,
  completionEvents,
  failWith,
  NOBODY_LISTENS,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

const ADMIN = '[admin]\nport = 0\n';
const PRICES = 'model_details.m = { input_price_per_million = 1, output_price_per_million = 2 }';
function finished(facts: Partial<RequestFacts> = {}, more: Partial<FinishedRequest> = {}) {
  const request: FinishedRequest = {
    facts: {
      request_id: 'id',
      method: 'POST',
      path: '/v1/chat/completions',
      status: 200,
      provider: 'p',
      model: 'p/m',
      upstream_model: 'm',
      duration_ms: 1000,
      bytes: 100,
      outcome: 'ok',
      ...facts,
    },
    endTime: 1_700_000_000_000,
    durationMs: 1000,
    ...more,
  };
  return request;
}

function createMetrics(known: readonly string[] = []) {
  const names = new AllNames();
  names.models.use('settings', known);
  const metrics = new RequestMetrics(names);
  const text = () => [...metrics.render()].join('');
  const traffic = new Traffic(() => request.endTime);
  let request = finished();
  const add = (next: FinishedRequest) => traffic.add((request = next), metrics.add(next));
  return { metrics, traffic, add, text, read: () => parseMetrics(text()) };
}

test('GET /metrics answers in the text format 0.0.4', async (t) => {
  const gateway = await startGateway(t, { toml: ADMIN });
  const { headers, status, text } = await gateway.admin('/metrics');
  assert.equal(status, 200);
  assert.equal(headers['content-type'], 'text/plain; version=0.0.4; charset=utf-8');
  assert.match(text, /^# HELP [^]*gateway_build_info[^]*\n$/);
  assert.doesNotMatch(text, /gateway_limit\{limit="global"/);
  assert.equal(parseMetrics(text).sum('gateway_build_info'), 1);
});

test('a completion is counted under the labels of Envoy AI Gateway', () => {
  const metrics = createMetrics(['fast', 'm', 'm-2026']);
  const usage = { prompt_tokens: 10, cached_tokens: 4, completion_tokens: 5, reasoning_tokens: 2 };
  metrics.add(finished({ client: 'team', model: 'fast', ...usage }, { responseModel: 'm-2026' }));
  metrics.add(finished({ provider: undefined, prompt_tokens: 1 }));
  const labels = {
    gen_ai_operation_name: 'chat',
    gen_ai_provider_name: 'p',
    gen_ai_original_model: 'fast',
    gen_ai_request_model: 'm',
    gen_ai_response_model: 'm-2026',
  };
  const { sum } = metrics.read();
  assert.equal(sum('gen_ai_server_request_duration_seconds_count', labels), 1);
  assert.equal(sum('gen_ai_server_request_duration_seconds_sum', labels), 1);
  const tokens = (type: string) =>
    sum('gen_ai_client_token_usage_sum', { ...labels, gen_ai_token_type: type });
  assert.deepEqual(['input', 'cached_input', 'output', 'reasoning'].map(tokens), [10, 4, 5, 2]);
  assert.equal(sum('gen_ai_server_time_to_first_token_seconds_count'), 0);
  assert.equal(sum('gateway_client_tokens_total'), 21);
  assert.equal(sum('gateway_client_tokens_total', { client: 'team', type: 'output' }), 5);
});

test('the cost of answers is added up by provider, model and client, of known models', () => {
  const metrics = createMetrics(['m']);
  metrics.add(finished({ cost: 0.25 }));
  for (const upstream_model of ['m', 'm', 'not-known']) {
    metrics.add(finished({ client: 'team', cost: 0.5, upstream_model }));
  }
  metrics.add(finished({ client: 'team' }));
  assert.deepEqual(metrics.text().match(/^gateway_cost_total.*$/gm), [
    'gateway_cost_total{provider="p",model="m"} 0.25',
    'gateway_cost_total{provider="p",model="m",client="team"} 1',
    'gateway_cost_total{provider="p",model="other",client="team"} 0.5',
  ]);
});

test('error_type is the outcome of what failed, and absent for a client that left', () => {
  const metrics = createMetrics();
  for (const outcome of ['ok', 'client_closed', 'timeout', 'upstream_error'] as const) {
    metrics.add(finished({ outcome }));
  }
  const text = metrics.text();
  const { sum } = metrics.read();
  const count = 'gen_ai_server_request_duration_seconds_count';
  assert.equal(sum(count), 4);
  assert.equal(sum(count, { error_type: 'timeout' }), 1);
  assert.equal(sum(count, { error_type: 'upstream_error' }), 1);
  assert.doesNotMatch(text, /error_type="(?:ok|client_closed)?"/);
});

test('the time per output token is what follows the first token, of delivered streams', () => {
  const metrics = createMetrics();
  const stream = { stream: true, completion_tokens: 9 };
  metrics.add(finished(stream, { durationMs: 1000, firstByteMs: 200 }));
  metrics.add(finished({ ...stream, outcome: 'client_closed' }, { firstByteMs: 200 }));
  metrics.add(finished({ ...stream, stream: false }, { firstByteMs: 1000 }));
  metrics.add(finished({ ...stream, status: 502, outcome: 'upstream_error' }, { firstByteMs: 1 }));
  const { sum } = metrics.read();
  assert.equal(sum('gen_ai_server_time_to_first_token_seconds_count'), 2);
  assert.equal(sum('gen_ai_server_time_to_first_token_seconds_sum'), 0.4);
  assert.equal(sum('gen_ai_server_time_per_output_token_seconds_count'), 1);
  assert.equal(sum('gen_ai_server_time_per_output_token_seconds_sum'), 0.1);
});

test('a histogram counts a value up to its bound, and +Inf is the count', () => {
  const metrics = createMetrics();
  for (const durationMs of [10, 10.1, 20, 655_360, 700_000]) {
    metrics.add(finished({}, { durationMs }));
  }
  const { sum } = metrics.read();
  const bucket = (le: string) => sum('gen_ai_server_request_duration_seconds_bucket', { le });
  assert.deepEqual(['0.01', '0.02', '327.68', '655.36', '+Inf'].map(bucket), [1, 3, 3, 4, 5]);
  assert.equal(sum('gen_ai_server_request_duration_seconds_count'), 5);
});

test('tries, fallbacks and refusals are counted', () => {
  const metrics = createMetrics();
  metrics.add(
    finished({
      provider: 'b',
      client: 'team',
      tries: [
        { provider: 'a', model: 'm', outcome: 'timeout' },
        { provider: 'a', model: 'm', outcome: 'upstream_error', status: 500 },
        { provider: 'c', model: 'm', outcome: 'circuit_open' },
        { provider: 'b', model: 'm', outcome: 'ok', status: 200 },
      ],
    }),
  );
  const refused = { outcome: 'rate_limited', status: 429 } as const;
  metrics.add(finished({ ...refused, provider: undefined }, { refusal: 'global' }));
  metrics.add(finished({ ...refused, client: 'team', provider: 'b' }, { refusal: 'upstream' }));
  for (const refusal of ['no_token', 'unknown_token', undefined] as const) {
    metrics.add(finished({ outcome: 'refused', status: 401, provider: undefined }, { refusal }));
  }
  metrics.add(finished(refused));
  // A stream that had begun.
  metrics.add(finished({ ...refused, status: 200 }, { refusal: 'upstream' }));
  const own = { outcome: 'internal_error', provider: 'b' } as const;
  metrics.add(finished({ ...own, status: 429 }, { refusal: 'memory' }));
  // An answer that can never fit is no refusal.
  metrics.add(finished({ ...own, status: 502 }, { refusal: 'memory' }));
  const { sum } = metrics.read();
  assert.equal(sum('gateway_requests_total', { client: 'team', outcome: 'ok' }), 1);
  assert.equal(sum('gateway_tries_total'), 4);
  assert.equal(sum('gateway_tries_total', { result: 'timeout', status: 'none' }), 1);
  assert.equal(sum('gateway_tries_total', { result: 'upstream_error', status: '500' }), 1);
  // No request was sent to c.
  assert.equal(sum('gateway_fallbacks_total'), 1);
  assert.equal(sum('gateway_fallbacks_total', { from: 'c', to: 'b', reason: 'circuit_open' }), 1);
  assert.equal(sum('gateway_refusals_total'), 7);
  const upstream = { reason: 'upstream', client: 'team', provider: 'b' };
  assert.equal(sum('gateway_refusals_total', upstream), 1);
  const others = ['global', 'memory', 'other', 'no_token', 'unknown_token', 'invalid_request'];
  for (const reason of others) {
    assert.equal(sum('gateway_refusals_total', { reason }), 1, reason);
  }
});

test('every counter that the settings make known is there from the start, at 0', async (t) => {
  const toml = `${providerToml({ baseUrl: NOBODY_LISTENS }, 'p', PRICES)}${providerToml({ baseUrl: NOBODY_LISTENS }, 'q')}[providers]
fallback = ["q"]\n[clients.team]\nkey = "team-canary-1"\n${ADMIN}`;
  const gateway = await startGateway(t, { toml });
  const { text } = await gateway.admin('/metrics');
  for (const series of [
    'gateway_requests_total{outcome="upstream_error"}',
    'gateway_requests_total{client="team",outcome="ok"}',
    'gateway_tries_total{provider="q",result="upstream_error",status="503"}',
    'gateway_tries_total{provider="p",result="timeout",status="none"}',
    'gateway_fallbacks_total{from="p",to="q",reason="circuit_open"}',
    'gateway_refusals_total{client="team",reason="client"}',
    'gateway_refusals_total{client="team",reason="client_tokens_per_day"}',
    'gateway_refusals_total{reason="upstream",provider="p"}',
    'gateway_refusals_total{client="team",reason="upstream",provider="q"}',
    'gateway_refusals_total{reason="unknown_token"}',
    'gateway_client_tokens_total{client="team",type="output"}',
    'gateway_cost_total{provider="p",model="m"}',
    'gateway_cost_total{provider="p",model="m",client="team"}',
  ]) {
    assert.ok(text.includes(`\n${series} 0\n`), series);
  }
});

test('each limit has its counter from the start, and stands in the documents', async (t) => {
  const most = 'max_concurrent_requests = 7\n';
  const bucket = 'requests_per_second = 9\nburst_capacity = 9\n';
  const buckets = [...CLIENT_BUCKETS, ...CLIENT_WINDOWS].map(({ setting }) => `${setting} = 9\n`);
  const toml = `[server]\n${most}[rate_limit]\nenabled = true\n${bucket}
[rate_limit.providers.p]\n${bucket}requests_per_minute = 9
[clients.team]\nkey = "team-canary-1"\n${most}${bucket}
${buckets.join('')}unpriced = "allow"\n${providerToml({ baseUrl: NOBODY_LISTENS }, 'p', most)}
${providerToml({ baseUrl: NOBODY_LISTENS }, 'q')}${ADMIN}`;
  const gateway = await startGateway(t, { toml });
  const { text } = await gateway.admin('/metrics');
  const docs = readFileSync(join(ROOT, 'docs/metrics.md'), 'utf8').split('\n');
  for (const [limit, { of }] of Object.entries(LIMITS)) {
    const [refusals, figures] = ['gateway_refusals_total', 'gateway_limit'].map((name) =>
      text.split('\n').filter((line) => line.startsWith(`${name}{`) && line.includes(`"${limit}"`)),
    ) as [string[], string[]];
    const team = refusals.find((line) => line.includes('client="team"')) ?? '';
    assert.equal(team.includes('provider="p"'), of === 'provider', limit);
    assert.equal(refusals.length > 1, of !== 'client', `${limit} without a client`);
    assert.ok(
      refusals.every((line) => line.endsWith(' 0')),
      limit,
    );
    assert.equal(figures.length, limit === 'upstream' ? 0 : 1, limit);
    const row = (name: string) => docs.find((line) => line.startsWith(`| \`${name}\``));
    assert.ok(row('gateway_refusals_total')!.includes(`\`${limit}\``), limit);
    assert.equal(row('gateway_limit')!.includes(`\`${limit}\``), limit !== 'upstream', limit);
  }
  const ofQ = text.split('\n').filter((line) => /^gateway_refusals_total.*provider="q"/.test(line));
  assert.ok(
    ofQ.every((line) => line.includes('"upstream"')),
    'it has no limits of its own',
  );
});

test('an answer that its client still reads is no request at the provider', async (t) => {
  const clock = stopClock(t);
  const gate = createGate();
  const answer = { choices: [], x: 'y'.repeat(16_000_000) };
  const { gateway, asked } = await scenario(t, {
    providers: {
      p: async (_, response) => {
        await gate.opened;
        sendJson(response, answer);
      },
    },
    more: ADMIN,
  });
  const { socket } = openRaw(t, gateway.port);
  socket.pause();
  socket.write(rawChat(chatBody()));
  const read = async () => parseMetrics((await gateway.admin('/metrics')).text).sum;
  await eventually(() => asked()[0] === 1, 'the request');
  clock.nowMs += 1500;
  assert.equal((await read())('gateway_provider_oldest_request_seconds'), 1.5);
  gate.open();
  const isOver = async () => (await read())('gateway_provider_requests_in_flight') === 0;
  await eventually(isOver, 'the whole answer');
  const sum = await read();
  assert.equal(sum('gateway_requests_in_flight'), 1, 'its client reads');
  assert.equal(sum('gateway_provider_oldest_request_seconds'), 0);
});

test('a request that waits for its next attempt is at its provider since the first', async (t) => {
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  const { gateway, p } = await scenario(t, {
    server: 'retries = 1',
    providers: { p: failWith(503) },
    more: ADMIN,
  });
  const request = gateway.chat(chatBody());
  // The backoff is random. No other timer has this delay.
  await eventually(() => timers.running(500).some((ms) => ms >= 250), 'the wait');
  clock.nowMs += 3000;
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_provider_oldest_request_seconds'), 3);
  p.script = answerWell;
  timers.advance(1000);
  assert.equal((await request).status, 200);
});

/** Returns the age of the oldest request at each of these providers, in seconds. */
async function agesOf(gateway: TestGateway, ids: readonly string[]): Promise<number[]> {
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  return ids.map((provider) => sum('gateway_provider_oldest_request_seconds', { provider }));
}

test('the age at a provider is that of the oldest of its requests, since its first attempt', async (t) => {
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  const { gateway, asked, p } = await scenario(t, {
    server: 'retries = 1',
    providers: { p: failWith(503), q: {} },
    more: ADMIN,
  });
  const leave = new AbortController();
  t.after(() => leave.abort());
  const ask = () => void gateway.chat(chatBody(), { signal: leave.signal }).catch(() => {});
  ask();
  await eventually(() => timers.running(500).some((ms) => ms >= 250), 'the wait');
  clock.nowMs += 1000;
  p.script = () => {};
  timers.advance(1000);
  await eventually(() => asked()[0] === 2, 'the second attempt');
  for (const count of [3, 4]) {
    clock.nowMs += 1000;
    ask();
    await eventually(() => asked()[0] === count, 'the next request');
  }
  clock.nowMs += 1000;
  assert.deepEqual(await agesOf(gateway, ['p', 'q']), [4, 0]);
});

test('a request that was sent on is at its present provider, and no skipped attempt counts', async (t) => {
  const clock = stopClock(t);
  const takes =
    (ms: number, script: Script): Script =>
    (request, response) => {
      clock.nowMs += ms;
      return script(request, response);
    };
  const { gateway, asked, p, q } = await scenario(t, {
    providers: { p: failWith(503), q: failWith(503) },
    fallback: ['q'],
    more: ADMIN,
  });
  const leave = new AbortController();
  t.after(() => leave.abort());
  const ask = () => gateway.chat(chatBody(), { signal: leave.signal });
  for (let count = 0; count < 2; count += 1) await ask();
  p.script = takes(1000, failWith(503));
  q.script = () => {};
  ask().catch(() => {});
  await eventually(() => asked()[1] === 3, 'the fallback');
  clock.nowMs += 500;
  assert.deepEqual(await agesOf(gateway, ['p', 'q']), [0, 0.5]);
  // The circuit of `p` is open, so `p` is skipped, and asked at the end.
  q.script = takes(2000, failWith(503));
  p.script = () => {};
  ask().catch(() => {});
  await eventually(() => asked()[0] === 4, 'the postponed provider');
  clock.nowMs += 250;
  assert.deepEqual(await agesOf(gateway, ['p', 'q']), [0.25, 2.75]);
});

/** Settings with a client, two providers and an alias, all named after `n`. */
function renamed(toml: string, n: number, names = 'agents|alias|p|q|m'): string {
  return toml.replaceAll(new RegExp(String.raw`\b(${names})_1\b`, 'g'), `$1_${n}`);
}

/** Starts a gateway with the settings of `renamed`, on a clock that the test moves. */
async function startRenamed(t: Parameters<typeof scenario>[0]) {
  const clock = stopClock(t, 1_000_000);
  const lines = `models = ["m_1"]\n${PRICES.replace('details.m ', 'details.m_1 ')}`;
  const {
    gateway,
    p_1: upstream,
    toml,
  } = await scenario(t, {
    providers: { p_1: { lines }, q_1: { lines: 'models = ["m_1"]' } },
    fallback: ['q_1'],
    clients: { agents_1: 'key = "agents-key-0123456789"\nrequests_per_minute = 100' },
    more: `[aliases]\nalias_1 = "p_1/m_1"\n${ADMIN}`,
  });
  const ask = async (n: number, body: object = {}) => {
    const headers = { authorization: 'Bearer agents-key-0123456789' };
    return gateway.chat(chatBody({ model: `alias_${n}`, ...body }), { headers });
  };
  /** Lets the clock pass in the steps of the page's timer. */
  const pass = (ms: number) => {
    clock.nowMs += ms;
    gateway.judge();
  };
  const linesOf = async () => {
    const { text } = await gateway.admin('/metrics');
    return text.split('\n').filter((line) => line !== '' && !line.startsWith('#'));
  };
  const rename = async (n: number, names?: string) => gateway.reload(renamed(toml, n, names));
  return { ask, gateway, linesOf, pass, rename, upstream };
}

test('series of names that a reload took away go five minutes later', async (t) => {
  const { ask, linesOf, pass, rename } = await startRenamed(t);
  await ask(1);
  await ask(1, { stream: true });
  const before = await linesOf();
  assert.ok(before.includes('gateway_requests_total{client="agents_1",outcome="ok"} 2'));
  await rename(2);
  pass(299_000);
  const named = (all: readonly string[], n: number) =>
    all.filter((line) => line.includes(`_${n}"`));
  const counted = (all: readonly string[]) => all.filter((line) => line.includes('_total'));
  // The gauges are those of the settings in use.
  const kept = new Set(await linesOf());
  assert.deepEqual(
    counted(named(before, 1)).filter((line) => !kept.has(line)),
    [],
    'a scrape has time to see the last values',
  );
  pass(1000);
  assert.deepEqual(named(await linesOf(), 1), []);
  await ask(2);
  await ask(2, { stream: true });
  const after = await linesOf();
  assert.equal(after.length, before.length);
  assert.ok(after.includes('gateway_requests_total{client="agents_2",outcome="ok"} 2'));
  assert.ok(after.includes('gateway_requests_total{outcome="ok"} 0'), 'others stay');
});

test('series of names that a reload has left stay, also of other and unknown models', async (t) => {
  const { ask, linesOf, pass, rename, upstream } = await startRenamed(t);
  // Its model is `unknown`.
  upstream.script = (_, response) => sendJson(response, { choices: [] });
  const isCount = (line: string) => line.startsWith('gen_ai_server_request_duration_seconds_count');
  const models = async () => {
    const counts = (await linesOf()).filter(isCount);
    return counts.map((line) => /original_model="([^"]*)"/.exec(line)![1]!).toSorted();
  };
  await ask(1);
  await ask(1, { model: 'p_1/m_1' });
  await ask(1, { model: 'p_1/strange' });
  assert.deepEqual(await models(), ['alias_1', 'other', 'p_1/m_1']);
  await rename(2, 'agents|alias');
  pass(300_000);
  assert.deepEqual(await models(), ['other', 'p_1/m_1']);
  await ask(2);
  await ask(2, { model: 'p_1/m_1' });
  const counts = (await linesOf())
    .filter(isCount)
    .map((line) => line.replace(/.*original_model="([^"]*)".* /, '$1 '));
  assert.deepEqual(counts.toSorted(), ['alias_2 1', 'other 1', 'p_1/m_1 2']);
  await rename(2, 'agents|alias|m');
  pass(300_000);
  const ofModel = (await linesOf()).filter((line) => /"(?:p_1\/)?m_1"/.test(line));
  assert.deepEqual(ofModel, [], 'also of its costs');
});

test('sets of labels that have gone leave room for others', (t) => {
  const clock = stopClock(t);
  const names = new AllNames();
  const models = Array.from({ length: 400 }, (_, at) => `model-${at}`);
  names.models.use('settings', [...models, 'm']);
  const metrics = new RequestMetrics(names);
  for (const model of models) metrics.add(finished({ provider: 'gone', model }));
  assert.equal(metrics.add(finished({ model: 'm' }))!.name, 'other', 'no room is left');
  clock.nowMs += 300_000;
  names.providers.expire();
  metrics.forgetUnknown();
  assert.equal(metrics.add(finished({ model: 'm' }))!.name, 'm');
});

test('rows of the page go with their names, but not those that stand for several', () => {
  const metrics = createMetrics(['m']);
  const over = { outcome: 'rate_limited', status: 429, limit: 'full' } as const;
  for (const client of ['gone', 'kept']) {
    const tries = [{ provider: client, model: 'm', outcome: 'ok' } as const];
    metrics.add(finished({ client, model: client === 'kept' ? 'm' : undefined, tries }));
    metrics.add(finished({ client, model: 'x', ...over }, { refusal: 'client_concurrency' }));
  }
  metrics.add(finished({ status: 401, outcome: 'refused', provider: undefined, tries: [] }));
  metrics.add(finished());
  const names = new AllNames();
  for (const kind of [names.clients, names.providers]) kind.use('settings', ['kept']);
  metrics.traffic.forgetUnknown(names);
  const { clients, models, providers } = metrics.traffic.report();
  assert.deepEqual(Object.keys(clients), ['kept', 'no valid key', 'without a name']);
  assert.deepEqual(Object.keys(models), ['unknown', 'other']);
  assert.deepEqual(Object.keys(providers), ['kept']);
  metrics.add(finished({ client: 'gone' }));
  const refused = metrics.traffic.refusals().map(({ client }) => client);
  assert.deepEqual(refused, ['kept']);
});

test('a name that a second reload brings back within five minutes keeps its series', async (t) => {
  const { ask, linesOf, pass, rename } = await startRenamed(t);
  await ask(1);
  await rename(2);
  pass(200_000);
  await rename(1);
  pass(600_000);
  await ask(1);
  const lines = await linesOf();
  assert.ok(lines.includes('gateway_requests_total{client="agents_1",outcome="ok"} 2'));
  assert.equal(lines.filter((line) => line.includes('_2"')).length, 0);
  await rename(2);
  pass(300_000);
  await rename(1);
  await ask(1);
  const again = 'gateway_requests_total{client="agents_1",outcome="ok"} 1';
  assert.ok((await linesOf()).includes(again), 'counted anew');
});

test('a request that outlives its names has its series for five minutes', async (t) => {
  const { ask, gateway, linesOf, pass, rename } = await startRenamed(t);
  const upload = rawChat({ model: 'alias_1', messages: [{ role: 'user', content: 'x' }] });
  const request = upload.replace(/Bearer [^\r]*/i, 'Bearer agents-key-0123456789');
  const { socket } = openRaw(t, gateway.port);
  socket.write(request.slice(0, -3));
  await eventually(async () => (await linesOf()).includes('gateway_requests_in_flight 1'), 'it');
  await rename(2);
  pass(400_000);
  socket.write(request.slice(-3));
  const line = 'gateway_tries_total{provider="p_1",result="ok",status="200"} 1';
  await eventually(async () => (await linesOf()).includes(line), 'its try');
  pass(299_000);
  assert.ok((await linesOf()).includes(line));
  pass(1000);
  assert.deepEqual(
    (await linesOf()).filter((one) => one.includes('_1"')),
    [],
  );
  await ask(2);
});

const RELOADS = LEFT_TO_SWEEPS ? 40 : 550;
test(`${RELOADS} reloads that rename everything leave no series, row or memory`, async (t) => {
  const { ask, gateway, linesOf, pass, rename, upstream } = await startRenamed(t);
  const measure = createMemoryProbe();
  const round = async (n: number) => {
    await rename(n);
    await ask(n);
    await ask(n, { stream: true });
    pass(301_000);
    gateway.log.length = 0;
    upstream.requests.length = 0;
  };
  // The page keeps the last 200 requests.
  for (let count = 0; count < 200; count += 1) await gateway.send('/v1/models');
  for (let n = 2; n < 12; n += 1) await round(n);
  const [before, heldBytes] = [await linesOf(), await settledBytes(measure)];
  for (let n = 12; n < 12 + RELOADS; n += 1) await round(n);
  assert.equal((await linesOf()).length, before.length);
  const feed = await openFeed(t, gateway.adminPort);
  const { clients, models } = await feed.next('state', () => true);
  assert.deepEqual([clients.length, models.length], [2, 1]);
  feed.close();
  const bytes = ((await settledBytes(measure)) - heldBytes) / RELOADS;
  t.diagnostic(`${Math.round(bytes)} bytes for each reload`);
  // Compiled code takes 25,000 bytes, and sets of labels that stay take 40,000.
  assert.ok(bytes < 45_000, `${bytes} bytes for each reload`);
});

test('a refusal by a check that the answer does not tell is named by metric and log', async (t) => {
  const more = '[clients.team]\nkey = "team-canary-1"\nmodels = ["p/other"]\n';
  const { gateway } = await scenario(t, { more: `${more}${ADMIN}` });
  for (const authorization of [undefined, 'Bearer wrong', 'Bearer team-canary-1']) {
    await gateway.chat(chatBody(), { headers: { authorization } });
  }
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  for (const reason of ['no_token', 'unknown_token', 'model_not_allowed']) {
    assert.equal(sum('gateway_refusals_total', { reason }), 1, reason);
  }
  assert.deepEqual(
    gateway.accessLines().map(({ reason }) => reason),
    ['no token', 'unknown token', 'model not allowed for this client'],
  );
});

test('a refusal names the provider only if the limit is one of that provider', async (t) => {
  const large = completion('x'.repeat(1_000_000));
  const upstream = await startUpstream(t, (_, response) => sendJson(response, large));
  const toml = `[server]\nmax_buffered_bytes = 2000000\n${providerToml(upstream)}${ADMIN}`;
  const gateway = await startGateway(t, { toml });
  const upload = rawChat({}).replace('content-length: 2', 'content-length: 1500000');
  openRaw(t, gateway.port).socket.write(upload);
  await eventually(() => gateway.reservedBytes() === 1_500_000, 'an upload takes the memory');
  assert.equal((await gateway.chat(chatBody())).headers['x-gateway-provider'], 'p');
  const { text } = await gateway.admin('/metrics');
  assert.deepEqual(text.match(/^gateway_refusals_total\{reason="memory".*/gm), [
    'gateway_refusals_total{reason="memory"} 1',
  ]);
});

test('limits, and how full they are, are told for each client and each provider', async (t) => {
  const upstream = await startUpstream(t, () => {});
  const most = 'max_concurrent_requests = 7';
  const toml = `[server]\nmax_buffered_bytes = 2000000\n${most}\n[rate_limit]\nenabled = true
requests_per_second = 9\nburst_capacity = 9\n[clients.team]\nkey = "team-canary-1"\n${most}
requests_per_second = 5\nburst_capacity = 5\n${providerToml(upstream, 'p', most)}${ADMIN}`;
  const gateway = await startGateway(t, { toml });
  const headers = { authorization: 'Bearer team-canary-1' };
  const leave = new AbortController();
  const request = gateway.chat(chatBody(), { headers, signal: leave.signal });
  await eventually(() => upstream.requests.length === 1, 'the request');
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  leave.abort();
  await assert.rejects(request);
  const [client, provider] = [{ client: 'team' }, { provider: 'p' }];
  assert.equal(sum('gateway_client_requests_in_flight', client), 1);
  assert.equal(sum('gateway_provider_requests_in_flight', provider), 1);
  // It is no stream.
  assert.equal(sum('gateway_open_streams'), 0);
  assert.equal(sum('gateway_limit', { limit: 'server_concurrency' }), 7);
  assert.equal(sum('gateway_limit', { limit: 'memory' }), 2_000_000);
  assert.equal(sum('gateway_limit', { limit: 'global' }), 9);
  assert.equal(sum('gateway_limit', { limit: 'client_concurrency', ...client }), 7);
  assert.equal(sum('gateway_limit', { limit: 'client', ...client }), 5);
  assert.equal(sum('gateway_limit', { limit: 'provider_concurrency', ...provider }), 7);
  if (process.platform !== 'linux') return;
  assert.ok(sum('process_open_fds') > 3);
  assert.ok(sum('process_max_fds') > sum('process_open_fds'));
});

test('limits per second that are switched off are no figures', async (t) => {
  const bucket = 'requests_per_second = 9\nburst_capacity = 9\n';
  const rates = `${bucket}[rate_limit.providers.p]\n${bucket}${ADMIN}`;
  const { gateway, toml } = await scenario(t, { more: `[rate_limit]\nenabled = false\n${rates}` });
  const read = async () => {
    const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
    return ['global', 'provider'].map((limit) => sum('gateway_limit', { limit }));
  };
  for (const isOn of [false, true, false]) {
    await gateway.reload(toml.replace('enabled = false', `enabled = ${isOn}`));
    assert.deepEqual(await read(), isOn ? [9, 9] : [0, 0]);
  }
});

test('keys in cooldown and lists of models that fail are told for each provider', async (t) => {
  const upstream = await startUpstream(t, (_, response) =>
    sendJson(response, { error: { message: 'no' } }, { status: 401 }),
  );
  const keys = 'api_keys = ["key-canary-1", "key-canary-2", "key-canary-3"]';
  const own = providerToml(upstream, 'p').replace(/^api_key = .*$/m, keys);
  const gateway = await startGateway(t, { toml: own + ADMIN });
  const read = async () => parseMetrics((await gateway.admin('/metrics')).text);
  await gateway.chat(chatBody());
  await gateway.send('/v1/models');
  const { sum } = await read();
  assert.equal(sum('gateway_keys_in_cooldown', { provider: 'p' }), 3);
  assert.equal((await read()).labels.has('gateway_model_list_up'), true);
  assert.equal(sum('gateway_model_list_up', { provider: 'p' }), 0);
});

test('no fallback is counted if all other providers are passed over', () => {
  const metrics = createMetrics();
  for (const outcome of ['circuit_open', 'limit'] as const) {
    const tries = [
      { provider: 'a', model: 'm', outcome: 'upstream_error' },
      { provider: 'b', model: 'm', outcome },
    ] as const;
    metrics.add(finished({ outcome: 'upstream_error', tries }));
  }
  assert.equal(metrics.read().sum('gateway_fallbacks_total'), 0);
  // The page counts only providers that got a request.
  const { a, b } = metrics.traffic.report().providers;
  assert.deepEqual([a!.requests, b], [2, undefined]);
});

test('an open page takes no event loop delays from the next scrape', async (t) => {
  const gateway = await startGateway(t, { toml: ADMIN });
  const feed = await openFeed(t, gateway.adminPort);
  const scrapeMax = async () =>
    parseMetrics((await gateway.admin('/metrics')).text).sum('nodejs_eventloop_lag_max_seconds');
  await scrapeMax();
  // A cleared histogram begins with its second tick.
  await idle(100);
  const until = performance.now() + 200;
  while (performance.now() < until);
  await idle(100);
  const stallSeconds = await scrapeMax();
  assert.ok(stallSeconds > 0.15);
  await feed.next('state', () => true);
  await idle(100);
  assert.ok((await scrapeMax()) < stallSeconds);
});

test('GET /metrics is made and sent in chunks, so that streams go on', async (t) => {
  const gateway = await startGateway(t, { toml: ADMIN });
  assert.equal((await gateway.admin('/metrics')).headers['transfer-encoding'], 'chunked');

  const names = Array.from({ length: 1000 }, (_, at) => `model-${at}`);
  const metrics = createMetrics(names);
  for (const name of names) {
    const usage = { prompt_tokens: 1, completion_tokens: 1, cached_tokens: 1, reasoning_tokens: 1 };
    metrics.add(finished({ model: name, upstream_model: name, ...usage }, { responseModel: name }));
  }
  const sizes: number[] = [];
  for await (const chunk of inChunks(metrics.metrics.render())) {
    sizes.push(chunk.length);
  }
  const total = sizes.reduce((sum, size) => sum + size, 0);
  t.diagnostic(`${(total / 1e6).toFixed(1)} MB in ${sizes.length} chunks`);
  assert.ok(total > 1e6 && total < 10e6, `${total} bytes`);
  assert.ok(Math.max(...sizes) < 200_000, String(sizes));
});

test('values of labels are escaped', () => {
  const name = 'a"b\\c\nd';
  const metrics = createMetrics([name]);
  metrics.add(finished({ model: name }));
  assert.match(metrics.text(), /gen_ai_original_model="a\\"b\\\\c\\nd"/);
});

test('models are labels only if the settings or a list of models name them', async (t) => {
  const upstream = await startUpstream(t);
  const toml =
    providerToml(upstream, 'p', 'default_model = "d"\nmodel_details.sized.context_length = 8') +
    '[aliases]\nfast = "p/target"\n"any-*" = "p/list*"\n' +
    ADMIN;
  const gateway = await startGateway(t, { toml });
  const original = async (model: string) => {
    await gateway.chat(chatBody({ model }));
    const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
    return sum('gen_ai_server_request_duration_seconds_count', { gen_ai_original_model: model });
  };
  for (const model of ['fast', 'p/target', 'p/d', 'p', 'p/', 'p/sized'])
    assert.equal(await original(model), 1);
  assert.equal(await original('p/listed'), 0);
  assert.equal(await original('any-ed'), 0);
  const list = { data: [{ id: 'listed' }] };
  upstream.script = (request, response) =>
    sendJson(response, request.method === 'GET' ? list : { choices: [] });
  await gateway.send('/v1/models');
  assert.equal(await original('p/listed'), 1);
  assert.equal(await original('any-ed'), 1);
});

test('a listed name with a key is no label, and names of half a character are one', async (t) => {
  const names = [`m-${PROVIDER_KEY}`, '\ud800', '\ud801', 'plain'];
  const upstream = await startUpstream(t, ({ method }, response) => {
    if (method === 'GET') sendJson(response, { data: names.map((id) => ({ id })) });
    else sendJson(response, { ...completion(), model: names[0] });
  });
  const gateway = await startGateway(t, { toml: `[admin]\nport = 0\n${providerToml(upstream)}` });
  await gateway.send('/v1/models');
  for (const name of names) await gateway.chat(chatBody({ model: `p/${name}` }));
  const { text } = await gateway.admin('/metrics');
  const labels = [...text.matchAll(/gen_ai_request_model="([^"]*)"/g)].map(([, label]) => label!);
  assert.deepEqual([...new Set(labels)].toSorted(), ['other', 'plain', '\ufffd']);
  assert.ok(!text.includes(PROVIDER_KEY));
});

test('with [admin], the lists of models are read at the start', async (t) => {
  const upstream = await startUpstream(t, (request, response) => {
    sendJson(response, request.method === 'GET' ? { data: [{ id: 'listed' }] } : { choices: [] });
  });
  await buildOnce();
  const start = async (more: string) => {
    const own = '[server]\nhost = "127.0.0.1"\nport = 0\n';
    const folder = emptyFolder(t, { 'gateway.toml': own + providerToml(upstream) + more });
    const program = await startServing(t, [], { cwd: folder });
    return { ...program, url: `http://127.0.0.1:${program.port}/v1/chat/completions` };
  };
  const headers = { authorization: `Bearer ${CLIENT_TOKEN}`, 'content-type': 'application/json' };
  const ask = async (url: string) => {
    const body = JSON.stringify(chatBody({ model: 'p/listed' }));
    assert.equal((await fetch(url, { method: 'POST', headers, body })).status, 200);
  };
  await ask((await start('')).url);
  assert.deepEqual(
    upstream.requests.map(({ method }) => method),
    ['POST'],
  );

  const { url, stderr } = await start(ADMIN);
  await eventually(() => upstream.requests.length > 1, 'the request for the list');
  assert.equal(upstream.requests[1]!.method, 'GET');
  const admin = /^admin +(http:\S+)$/m.exec(stderr())?.[1];
  const labels = { gen_ai_original_model: 'p/listed' };
  // The list may not have arrived yet.
  await eventually(async () => {
    await ask(url);
    const { sum } = parseMetrics(await (await fetch(`${admin}metrics`)).text());
    return sum('gen_ai_server_request_duration_seconds_count', labels) > 0;
  }, 'a request under the listed name');
});

test('10,000 random names of models leave the number of series bounded', async (t) => {
  const upstream = await startUpstream(t);
  const gateway = await startGateway(t, { toml: providerToml(upstream) + ADMIN });
  await gateway.chat(chatBody({ model: 'p/random-0' }));
  const before = parseMetrics((await gateway.admin('/metrics')).text).series;
  for (let at = 1; at <= 20; at += 1) await gateway.chat(chatBody({ model: `p/random-${at}` }));
  assert.equal(parseMetrics((await gateway.admin('/metrics')).text).series, before);

  // Even if a provider lists them all.
  const names = Array.from({ length: 10_000 }, (_, at) => `random-${at}`);
  const metrics = createMetrics(names);
  for (const [at, name] of names.entries()) {
    const responseModel = names[(7 * at) % names.length]!;
    const facts = { model: name, upstream_model: name, prompt_tokens: 1 };
    metrics.add(finished(facts, { responseModel }));
  }
  const { series, sum } = metrics.read();
  assert.ok(series < 40_000, `${series} series`);
  assert.equal(sum('gen_ai_server_request_duration_seconds_count'), names.length);
  // The first ones keep their names.
  const first = { model: names[0]!, upstream_model: names[0]! };
  metrics.add(finished(first, { responseModel: names[0]! }));
  const named = { gen_ai_original_model: names[0]! };
  assert.equal(metrics.read().sum('gen_ai_server_request_duration_seconds_count', named), 2);
  assert.ok(sum('gen_ai_client_token_usage_count', { gen_ai_original_model: 'other' }) > 9000);
  const { models } = metrics.traffic.report();
  assert.equal(Object.keys(models).length, 401);
});

test('an answer\u2019s model is counted by its name if known, else as unknown or other', () => {
  const metrics = createMetrics(['m', 'small', 'large']);
  for (const responseModel of ['small', 'large', undefined, 'never-heard-of']) {
    metrics.add(finished({ model: 'm', upstream_model: 'm' }, { responseModel }));
  }
  for (const label of ['small', 'large', 'unknown', 'other']) {
    const labels = { gen_ai_original_model: 'm', gen_ai_response_model: label };
    const count = metrics.read().sum('gen_ai_server_request_duration_seconds_count', labels);
    assert.equal(count, 1, label);
  }
});

const MANY = 1_000_000;

/** Many finished requests over more than 15 minutes, with more names than there is room for. */
function recordMany() {
  const names = Array.from({ length: 5000 }, (_, at) => `model-${at}`);
  const metrics = createMetrics(names);
  const recent = new RecentRequests(createRedactor([]));
  const cause = 'c'.repeat(200);
  const failed = { model: 'm', outcome: 'timeout', cause, url: NOBODY_LISTENS } as const;
  for (let at = 0; at < MANY; at += 1) {
    const provider = `p${at % 10}`;
    const model = names[at % names.length]!;
    const request = finished(
      {
        provider,
        model,
        upstream_model: model,
        outcome: at % 3 === 0 ? 'timeout' : 'ok',
        stream: true,
        client: `client-${at % 20}`,
        prompt_tokens: at % 5000,
        completion_tokens: at % 700,
        tries: [
          { provider, ...failed },
          { provider: 'spare', ...failed },
        ],
      },
      {
        responseModel: names[(at * 7) % 5000]!,
        firstByteMs: at % 900,
        gatewayMs: 0.3,
        endTime: 1_700_000_000_000 + at * (2_000_000 / MANY),
      },
    );
    metrics.add(request);
    recent.add(request);
  }
  return { metrics, recent };
}

/** The least of several measurements: what is garbage is not always collected at once. */
async function settledBytes(measure: () => number): Promise<number> {
  let least = Infinity;
  for (let count = 0; count < 4; count += 1) {
    least = Math.min(least, measure());
    await idle(20);
  }
  return least;
}

test(
  `the whole view takes less than 14 MB after ${MANY} requests`,
  { timeout: 300_000, skip: LEFT_TO_SWEEPS },
  async (t) => {
    const measure = createMemoryProbe();
    let view: ReturnType<typeof recordMany> | undefined = recordMany();
    assert.equal(view.metrics.read().sum('gateway_requests_total'), MANY);
    assert.equal(view.recent.find({ kind: 'All', words: '' }).length, 400);
    const { spare } = view.metrics.traffic.report().providers;
    assert.equal(spare!.requests, 0.45 * MANY, 'those of the last 15 minutes');
    const withView = await settledBytes(measure);
    assert.ok(view);
    view = undefined;
    const heldBytes = withView - (await settledBytes(measure));
    t.diagnostic(`${(heldBytes / 1e6).toFixed(1)} MB`);
    assert.ok(heldBytes > 3e5 && heldBytes < 14e6, `${heldBytes} bytes`);
  },
);

test('the last requests do not hold on to the long texts that they were cut from', async (t) => {
  const upstream = await startUpstream(t, (_, response) => {
    sendJson(response, { error: { message: 'm'.repeat(50_000) } }, { status: 400 });
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) + ADMIN });
  const measure = createMemoryProbe();
  const ask = async (at: number) =>
    gateway.chat(chatBody({ model: `p/${at}${'x'.repeat(300_000)}` }));
  await ask(0);
  const before = await settledBytes(measure);
  for (let at = 1; at <= 20; at += 1) await ask(at);
  upstream.requests.length = 0;
  const heldBytes = (await settledBytes(measure)) - before;
  assert.ok(heldBytes < 3e6, `${heldBytes} bytes`);
});

test('docs/metrics.md has every metric with its type and labels, and no other', async (t) => {
  const upstream = await startUpstream(t);
  const usage = {
    prompt_tokens: 3,
    completion_tokens: 2,
    prompt_tokens_details: { cached_tokens: 1 },
    completion_tokens_details: { reasoning_tokens: 1 },
  };
  const toml =
    providerToml(upstream, 'p', PRICES) +
    providerToml(upstream, 'q') +
    '[providers]\nfallback = ["q"]\n' +
    '[rate_limit]\nstore = "redis://127.0.0.1:9"\n[telemetry]\ntraces = true\n' +
    ADMIN;
  const env = { GATEWAY_UPSTREAM: 'auto', OTEL_TRACES_SAMPLER: 'always_off' };
  const gateway = await startGateway(t, { toml, env });
  upstream.script = (_, response) => sendJson(response, { choices: [], usage });
  await gateway.chat(chatBody());
  upstream.script = (_, response) => sendEvents(response, completionEvents());
  await gateway.chat(chatBody({ stream: true }));
  upstream.script = (_, response) => sendJson(response, {}, { status: 429 });
  await gateway.chat(chatBody());
  const { types, labels } = parseMetrics((await gateway.admin('/metrics')).text);
  const docs = readFileSync(join(ROOT, 'docs/metrics.md'), 'utf8');
  const rows = [...docs.matchAll(/^\| `(\w+)` \| (\w+) \| (.*?) \|/gm)].map(
    ([, name, type, labelCell = '']) => {
      const names = [...labelCell.matchAll(/`(\w+)`/g)].map(([, label]) => label!);
      return [name!, { type: type!, names: new Set(names) }] as const;
    },
  );
  const documented = new Map(rows);
  assert.deepEqual([...documented.keys()].toSorted(), [...types.keys()].toSorted());
  for (const [name, type] of types) {
    assert.equal(documented.get(name)?.type, type, name);
    for (const label of labels.get(name) ?? []) {
      assert.ok(documented.get(name)?.names.has(label), `${name} has a label ${label}`);
    }
  }
});
