import assert from 'node:assert/strict';
import { after, before, describe, mock, test, type TestContext } from 'node:test';

import type { LogFacts, LogLevel } from '../src/lib/log.ts';
import { CircuitBreaker, type CircuitEvent } from '../src/policy/circuit-breaker.ts';
import type { Config } from '../src/config/config.ts';
import { idle, replaceRandom, type ManualTimers, useManualTimers } from './support/clock.ts';
import {
  chatBody,
  providerToml,
  startGateway,
  triesOf,
  type Reply,
  withoutRefill,
} from './support/gateway.ts';
import { rawResponse, startRawUpstream } from './support/raw-upstream.ts';
import { createGate, eventually } from './support/streams.ts';
import { OVER_FETCH } from './support/transport.ts';
import {
  NOBODY_LISTENS,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from './support/upstream.ts';

const STREAM = chatBody({ stream: true });
const OK = completion('fine');

/** Answers with this status; `code` and headers where the table needs them. */
function fail(
  status: number,
  { code = 'x', headers = {} }: { code?: string; headers?: Record<string, string> } = {},
): Script {
  return (_, response) =>
    sendJson(response, { error: { message: `p failed`, code } }, { status, headers });
}

const firstEvent =
  (error: unknown): Script =>
  (_, response) =>
    sendEvents(response, `data: ${JSON.stringify({ error })}\n\n`);
const hang: Script = () => {};
const reset: Script = (_, response) => response.socket?.resetAndDestroy();

interface Settings {
  readonly server?: string;
  readonly p?: string;
  readonly q?: string;
  readonly fallback?: readonly string[];
  readonly more?: string;
  readonly adjust?: (config: Config) => Config;
}

/** Provider `p`, which does as it is told, and `q`, `r`, which answer. */
async function start(t: TestContext, script: Script, settings: Settings = {}) {
  const fine: Script = ({ body }, response) =>
    body.includes('"stream":true')
      ? sendEvents(response, completionEvents())
      : sendJson(response, OK);
  const [p, q, r] = await Promise.all(
    [script, fine, fine].map(async (one) => startUpstream(t, one)),
  );
  const { server = '', fallback = ['q'], more = '', adjust = (config) => config } = settings;
  const toml = [
    `[server]\n${server}`,
    `[providers]\nfallback = ${JSON.stringify(fallback)}`,
    providerToml(p!, 'p', settings.p),
    providerToml(q!, 'q', settings.q),
    providerToml(r!, 'r'),
    more,
  ];
  const gateway = await startGateway(t, { toml: toml.join('\n'), adjust });
  const asked = () => [p!, q!, r!].map(({ requests }) => requests.length);
  return { p: p!, q: q!, r: r!, gateway, asked };
}

function facts({ status, headers }: Reply): unknown[] {
  return [status, headers['x-gateway-provider'], headers['x-should-retry']];
}

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

  for (const status of [408, 429, 500, 502, 503, 504, 529]) {
    test(`a ${status} is retried as often as retries says, and then is the answer`, async (t) => {
      const { gateway, asked } = await start(t, fail(status), {
        server: 'retries = 2',
        fallback: [],
      });
      assert.deepEqual(facts(await gateway.chat(chatBody())), [status, 'p', 'false']);
      assert.deepEqual(asked(), [3, 0, 0]);
    });
  }

  for (const status of [400, 401, 402, 403, 404, 409, 413, 422, 501]) {
    test(`a ${status} is not retried`, async (t) => {
      const { gateway, asked } = await start(t, fail(status), {
        server: 'retries = 2',
        fallback: [],
      });
      assert.equal((await gateway.chat(chatBody())).status, status);
      assert.deepEqual(asked(), [1, 0, 0]);
    });
  }

  test('a retry that succeeds is the answer, for streams too', async (t) => {
    for (const body of [chatBody(), STREAM]) {
      for (const failure of [fail(503), reset]) {
        let tries = 0;
        const { gateway, q, asked } = await start(
          t,
          (request, response) => {
            tries += 1;
            return tries === 1 ? failure(request, response) : q.script(request, response);
          },
          { p: 'retries = 1' },
        );
        const reply = await gateway.chat(body);
        assert.deepEqual([reply.status, reply.headers['x-gateway-provider']], [200, 'p']);
        assert.deepEqual(asked(), [2, 0, 0]);
      }
    }
  });

  test('a provider\u2019s own retries override the server\u2019s', async (t) => {
    const settings = { server: 'retries = 3', p: 'retries = 0', fallback: [] };
    const { gateway, asked } = await start(t, fail(500), settings);
    assert.deepEqual(facts(await gateway.chat(chatBody())), [500, 'p', undefined]);
    assert.deepEqual(asked(), [1, 0, 0]);
  });

  test('a timeout is not retried', async (t) => {
    const { gateway, asked } = await start(t, hang, {
      server: 'retries = 2\ntimeout = 1',
      fallback: [],
    });
    const reply = await gateway.chat(chatBody());
    assert.deepEqual([reply.status, reply.json().error.code], [504, 'TIMEOUT']);
    assert.deepEqual(asked(), [1, 0, 0]);
  });

  test('a stream that begins with an error event is not retried', async (t) => {
    const script = firstEvent({ message: 'overloaded', code: 503 });
    const { gateway, asked } = await start(t, script, { server: 'retries = 2', fallback: [] });
    assert.equal((await gateway.chat(STREAM)).status, 503);
    assert.deepEqual(asked(), [1, 0, 0]);
  });

  test('a stream that breaks after its first event is not retried', async (t) => {
    const script: Script = (_, response) => sendEvents(response, 'data: {"choices":[]}\n\n');
    const { gateway, asked } = await start(t, script, { server: 'retries = 2' });
    assert.match((await gateway.chat(STREAM)).text, /\n\ndata: \{"error":/);
    assert.deepEqual(asked(), [1, 0, 0]);
  });
});

/** No attempt is under way, with its limit, and something is waited for. */
function isWaiting(timers: ManualTimers): boolean {
  return timers.running().length === 1 && !timers.running(60_000).includes(60_000);
}

/** Waits between attempts, which last until the test lets the time pass. */
async function startTimed(t: TestContext, script: Script, retries: number) {
  const timers = useManualTimers(t);
  const { gateway, asked } = await start(t, script, {
    server: `retries = ${retries}`,
    fallback: [],
  });
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
        else if (onConnection === 1) socket.write(rawResponse(JSON.stringify(OK)));
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
    'a reset connection': reset,
    'a context_length_exceeded': fail(400, { code: 'context_length_exceeded' }),
    ...Object.fromEntries(
      [408, 429, 500, 501, 502, 503, 504, 529].map((status) => [`a ${status}`, fail(status)]),
    ),
  };
  for (const [name, script] of Object.entries(conditions)) {
    test(`after ${name} the next provider answers, streaming or not`, async (t) => {
      for (const body of [chatBody(), STREAM]) {
        const { gateway, asked } = await start(t, script);
        assert.deepEqual(facts(await gateway.chat(body)).slice(0, 2), [200, 'q']);
        assert.deepEqual(asked(), [1, 1, 0]);
      }
    });
  }

  const streamConditions: Record<string, Script> = {
    'an error object': firstEvent({ message: 'overloaded' }),
    'an error string': firstEvent('overloaded'),
    'an error with a status': firstEvent({ message: 'overloaded', code: 503 }),
    'an error of the request\u2019s length': firstEvent({
      message: 'x',
      code: 'context_length_exceeded',
    }),
    'no event at all': (_, response) => sendEvents(response, ''),
    'comments and [DONE] alone': (_, response) => sendEvents(response, ': x\n\ndata: [DONE]\n\n'),
    'an SSE field error': (_, response) =>
      sendEvents(response, 'error: {"code":500,"message":"x"}\n\ndata: [DONE]\n\n'),
    'comments and then an error': (_, response) =>
      sendEvents(response, ': x\n\ndata: {"error":{"message":"x"}}\n\n'),
  };
  for (const [name, script] of Object.entries(streamConditions)) {
    test(`after a stream that begins with ${name} the next provider answers`, async (t) => {
      const { gateway, asked } = await start(t, script);
      const reply = await gateway.chat(STREAM);
      assert.equal(reply.text, completionEvents());
      assert.deepEqual(facts(reply).slice(0, 2), [200, 'q']);
      assert.deepEqual(asked(), [1, 1, 0]);
    });
  }

  test('a timeout falls back, and so does a stream without a first event in time', async (t) => {
    const { gateway } = await start(t, hang, { p: 'timeout = 1' });
    assert.deepEqual(facts(await gateway.chat(chatBody())).slice(0, 2), [200, 'q']);
    const slow = await start(
      t,
      (_, response) => {
        response.writeHead(200, { 'content-type': 'text/event-stream' });
        response.write(': keep-alive\n\n');
      },
      { server: 'first_token_timeout = 1' },
    );
    assert.deepEqual(facts(await slow.gateway.chat(STREAM)).slice(0, 2), [200, 'q']);
  });

  test('a provider that nobody listens for falls back, and without a fallback is a 502', async (t) => {
    const more = `[providers.gone]\nbase_url = "${NOBODY_LISTENS}"\napi_key = "none"\n`;
    const { gateway } = await start(t, hang, { more });
    const body = chatBody({ model: 'gone/m' });
    assert.deepEqual(facts(await gateway.chat(body)).slice(0, 2), [200, 'q']);
    const alone = await start(t, hang, { more, fallback: [] });
    const reply = await alone.gateway.chat(body);
    assert.deepEqual([reply.status, reply.json().error.code], [502, 'PROVIDER_ERROR']);
    assert.ok(!reply.text.includes('127.0.0.2'), reply.text);
  });

  const notConditions: Record<string, { script: Script; status: number }> = {
    ...Object.fromEntries(
      [400, 401, 402, 403, 404, 409, 413, 422].map((status) => [
        `a ${status}`,
        { script: fail(status), status },
      ]),
    ),
    'a content policy refusal': {
      script: fail(400, { code: 'content_policy_violation' }),
      status: 400,
    },
    'a content filter refusal with a 500': {
      script: fail(500, { code: 'content_filter' }),
      status: 500,
    },
  };
  for (const [name, { script, status }] of Object.entries(notConditions)) {
    test(`${name} is the answer, and no fallback is tried`, async (t) => {
      for (const body of [chatBody(), STREAM]) {
        const { gateway, asked } = await start(t, script, { server: 'retries = 0' });
        assert.deepEqual(facts(await gateway.chat(body)), [status, 'p', undefined]);
        assert.deepEqual(asked(), [1, 0, 0]);
      }
    });
  }

  for (const ending of ['breaks off', 'never ends']) {
    test(`an error whose body ${ending} is answered by its status alone`, async (t) => {
      const failing: Script = ({ url }, response) => {
        const status = Number(/\d+/.exec(url));
        response.writeHead(status, { 'content-length': 100, 'retry-after': '7' });
        response.write('{"error":', () => {
          if (ending === 'breaks off') setTimeout(() => response.destroy(), 20);
        });
      };
      const upstream = await startUpstream(t, failing);
      const fine = await startUpstream(t);
      const statuses = [400, 401, 429];
      const providers = statuses.map((status) =>
        providerToml(
          { ...upstream, baseUrl: `${new URL(upstream.baseUrl).origin}/${status}` },
          `s${status}`,
        ),
      );
      const fallback = '[providers]\nfallback = ["q"]\n';
      const alone = await startGateway(t, { toml: providers.join('') });
      const both = await startGateway(t, {
        toml: [fallback, ...providers, providerToml(fine, 'q')].join(''),
      });
      const ask = async (gateway: typeof both) =>
        Promise.all(statuses.map((status) => gateway.chat(chatBody({ model: `s${status}/m` }))));
      const [replies, fallenBack] = await Promise.all([ask(alone), ask(both)]);
      assert.deepEqual(
        replies.map((reply) => [reply.status, reply.json().error.message]),
        [
          [400, 'API error: 400 - Bad Request'],
          [401, 'Authentication failed'],
          [429, 'Rate limit exceeded at s429: Too Many Requests'],
        ],
      );
      assert.equal(replies[2]?.headers['retry-after'], '7');
      assert.deepEqual(
        fallenBack.map(({ status }) => status),
        [400, 401, 200],
      );
      await Promise.all(upstream.requests.map(async ({ closed }) => closed));
    });
  }

  test('a stream that begins with a policy refusal, a rejected key or an error of the request does not fall back', async (t) => {
    for (const error of [
      { message: 'no', code: 'tool_use_failed', status_code: 400 },
      { message: 'no', type: 'invalid_request_error' },
      { message: 'no', code: 'model_not_found' },
      { message: 'no', code: 'content_filter' },
      { message: 'no', type: 'content_policy_violation' },
      { message: 'no', code: 401 },
    ]) {
      const { gateway, asked } = await start(t, firstEvent(error));
      assert.ok((await gateway.chat(STREAM)).status >= 400);
      assert.deepEqual(asked(), [1, 0, 0], JSON.stringify(error));
    }
  });

  test('each fallback is tried once, in the listed order, and the requested provider not again', async (t) => {
    const { gateway, q, r, asked } = await start(t, fail(503), { fallback: ['r', 'p', 'q', 'r'] });
    const order: string[] = [];
    r.script = (request, response) => {
      order.push('r');
      return fail(500)(request, response);
    };
    q.script = (_, response) => {
      order.push('q');
      sendJson(response, OK);
    };
    assert.deepEqual(facts(await gateway.chat(chatBody())).slice(0, 2), [200, 'q']);
    assert.deepEqual(order, ['r', 'q']);
    assert.deepEqual(asked(), [1, 1, 1]);
    q.script = r.script;
    assert.deepEqual(facts(await gateway.chat(chatBody())), [503, 'p', 'false']);
    assert.deepEqual(asked(), [2, 2, 2], 'r is listed twice');
  });

  test('when all fail, the first failure is the answer', async (t) => {
    const { gateway, q } = await start(t, fail(503, { headers: { 'retry-after': '7' } }));
    q.script = fail(500);
    const reply = await gateway.chat(chatBody());
    assert.deepEqual(facts(reply), [503, 'p', 'false']);
    assert.equal(reply.headers['retry-after'], '7');
    assert.deepEqual([reply.json().error.provider, reply.json().error.status], ['p', 503]);
  });

  for (const status of [400, 401, 403, 404, 422]) {
    test(`a fallback's own ${status} does not end the chain: the next one is asked`, async (t) => {
      const { gateway, q, asked } = await start(t, fail(503), { fallback: ['q', 'r'] });
      q.script = fail(status);
      for (const body of [chatBody(), STREAM]) {
        assert.deepEqual(facts(await gateway.chat(body)).slice(0, 2), [200, 'r']);
      }
      assert.deepEqual(asked(), [2, 2, 2]);
    });
  }

  test('when the fallbacks answer 404 and 401, the requested provider\u2019s failure is the answer', async (t) => {
    const { gateway, q, r, asked } = await start(t, fail(503), { fallback: ['q', 'r'] });
    q.script = fail(404);
    r.script = fail(401);
    assert.deepEqual(facts(await gateway.chat(chatBody())), [503, 'p', 'false']);
    assert.deepEqual(asked(), [1, 1, 1]);
  });

  test('a fallback is asked for its default_model, or else for the requested name', async (t) => {
    const table = {
      'default_model = "q-large"': 'q-large',
      '': 'org/m-1',
      'default_model = ""': 'org/m-1',
    };
    for (const [settings, expected] of Object.entries(table)) {
      const { gateway, p, q } = await start(t, fail(503), {
        q: settings,
        p: 'default_model = "no"',
      });
      await gateway.chat(chatBody({ model: 'p/org/m-1' }));
      const modelOf = ({ requests }: typeof p) =>
        JSON.parse(requests[0]!.body.toString()).model as string;
      assert.equal(modelOf(p), 'org/m-1');
      assert.equal(modelOf(q), expected);
    }
  });

  test('x-should-retry is false if a repeat cannot help', async (t) => {
    const alone = { fallback: [] };
    const table: [script: Script, body: object, expected: string | undefined][] = [
      [fail(503), chatBody(), undefined],
      [fail(504), chatBody(), 'false'],
      [fail(501), chatBody(), 'false'],
      [fail(429), chatBody(), undefined],
      [fail(429, { code: 'insufficient_quota' }), chatBody(), 'false'],
      [fail(429, { code: 'billing_hard_limit_reached' }), chatBody(), 'false'],
      [fail(400, { code: 'billing_not_active' }), chatBody(), undefined],
      [fail(429, { headers: { 'retry-after': '61' } }), chatBody(), 'false'],
      [fail(429, { headers: { 'retry-after': '60' } }), chatBody(), undefined],
      [(_, response) => sendJson(response, OK), STREAM, 'false'],
    ];
    for (const [script, body, expected] of table) {
      const { gateway } = await start(t, script, alone);
      const reply = await gateway.chat(body);
      assert.equal(reply.headers['x-should-retry'], expected, reply.text);
    }
  });

  test('the gateway\u2019s own limit for a provider is a 429, and no provider is asked', async (t) => {
    const more =
      '[rate_limit]\nenabled = true\n[rate_limit.providers.p]\nrequests_per_second = 1\nburst_capacity = 1\n';
    const { gateway, asked } = await start(t, (_, response) => sendJson(response, OK), {
      more,
      adjust: withoutRefill,
    });
    const replies = await Promise.all([gateway.chat(chatBody()), gateway.chat(chatBody())]);
    const statuses = replies.map(({ status }) => status);
    assert.deepEqual(new Set(statuses), new Set([200, 429]));
    const reply = replies[statuses.indexOf(429)]!;
    assert.equal(reply.json().error.type, 'rate_limit_error');
    assert.equal(reply.headers['x-gateway-provider'], 'p');
    assert.deepEqual(asked(), [1, 0, 0]);
  });
});

/** For the tests of this suite, which run one after the other, `performance.now()` is `nowMs`. */
function useStoppedClock(): { nowMs: number } {
  const clock = { nowMs: 1000 };
  mockForSuite(performance, 'now', () => clock.nowMs);
  return clock;
}

const P = { id: 'p' };
const Q = { id: 'q' };

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
    /** The lines since the last call. */
    const logged = () => lines.splice(0);
    const fail3 = (model = 'm') => {
      for (let count = 0; count < 3; count += 1) breaker.recordModelFailure(P, model);
    };
    return { breaker, fail3, logged, state: (model = 'm') => breaker.stateOf(P, model) };
  }

  test('opens after three failures in a row, for ten seconds, and then lets one request probe', () => {
    const { breaker, fail3, state } = startBreaker();
    breaker.recordModelFailure(P, 'm');
    breaker.recordModelFailure(P, 'm');
    assert.equal(state(), 'closed');
    breaker.recordSuccess(P, 'm');
    breaker.recordModelFailure(P, 'm');
    breaker.recordModelFailure(P, 'm');
    assert.equal(state(), 'closed', 'not three in a row');
    breaker.recordModelFailure(P, 'm');
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
    breaker.recordSuccess(P, 'm');
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

  test('counts each model of a provider by itself, and failed connections for all of them', () => {
    const { breaker, fail3, state } = startBreaker();
    fail3('a');
    assert.deepEqual(
      [state('a'), state('b'), breaker.stateOf(Q, 'a')],
      ['open', 'closed', 'closed'],
    );
    for (let count = 0; count < 3; count += 1) breaker.recordProviderFailure(P);
    assert.deepEqual([state('b'), breaker.stateOf(Q, 'b')], ['open', 'closed']);
    breaker.recordModelFailure(P, 'b');
    assert.equal(state('b'), 'closed', 'the provider was reached');
    assert.equal(state('a'), 'open');
  });

  test('keeps the circuits of the 1,000 models that failed last, and of no name over 256 characters', () => {
    const { breaker, fail3, state } = startBreaker();
    fail3('first');
    fail3('kept');
    for (let index = 0; index < 998; index += 1) breaker.recordModelFailure(P, `${index}`);
    assert.deepEqual([state('first'), state('kept')], ['open', 'open']);
    breaker.recordModelFailure(P, 'one more');
    assert.deepEqual([state('first'), state('kept')], ['closed', 'open']);
    fail3('x'.repeat(254));
    for (let count = 0; count < 1000; count += 1) breaker.recordModelFailure(P, 'x'.repeat(255));
    assert.deepEqual([state('x'.repeat(254)), state('x'.repeat(255))], ['open', 'closed']);
  });

  test('logs when it opens, probes, stays open and closes', () => {
    const { breaker, logged } = startBreaker();
    const m = { provider: 'p', model: 'm' };
    for (const cause of ['503', '503', 'ECONNRESET']) breaker.recordModelFailure(P, 'm', cause);
    const opened = { ...m, cause: 'ECONNRESET', failures: 3, rest_ms: 10_000 };
    assert.deepEqual(logged(), [['warn', 'breaker opened', opened]]);
    breaker.recordAttempt(P, 'm');
    assert.deepEqual(logged(), [], 'the rest is not over');
    clock.nowMs += 10_000;
    breaker.recordAttempt(P, 'm');
    breaker.recordModelFailure(P, 'm', '529');
    assert.deepEqual(logged(), [
      ['debug', 'breaker half-open', m],
      ['debug', 'breaker stays open', { ...m, cause: '529', failures: 4, rest_ms: 10_000 }],
    ]);
    breaker.recordSuccess(P, 'm');
    breaker.recordSuccess(P, 'm');
    assert.deepEqual(logged(), [['info', 'breaker closed', m]]);

    for (let count = 0; count < 3; count += 1) breaker.recordProviderFailure(P, 'ECONNREFUSED');
    breaker.recordModelFailure(P, 'm');
    const provider = { provider: 'p', model: undefined };
    assert.deepEqual(logged(), [
      [
        'warn',
        'breaker opened',
        { ...provider, cause: 'ECONNREFUSED', failures: 3, rest_ms: 10_000 },
      ],
      ['info', 'breaker closed', provider],
    ]);
    breaker.recordSuccess(P, 'm');
    assert.deepEqual(logged(), [], 'two failures had not opened it');
  });

  test('logs that a circuit closes because 1,000 others have failed since', () => {
    const { breaker, fail3, logged } = startBreaker();
    fail3('first');
    for (let index = 0; index < 1000; index += 1) breaker.recordModelFailure(P, `${index}`);
    assert.deepEqual(logged().slice(1), [
      ['info', 'breaker closed', { provider: 'p', model: 'first' }],
    ]);
  });

  test('reports the circuits that are not closed, with the cause and the end of the rest', () => {
    const { breaker, fail3 } = startBreaker();
    assert.deepEqual(breaker.report(), []);
    fail3('a');
    breaker.recordModelFailure(P, 'failed once');
    clock.nowMs += 6000;
    for (let count = 0; count < 4; count += 1) breaker.recordProviderFailure(Q, 'ECONNREFUSED');
    const a = { provider: 'p', model: 'a', failures: 3, cause: undefined };
    const q = { provider: 'q', model: undefined, failures: 4, cause: 'ECONNREFUSED' };
    const endOfRest = clock.nowMs + 10_000;
    assert.deepEqual(breaker.report(), [
      { ...a, restsUntilMs: endOfRest - 6000, state: 'open' },
      { ...q, restsUntilMs: endOfRest, state: 'open' },
    ]);
    clock.nowMs += 4000;
    assert.deepEqual(
      breaker.report().map(({ state }) => state),
      ['half-open', 'open'],
    );
    breaker.recordAttempt(P, 'a');
    assert.deepEqual(
      breaker.report().map(({ state, restsUntilMs }) => [state, restsUntilMs]),
      [
        ['open', clock.nowMs + 10_000],
        ['open', endOfRest],
      ],
    );
    breaker.recordSuccess(Q, 'any');
    assert.deepEqual(
      breaker.report().map(({ model }) => model),
      ['a'],
    );
  });

  test('of each thread makes the changes of the others, and one that starts later knows them', () => {
    const { breaker: main, logged } = startBreaker();
    const silent = { log() {}, isEnabled: () => false };
    const workers: CircuitBreaker[] = [];
    const startThread = () => {
      const worker: CircuitBreaker = new CircuitBreaker(
        silent,
        (event) =>
          [main, ...workers.filter((one) => one !== worker)].forEach((one) => one.apply(event)),
        main.circuits,
      );
      workers.push(worker);
      return worker;
    };
    const [one, two] = [startThread(), startThread()];
    const states = (model = 'm') => workers.map((worker) => worker.stateOf(P, model));
    for (const worker of [one, two, one]) worker.recordModelFailure(P, 'm', '503');
    const three = startThread();
    assert.deepEqual(states(), ['open', 'open', 'open']);
    clock.nowMs += 10_000;
    assert.deepEqual(states(), ['half-open', 'half-open', 'half-open']);
    assert.equal(three.recordAttempt(P, 'm'), 'half-open');
    assert.deepEqual(states(), ['open', 'open', 'open']);
    assert.deepEqual(main.report()[0]!.restsUntilMs, clock.nowMs + 10_000);
    three.recordSuccess(P, 'm');
    assert.deepEqual(states(), ['closed', 'closed', 'closed']);
    for (let count = 0; count < 3; count += 1) two.recordProviderFailure(P);
    assert.deepEqual(states('another'), ['open', 'open', 'open']);
    one.recordModelFailure(P, 'm');
    assert.deepEqual(states('another'), ['closed', 'closed', 'closed']);
    assert.deepEqual(
      logged().map(([, message]) => message),
      ['breaker opened', 'breaker half-open', 'breaker closed', 'breaker opened', 'breaker closed'],
    );
  });

  test('tells the others nothing while all is well, and bounded texts, cut between two characters', () => {
    const events: CircuitEvent[] = [];
    const breaker = new CircuitBreaker({ log() {}, isEnabled: () => false }, (event) =>
      events.push(event),
    );
    breaker.recordAttempt(P, 'm');
    breaker.recordSuccess(P, 'm');
    assert.equal(events.length, 0);
    breaker.recordModelFailure(P, 'm', `${'é'.repeat(255)}🦜 and more`);
    breaker.recordModelFailure(P, 'x'.repeat(1_000_000));
    assert.deepEqual(
      events.map(({ model, cause }) => [model?.length, cause]),
      [
        [1, 'é'.repeat(255)],
        [256, undefined],
      ],
    );
  });

  test('the log of the gateway says which provider is passed over, and when it is asked again', async (t) => {
    const { gateway, p } = await start(t, fail(503));
    const breakerLines = () =>
      gateway.log
        .map((line) => JSON.parse(line) as Record<string, unknown>)
        .filter(({ message }) => String(message).startsWith('breaker'))
        .map(({ level, message, provider, model }) => [level, message, provider, model]);
    for (let round = 0; round < 4; round += 1) await gateway.chat(chatBody());
    assert.deepEqual(breakerLines(), [['warn', 'breaker opened', 'p', 'm']]);
    p.script = (_, response) => sendJson(response, completion());
    clock.nowMs += 10_000;
    await gateway.chat(chatBody());
    assert.deepEqual(breakerLines().slice(1), [['info', 'breaker closed', 'p', 'm']]);
  });

  test('a request that the limit keeps from a provider is not its probe', async (t) => {
    // A file cannot set a limit that lasts longer than a provider's rest.
    const providers = new Map([['q', { requestsPerSecond: 0.06, burstCapacity: 3 }]]);
    const { gateway, q, asked } = await start(t, fail(503), {
      adjust: (config) => ({
        ...config,
        rateLimit: { ...config.rateLimit, enabled: true, providers },
      }),
    });
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

  const outages: Record<string, Script> = {
    'a 502': fail(502),
    'a 503': fail(503),
    'a 504': fail(504),
    'a 529': fail(529),
    'a cut connection': reset,
  };
  for (const [what, script] of Object.entries(outages)) {
    test(`passes a provider over after ${what} three times in a row`, async (t) => {
      const { gateway, asked } = await start(t, script);
      for (let round = 0; round < 5; round += 1) {
        assert.deepEqual(facts(await gateway.chat(chatBody())).slice(0, 2), [200, 'q']);
      }
      assert.deepEqual(asked(), [3, 5, 0]);
    });
  }

  test('passes a provider over after a timeout three times in a row', async (t) => {
    const { gateway, asked } = await start(t, hang, { p: 'timeout = 1' });
    await Promise.all([1, 2, 3].map(async () => gateway.chat(chatBody())));
    assert.equal((await gateway.chat(chatBody())).headers['x-gateway-provider'], 'q');
    assert.deepEqual(asked(), [3, 4, 0]);
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

  for (const status of [200, 400, 401, 404, 429]) {
    test(`is reset by a ${status}`, async (t) => {
      const { gateway, p, asked } = await start(t, fail(503));
      for (const now of [503, 503, status, 503, 503]) {
        p.script = now === 200 ? (_, response) => sendJson(response, OK) : fail(now);
        await gateway.chat(chatBody());
      }
      await gateway.chat(chatBody());
      assert.equal(asked()[0], 6);
    });
  }

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
      response.write(completionEvents().split('\n\n', 1)[0] + '\n\n', () => response.destroy());
    };
    const whole: Script = (_, response) => sendEvents(response, completionEvents());
    const { gateway, p, asked } = await start(t, cut);
    for (const script of [cut, cut, whole, cut, cut, cut]) {
      p.script = script;
      const { text } = await gateway.chat(chatBody({ stream: true }));
      assert.equal(text.includes('[DONE]'), script === whole);
    }
    assert.deepEqual(asked(), [6, 0, 0]);
    await gateway.chat(chatBody());
    assert.deepEqual(asked(), [6, 1, 0]);
  });

  test('passes over only the model that failed, unless no connection can be made', async (t) => {
    const { gateway, p, asked } = await start(t, ({ body }, response) =>
      body.includes('"bad"') ? fail(503)({} as never, response) : sendJson(response, OK),
    );
    const ask = async (model: string) =>
      (await gateway.chat(chatBody({ model }))).headers['x-gateway-provider'];
    for (let round = 0; round < 4; round += 1) assert.equal(await ask('p/bad'), 'q');
    assert.equal(await ask('p/good'), 'p');
    assert.deepEqual(asked(), [4, 4, 0]);
    assert.equal(p.requests.length, 4);
  });

  test('passes over all models of a provider to which no connection can be made', async (t) => {
    const more = `[providers.gone]\nbase_url = "${NOBODY_LISTENS}"\napi_key = "none"\n`;
    const { gateway } = await start(t, hang, { more: `${more}[logging]\nverbose = true\n` });
    for (const model of ['gone/a', 'gone/b', 'gone/c', 'gone/d']) {
      assert.equal((await gateway.chat(chatBody({ model }))).status, 200);
    }
    const tries = gateway.accessLines().map(triesOf);
    assert.deepEqual(tries, [
      ...Array<string>(3).fill('gone:upstream_error q:200'),
      'gone:resting q:200',
    ]);
  });

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
    assert.equal(triesOf(gateway.accessLines().at(-1)), 'p:resting q:404 p:503');
    assert.deepEqual(asked(), [7, 4, 0]);
    p.script = (_, response) => sendJson(response, OK);
    assert.deepEqual(facts(await gateway.chat(chatBody())).slice(0, 2), [200, 'p']);
    assert.deepEqual(facts(await gateway.chat(chatBody())).slice(0, 2), [200, 'p'], 'closed');
    assert.deepEqual(asked(), [9, 5, 0]);
  });

  test('probes the requested provider if its rest ends while the fallbacks are asked', async (t) => {
    const { gateway, q, asked } = await start(t, fail(503), {
      more: '[logging]\nlevel = "debug"\n',
    });
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
      assert.equal((await gateway.chat(chatBody())).headers['x-gateway-provider'], 'p');
    }
    assert.deepEqual(asked(), [4, 3, 0]);
    p.script = (_, response) => sendJson(response, OK);
    assert.deepEqual(facts(await gateway.chat(chatBody())).slice(0, 2), [200, 'p']);
    assert.deepEqual(asked(), [5, 3, 0]);
  });
});

describe('a connection that was kept alive', () => {
  // A slow machine would take longer than a second, after which a connection is not a stale one.
  const clock = useStoppedClock();
  const answer = rawResponse(JSON.stringify(OK));
  const toml = (baseUrl: string) => `[providers.p]\nbase_url = "${baseUrl}"\napi_key = "none"\n`;

  for (const [how, close] of Object.entries({
    closed: (socket: { destroy(): unknown; resetAndDestroy(): unknown }) => socket.destroy(),
    reset: (socket: { resetAndDestroy(): unknown }) => socket.resetAndDestroy(),
  })) {
    test(
      `and is ${how} when it is reused is replaced without the client noticing`,
      { skip: OVER_FETCH },
      async (t) => {
        const upstream = await startRawUpstream(t, ({ socket, onConnection }) => {
          if (onConnection === 1) socket.write(answer);
          else close(socket);
        });
        const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
        for (let round = 1; round <= 3; round += 1) {
          assert.equal((await gateway.chat(chatBody())).status, 200);
        }
        const order = upstream.requests.map(({ connection, onConnection }) => [
          connection,
          onConnection,
        ]);
        assert.deepEqual(order, [
          [1, 1],
          [1, 2],
          // Not kept: the next request has a connection of its own.
          [2, 1],
          [3, 1],
        ]);
      },
    );

    test(
      `and is ${how}, as the others are that were kept alive, is replaced by a new one`,
      { skip: OVER_FETCH },
      async (t) => {
        const { opened, open } = createGate();
        const upstream = await startRawUpstream(t, async ({ socket, onConnection }) => {
          if (onConnection > 1) return close(socket);
          await opened;
          return socket.write(answer);
        });
        const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
        const first = Array.from({ length: 3 }, async () => gateway.chat(chatBody()));
        await eventually(() => upstream.requests.length === 3, 'three connections');
        open();
        await Promise.all(first);
        for (let round = 0; round < 3; round += 1) {
          assert.equal((await gateway.chat(chatBody())).status, 200);
        }
      },
    );

    test(
      `and is ${how} when it is used again is replaced for free: the client may repeat a 429 after it`,
      { skip: OVER_FETCH },
      async (t) => {
        const busy = rawResponse('{}', { status: '429 Too Many Requests' });
        const upstream = await startRawUpstream(t, ({ socket, connection, onConnection }) => {
          if (connection === 2) socket.write(busy);
          else if (onConnection === 1) socket.write(answer);
          else close(socket);
        });
        const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
        assert.equal((await gateway.chat(chatBody())).status, 200);
        const reply = await gateway.chat(chatBody());
        assert.deepEqual([reply.status, reply.headers['x-should-retry']], [429, undefined]);
        assert.equal(triesOf(gateway.accessLines().at(-1)), 'p:upstream_error p:429');
      },
    );

    test(`and is ${how} a second after the request is a 502, because the provider may have worked on it`, async (t) => {
      const upstream = await startRawUpstream(t, ({ socket, onConnection }) => {
        if (onConnection === 1) socket.write(answer);
        else {
          clock.nowMs += 1000;
          close(socket);
        }
      });
      const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
      assert.equal((await gateway.chat(chatBody())).status, 200);
      assert.equal((await gateway.chat(chatBody())).status, 502);
      assert.equal(upstream.requests.length, 2);
    });

    test(
      `is replaced once: if the new one is ${how} too, that is a 502`,
      { skip: OVER_FETCH },
      async (t) => {
        const upstream = await startRawUpstream(t, ({ socket, connection, onConnection }) => {
          if (connection === 1 && onConnection === 1) socket.write(answer);
          else close(socket);
        });
        const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
        assert.equal((await gateway.chat(chatBody())).status, 200);
        const reply = await gateway.chat(chatBody());
        assert.deepEqual([reply.status, reply.json().error.code], [502, 'PROVIDER_ERROR']);
        assert.equal(upstream.requests.length, 3);
      },
    );

    test(`is told from a new one: if that is ${how}, that is a 502 at once`, async (t) => {
      const upstream = await startRawUpstream(t, ({ socket }) => close(socket));
      const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
      assert.equal((await gateway.chat(chatBody())).status, 502);
      assert.equal(upstream.requests.length, 1);
    });

    test(`is told from a new one: if that is ${how} inside its first answer, that is a 502`, async (t) => {
      const upstream = await startRawUpstream(t, ({ socket }) => {
        socket.write('HTTP/1.1 200 OK\r\ncontent-', () => setTimeout(() => close(socket), 20));
      });
      const gateway = await startGateway(t, { toml: toml(upstream.baseUrl) });
      assert.equal((await gateway.chat(chatBody())).status, 502);
      assert.equal(upstream.requests.length, 1);
    });
  }
});
