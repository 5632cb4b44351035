import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { after, before, describe, mock, test, type TestContext } from 'node:test';

import type { Config } from '../../src/config/config.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import type { LogFacts, LogLevel } from '../../src/lib/log.ts';
import { CircuitBreaker } from '../../src/policy/circuit-breaker.ts';
import { idle, replaceRandom, type ManualTimers, useManualTimers } from '../support/clock.ts';
import {
  chatBody,
  providerToml,
  startGateway,
  triesOf,
  type Reply,
  withoutRefill,
  STREAM,
} from '../support/gateway.ts';
import { startBlackHole } from '../support/fault-proxy.ts';
import { rawResponse, startRawUpstream } from '../support/raw-upstream.ts';
import { byModel, modelOf, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { OVER_FETCH } from '../support/transport.ts';
import {
  NOBODY_LISTENS,
  answerWell,
  beginStream,
  CHUNK,
  completionEvents,
  failWith as fail,
  sendEvents,
  type Script,
} from '../support/upstream.ts';

const GONE = `[providers.gone]\nbase_url = "${NOBODY_LISTENS}"\napi_key = "none"\n`;

const firstEvent =
  (error: unknown): Script =>
  (_, response) =>
    sendEvents(response, `data: ${JSON.stringify({ error })}\n\n`);
const hang: Script = () => {};
const reset: Script = (_, response) => response.socket?.resetAndDestroy();

interface Settings extends Omit<ScenarioSettings<'p'>, 'providers'> {
  /** Lines of the provider `p`. */
  readonly p?: string;
}

/** Provider `p`, which does as it is told, its fallback `q`, and `r`, which answer. */
const start = async (t: TestContext, script: Script, { p: lines, ...settings }: Settings = {}) => {
  const providers = { p: { script, lines }, q: {}, r: {} };
  return scenario(t, { fallback: ['q'], ...settings, providers });
};

function facts({ status, headers }: Reply): unknown[] {
  return [status, headers['x-gateway-provider'], headers['x-should-retry']];
}

/** Who answered, and with which status. */
const answered = (reply: Reply) => facts(reply).slice(0, 2).join(' ');

/** Scripts that fail, each under the model `<status>`. */
const failing = (statuses: readonly number[]) =>
  Object.fromEntries(statuses.map((status) => [`a ${status}`, fail(status)]));

/** Replaces a method while the tests of this suite run, which may be at the same time. */
function mockForSuite<K extends 'now' | 'random'>(
  object: Record<K, () => number>,
  name: K,
  method: () => number,
): void {
  let mocked: { readonly mock: { restore(): void } } | undefined;
  before(() => {
    mocked = mock.method(object, name, method);
  });
  after(() => mocked?.mock.restore());
}

/** The shortest backoff there is: half of each step. */
const useShortestBackoff = (): void => mockForSuite(Math, 'random', () => 0);

describe('retries', { concurrency: true }, () => {
  useShortestBackoff();

  const retriable = [408, 429, 500, 502, 503, 504, 529];
  const others = [400, 401, 402, 403, 404, 409, 413, 422, 501];

  test(`of the statuses, ${retriable.join(', ')} are retried as often as retries says, and then are the answer`, async (t) => {
    const { gateway, asked } = await start(t, byModel(failing([...retriable, ...others])), {
      server: 'retries = 2',
      fallback: [],
    });
    const ask = async (status: number) => {
      const reply = await gateway.chat(chatBody({ model: `p/a ${status}` }));
      const isRetried = retriable.includes(status);
      assert.deepEqual(facts(reply), [status, 'p', isRetried ? 'false' : undefined]);
    };
    await Promise.all(retriable.map(ask));
    assert.deepEqual(asked(), [3 * retriable.length, 0, 0]);
    await Promise.all(others.map(ask));
    assert.deepEqual(asked(), [3 * retriable.length + others.length, 0, 0]);
    const tries = gateway.accessLines().map(({ tries: each }) => (each as unknown[]).length);
    assert.deepEqual(new Set(tries.slice(0, retriable.length)), new Set([3]));
  });

  test('an account without money is asked once', async (t) => {
    const { gateway, asked } = await start(t, fail(429, { code: 'insufficient_quota' }), {
      server: 'retries = 2',
      fallback: [],
    });
    assert.equal((await gateway.chat(chatBody())).status, 429);
    assert.deepEqual(asked(), [1, 0, 0]);
  });

  test('a retry that succeeds is the answer, for streams too', async (t) => {
    for (const body of [chatBody(), STREAM]) {
      for (const failure of [fail(503), reset]) {
        let tries = 0;
        const script: Script = (request, response) => {
          tries += 1;
          return (tries === 1 ? failure : answerWell)(request, response);
        };
        const { gateway, asked } = await start(t, script, { p: 'retries = 1' });
        assert.equal(answered(await gateway.chat(body)), '200 p');
        assert.deepEqual(asked(), [2, 0, 0]);
      }
    }
  });

  const firstTryAlone: Record<string, [script: Script, settings: Settings, told: RegExp]> = {
    'a provider\u2019s own retries override the server\u2019s': [
      fail(500),
      { server: 'retries = 3', p: 'retries = 0' },
      /"status":500/,
    ],
    'a timeout is not retried': [hang, { server: 'retries = 2\ntimeout = 1' }, /"TIMEOUT"/],
    'a stream that begins with an error event is not retried': [
      firstEvent({ message: 'overloaded', code: 503 }),
      { server: 'retries = 2' },
      /"status":503/,
    ],
    'a stream that breaks after its first event is not retried': [
      (_, response) => sendEvents(response, CHUNK),
      { server: 'retries = 2', fallback: ['q'] },
      /\n\ndata: \{"error":/,
    ],
  };
  for (const [what, [script, settings, told]] of Object.entries(firstTryAlone)) {
    test(what, async (t) => {
      const { gateway, asked } = await start(t, script, { fallback: [], ...settings });
      const reply = await gateway.chat(what.includes('stream') ? STREAM : chatBody());
      assert.match(reply.text, told);
      assert.equal(
        reply.headers['x-should-retry'],
        told.source === '"TIMEOUT"' ? 'false' : undefined,
      );
      assert.deepEqual(asked(), [1, 0, 0]);
    });
  }
});

/** No attempt is under way, with its limit, and something is waited for. */
function isWaiting(timers: ManualTimers): boolean {
  return timers.running().length === 1 && !timers.running(60_000).includes(60_000);
}

/** Waits between attempts, which last until the test lets the time pass. */
async function startTimed(t: TestContext, script: Script, retries: number) {
  const timers = useManualTimers(t);
  const server = `retries = ${retries}`;
  const { gateway, asked } = await start(t, script, { server, fallback: [] });
  const attempts = () => asked()[0]!;
  const waitAfter = async (count: number) => {
    await eventually(() => attempts() === count && isWaiting(timers), `the wait ${count}`);
    return timers.running()[0]!;
  };
  return { timers, gateway, attempts, waitAfter };
}

describe('waits between attempts', () => {
  useShortestBackoff();

  for (const seconds of [1, 2, 30]) {
    test(`a Retry-After of ${seconds} s is waited for`, async (t) => {
      const script = fail(429, { headers: { 'retry-after': `${seconds}` } });
      const { timers, gateway, attempts, waitAfter } = await startTimed(t, script, 1);
      const reply = gateway.chat(chatBody());
      assert.equal(await waitAfter(1), seconds * 1000);
      timers.advance(seconds * 1000 - 1);
      await idle(60);
      assert.equal(attempts(), 1);
      timers.advance(1);
      assert.equal((await reply).status, 429);
      assert.equal(attempts(), 2);
    });
  }

  test('a Retry-After of more than 30 s is left to the client', async (t) => {
    const script = fail(503, { headers: { 'retry-after': '31' } });
    const { gateway, attempts } = await startTimed(t, script, 2);
    const reply = await gateway.chat(chatBody());
    assert.equal(reply.headers['retry-after'], '31');
    assert.equal(attempts(), 1);
  });

  const STEPS = [500, 1000, 2000, 4000, 8000, 8000];
  for (const [luck, share] of [
    [0, 0.5],
    [1 - Number.EPSILON, 1],
  ] as const) {
    test(`the backoff is ${share === 1 ? 'at most' : 'at least half of'} its step, which doubles from 500 ms to 8 s`, async (t) => {
      replaceRandom(t, () => luck);
      const { timers, gateway, waitAfter } = await startTimed(t, fail(503), STEPS.length);
      const reply = gateway.chat(chatBody());
      for (const [index, step] of STEPS.entries()) {
        const waitMs = await waitAfter(index + 1);
        assert.equal(Math.round(waitMs), step * share);
        timers.advance(waitMs);
      }
      assert.equal((await reply).status, 503);
    });
  }

  test(
    'the immediate attempt after a stale connection does not lengthen the backoff',
    { skip: OVER_FETCH },
    async (t) => {
      replaceRandom(t, () => 1 - Number.EPSILON);
      const timers = useManualTimers(t);
      const unavailable = rawResponse('{}', { status: '503 Service Unavailable' });
      const upstream = await startRawUpstream(t, ({ socket, connection, onConnection }) => {
        if (connection > 1) socket.write(unavailable);
        else if (onConnection === 1) socket.write(rawResponse('{"choices":[]}'));
        else socket.destroy();
      });
      const toml = `[server]\nretries = 1\n${providerToml(upstream)}`;
      const gateway = await startGateway(t, { toml });
      assert.equal((await gateway.chat(chatBody())).status, 200);
      const reply = gateway.chat(chatBody());
      await eventually(() => upstream.requests.length === 3 && isWaiting(timers), 'the wait');
      assert.deepEqual(timers.running().map(Math.round), [500]);
      timers.advance(500);
      assert.equal((await reply).status, 503);
      assert.equal(upstream.requests.length, 4);
    },
  );
});

describe('fallback', { concurrency: true }, () => {
  useShortestBackoff();

  const conditions: Record<string, Script> = {
    // First: on a connection that was used before, the request is repeated.
    'a reset connection': reset,
    'a context_length_exceeded': fail(400, { code: 'context_length_exceeded' }),
    ...failing([408, 429, 500, 501, 502, 503, 504, 529]),
  };
  test(`after ${Object.keys(conditions).join(', ')} the next provider answers, streaming or not`, async (t) => {
    const { gateway, asked } = await start(t, byModel(conditions));
    for (const [index, model] of Object.keys(conditions).entries()) {
      for (const body of [chatBody(), STREAM]) {
        const reply = await gateway.chat({ ...body, model: `p/${model}` });
        assert.equal(answered(reply), '200 q', model);
      }
      assert.deepEqual(asked(), [2 * (index + 1), 2 * (index + 1), 0], model);
    }
  });

  const noStreams: Record<string, Script> = {
    'an error object': firstEvent({ message: 'overloaded' }),
    'an error string': firstEvent('overloaded'),
    'an error with a status': firstEvent({ message: 'overloaded', code: 503 }),
    'an error of length': firstEvent({ message: 'x', code: 'context_length_exceeded' }),
    'no event at all': (_, response) => sendEvents(response, ''),
    'comments and [DONE] alone': (_, response) => sendEvents(response, ': x\n\ndata: [DONE]\n\n'),
    'an SSE field error': (_, response) =>
      sendEvents(response, 'error: {"code":500,"message":"x"}\n\ndata: [DONE]\n\n'),
    'comments and then an error': (_, response) =>
      sendEvents(response, ': x\n\ndata: {"error":{"message":"x"}}\n\n'),
  };
  test(`after a stream that begins with ${Object.keys(noStreams).join(', ')} the next provider answers`, async (t) => {
    const { gateway, asked } = await start(t, byModel(noStreams));
    for (const [index, model] of Object.keys(noStreams).entries()) {
      const reply = await gateway.chat({ ...STREAM, model: `p/${model}` });
      assert.deepEqual([reply.text, answered(reply)], [completionEvents(), '200 q'], model);
      assert.deepEqual(asked(), [index + 1, index + 1, 0], model);
    }
  });

  test('a timeout falls back, and so does a stream without a first event in time', async (t) => {
    const { gateway } = await start(t, hang, { p: 'timeout = 1' });
    const server = 'first_token_timeout = 1';
    const slow = await start(t, beginStream(': keep-alive\n\n'), { server });
    const replies = await Promise.all([gateway.chat(chatBody()), slow.gateway.chat(STREAM)]);
    assert.deepEqual(replies.map(answered), ['200 q', '200 q']);
  });

  const answers: Record<string, [status: number, script: Script]> = {
    ...Object.fromEntries(
      [400, 401, 402, 403, 404, 409, 413, 422].map((status) => [
        `${status}`,
        [status, fail(status)],
      ]),
    ),
    policy: [400, fail(400, { code: 'content_policy_violation' })],
    filter: [500, fail(500, { code: 'content_filter' })],
  };
  test('a failure of the request, a rejected key and a refusal by policy are the answer, and no fallback is tried', async (t) => {
    const scripts = Object.entries(answers).map(([model, [, script]]) => [model, script]);
    const { gateway, asked } = await start(t, byModel(Object.fromEntries(scripts)));
    for (const [model, [status]] of Object.entries(answers)) {
      for (const body of [chatBody(), STREAM]) {
        const reply = await gateway.chat({ ...body, model: `p/${model}` });
        assert.deepEqual(facts(reply), [status, 'p', undefined], model);
      }
    }
    assert.deepEqual(asked(), [2 * scripts.length, 0, 0]);
  });

  test('fallback_on names further statuses after which the next provider answers, also if a stream begins with one', async (t) => {
    const scripts = {
      ...failing([401, 403, 404, 422]),
      'an event': firstEvent({ message: 'no', code: 'model_not_found' }),
      policy: fail(403, { code: 'content_policy_violation' }),
    };
    const { gateway, q, asked } = await start(t, byModel(scripts), { fallbackOn: [401, 403, 404] });
    const own = { 'a 422': '422 p', policy: '403 p' } as Record<string, string>;
    for (const model of Object.keys(scripts)) {
      for (const body of model === 'an event' ? [STREAM] : [chatBody(), STREAM]) {
        const reply = await gateway.chat({ ...body, model: `p/${model}` });
        assert.equal(answered(reply), own[model] ?? '200 q', model);
      }
    }
    assert.deepEqual(asked(), [11, 7, 0]);
    q.script = fail(500);
    const reply = await gateway.chat(chatBody({ model: 'p/a 404' }));
    assert.deepEqual(facts(reply), [404, 'p', 'false'], 'when all fail, the first failure is told');
  });

  test('after a reload with another fallback_on new requests go by it, and those in flight by theirs', async (t) => {
    const gate = createGate();
    const script: Script = async (request, response) => {
      await gate.opened;
      await fail(404)(request, response);
    };
    const { gateway, toml, p } = await start(t, script, { fallbackOn: [404] });
    const inFlight = gateway.chat(chatBody());
    await eventually(() => p.requests.length === 1, 'the request');
    await gateway.reload(toml.replace('[404]', '[403]'));
    gate.open();
    assert.equal(answered(await inFlight), '200 q');
    assert.equal(answered(await gateway.chat(chatBody())), '404 p');
  });

  for (const ending of ['breaks off', 'never ends']) {
    test(`an error whose body ${ending} is answered by its status alone`, async (t) => {
      const script: Script = (request, response) => {
        const headers = { 'content-length': 100, 'retry-after': '7' };
        response.writeHead(Number(modelOf(request)), headers);
        response.write('{"error":', () => {
          if (ending === 'breaks off') setTimeout(() => response.destroy(), 20);
        });
      };
      const alone = await start(t, script, { fallback: [], server: 'retries = 0' });
      const both = await start(t, script, { server: 'retries = 0' });
      const ask = async ({ gateway }: typeof both) =>
        Promise.all(
          [400, 401, 429].map(async (status) => gateway.chat(chatBody({ model: `p/${status}` }))),
        );
      const [replies, fallenBack] = await Promise.all([ask(alone), ask(both)]);
      assert.deepEqual(
        replies.map((reply) => `${reply.status} ${reply.json().error.message}`),
        [
          '400 API error: 400 - Bad Request',
          '401 Authentication failed',
          '429 Rate limit exceeded at p: Too Many Requests',
        ],
      );
      assert.equal(replies[2]?.headers['retry-after'], '7');
      assert.deepEqual(fallenBack.map(answered), ['400 p', '401 p', '200 q']);
      await Promise.all(alone.p.requests.map(async ({ closed }) => closed));
    });
  }

  test('a stream that begins with a policy refusal, a rejected key or an error of the request does not fall back', async (t) => {
    const errors = [
      { message: 'no', code: 'tool_use_failed', status_code: 400 },
      { message: 'no', type: 'invalid_request_error' },
      { message: 'no', code: 'model_not_found' },
      { message: 'no', code: 'content_filter' },
      { message: 'no', type: 'content_policy_violation' },
      { message: 'no', code: 401 },
    ];
    const { gateway, p, asked } = await start(t, hang);
    for (const [index, error] of errors.entries()) {
      p.script = firstEvent(error);
      assert.ok((await gateway.chat(STREAM)).status >= 400);
      assert.deepEqual(asked(), [index + 1, 0, 0], JSON.stringify(error));
    }
  });

  test('each fallback is tried once, in the listed order, and the requested provider not again', async (t) => {
    const { gateway, q, r, asked } = await start(t, fail(503), { fallback: ['r', 'p', 'q', 'r'] });
    r.script = fail(500);
    assert.equal(answered(await gateway.chat(chatBody())), '200 q');
    assert.equal(triesOf(gateway.accessLines()[0]), 'p:503 r:500 q:200');
    assert.deepEqual(asked(), [1, 1, 1]);
    q.script = r.script;
    assert.deepEqual(facts(await gateway.chat(chatBody())), [503, 'p', 'false']);
    assert.deepEqual(asked(), [2, 2, 2], 'r is listed twice');
  });

  test('when all fail, whatever the fallbacks answer, the first failure is the answer', async (t) => {
    const script = fail(503, { headers: { 'retry-after': '7' } });
    const { gateway, q, r, asked } = await start(t, script, { fallback: ['q', 'r'] });
    for (const [ofQ, ofR] of [
      [500, 500],
      [404, 401],
    ] as const) {
      q.script = fail(ofQ);
      r.script = fail(ofR);
      const reply = await gateway.chat(chatBody());
      assert.deepEqual(facts(reply), [503, 'p', 'false']);
      assert.equal(reply.headers['retry-after'], '7');
      assert.deepEqual([reply.json().error.provider, reply.json().error.status], ['p', 503]);
    }
    assert.deepEqual(asked(), [2, 2, 2]);
  });

  test('a fallback\u2019s own 400, 401, 403, 404 or 422 does not end the chain: the next one is asked', async (t) => {
    const statuses = [400, 401, 403, 404, 422];
    const { gateway, q, asked } = await start(t, fail(503), { fallback: ['q', 'r'] });
    q.script = byModel(failing(statuses));
    for (const status of statuses) {
      for (const body of [chatBody(), STREAM]) {
        const reply = await gateway.chat({ ...body, model: `p/a ${status}` });
        assert.equal(answered(reply), '200 r');
      }
    }
    assert.deepEqual(asked(), Array<number>(3).fill(2 * statuses.length));
  });

  test('a fallback is asked for its default_model, or else for the requested name', async (t) => {
    for (const [lines, expected] of [
      ['default_model = "q-large"', 'q-large'],
      ['', 'org/m-1'],
      ['default_model = ""', 'org/m-1'],
    ] as const) {
      const providers = { p: { script: fail(503), lines: 'default_model = "no"' }, q: { lines } };
      const { gateway, p, q } = await scenario(t, { providers, fallback: ['q'] });
      await gateway.chat(chatBody({ model: 'p/org/m-1' }));
      assert.deepEqual(
        [p.requests, q.requests].map(([one]) => modelOf(one!)),
        ['org/m-1', expected],
      );
    }
  });

  test('x-should-retry is false if a repeat cannot help', async (t) => {
    const table: [script: Script, expected: string | undefined][] = [
      [fail(503), undefined],
      // The provider's own: unlike the gateway's, they may pass.
      [fail(504), undefined],
      [fail(501), undefined],
      [fail(429), undefined],
      [fail(429, { code: 'insufficient_quota' }), 'false'],
      [fail(429, { code: 'billing_hard_limit_reached' }), 'false'],
      [fail(400, { code: 'billing_not_active' }), undefined],
      [fail(429, { headers: { 'retry-after': '61' } }), 'false'],
      [fail(429, { headers: { 'retry-after': '60' } }), undefined],
    ];
    const { gateway, p } = await start(t, hang, { fallback: [] });
    for (const [script, expected] of table) {
      p.script = script;
      const reply = await gateway.chat(chatBody());
      assert.equal(reply.headers['x-should-retry'], expected, reply.text);
    }
  });

  test('the gateway\u2019s own limit for a provider is a 429, and no provider is asked', async (t) => {
    const { gateway, asked } = await start(t, answerWell, {
      more: '[rate_limit]\nenabled = true\n[rate_limit.providers.p]\nrequests_per_second = 1\nburst_capacity = 1\n',
      adjust: withoutRefill,
    });
    const replies = await Promise.all([gateway.chat(chatBody()), gateway.chat(chatBody())]);
    assert.deepEqual(new Set(replies.map(answered)), new Set(['200 p', '429 p']));
    const reply = replies.find(({ status }) => status === 429)!;
    assert.equal(reply.json().error.type, 'rate_limit_error');
    assert.deepEqual(asked(), [1, 0, 0]);
  });
});

/** For the tests of this suite, which run one after the other, `performance.now()` is `nowMs`. */
function useStoppedClock(): { nowMs: number } {
  const clock = { nowMs: 1000 };
  mockForSuite(performance, 'now', () => clock.nowMs);
  return clock;
}

/** For `adjust`: a limit of a provider that lasts longer than its rest, which a file cannot set. */
function withLimit(id: string, requestsPerSecond: number) {
  const providers = new Map([[id, { requestsPerSecond, burstCapacity: 3 }]]);
  return (config: Config): Config => ({
    ...config,
    rateLimit: { ...config.rateLimit, enabled: true, providers },
  });
}

const P = { id: 'p', digest: 'p1' };
const Q = { id: 'q', digest: 'q1' };

describe('the circuit breaker', () => {
  // A slow machine would take longer than a rest.
  const clock = useStoppedClock();
  useShortestBackoff();

  function startBreaker() {
    const lines: [level: LogLevel, message: string, facts?: LogFacts][] = [];
    const breaker = new CircuitBreaker({
      log: (...line) => lines.push(line),
      isEnabled: () => true,
    });
    breaker.guard([P, Q]);
    /** The lines since the last call. */
    const logged = () => lines.splice(0);
    const fail3 = (model = 'm') => {
      for (let count = 0; count < 3; count += 1) breaker.record('failure', P, model);
    };
    return { breaker, fail3, logged, state: (model = 'm') => breaker.stateOf(P, model) };
  }

  test('opens after three failures in a row, for ten seconds, and then lets one request probe', () => {
    const { breaker, fail3, state } = startBreaker();
    breaker.record('failure', P, 'm');
    breaker.record('failure', P, 'm');
    assert.equal(state(), 'closed');
    breaker.record('success', P, 'm');
    breaker.record('failure', P, 'm');
    breaker.record('failure', P, 'm');
    assert.equal(state(), 'closed', 'not three in a row');
    breaker.record('failure', P, 'm');
    assert.equal(state(), 'open');
    clock.nowMs += 9999;
    assert.equal(state(), 'open');
    breaker.recordAttempt(P, 'm');
    clock.nowMs += 1;
    assert.equal(state(), 'half-open', 'an attempt during the rest does not prolong it');
    assert.equal(state(), 'half-open', 'not probed yet');
    breaker.recordAttempt(P, 'm');
    assert.equal(state(), 'open', 'only one request probes');
    fail3();
    clock.nowMs += 9999;
    assert.equal(state(), 'open', 'a failed probe is ten seconds more');
    clock.nowMs += 1;
    assert.equal(state(), 'half-open');
    breaker.record('success', P, 'm');
    assert.equal(state(), 'closed');
  });

  test('is half-open again ten seconds after a probe that has no result', () => {
    const { breaker, fail3, state } = startBreaker();
    fail3();
    clock.nowMs += 10_000;
    breaker.recordAttempt(P, 'm');
    assert.equal(state(), 'open');
    clock.nowMs += 10_000;
    assert.equal(state(), 'half-open');
  });

  test('a probe of a model that cannot connect has failed: the model rests for ten seconds more', () => {
    const { breaker, fail3, state } = startBreaker();
    fail3();
    clock.nowMs += 10_000;
    const probe = breaker.recordAttempt(P, 'm');
    const failure = new GatewayError('provider', 'refused', { provider: 'p', unreachable: true });
    breaker.recordOutcome({ provider: P, model: 'm' }, failure);
    if (typeof probe === 'object') probe.end();
    clock.nowMs += 9999;
    assert.equal(state(), 'open');
    clock.nowMs += 1;
    assert.equal(state(), 'half-open');
  });

  test('counts each model of a provider by itself, and failed connections for all of them', () => {
    const { breaker, fail3, state } = startBreaker();
    fail3('a');
    assert.deepEqual(
      [state('a'), state('b'), breaker.stateOf(Q, 'a')],
      ['open', 'closed', 'closed'],
    );
    for (let count = 0; count < 3; count += 1) breaker.record('failure', P);
    assert.deepEqual([state('b'), breaker.stateOf(Q, 'b')], ['open', 'closed']);
    breaker.record('failure', P, 'b');
    assert.equal(state('b'), 'closed', 'the provider was reached');
    assert.equal(state('a'), 'open');
  });

  test('keeps the circuits of the 1,000 models that failed last, and of no name over 256 characters', () => {
    const { breaker, fail3, state } = startBreaker();
    fail3('first');
    fail3('kept');
    for (let index = 0; index < 998; index += 1) breaker.record('failure', P, `${index}`);
    assert.deepEqual([state('first'), state('kept')], ['open', 'open']);
    breaker.record('failure', P, 'one more');
    assert.deepEqual([state('first'), state('kept')], ['closed', 'open']);
    fail3('x'.repeat(256));
    for (let count = 0; count < 1000; count += 1) breaker.record('failure', P, 'x'.repeat(257));
    assert.deepEqual([state('x'.repeat(256)), state('x'.repeat(257))], ['open', 'closed']);
  });

  test('logs when it opens, probes, stays open and closes', () => {
    const { breaker, logged } = startBreaker();
    const m = { provider: 'p', model: 'm' };
    for (const cause of ['503', '503', 'ECONNRESET']) breaker.record('failure', P, 'm', cause);
    const opened = { ...m, cause: 'ECONNRESET', failures: 3, cooldown_ms: 10_000 };
    assert.deepEqual(logged(), [['warn', 'breaker opened', opened]]);
    breaker.recordAttempt(P, 'm');
    assert.deepEqual(logged(), [], 'the rest is not over');
    clock.nowMs += 10_000;
    breaker.recordAttempt(P, 'm');
    breaker.record('failure', P, 'm', '529');
    assert.deepEqual(logged(), [
      ['debug', 'breaker half-open', m],
      ['debug', 'breaker stays open', { ...m, cause: '529', failures: 4, cooldown_ms: 10_000 }],
    ]);
    breaker.record('success', P, 'm');
    breaker.record('success', P, 'm');
    assert.deepEqual(logged(), [['info', 'breaker closed', m]]);

    for (let count = 0; count < 3; count += 1)
      breaker.record('failure', P, undefined, 'ECONNREFUSED');
    breaker.record('failure', P, 'm');
    const provider = { provider: 'p', model: undefined };
    assert.deepEqual(logged(), [
      [
        'warn',
        'breaker opened',
        { ...provider, cause: 'ECONNREFUSED', failures: 3, cooldown_ms: 10_000 },
      ],
      ['info', 'breaker closed', provider],
    ]);
    breaker.record('success', P, 'm');
    assert.deepEqual(logged(), [], 'two failures had not opened it');
  });

  test('logs that a circuit closes because 1,000 others have failed since', () => {
    const { breaker, fail3, logged } = startBreaker();
    fail3('first');
    for (let index = 0; index < 1000; index += 1) breaker.record('failure', P, `${index}`);
    assert.deepEqual(logged().slice(1), [
      ['info', 'breaker closed', { provider: 'p', model: 'first' }],
    ]);
  });

  test('reports the circuits that are not closed, with the cause and the end of the rest', () => {
    const { breaker, fail3 } = startBreaker();
    assert.deepEqual(breaker.report(String), []);
    fail3('a');
    breaker.record('failure', P, 'failed once');
    clock.nowMs += 6000;
    for (let count = 0; count < 4; count += 1)
      breaker.record('failure', Q, undefined, 'ECONNREFUSED');
    const endOfRest = clock.nowMs + 10_000;
    const open = { state: 'open' };
    const a = { provider: 'p', digest: 'p1', model: 'a', failures: 3, cause: undefined };
    const q = { provider: 'q', digest: 'q1', model: undefined, failures: 4, cause: 'ECONNREFUSED' };
    assert.deepEqual(breaker.report(String), [
      { ...open, ...a, openUntilMs: endOfRest - 6000 },
      { ...open, ...q, openUntilMs: endOfRest },
    ]);
    clock.nowMs += 4000;
    assert.deepEqual(
      breaker.report(String).map(({ state }) => state),
      ['half-open', 'open'],
    );
    breaker.recordAttempt(P, 'a');
    assert.deepEqual(
      breaker.report(String).map(({ state, openUntilMs }) => [state, openUntilMs]),
      [
        ['open', clock.nowMs + 10_000],
        ['open', endOfRest],
      ],
    );
    breaker.record('success', Q, 'any');
    assert.deepEqual(
      breaker.report(String).map(({ model }) => model),
      ['a'],
    );
  });

  test('the log of the gateway says which provider is passed over, and when it is asked again', async (t) => {
    const { gateway, p } = await start(t, fail(503));
    const breakerLines = () =>
      gateway
        .lines()
        .filter(({ message }) => String(message).startsWith('breaker'))
        .map(({ level, message, provider, model }) => [level, message, provider, model]);
    for (let round = 0; round < 4; round += 1) await gateway.chat(chatBody());
    assert.deepEqual(breakerLines(), [['warn', 'breaker opened', 'p', 'm']]);
    p.script = answerWell;
    clock.nowMs += 10_000;
    await gateway.chat(chatBody());
    assert.deepEqual(breakerLines().slice(1), [['info', 'breaker closed', 'p', 'm']]);
  });

  test('a request that the limit keeps from a provider is not its probe', async (t) => {
    const adjust = withLimit('q', 0.06);
    const { gateway, q, asked } = await start(t, fail(503), { adjust });
    const { script } = q;
    q.script = fail(503);
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
    q.script = script;
    clock.nowMs += 11_000;
    assert.equal((await gateway.chat(chatBody())).status, 503);
    clock.nowMs += 7000;
    assert.equal((await gateway.chat(chatBody())).status, 200);
    assert.equal(asked()[1], 4);
  });

  test('takes no token of a provider that is not asked', async (t) => {
    const { gateway, asked } = await start(t, fail(503), { adjust: withLimit('p', 1e-6) });
    for (let round = 0; round < 6; round += 1) {
      assert.equal(answered(await gateway.chat(chatBody())), '200 q');
    }
    assert.deepEqual(asked(), [3, 6, 0]);
    clock.nowMs += 10_000;
    assert.equal((await gateway.chat(chatBody())).status, 429, 'half-open, and no token is left');
  });

  test('passes a provider over after a timeout, a 502, 503, 504, 529 or a cut connection three times in a row', async (t) => {
    const outages = { cut: reset, ...failing([502, 503, 504, 529]), timeout: hang };
    const { gateway, asked } = await start(t, byModel(outages), { p: 'timeout = 1' });
    const models = Object.keys(outages);
    for (const model of models) {
      const ask = async () => gateway.chat(chatBody({ model: `p/${model}` }));
      const first = await Promise.all([ask(), ask(), ask()]);
      assert.deepEqual([...first, await ask(), await ask()].map(answered), Array(5).fill('200 q'));
    }
    assert.deepEqual(asked(), [3 * models.length, 5 * models.length, 0]);
  });

  test('does not count a plain 500, and is not reset by one', async (t) => {
    const { gateway, p, asked } = await start(t, fail(500));
    for (let round = 0; round < 5; round += 1) await gateway.chat(chatBody());
    assert.deepEqual(asked(), [5, 5, 0]);
    for (const status of [503, 503, 500, 503]) {
      p.script = fail(status);
      await gateway.chat(chatBody());
    }
    await gateway.chat(chatBody());
    assert.deepEqual(asked(), [9, 10, 0]);
  });

  test('is reset by a 200, 400, 401, 404 or 429', async (t) => {
    const { gateway, p, asked } = await start(t, fail(503));
    for (const [index, script] of [
      answerWell,
      ...[400, 401, 404, 429].map((s) => fail(s)),
    ].entries()) {
      for (const one of [fail(503), fail(503), script, fail(503), fail(503), answerWell]) {
        p.script = one;
        await gateway.chat(chatBody());
      }
      assert.equal(asked()[0], 6 * (index + 1));
    }
  });

  test('does not count error events of the request, first or later', async (t) => {
    const error = { message: 'no', code: 'tool_use_failed', status_code: 400 };
    const event = `data: ${JSON.stringify({ error })}\n\n`;
    const { gateway, p, asked } = await start(t, firstEvent(error));
    for (let round = 0; round < 4; round += 1) {
      assert.equal((await gateway.chat(STREAM)).status, 400);
    }
    p.script = (_, response) =>
      sendEvents(response, completionEvents().split('data: [')[0] + event);
    for (let round = 0; round < 4; round += 1) {
      assert.match((await gateway.chat(STREAM)).text, /API error: 400 - no/);
    }
    assert.deepEqual(asked(), [8, 0, 0]);
  });

  test('passes over a provider whose streams are cut after they have begun, three in a row', async (t) => {
    const cut: Script = (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(CHUNK, () => response.destroy());
    };
    const { gateway, p, asked } = await start(t, cut);
    for (const script of [cut, cut, answerWell, cut, cut, cut]) {
      p.script = script;
      const { text } = await gateway.chat(STREAM);
      assert.equal(text.includes('[DONE]'), script === answerWell);
    }
    assert.deepEqual(asked(), [6, 0, 0]);
    await gateway.chat(chatBody());
    assert.deepEqual(asked(), [6, 1, 0]);
  });

  test('passes over only the model that failed, unless no connection can be made', async (t) => {
    const { gateway, asked } = await start(t, byModel({ bad: fail(503) }), {
      more: `${GONE}[logging]\nverbose = true\n`,
    });
    const ask = async (model: string) => answered(await gateway.chat(chatBody({ model })));
    for (let round = 0; round < 4; round += 1) assert.equal(await ask('p/bad'), '200 q');
    assert.equal(await ask('p/good'), '200 p');
    assert.deepEqual(asked(), [4, 4, 0]);
    for (const model of ['gone/a', 'gone/b', 'gone/c', 'gone/d']) {
      assert.equal(await ask(model), '200 q');
    }
    const tries = gateway.accessLines().slice(5).map(triesOf);
    const unreachable = Array<string>(3).fill('gone:upstream_error q:200');
    assert.deepEqual(tries, [...unreachable, 'gone:circuit_open q:200']);
  });

  test(
    'passes over all models of a provider to which no connection is made within its timeout',
    { skip: OVER_FETCH },
    async (t) => {
      const silent = providerToml(await startBlackHole(t), 's', 'timeout = 1');
      const { gateway } = await start(t, answerWell, {
        more: `${silent}[logging]\nverbose = true\n`,
      });
      const ask = async (model: string) =>
        assert.equal(answered(await gateway.chat(chatBody({ model }))), '200 q');
      await Promise.all(['s/a', 's/b', 's/c'].map(ask));
      await ask('s/d');
      const tries = gateway.accessLines().map(triesOf);
      assert.deepEqual(tries, [
        ...Array<string>(3).fill('s:timeout q:200'),
        's:circuit_open q:200',
      ]);
    },
  );

  test('probes a half-open provider with one attempt, whatever its retries', async (t) => {
    const { gateway, asked } = await start(t, fail(503), { p: 'retries = 1' });
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
    assert.deepEqual(asked(), [6, 3, 0]);
    clock.nowMs += 10_000;
    await gateway.chat(chatBody());
    assert.deepEqual(asked(), [7, 4, 0]);
  });

  test('asks the requested provider after all, once, if no fallback has answered', async (t) => {
    const { gateway, p, q, asked } = await start(t, fail(503), { p: 'retries = 1' });
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
    q.script = fail(404);
    const reply = await gateway.chat(chatBody());
    assert.deepEqual(facts(reply), [503, 'p', 'false']);
    assert.equal(reply.json().error.provider, 'p');
    assert.equal(triesOf(gateway.accessLines().at(-1)), 'p:circuit_open q:404 p:503');
    assert.deepEqual(asked(), [7, 4, 0]);
    p.script = answerWell;
    assert.equal(answered(await gateway.chat(chatBody())), '200 p');
    assert.equal(answered(await gateway.chat(chatBody())), '200 p', 'closed');
    assert.deepEqual(asked(), [9, 5, 0]);
  });

  test('probes the requested provider if its rest ends while the fallbacks are asked', async (t) => {
    const more = '[logging]\nlevel = "debug"\n';
    const { gateway, q, asked } = await start(t, fail(503), { more });
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
    q.script = (request, response) => {
      clock.nowMs += 10_000;
      return fail(404)(request, response);
    };
    await gateway.chat(chatBody());
    assert.deepEqual(asked(), [4, 4, 0]);
    assert.equal(gateway.log.filter((line) => line.includes('breaker half-open')).length, 1);
  });

  test('does not pass over a provider without a fallback', async (t) => {
    const { gateway, asked } = await start(t, fail(503), { fallback: [], p: 'retries = 1' });
    for (let round = 0; round < 5; round += 1) {
      assert.equal((await gateway.chat(chatBody())).status, 503);
    }
    assert.deepEqual(asked(), [10, 0, 0]);
  });

  test('asks the requested provider if the circuits of all are open', async (t) => {
    const { gateway, p, q, asked } = await start(t, fail(503));
    q.script = fail(503);
    for (let round = 0; round < 4; round += 1) {
      assert.equal(answered(await gateway.chat(chatBody())), '503 p');
    }
    assert.deepEqual(asked(), [4, 3, 0]);
    p.script = answerWell;
    assert.equal(answered(await gateway.chat(chatBody())), '200 p');
    assert.deepEqual(asked(), [5, 3, 0]);
  });
});

/** A provider that answers by the connection, and by the place of the request on it; and how clients fare. */
async function startStale(t: TestContext, script: Parameters<typeof startRawUpstream>[1]) {
  const upstream = await startRawUpstream(t, script);
  const gateway = await startGateway(t, { toml: providerToml(upstream) });
  const status = async () => (await gateway.chat(chatBody())).status;
  return { upstream, gateway, status };
}

describe('a connection that was kept alive', () => {
  // A slow machine would take longer than a second, after which a connection is not a stale one.
  const clock = useStoppedClock();
  const answer = rawResponse('{"choices":[]}');
  const options = { skip: OVER_FETCH };

  for (const [how, close] of Object.entries({
    closed: (socket: Socket) => socket.destroy(),
    reset: (socket: Socket) => socket.resetAndDestroy(),
  })) {
    const title = `and is ${how} when it is reused is replaced without the client noticing`;
    test(title, options, async (t) => {
      const { upstream, status } = await startStale(t, ({ socket, onConnection }) => {
        if (onConnection === 1) socket.write(answer);
        else close(socket);
      });
      assert.deepEqual([await status(), await status(), await status()], [200, 200, 200]);
      const order = upstream.requests.map(
        ({ connection, onConnection }) => `${connection}.${onConnection}`,
      );
      // The second connection is not kept: the next request has a connection of its own.
      assert.deepEqual(order, ['1.1', '1.2', '2.1', '3.1']);
    });

    test(
      `and is ${how}, as the others are that were kept alive, is replaced by a new one`,
      options,
      async (t) => {
        const { opened, open } = createGate();
        const { upstream, status } = await startStale(t, async ({ socket, onConnection }) => {
          if (onConnection > 1) return close(socket);
          await opened;
          return socket.write(answer);
        });
        const first = [status(), status(), status()];
        await eventually(() => upstream.requests.length === 3, 'three connections');
        open();
        await Promise.all(first);
        assert.deepEqual([await status(), await status(), await status()], [200, 200, 200]);
      },
    );

    test(
      `and is ${how} when it is used again is replaced for free: the client may repeat a 429 after it`,
      options,
      async (t) => {
        const busy = rawResponse('{}', { status: '429 Too Many Requests' });
        const { gateway, status } = await startStale(t, ({ socket, connection, onConnection }) => {
          if (connection === 2) socket.write(busy);
          else if (onConnection === 1) socket.write(answer);
          else close(socket);
        });
        assert.equal(await status(), 200);
        const reply = await gateway.chat(chatBody());
        assert.deepEqual([reply.status, reply.headers['x-should-retry']], [429, undefined]);
        assert.equal(triesOf(gateway.accessLines().at(-1)), 'p:upstream_error p:429');
      },
    );

    test(`and is ${how} a second after the request is a 502, because the provider may have worked on it`, async (t) => {
      const { upstream, status } = await startStale(t, ({ socket, onConnection }) => {
        if (onConnection === 1) return socket.write(answer);
        clock.nowMs += 1000;
        return close(socket);
      });
      assert.deepEqual([await status(), await status()], [200, 502]);
      assert.equal(upstream.requests.length, 2);
    });

    test(`is replaced once: if the new one is ${how} too, that is a 502`, options, async (t) => {
      const { upstream, status } = await startStale(t, ({ socket, connection, onConnection }) => {
        if (connection === 1 && onConnection === 1) socket.write(answer);
        else close(socket);
      });
      assert.deepEqual([await status(), await status()], [200, 502]);
      assert.equal(upstream.requests.length, 3);
    });

    test(`is told from a new one: if that is ${how}, at once or inside its first answer, that is a 502`, async (t) => {
      const { upstream, status } = await startStale(t, ({ socket, connection }) => {
        if (connection === 1) close(socket);
        else socket.write('HTTP/1.1 200 OK\r\ncontent-', () => setTimeout(() => close(socket), 20));
      });
      assert.deepEqual([await status(), await status()], [502, 502]);
      assert.equal(upstream.requests.length, 2);
    });
  }
});
