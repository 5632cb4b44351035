/** Retries, backoff, fallbacks and stale connections. For circuits, see wire-circuit.test.ts. */

import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { test, type TestContext } from 'node:test';

import { idle, replaceRandom, stopClock, useManualTimers } from '../support/clock.ts';
import {
  chatBody,
  providerToml,
  startGateway,
  STREAM,
  triesOf,
  type TestGateway,
} from '../support/gateway.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { byModel, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { eventually } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { failWith as fail, sendEvents, sendJson, type Script } from '../support/upstream.ts';

const firstEvent =
  (error: unknown): Script =>
  (_, response) =>
    sendEvents(response, `data: ${JSON.stringify({ error })}\n\n`);

interface Settings extends Omit<ScenarioSettings<'p'>, 'providers'> {
  /** Further lines for provider `p`. */
  readonly p?: string;
}

/** Starts provider `p` with this script, its fallback `q`, and `r`. Both `q` and `r` answer. */
async function start(t: TestContext, script: Script, { p: lines, ...settings }: Settings = {}) {
  const providers = { p: { script, lines }, q: {}, r: {} };
  const started = await scenario(t, { fallback: ['q'], ...settings, providers });
  return { ...started, ask: async (body?: object) => tell(started.gateway, body) };
}

/**
 * Sends a request. Returns its status, its provider, `!` if `x-should-retry` is false, and its
 * tries.
 */
async function tell(gateway: TestGateway, body: object = chatBody()): Promise<string> {
  const { status, headers } = await gateway.chat(body);
  const id = headers['x-request-id'];
  const line = gateway.accessLines().find(({ request_id }) => request_id === id);
  const repeat = headers['x-should-retry'] === 'false' ? '!' : '';
  return `${status} ${String(headers['x-gateway-provider'])}${repeat} (${triesOf(line)})`;
}

/** Returns failing scripts, each for the model `a <status>`. */
const failing = (statuses: readonly number[]) =>
  Object.fromEntries(statuses.map((status) => [`a ${status}`, fail(status)]));

const ALONE = { fallback: [] };

test('an account without money or a first error event is not retried', async (t) => {
  const scripts = {
    'no money': fail(429, { code: 'insufficient_quota' }),
    event: firstEvent({ message: 'overloaded', code: 503 }),
  };
  const { ask } = await start(t, byModel(scripts), { server: 'retries = 2', ...ALONE });
  assert.equal(await ask(chatBody({ model: 'p/no money' })), '429 p! (p:429)');
  assert.equal(await ask({ ...STREAM, model: 'p/event' }), '503 p (p:200)');
});

test('a Retry-After of 30 s is waited for, and a longer wait is left to the client', async (t) => {
  const timers = useManualTimers(t);
  replaceRandom(t, () => 0);
  const script = fail(503, { headers: { 'retry-after': '30' } });
  const { ask, asked, p } = await start(t, script, { server: 'retries = 1', ...ALONE });
  const reply = ask();
  await eventually(() => timers.running().includes(30_000), 'the wait');
  timers.advance(29_999);
  await idle(60);
  assert.deepEqual(asked(), [1, 0, 0]);
  timers.advance(1);
  assert.equal(await reply, '503 p! (p:503 p:503)');
  p.script = fail(503, { headers: { 'retry-after': '31' } });
  assert.equal(await ask(), '503 p (p:503)');
});

const STEPS_MS = [500, 1000, 2000, 4000, 8000, 8000];
test('the backoff doubles from 500 ms to 8 s', async (t) => {
  const timers = useManualTimers(t);
  replaceRandom(t, () => 1 - Number.EPSILON);
  const server = `retries = ${STEPS_MS.length}`;
  const { ask, asked } = await start(t, fail(503), { server, ...ALONE });
  const reply = ask();
  for (const [index, stepMs] of STEPS_MS.entries()) {
    // Other test files share the process, and have timers too.
    const isWaiting = () => timers.running().map(Math.round).includes(stepMs);
    await eventually(() => asked()[0] === index + 1 && isWaiting(), `wait ${index + 1}`);
    timers.advance(stepMs);
  }
  assert.match(await reply, /^503 p! /);
});

const refusals: Record<string, readonly [status: number, error: object]> = {
  'event request': [400, { message: 'no', type: 'invalid_request_error' }],
  'event model': [404, { message: 'no', code: 'model_not_found' }],
  'event policy': [400, { message: 'no', type: 'content_policy_violation' }],
  'event prompt': [400, { message: 'no', code: 'invalid_prompt' }],
  'event prompt with a status': [500, { message: 'no', code: 'invalid_prompt', status: 500 }],
  'event moderation': [403, { message: 'Content violates usage guidelines.', status: 403 }],
  'event moderation without a status': [400, { message: 'Content violates usage guidelines.' }],
  'event key': [401, { message: 'no', code: 401 }],
};
test('a first event that refuses the request is the answer, without a fallback', async (t) => {
  const scripts = Object.entries(refusals).map(([model, [, error]]) => [model, firstEvent(error)]);
  const { ask, asked } = await start(t, byModel(Object.fromEntries(scripts)));
  for (const [model, [status]] of Object.entries(refusals))
    assert.match(await ask({ ...STREAM, model: `p/${model}` }), new RegExp(`^${status} p!? `));
  assert.deepEqual(asked(), [8, 0, 0]);
});

test('fallback_on adds statuses after which the next provider is asked', async (t) => {
  const scripts = {
    ...failing([401, 403, 404, 422]),
    'an event': firstEvent({ message: 'no', code: 'model_not_found' }),
    policy: fail(403, { code: 'content_policy_violation' }),
    moderation: fail(403, { message: 'Content violates usage guidelines.' }),
  };
  const { ask, q } = await start(t, byModel(scripts), { fallbackOn: [401, 403, 404] });
  const own: Record<string, RegExp> = {
    'a 422': /^422 p /,
    policy: /^403 p /,
    moderation: /^403 p /,
  };
  for (const model of Object.keys(scripts)) {
    for (const body of model === 'an event' ? [STREAM] : [chatBody(), STREAM])
      assert.match(await ask({ ...body, model: `p/${model}` }), own[model] ?? /^200 q /, model);
  }
  q.script = fail(500);
  assert.equal(await ask(chatBody({ model: 'p/a 404' })), '404 p! (p:404 q:500)');
});

test('a content refusal by its message alone asks nobody else under any status', async (t) => {
  const error = { message: 'Your request was rejected as a result of our safety system.' };
  const scripts: Record<string, Script> = {
    'a 200': (_, response) => sendJson(response, { error }),
    ...Object.fromEntries(
      [404, 429, 500, 503].map((status) => [`a ${status}`, fail(status, error)] as const),
    ),
  };
  const settings = { p: 'api_keys = ["key-number-1", "key-number-2"]' };
  const { ask, asked, gateway } = await start(t, byModel(scripts), settings);
  for (const model of Object.keys(scripts)) {
    const sent = model.slice(2);
    const reply = await ask(chatBody({ model: `p/${model}` }));
    assert.match(reply, new RegExp(`^${sent === '200' ? 400 : sent} p!? \\(p:${sent}\\)$`), model);
  }
  assert.deepEqual(asked(), [5, 0, 0]);
  assert.deepEqual(gateway.lines('key in cooldown'), []);
  for (const { outcome } of gateway.accessLines()) assert.equal(outcome, 'rejected');
});

test("a fallback's refusal by a content policy is the answer, and nobody else is asked", async (t) => {
  const scripts = { a: fail(503) };
  for (const [status, code] of [
    [403, 'cyber_policy'],
    [400, 'content_policy_violation'],
  ] as const) {
    const { ask, asked, gateway, q } = await start(t, byModel(scripts), { fallback: ['q', 'r'] });
    q.script = fail(status, { code });
    // The third failure opens the circuit of p, which is then asked last.
    for (let count = 0; count < 4; count += 1) {
      const tries = count < 3 ? `p:503 q:${status}` : `p:circuit_open q:${status}`;
      assert.match(
        await ask(chatBody({ model: 'p/a' })),
        new RegExp(`^${status} q!? \\(${tries}\\)`),
      );
    }
    assert.deepEqual(asked(), [3, 4, 0]);
    assert.equal(gateway.accessLines()[0]!['outcome'], 'rejected');
    q.script = fail(404);
    assert.match(
      await ask(chatBody({ model: 'p/a' })),
      /^200 r /,
      'another refusal is passed over',
    );
  }
});

const ANSWER = rawResponse('{"choices":[]}');
const CLOSES: Record<string, (socket: Socket) => unknown> = {
  closed: (socket) => socket.destroy(),
  reset: (socket) => socket.resetAndDestroy(),
};
/** Chooses what a provider does with a request at a place, `<connection>.<request on it>`. */
type Act = (place: string) => 'answer' | 'fail' | 'close' | 'close late' | 'close inside';

/** Starts a provider that follows `act`, on a stopped clock that only `close late` moves. */
async function startStale(t: TestContext, act: Act, close: (socket: Socket) => unknown) {
  // A slow machine could take more than a second. After a second, a lost connection is not stale.
  const clock = stopClock(t);
  const places: string[] = [];
  const upstream = await startRawUpstream(t, ({ socket, connection, onConnection }) => {
    const place = `${connection}.${onConnection}`;
    places.push(place);
    const what = act(place);
    if (what === 'close late') clock.nowMs += 1000;
    if (what === 'answer') socket.write(ANSWER);
    else if (what === 'fail') socket.write(rawResponse('{}', { status: '429 Too Many Requests' }));
    else if (what !== 'close inside') close(socket);
    else socket.write('HTTP/1.1 200 OK\r\ncontent-', () => setTimeout(() => close(socket), 20));
  });
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  return { ask: async () => tell(gateway), places };
}

const WELL = '200 p (p:200)';
const REPLACED = '200 p (p:upstream_error p:200)';
const isFirst = (place: string) => place.endsWith('.1');
const stale: Record<string, [Act, told: readonly string[], places: string, isOfAgent?: boolean]> = {
  'is replaced without the client noticing': [
    (place) => (isFirst(place) ? 'answer' : 'close'),
    // Twice, because the second connection is kept and closed too.
    [WELL, REPLACED, REPLACED],
    '1.1 1.2 2.1 2.2 3.1',
    true,
  ],
  'is replaced, and the client may repeat a 429 that follows': [
    (place) => (place === '2.1' ? 'fail' : isFirst(place) ? 'answer' : 'close'),
    [WELL, '429 p (p:upstream_error p:429)'],
    '1.1 1.2 2.1',
    true,
  ],
  'is replaced once, and a second stale connection is a 502': [
    (place) => (place === '1.1' ? 'answer' : 'close'),
    [WELL, '502 p (p:upstream_error p:upstream_error)'],
    '1.1 1.2 2.1',
    true,
  ],
  'a second after the request is a 502, because the provider may have worked on it': [
    (place) => (isFirst(place) ? 'answer' : 'close late'),
    [WELL, '502 p (p:upstream_error)'],
    '1.1 1.2',
  ],
  'although it is new, at once or inside its first answer, is a 502': [
    (place) => (place === '1.1' ? 'close' : 'close inside'),
    ['502 p (p:upstream_error)', '502 p (p:upstream_error)'],
    '1.1 2.1',
  ],
};

for (const [how, close] of Object.entries(CLOSES)) {
  for (const [what, [act, told, expected, isOfAgent = false]] of Object.entries(stale)) {
    const skip = isOfAgent && OVER_FETCH;
    test(`a connection that is ${how} ${what}`, { skip }, async (t) => {
      const { ask, places } = await startStale(t, act, close);
      for (const one of told) assert.equal(await ask(), one);
      assert.equal(places.join(' '), expected);
    });
  }
}
