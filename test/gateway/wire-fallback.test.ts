/** Retries, the waits between them, fallbacks, and connections that were kept alive; circuits are in wire-circuit.test.ts. */

import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { after, before, describe, mock, test, type TestContext } from 'node:test';

import { idle, replaceRandom, stopClock, useManualTimers } from '../support/clock.ts';
import {
  chatBody,
  providerToml,
  startGateway,
  STREAM,
  triesOf,
  type TestGateway,
  withoutRefill,
} from '../support/gateway.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { byModel, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import { failWith as fail, sendEvents, type Script } from '../support/upstream.ts';

const firstEvent =
  (error: unknown): Script =>
  (_, response) =>
    sendEvents(response, `data: ${JSON.stringify({ error })}\n\n`);

interface Settings extends Omit<ScenarioSettings<'p'>, 'providers'> {
  /** Lines of the provider `p`. */
  readonly p?: string;
}

/** Provider `p`, which does as it is told, its fallback `q`, and `r`, which answer. */
async function start(t: TestContext, script: Script, { p: lines, ...settings }: Settings = {}) {
  const providers = { p: { script, lines }, q: {}, r: {} };
  const started = await scenario(t, { fallback: ['q'], ...settings, providers });
  return { ...started, ask: async (body?: object) => tell(started.gateway, body) };
}

/** Asks, and returns the status and who answered it, with `!` if a repeat is said not to help, and the tries. */
async function tell(gateway: TestGateway, body: object = chatBody()): Promise<string> {
  const { status, headers } = await gateway.chat(body);
  const id = headers['x-request-id'];
  const line = gateway.accessLines().find(({ request_id }) => request_id === id);
  const repeat = headers['x-should-retry'] === 'false' ? '!' : '';
  return `${status} ${String(headers['x-gateway-provider'])}${repeat} (${triesOf(line)})`;
}

/** Scripts that fail, each under the model `a <status>`. */
const failing = (statuses: readonly number[]) =>
  Object.fromEntries(statuses.map((status) => [`a ${status}`, fail(status)]));

/** The shortest backoff there is: half of each step. For the tests of a suite, which may run at the same time. */
function useShortestBackoff(): void {
  let mocked: { readonly mock: { restore(): void } } | undefined;
  before(() => {
    mocked = mock.method(Math, 'random', () => 0);
  });
  after(() => mocked?.mock.restore());
}

const RETRIED = [408, 429, 500, 502, 503, 504, 529];
const NOT_RETRIED = [400, 401, 402, 403, 404, 409, 413, 422, 501];
const ALONE = { fallback: [] };

describe('retries', { concurrency: true }, () => {
  useShortestBackoff();

  test(`of the statuses, ${RETRIED.join(', ')} are retried as often as retries says, and then are the answer`, async (t) => {
    const script = byModel(failing([...RETRIED, ...NOT_RETRIED]));
    const { ask } = await start(t, script, { server: 'retries = 2', ...ALONE });
    const check = async (status: number) => {
      const one = `p:${status}`;
      const expected = RETRIED.includes(status) ? `p! (${one} ${one} ${one})` : `p (${one})`;
      assert.equal(await ask(chatBody({ model: `p/a ${status}` })), `${status} ${expected}`);
    };
    await Promise.all([...RETRIED, ...NOT_RETRIED].map(check));
  });

  test('an account without money and a first event that is an error are asked once', async (t) => {
    const scripts = {
      'no money': fail(429, { code: 'insufficient_quota' }),
      event: firstEvent({ message: 'overloaded', code: 503 }),
    };
    const { ask } = await start(t, byModel(scripts), { server: 'retries = 2', ...ALONE });
    assert.equal(await ask(chatBody({ model: 'p/no money' })), '429 p! (p:429)');
    assert.equal(await ask({ ...STREAM, model: 'p/event' }), '503 p (p:200)');
  });
});

test('a Retry-After of 30 s is waited for, and one of more is left to the client', async (t) => {
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
for (const [luck, share] of [
  [0, 0.5],
  [1 - Number.EPSILON, 1],
] as const) {
  test(`the backoff is ${share === 1 ? 'at most' : 'at least half of'} its step, which doubles from 500 ms to 8 s`, async (t) => {
    const timers = useManualTimers(t);
    replaceRandom(t, () => luck);
    const server = `retries = ${STEPS_MS.length}`;
    const { ask, asked } = await start(t, fail(503), { server, ...ALONE });
    const reply = ask();
    for (const [index, stepMs] of STEPS_MS.entries()) {
      const waits = () => timers.running().map(Math.round).join();
      const isDue = () => asked()[0] === index + 1 && waits() === `${stepMs * share}`;
      await eventually(isDue, `the wait ${index + 1}`);
      timers.advance(stepMs * share);
    }
    assert.match(await reply, /^503 p! /);
  });
}

describe('fallback', { concurrency: true }, () => {
  useShortestBackoff();

  const refusals: Record<string, readonly [status: number, error: object]> = {
    'event request': [400, { message: 'no', type: 'invalid_request_error' }],
    'event model': [404, { message: 'no', code: 'model_not_found' }],
    'event policy': [400, { message: 'no', type: 'content_policy_violation' }],
    'event key': [401, { message: 'no', code: 401 }],
  };
  test('a first event that refuses the request, its model, its content or the key is the answer, and no fallback is tried', async (t) => {
    const scripts = Object.entries(refusals).map(([model, [, error]]) => [
      model,
      firstEvent(error),
    ]);
    const { ask, asked } = await start(t, byModel(Object.fromEntries(scripts)));
    for (const [model, [status]] of Object.entries(refusals))
      assert.equal(await ask({ ...STREAM, model: `p/${model}` }), `${status} p (p:200)`);
    assert.deepEqual(asked(), [4, 0, 0]);
  });

  test('fallback_on names further statuses after which the next provider answers, also if a stream begins with one', async (t) => {
    const scripts = {
      ...failing([401, 403, 404, 422]),
      'an event': firstEvent({ message: 'no', code: 'model_not_found' }),
      policy: fail(403, { code: 'content_policy_violation' }),
    };
    const { ask, q } = await start(t, byModel(scripts), { fallbackOn: [401, 403, 404] });
    const own: Record<string, RegExp> = { 'a 422': /^422 p /, policy: /^403 p / };
    for (const model of Object.keys(scripts)) {
      for (const body of model === 'an event' ? [STREAM] : [chatBody(), STREAM])
        assert.match(await ask({ ...body, model: `p/${model}` }), own[model] ?? /^200 q /, model);
    }
    q.script = fail(500);
    assert.equal(await ask(chatBody({ model: 'p/a 404' })), '404 p! (p:404 q:500)');
  });

  for (const [id, told] of [
    ['p', '429 p! (p:limit)'],
    ['q', '200 r (p:503 q:limit r:200)'],
  ] as const) {
    const what = id === 'p' ? 'is the answer' : 'passes it over where it is a fallback';
    test(`the rate limit of ${id} ${what}`, async (t) => {
      const limit = 'requests_per_second = 1\nburst_capacity = 1';
      const more = `[rate_limit]\nenabled = true\n[rate_limit.providers.${id}]\n${limit}`;
      const settings = { more, adjust: withoutRefill, fallback: ['q', 'r'] };
      const { ask } = await start(t, fail(503), settings);
      assert.equal(await ask(), '200 q (p:503 q:200)');
      assert.equal(await ask(), told);
    });
  }

  test('each fallback is tried once, in the listed order, and the requested provider not again; if all fail, its failure is the answer', async (t) => {
    const script = fail(503, { headers: { 'retry-after': '7' } });
    const { ask, gateway, q, r } = await start(t, script, { fallback: ['r', 'p', 'q', 'r'] });
    r.script = fail(500);
    assert.equal(await ask(), '200 q (p:503 r:500 q:200)');
    q.script = fail(404);
    assert.equal(await ask(), '503 p! (p:503 r:500 q:404)', 'r is listed twice');
    const { headers, ...reply } = await gateway.chat(chatBody());
    const { provider, status } = reply.json().error;
    assert.deepEqual([headers['retry-after'], provider, status], ['7', 'p', 503]);
  });
});

const ANSWER = rawResponse('{"choices":[]}');
const CLOSES: Record<string, (socket: Socket) => unknown> = {
  closed: (socket) => socket.destroy(),
  reset: (socket) => socket.resetAndDestroy(),
};
/** What a provider does with a request by its place, `<connection>.<request on it>`. */
type Act = (place: string) => 'answer' | 'hold' | 'fail' | 'close' | 'close late' | 'close inside';

/** A provider that does so, where a clock that stands still is moved by what is late. */
async function startStale(t: TestContext, act: Act, close = CLOSES['closed']!, server = '') {
  // A slow machine would take longer than a second, after which a connection is not a stale one.
  const clock = stopClock(t);
  const places: string[] = [];
  const { opened, open } = createGate();
  const upstream = await startRawUpstream(t, async ({ socket, connection, onConnection }) => {
    const place = `${connection}.${onConnection}`;
    places.push(place);
    const what = act(place);
    if (what === 'hold') await opened;
    if (what === 'close late') clock.nowMs += 1000;
    if (what === 'answer' || what === 'hold') socket.write(ANSWER);
    else if (what === 'fail') socket.write(rawResponse('{}', { status: '429 Too Many Requests' }));
    else if (what !== 'close inside') close(socket);
    else socket.write('HTTP/1.1 200 OK\r\ncontent-', () => setTimeout(() => close(socket), 20));
  });
  const toml = `[server]\n${server}\n${providerToml(upstream)}`;
  const gateway = await startGateway(t, { toml });
  return { ask: async () => tell(gateway), places, open };
}

const WELL = '200 p (p:200)';
const REPLACED = '200 p (p:upstream_error p:200)';
const isFirst = (place: string) => place.endsWith('.1');
const stale: Record<string, [Act, told: readonly string[], places: string, isOfAgent?: boolean]> = {
  'is replaced without the client noticing': [
    (place) => (isFirst(place) ? 'answer' : 'close'),
    [WELL, REPLACED, WELL],
    // The second connection is not kept: the next request has a connection of its own.
    '1.1 1.2 2.1 3.1',
    true,
  ],
  'is replaced for free: the client may repeat a 429 after it': [
    (place) => (place === '2.1' ? 'fail' : isFirst(place) ? 'answer' : 'close'),
    [WELL, '429 p (p:upstream_error p:429)'],
    '1.1 1.2 2.1',
    true,
  ],
  'is replaced once: if the new one is too, that is a 502': [
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

  const all = `connections that are ${how} when they are used again are each replaced by a new one`;
  test(all, { skip: OVER_FETCH }, async (t) => {
    const act: Act = (place) => (isFirst(place) ? 'hold' : 'close');
    const { ask, places, open } = await startStale(t, act, close);
    const first = [ask(), ask(), ask()];
    await eventually(() => places.length === 3, 'three connections');
    open();
    await Promise.all(first);
    for (let count = 0; count < 3; count += 1) assert.match(await ask(), /^200 /);
  });
}

test(
  'a connection that is replaced does not lengthen the backoff',
  { skip: OVER_FETCH },
  async (t) => {
    replaceRandom(t, () => 1 - Number.EPSILON);
    const timers = useManualTimers(t);
    const act: Act = (place) => (place === '1.1' ? 'answer' : place === '1.2' ? 'close' : 'fail');
    const { ask } = await startStale(t, act, CLOSES['closed'], 'retries = 1');
    assert.equal(await ask(), WELL);
    const reply = ask();
    await eventually(() => timers.running().map(Math.round).join() === '500', 'the wait');
    timers.advance(1000);
    assert.equal(await reply, '429 p! (p:upstream_error p:429 p:429)');
  },
);
