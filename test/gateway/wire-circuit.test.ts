/** Circuits: their failures, the requests that they keep away, and their probes. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { connect, type Socket } from 'node:net';
import { test, type TestContext } from 'node:test';

import { replaceRandom, stopClock, useManualTimers } from '../support/clock.ts';
import { startFakeRedis, status } from '../support/fake-redis.ts';
import { startBlackHole } from '../support/fault-proxy.ts';
import {
  chatBody,
  providerToml,
  STREAM,
  type TestGateway,
  triesOf,
  withoutRefill,
} from '../support/gateway.ts';
import { rawResponse } from '../support/raw-upstream.ts';
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
  /** The body of each request without a body of its own. */
  readonly body?: object;
}

/** Starts provider `p` with this script and its fallback `q`, which answers, on a stopped clock. */
async function start(
  t: TestContext,
  script: Script,
  { p: lines, body: usual = chatBody(), ...more }: Settings = {},
) {
  const clock = stopClock(t);
  // Makes each backoff as short as it may be.
  replaceRandom(t, () => 0);
  const providers = { p: { script, lines }, q: {} };
  const started = await scenario(t, { fallback: ['q'], ...more, providers });
  const { gateway, p } = started;
  /** Sends a request, and returns its tries. */
  const next = async (body = usual) => {
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

/** A script that begins each stream and keeps it open. */
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
  const m = { provider: 'p', model: 'm', stream: false };
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
for (const [what, { scripts, opens, ...settings }] of Object.entries(rows)) {
  test(`${what} ${opens ? 'open' : 'do not open'} a circuit`, async (t) => {
    const { next, p } = await start(t, answerWell, settings);
    for (const script of scripts) {
      p.script = script;
      assert.match((await next())!, /^p:(?!circuit_open)/);
    }
    p.script = answerWell;
    assert.equal(await next(), opens ? AWAY : 'p:200');
  });
}

test('streams that break beside good complete answers open a circuit of streams alone', async (t) => {
  const script: Script = (request, response) =>
    (request.body.includes('"stream":true') ? cut : answerWell)(request, response);
  const { clock, next, p } = await start(t, script);
  for (let round = 0; round < 3; round += 1) {
    assert.deepEqual([await next(STREAM), await next()], ['p:200', 'p:200']);
  }
  assert.deepEqual([await next(STREAM), await next()], [AWAY, 'p:200']);
  clock.nowMs += REST_MS;
  assert.equal(await next(), 'p:200', 'no probe of the streams');
  p.script = answerWell;
  assert.deepEqual([await next(STREAM), await next(STREAM)], ['p:200', 'p:200']);
});

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

for (const [name, ask] of Object.entries({
  'a request without a fallback': (gateway: TestGateway) =>
    gateway.chat(chatBody({ model: 's/e' }), { headers: { 'x-gateway-fallback': 'off' } }),
  'the list of its models': (gateway: TestGateway) => gateway.send('/v1/models'),
})) {
  test(
    `a provider rests no longer once ${name} has reached it over a new connection`,
    { skip: OVER_FETCH },
    async (t) => {
      const hole = await startBlackHole(t, rawResponse(JSON.stringify(completion())));
      const { gateway, next } = await start(t, answerWell, {
        more: providerToml(hole, 's', 'timeout = 1'),
      });
      const models = ['s/a', 's/b', 's/c'];
      await Promise.all(models.map(async (model) => gateway.chat(chatBody({ model }))));
      assert.equal(await next(chatBody({ model: 's/d' })), 's:circuit_open q:200');
      hole.open();
      // Until the full backlog is accepted, a connection waits for its second SYN.
      const opened = connect(hole.port, '127.0.0.1');
      await once(opened, 'connect');
      opened.destroy();
      let told: string | undefined;
      // On a busy machine the second SYN may come after the time limit.
      for (let asked = 0; asked < 5 && told !== 's:200'; asked += 1) {
        await ask(gateway);
        told = await next(chatBody({ model: 's/d' }));
      }
      assert.equal(told, 's:200');
    },
  );
}

test("a request that is kept away takes none of the provider's tokens", async (t) => {
  const limit = 'requests_per_second = 1\nburst_capacity = 3';
  const more = `[rate_limit]\nenabled = true\n[rate_limit.providers.p]\n${limit}`;
  const { clock, failThrice, next } = await start(t, busy, { more, adjust: withoutRefill });
  await failThrice();
  for (let round = 0; round < 3; round += 1) assert.equal(await next(), AWAY);
  clock.nowMs += REST_MS;
  assert.equal(await next(), 'p:limit', 'half-open, and no token is left');
});

test('a streaming probe succeeds once, when data comes ten seconds after its first', async (t) => {
  const { streams, script } = holdStreams();
  const settings = { body: STREAM };
  const { begin, clock, failThrice, next, p } = await startHalfOpen(t, script, settings);
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
  const settings = { body: STREAM };
  const { asked, begin, clock, gateway, next } = await startHalfOpen(t, script, settings);
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
    const { gateway, next, p } = await startHalfOpen(t, script, { server, body });
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
    body: STREAM,
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
  const chats = [openChat(gateway.port), openChat(gateway.port)];
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
