/** Circuits: their failures, the requests kept away, and their probes. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { describe, test, type TestContext } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { CircuitBreaker } from '../../src/policy/circuit-breaker.ts';
import { replaceRandom, stopClock, useManualTimers } from '../support/clock.ts';
import { startFakeRedis, status } from '../support/fake-redis.ts';
import { startBlackHole } from '../support/fault-proxy.ts';
import { chatBody, providerToml, STREAM, triesOf, withoutRefill } from '../support/gateway.ts';
import { byModel, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { eventually, linesOf, openChat } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import {
  answerWell,
  beginStream,
  CHUNK,
  completion,
  failWith,
  LAST,
  NOBODY_LISTENS,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const REST_MS = 10_000;
/** The tries of a request kept away by the circuit. */
const AWAY = 'p:circuit_open q:200';

interface Settings extends Omit<ScenarioSettings<'p'>, 'providers'> {
  /** Further lines for provider `p`. */
  readonly p?: string;
}

/** Starts provider `p` with this script and its fallback `q`, which answers, on a stopped clock. */
async function start(t: TestContext, script: Script, { p: lines, ...more }: Settings = {}) {
  const clock = stopClock(t);
  // Makes each backoff as short as it may be.
  replaceRandom(t, () => 0);
  const providers = { p: { script, lines }, q: {} };
  const started = await scenario(t, { fallback: ['q'], ...more, providers });
  const { gateway, p } = started;
  /** Sends a request, and returns its tries. */
  const next = async (body: object = chatBody()) => {
    await gateway.chat(body);
    return triesOf(gateway.accessLines().at(-1));
  };
  const failThrice = async () => {
    p.script = failWith(503);
    for (let round = 0; round < 3; round += 1) await next();
  };
  /** Asks for a stream, and waits until it has begun. */
  const begin = async () => {
    const chat = openChat(gateway.port);
    await eventually(() => chat.text() !== '', 'the first event');
    return chat;
  };
  return { ...started, clock, next, failThrice, begin };
}

/** As `start`, with a half-open circuit. From then on, `p` runs the script. */
async function startHalfOpen(t: TestContext, script: Script, settings: Settings = {}) {
  const started = await start(t, script, settings);
  await started.failThrice();
  started.clock.nowMs += REST_MS;
  started.p.script = script;
  return started;
}

/** A script: it begins each stream and keeps it open. */
function holdStreams() {
  const streams: ServerResponse[] = [];
  const script: Script = (request, response) => {
    streams.push(response);
    beginStream(CHUNK)(request, response);
  };
  return { streams, script };
}

test('a provider rests after three failures, and each failed probe doubles the rest', async (t) => {
  const more = '[logging]\nlevel = "debug"';
  const { clock, gateway, next, p } = await start(t, failWith(503), { p: 'retries = 1', more });
  for (let round = 0; round < 3; round += 1) assert.equal(await next(), 'p:503 p:503 q:200');
  const rests: [seconds: number, probe: string][] = [
    [10, 'p:529 q:200'],
    [20, 'p:200'],
  ];
  for (const [seconds, probe] of rests) {
    clock.nowMs += seconds * 1000 - 1;
    assert.equal(await next(), AWAY);
    clock.nowMs += 1;
    p.script = probe === 'p:200' ? answerWell : failWith(529);
    assert.equal(await next(), probe);
  }
  assert.equal(await next(), 'p:200');
  const m = { provider: 'p', model: 'm' };
  const failed = { ...m, cause: 'p failed (x)', cooldown_ms: REST_MS };
  const changes = ['opened', 'half-open', 'stays open', 'closed'].map((what) => `breaker ${what}`);
  const [opened, halfOpen, staysOpen, closed] = changes as [string, string, string, string];
  assert.deepEqual(
    gateway.lines(...changes).map(({ time: _time, ...line }) => line),
    [
      { level: 'warn', message: opened, ...failed, failures: 3 },
      { level: 'debug', message: halfOpen, ...m },
      { level: 'debug', message: staysOpen, ...failed, failures: 4, cooldown_ms: 20_000 },
      { level: 'debug', message: halfOpen, ...m },
      { level: 'info', message: closed, ...m },
    ],
  );
});

const cut: Script = (_, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write(CHUNK, () => response.destroy());
};
const refusal = { message: 'no', code: 'tool_use_failed', status_code: 400 };
const refusalEvent = `data: ${JSON.stringify({ error: refusal })}\n\n`;
const refuse: Script = (_, response) => sendEvents(response, refusalEvent);
const refuseLate: Script = (_, response) => sendEvents(response, CHUNK + LAST + refusalEvent);
const thrice = (script: Script) => [script, script, script];
const [busy, broken] = [failWith(503), failWith(500)];

interface Row extends Settings {
  readonly scripts: readonly Script[];
  readonly opens: boolean;
  readonly body?: object;
}
const rows: Record<string, Row> = {
  'three cut streams': { scripts: thrice(cut), opens: true, body: STREAM },
  'five plain 500': { scripts: [...thrice(broken), broken, broken], opens: false },
  'two failures, a plain 500, and one': { scripts: [busy, busy, broken, busy], opens: true },
  'two failures, an answer 400, and one': {
    scripts: [busy, busy, failWith(400), busy],
    opens: true,
  },
  'three streams whose first event refuses the request': {
    scripts: thrice(refuse),
    opens: false,
    body: STREAM,
  },
  'three streams whose later event refuses the request': {
    scripts: thrice(refuseLate),
    opens: false,
    body: STREAM,
  },
};
for (const code of [200, 401, 404, 429]) {
  const script = code === 200 ? answerWell : failWith(code);
  const scripts = [busy, busy, script, busy, busy];
  rows[`two failures, an answer ${code}, and two`] = { scripts, opens: false };
}
for (const [what, { scripts, opens, body, ...settings }] of Object.entries(rows)) {
  test(`${what} ${opens ? 'open' : 'do not open'} a circuit`, async (t) => {
    const { next, p } = await start(t, answerWell, settings);
    for (const script of scripts) {
      p.script = script;
      assert.match((await next(body))!, /^p:(?!circuit_open)/);
    }
    p.script = answerWell;
    assert.equal(await next(), opens ? AWAY : 'p:200');
  });
}

test('only the model that failed rests, unless no connection can be made', async (t) => {
  const more = providerToml({ baseUrl: NOBODY_LISTENS }, 'gone');
  const { next } = await start(t, byModel({ bad: busy }), { more });
  const ask = async (model: string) => next(chatBody({ model }));
  for (let round = 0; round < 3; round += 1) assert.equal(await ask('p/bad'), 'p:503 q:200');
  assert.deepEqual([await ask('p/bad'), await ask('p/good')], [AWAY, 'p:200']);
  for (const model of ['gone/a', 'gone/b', 'gone/c'])
    assert.equal(await ask(model), 'gone:upstream_error q:200');
  assert.equal(await ask('gone/d'), 'gone:circuit_open q:200');
});

test(
  'a provider without a connection within its timeout rests with all models',
  { skip: OVER_FETCH },
  async (t) => {
    const more = providerToml(await startBlackHole(t), 's', 'timeout = 1');
    const { gateway, next } = await start(t, answerWell, { more });
    const models = ['s/a', 's/b', 's/c'];
    await Promise.all(models.map(async (model) => gateway.chat(chatBody({ model }))));
    const tries = gateway.accessLines().map(triesOf);
    assert.deepEqual(tries, Array<string>(3).fill('s:timeout q:200'));
    assert.equal(await next(chatBody({ model: 's/d' })), 's:circuit_open q:200');
  },
);

test("a request that is kept away takes none of the provider's tokens", async (t) => {
  const limit = 'requests_per_second = 1\nburst_capacity = 3';
  const more = `[rate_limit]\nenabled = true\n[rate_limit.providers.p]\n${limit}`;
  const { clock, failThrice, next } = await start(t, busy, { more, adjust: withoutRefill });
  await failThrice();
  for (let round = 0; round < 3; round += 1) assert.equal(await next(), AWAY);
  clock.nowMs += REST_MS;
  assert.equal(await next(), 'p:limit', 'half-open, and no token is left');
});

describe('the table of circuits', () => {
  const P = { id: 'p', digest: 'p1' };
  const Q = { id: 'q', digest: 'q1' };
  function startBreaker(t: TestContext) {
    const lines: unknown[][] = [];
    const log = (...line: unknown[]) => lines.push(line);
    const breaker = new CircuitBreaker({ log, isEnabled: () => true });
    breaker.guard([P, Q]);
    const fail = (count: number, model?: string, provider = P) => {
      for (; count > 0; count -= 1) breaker.record('failure', provider, model, 'ECONNREFUSED');
    };
    const state = (model: string) => breaker.stateOf(P, model);
    return { breaker, clock: stopClock(t), fail, lines, state };
  }

  test('keeps the 1,000 models that failed last, with names of up to 256 characters', (t) => {
    const { fail, lines, state } = startBreaker(t);
    fail(3, 'first');
    fail(3, 'kept');
    for (let index = 0; index < 998; index += 1) fail(1, `${index}`);
    assert.deepEqual([state('first'), state('kept')], ['open', 'open']);
    fail(1, 'one more');
    assert.deepEqual([state('first'), state('kept')], ['closed', 'open']);
    assert.deepEqual(lines.at(-1), ['info', 'breaker closed', { provider: 'p', model: 'first' }]);
    fail(3, 'x'.repeat(256));
    fail(1000, 'x'.repeat(257));
    assert.deepEqual([state('x'.repeat(256)), state('x'.repeat(257))], ['open', 'closed']);
  });

  test('opens for a provider without connections, until a model answers or fails', (t) => {
    const { breaker, clock, fail, lines, state } = startBreaker(t);
    const provider = { provider: 'p', model: undefined };
    for (const type of ['failure', 'success'] as const) {
      fail(3);
      assert.deepEqual([state('m'), breaker.stateOf(Q, 'm')], ['open', 'closed']);
      breaker.record(type, P, 'm');
      assert.equal(state('m'), 'closed');
      assert.deepEqual(lines.at(-1), ['info', 'breaker closed', provider]);
    }
    for (const kind of ['provider', 'invalidRequest'] as const) {
      fail(3);
      breaker.recordOutcome({ provider: P, model: 'm' }, new GatewayError(kind, 'refused'));
      assert.equal(state('m'), 'closed');
    }
    assert.equal(lines.length, 8, 'a model that failed once has had no circuit to close');
    fail(3, 'm');
    clock.nowMs += REST_MS;
    const probe = breaker.recordAttempt(P, 'm');
    const failure = new GatewayError('provider', 'refused', { provider: 'p', scope: 'provider' });
    assert.ok(typeof probe === 'object');
    breaker.recordOutcome({ provider: P, model: 'm' }, failure, probe);
    probe.end();
    clock.nowMs += 2 * REST_MS - 1;
    assert.equal(state('m'), 'open', 'its probe has failed too');
    clock.nowMs += 1;
    assert.equal(state('m'), 'half-open');
  });

  test('rests for 10, 20, 40 and then 60 s if probes fail, and for 10 s after a success', (t) => {
    const { breaker, clock, fail, state } = startBreaker(t);
    const lastsFor = (ms: number) => {
      clock.nowMs += ms - 1;
      assert.equal(state('m'), 'open', `until ${ms} ms have passed`);
      clock.nowMs += 1;
      assert.equal(state('m'), 'half-open', `after ${ms} ms`);
    };
    const probe = () => {
      const begun = breaker.recordAttempt(P, 'm');
      assert.ok(typeof begun === 'object');
      return begun;
    };
    const failure = new GatewayError('provider', 'cut', { provider: 'p' });
    fail(3, 'm');
    lastsFor(REST_MS);
    for (const seconds of [20, 40, 60, 60]) {
      const begun = probe();
      // A request from before the circuit opened fails late.
      fail(1, 'm');
      breaker.recordOutcome({ provider: P, model: 'm' }, failure, begun);
      begun.end();
      lastsFor(1000 * seconds);
    }
    const undecided = probe();
    fail(1, 'm');
    undecided.end();
    assert.equal(state('m'), 'half-open', 'the late failure of an older request has no effect');
    probe();
    breaker.record('success', P, 'm');
    fail(3, 'm');
    // Requests sent before the rest began do not make it longer.
    fail(2, 'm');
    lastsFor(REST_MS);
    probe().end();
    fail(1, 'm');
    lastsFor(REST_MS);
  });

  test('is reported with the cause and the end of its rest, unless it is closed', (t) => {
    const { breaker, clock, fail } = startBreaker(t);
    const cause = 'ECONNREFUSED';
    const rest = { cause, cooldownMs: REST_MS, isProbed: false };
    const a = { provider: 'p', digest: 'p1', model: 'a', failures: 3, ...rest };
    const q = { provider: 'q', digest: 'q1', model: undefined, failures: 4, ...rest };
    const report = () => breaker.report(String);
    const short = () => report().map((one) => [one.model, one.state, one.openUntilMs]);
    fail(3, 'a');
    fail(1, 'failed once');
    clock.nowMs += 6000;
    fail(4, undefined, Q);
    const untilMs = clock.nowMs + REST_MS;
    assert.deepEqual(report(), [
      { state: 'open', ...a, openUntilMs: untilMs - 6000 },
      { state: 'open', ...q, openUntilMs: untilMs },
    ]);
    clock.nowMs += 4000;
    const ofQ = [undefined, 'open', untilMs];
    assert.deepEqual(short(), [['a', 'half-open', untilMs - 6000], ofQ]);
    breaker.recordAttempt(P, 'a');
    assert.deepEqual(short(), [['a', 'open', clock.nowMs + REST_MS], ofQ]);
    breaker.record('success', Q, 'any');
    assert.equal(report().length, 1);
  });
});

test('a streaming probe succeeds once, when data comes ten seconds after its first', async (t) => {
  const { streams, script } = holdStreams();
  const { begin, clock, failThrice, next, p } = await startHalfOpen(t, script);
  const probe = await begin();
  const send = async (events: string) => {
    const before = probe.text().length;
    streams[0]!.write(events);
    await eventually(() => probe.text().length > before, 'the next event');
  };
  clock.nowMs += REST_MS - 1;
  await send(CHUNK);
  assert.equal(await next(), AWAY);
  clock.nowMs += 1;
  await send(CHUNK);
  // If this were another probe, it would keep the next request away.
  await begin();
  p.script = answerWell;
  assert.equal(await next(), 'p:200');
  await failThrice();
  await send(CHUNK);
  assert.equal(await next(), AWAY, 'a later failure counts, although the stream goes on');
});

test('a probe that is a silent stream has no result, so others follow each 10 s', async (t) => {
  const { streams, script } = holdStreams();
  const { asked, begin, clock, gateway, next } = await startHalfOpen(t, script);
  const first = await begin();
  for (let probes = 2; probes < 5; probes += 1) {
    clock.nowMs += REST_MS;
    streams[0]!.write(`: ${probes}\n\n`);
    await eventually(() => first.text().includes(`${probes}`), 'the comment');
    await begin();
    assert.equal(streams.length, probes);
    assert.deepEqual([await next(), await next()], [AWAY, AWAY]);
  }
  assert.deepEqual(asked(), [3 + 4, 3 + 6]);
  // The latest request still is the probe.
  first.leave();
  await linesOf(gateway, 3 + 6 + 1);
  assert.equal(await next(), AWAY);
});

const LONG = `data: {"x":"${'y'.repeat(1_100_000)}"}\n\n`;
interface NoResult {
  readonly script: Script;
  readonly body: object;
}
const noResult: Readonly<Record<string, NoResult>> = {
  'for whose answer the gateway has no room': {
    script: (_, response) => sendJson(response, completion('x'.repeat(1_100_000))),
    body: chatBody(),
  },
  'for whose first event the gateway has no room': {
    script: (_, response) => sendEvents(response, LONG),
    body: STREAM,
  },
  'for whose later event the gateway has no room': {
    script: (_, response) => sendEvents(response, CHUNK + LONG),
    body: STREAM,
  },
  'that is answered with a plain 500': { script: failWith(500), body: chatBody() },
};
for (const [which, { script, body }] of Object.entries(noResult)) {
  test(`a probe ${which} has no result, so the next request probes at once`, async (t) => {
    const server = 'max_buffered_bytes = 1048576';
    const { gateway, next, p } = await startHalfOpen(t, script, { server });
    await gateway.chat(body).catch(() => {});
    await linesOf(gateway, 4);
    p.script = answerWell;
    assert.equal(await next(), 'p:200');
  });
}

test('of two requests that wait for the store, only one becomes the probe', async (t) => {
  // The store's limit must not pass on a slow machine.
  useManualTimers(t);
  const held: Socket[] = [];
  let holds = false;
  const isOfP = (word: string) => word.includes('rate_limit.providers.p');
  const redis = await startFakeRedis(t, (command, socket) => {
    if (!holds || !command.some(isOfP)) return false;
    return held.push(socket);
  });
  const { gateway, next, p } = await startHalfOpen(t, () => {}, {
    p: 'max_concurrent_requests = 2',
    more: `[rate_limit]
enabled = true
store = "redis://127.0.0.1:${redis.port}"
[rate_limit.providers.p]
requests_per_second = 100`,
  });
  const tokens = () =>
    redis.commands
      .filter((command) => command.some(isOfP))
      .reduce((sum, command) => sum + Number(command.at(-1)!.split(' ').at(-1)), 0);
  const before = tokens();
  holds = true;
  const chats = [openChat(gateway.port, chatBody()), openChat(gateway.port, chatBody())];
  await eventually(() => held.length === 2, 'both ask the store');
  holds = false;
  held[0]!.write(status('OK').repeat(2));
  await linesOf(gateway, 4);
  assert.equal(triesOf(gateway.accessLines()[3]), AWAY);
  assert.equal(p.requests.length, 4);
  assert.equal(tokens() - before, 1);
  chats.forEach((chat) => chat.leave());
  await linesOf(gateway, 5);
  // Both provider slots are free.
  p.script = beginStream(CHUNK);
  const probe = openChat(gateway.port);
  await eventually(() => probe.text() === CHUNK, 'the first event');
  p.script = answerWell;
  assert.equal(await next(), AWAY);
});
