/** A provider with several keys, and the fixed headers of a provider. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { replaceRandom, useManualTimers, stopClock } from '../support/clock.ts';
import {
  chatBody,
  providerToml,
  startGateway,
  STREAM,
  type Reply,
  type LogLine,
} from '../support/gateway.ts';
import { errorAfter, eventually, openChat, lineOf } from '../support/streams.ts';
import { sweep } from '../support/sweep.ts';
import {
  answerWell,
  CHUNK,
  failWith,
  sendEvents,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

const KEYS = { a: 'sk-key-a-canary-01', b: 'sk-key-b-canary-02', c: 'sk-key-c-canary-03' };
type Key = keyof typeof KEYS;

const fail = (status: number, headers: Record<string, string> = {}, code = 'x') =>
  failWith(status, { headers, code });

interface Settings {
  /** Lines of the provider `p`. */
  readonly p?: string;
  /** The other sections. */
  readonly more?: string;
}

/** Provider `p`, which has one key for each of these scripts, and does for a key what its script says. */
async function start(
  t: TestContext,
  scripts: Partial<Record<Key, Script>>,
  { p = '', more = '' }: Settings = {},
) {
  const clock = stopClock(t);
  // Each backoff is its shortest.
  replaceRandom(t, () => 0);
  const names = Object.keys(scripts) as Key[];
  const nameOf = (authorization: string | undefined) =>
    names.find((name) => authorization === `Bearer ${KEYS[name]}`)!;
  const upstream = await startUpstream(t, (request, response) =>
    scripts[nameOf(request.headers.authorization)]!(request, response),
  );
  const toml = [
    `[providers.p]\nbase_url = "${upstream.baseUrl}"`,
    `api_keys = ${JSON.stringify(names.map((name) => KEYS[name]))}`,
    p,
    more,
  ];
  const gateway = await startGateway(t, { toml: toml.join('\n') });
  /** The keys that reached the upstream since the last call, in order. */
  const asked = () =>
    upstream.requests
      .splice(0)
      .map(({ headers }) => nameOf(headers.authorization))
      .join('');
  const restLines = () =>
    gateway.lines('key in cooldown').map((line) => {
      const { level, provider, key, status, cooldown_ms } = line;
      return [level, provider, key, status, cooldown_ms];
    });
  return { gateway, upstream, scripts, clock, asked, restLines };
}

/** Answers 403 to requests for one model, and well to others. */
const forbidden: Script = (request, response) =>
  (request.body.includes('"m-secret"') ? fail(403) : answerWell)(request, response);

const triedKeys = (line: LogLine) =>
  (line['tries'] as { key?: number; status?: number }[]).map(({ key, status }) => [key, status]);
const facts = ({ status, headers }: Reply) => [status, headers['x-should-retry']];

const MANY = sweep(1000, 200);
/** A limit of its own for so many requests on a busy machine. */
const MANY_REQUESTS = { timeout: 300_000 };

describe('a pool of keys', () => {
  for (const stream of [false, true]) {
    const what = stream ? 'streams' : 'complete answers';
    test(
      `of which one is revoked and one rate-limited: of ${MANY} requests for ${what} none fails and none waits`,
      MANY_REQUESTS,
      async (t) => {
        // Never advanced: a request that waits for a timer does not end.
        useManualTimers(t);
        const { gateway, asked, restLines } = await start(t, {
          a: fail(401),
          b: fail(429, { 'retry-after': '30' }),
          c: answerWell,
        });
        const atOnce = 25;
        const statuses: number[] = [];
        const worker = async () => {
          for (let count = 0; count < MANY / atOnce; count += 1) {
            const { status, text } = await gateway.chat(chatBody({ stream }));
            assert.ok(text.includes(stream ? '[DONE]' : '"choices"'));
            statuses.push(status);
          }
        };
        await Promise.all(Array.from({ length: atOnce }, worker));
        assert.deepEqual(statuses, Array<number>(MANY).fill(200));
        const keys = asked();
        const countOf = (key: Key) => keys.split(key).length - 1;
        assert.equal(countOf('c'), MANY);
        // Only requests that were sent before the first refusal was known.
        assert.ok(countOf('a') >= 1 && countOf('a') <= atOnce, keys);
        assert.ok(countOf('b') >= 1 && countOf('b') <= atOnce, keys);
        assert.deepEqual(
          new Set(restLines().map(String)),
          new Set(['warn,p,1,401,60000', 'warn,p,2,429,30000']),
        );
        assert.equal(restLines().length, 2, 'one line for each rest');
      },
    );
  }

  test('is used in turn, and each try says by position which key was sent, never by content', async (t) => {
    const { gateway, asked } = await start(
      t,
      { a: answerWell, b: fail(401), c: answerWell },
      { more: '[logging]\nlevel = "trace"\n' },
    );
    for (let count = 0; count < 6; count += 1) {
      assert.deepEqual(facts(await gateway.chat(chatBody())), [200, undefined]);
    }
    assert.equal(asked(), 'abcacac');
    assert.deepEqual(gateway.accessLines().slice(0, 3).map(triedKeys), [
      [[1, 200]],
      [
        [2, 401],
        [3, 200],
      ],
      [[1, 200]],
    ]);
    for (const key of Object.values(KEYS)) assert.ok(!gateway.log.join('').includes(key));
  });

  test('of one key has no positions in the tries', async (t) => {
    const { gateway } = await start(t, { a: answerWell });
    await gateway.chat(chatBody());
    assert.deepEqual(triedKeys(gateway.accessLines()[0]!), [[undefined, 200]]);
  });

  const cooldowns: [status: number, retryAfter: string | undefined, cooldownMs: number][] = [
    [401, undefined, 60_000],
    [401, '5', 60_000],
    [403, undefined, 60_000],
    [429, '7', 7000],
    [429, undefined, 1000],
    [429, '7200', 3_600_000],
  ];
  for (const [status, retryAfter, cooldownMs] of cooldowns) {
    test(`lets a key that is answered ${status}, Retry-After: ${retryAfter ?? 'none'}, rest for ${cooldownMs} ms`, async (t) => {
      const headers = retryAfter === undefined ? undefined : { 'retry-after': retryAfter };
      const pool = await start(t, { a: fail(status, headers), b: answerWell });
      const { gateway, clock, asked, restLines } = pool;
      await gateway.chat(chatBody());
      assert.equal(asked(), 'ab');
      clock.nowMs += cooldownMs - 1;
      for (let count = 0; count < 3; count += 1) await gateway.chat(chatBody());
      assert.equal(asked(), 'bbb');
      clock.nowMs += 1;
      for (let count = 0; count < 3; count += 1) await gateway.chat(chatBody());
      assert.equal(asked(), 'abbb');
      const line = ['warn', 'p', 1, status, cooldownMs];
      assert.deepEqual(restLines(), [line, line]);
    });
  }

  test('that is in cooldown as a whole gives the last answer; then the key whose cooldown ends first is tried', async (t) => {
    const { gateway, clock, asked, restLines } = await start(t, {
      a: fail(401),
      b: fail(429, { 'retry-after': '9' }),
      c: fail(429, { 'retry-after': '5' }),
    });
    const last = await gateway.chat(chatBody());
    assert.deepEqual(facts(last), [429, 'false'], 'a repeat would try all keys again');
    assert.equal(last.headers['retry-after'], '5');
    assert.equal(asked(), 'abc');
    const next = await gateway.chat(chatBody());
    assert.deepEqual(facts(next), [429, undefined], 'it was tried once');
    assert.equal(next.headers['retry-after'], '5');
    assert.equal(asked(), 'c');
    clock.nowMs += 1000;
    await gateway.chat(chatBody());
    assert.equal(asked(), 'c');
    assert.equal(restLines().length, 3, 'a rest that is extended is not told again');
  });

  test('of which some are revoked and the others limited for an hour falls back, also after the cooldowns for 401', async (t) => {
    const q = await startUpstream(t, answerWell);
    const { gateway, clock, asked } = await start(
      t,
      { a: fail(401), b: fail(429, { 'retry-after': '3600' }), c: fail(401) },
      { more: `[providers]\nfallback = ["q"]\n${providerToml(q, 'q')}` },
    );
    // Those that do not rest, in turn, and then the limited one.
    for (const expected of ['abc', 'b', 'b', 'cab', 'b']) {
      if (expected === 'cab') clock.nowMs += 60_000;
      const reply = await gateway.chat(chatBody());
      assert.deepEqual([reply.status, reply.headers['x-gateway-provider']], [200, 'q']);
      assert.equal(asked(), expected);
    }
  });

  test('whose 429 comes before a 401 answers with the 429, also in the log', async (t) => {
    const limited = fail(429, { 'retry-after': '90', 'x-request-id': 'limited' });
    const { gateway, asked } = await start(t, { a: limited, b: fail(401) });
    const reply = await gateway.chat(chatBody());
    assert.deepEqual([...facts(reply), reply.headers['retry-after']], [429, 'false', '90']);
    assert.equal(asked(), 'ab');
    assert.equal(gateway.accessLines()[0]!['upstream_request_id'], 'limited');
  });

  test('of revoked keys alone is asked with one of them while all rest', async (t) => {
    const { gateway, clock, asked } = await start(t, { a: fail(401), b: fail(401) });
    for (const expected of ['ab', 'a', 'b']) {
      assert.equal((await gateway.chat(chatBody())).status, 401);
      assert.equal(asked(), expected);
      clock.nowMs += 1;
    }
  });

  test('serves again if its working key in cooldown for a 403 and the others are limited', async (t) => {
    const { gateway, asked } = await start(t, {
      a: fail(429, { 'retry-after': '3600' }),
      b: forbidden,
    });
    assert.equal((await gateway.chat(chatBody({ model: 'p/m-secret' }))).status, 429);
    assert.equal(asked(), 'ab');
    for (const expected of ['ab', 'b']) {
      assert.equal((await gateway.chat(chatBody())).status, 200);
      assert.equal(asked(), expected);
    }
  });

  test('is retried after the wait of its last 429, and then falls back', async (t) => {
    const timers = useManualTimers(t);
    const q = await startUpstream(t, answerWell);
    const { gateway, clock, asked } = await start(
      t,
      { a: fail(429, { 'retry-after': '9' }), b: fail(429, { 'retry-after': '4' }) },
      { p: 'retries = 1', more: `[providers]\nfallback = ["q"]\n${providerToml(q, 'q')}` },
    );
    const reply = gateway.chat(chatBody());
    await eventually(() => timers.running().includes(4000), 'the wait');
    assert.equal(asked(), 'ab', 'one key after the other without a wait');
    clock.nowMs += 4000;
    timers.advance(4000);
    assert.equal((await reply).headers['x-gateway-provider'], 'q');
    assert.equal(asked(), 'b', 'the other one is in cooldown');
  });

  test('is not retried with a key that was refused during the wait', async (t) => {
    const timers = useManualTimers(t);
    const scripts = { a: failWith(503), b: fail(401) };
    const { gateway, asked } = await start(t, scripts, { p: 'retries = 1' });
    const first = gateway.chat(chatBody());
    await eventually(() => timers.running().includes(250), 'the wait');
    assert.equal(asked(), 'a');
    scripts.a = answerWell;
    for (let count = 0; count < 2; count += 1) await gateway.chat(chatBody());
    assert.match(asked(), /b/, 'one of them has the key that is refused');
    timers.advance(250);
    assert.equal((await first).status, 200);
    assert.equal(asked(), 'a');
  });

  const inside: Record<string, [Script, stream: boolean]> = {
    'a first event with a 429': [
      (_, response) => sendEvents(response, 'data: {"error":{"message":"no","code":429}}\n\n'),
      true,
    ],
    'a first event with a 401': [
      (_, response) => sendEvents(response, 'data: {"error":{"message":"no","code":"401"}}\n\n'),
      true,
    ],
    'a 200 with a 403 in its body': [
      (_, response) => sendJson(response, { error: { message: 'no', code: 403 } }),
      false,
    ],
  };
  for (const [what, [script, stream]] of Object.entries(inside)) {
    test(`goes on to the next key after ${what}`, async (t) => {
      const { gateway, asked } = await start(t, { a: script, b: answerWell });
      for (let count = 0; count < 2; count += 1) {
        assert.equal((await gateway.chat(chatBody({ stream }))).status, 200);
      }
      assert.equal(asked(), 'abb');
    });
  }

  test('does not try another key after a failure that is none of the key, or a refusal by content policy, and none is in cooldown', async (t) => {
    const { gateway, scripts, asked, restLines } = await start(t, { a: answerWell, b: answerWell });
    for (const status of [400, 402, 403, 404, 422, 500, 503]) {
      scripts.a = fail(status, {}, status === 403 ? 'content_policy_violation' : 'x');
      assert.deepEqual(facts(await gateway.chat(chatBody())), [status, undefined]);
      assert.equal(asked(), 'a');
      await gateway.chat(chatBody());
      assert.equal(asked(), 'b');
    }
    assert.deepEqual(restLines(), []);
  });

  test('does not try another key once an answer has begun, whatever its stream then says', async (t) => {
    const error = 'data: {"error":{"message":"over quota","code":429}}\n\n';
    const { gateway, asked, restLines } = await start(t, {
      a: (_, response) => sendEvents(response, CHUNK + error),
      b: answerWell,
    });
    const { text } = await gateway.chat(STREAM);
    assert.equal(errorAfter(text, CHUNK).code, 'RATE_LIMIT_ERROR');
    assert.equal(asked(), 'a');
    assert.deepEqual(restLines(), []);
  });

  test('serves again as a whole once a key works that is in cooldown for a 403: that was about a request', async (t) => {
    const { gateway, asked } = await start(t, { a: forbidden, b: forbidden, c: fail(401) });
    assert.equal((await gateway.chat(chatBody({ model: 'p/m-secret' }))).status, 401);
    assert.equal(asked(), 'abc');
    for (let count = 0; count < 5; count += 1) {
      assert.equal((await gateway.chat(chatBody())).status, 200);
    }
    assert.equal(asked(), 'ababa', 'the rejected key is still in cooldown');
  });

  for (const [what, late] of [
    ['has worked', answerWell],
    ['is answered with a shorter wait', fail(429)],
  ] as const) {
    test(`lets a key rest although a request that was sent before ${what}`, async (t) => {
      let answerFirst = () => {};
      const { gateway, scripts, clock, asked } = await start(t, {
        a: (request, response) => {
          answerFirst = () => void late(request, response);
          scripts.a = fail(429, { 'retry-after': '30' });
        },
        b: answerWell,
      });
      const first = gateway.chat(chatBody());
      await eventually(() => asked() === 'a', 'the first request');
      clock.nowMs += 1;
      for (let count = 0; count < 2; count += 1) await gateway.chat(chatBody());
      assert.equal(asked(), 'bab');
      answerFirst();
      assert.equal((await first).status, 200);
      clock.nowMs += 2000;
      asked();
      for (let count = 0; count < 2; count += 1) await gateway.chat(chatBody());
      assert.equal(asked(), 'bb');
    });
  }

  test('is not asked again when the client has left between two keys', async (t) => {
    const { gateway, upstream, asked } = await start(t, {
      a: (_, response) => {
        response.writeHead(401, { 'content-type': 'application/json' });
        response.write('{"error":');
      },
      b: answerWell,
    });
    const { leave } = openChat(gateway.port);
    await eventually(() => upstream.requests.length === 1, 'the first key');
    const { closed } = upstream.requests[0]!;
    leave();
    await closed;
    assert.equal((await lineOf(gateway))['outcome'], 'client_closed');
    assert.equal(asked(), 'a');
  });
});

describe('the model list of a provider with several keys', () => {
  const list: Script = (_, response) => sendJson(response, { data: [{ id: 'm' }] });
  const both: Script = (request, response) =>
    request.method === 'GET' ? fail(403)(request, response) : answerWell(request, response);

  test('is asked for with the next key if one is refused, which does not rest for that', async (t) => {
    const { gateway, asked, restLines } = await start(t, { a: both, b: list });
    assert.equal((await gateway.send('/v1/models')).json().data[0].id, 'p/m');
    assert.equal(asked(), 'ab');
    assert.deepEqual(restLines(), []);
  });

  test('is not asked for with a key in cooldown', async (t) => {
    const { gateway, asked } = await start(t, {
      a: fail(401),
      b: (request, response) => (request.method === 'GET' ? list : answerWell)(request, response),
    });
    await gateway.chat(chatBody());
    assert.equal(asked(), 'ab');
    assert.equal((await gateway.send('/v1/models')).json().data[0].id, 'p/m');
    assert.equal(asked(), 'b');
  });

  test('fails if all keys are refused, or one gets another error', async (t) => {
    for (const [scripts, expected, status] of [
      [{ a: fail(401), b: fail(403) }, 'ab', 403],
      [{ a: fail(500), b: list }, 'a', 500],
    ] as const) {
      const { gateway, asked } = await start(t, scripts);
      assert.deepEqual((await gateway.send('/v1/models')).json().data, []);
      assert.equal(asked(), expected);
      assert.ok(gateway.log.some((line) => line.includes(`"cause":"status ${status}"`)));
    }
  });
});

test('fixed headers of a provider are sent with completions and model lists, over every key', async (t) => {
  const { gateway, upstream } = await start(
    t,
    { a: answerWell, b: answerWell },
    { p: 'headers = { "OpenAI-Organization" = "org-1", "User-Agent" = "mine/1" }' },
  );
  await gateway.chat(chatBody());
  await gateway.chat(chatBody({ stream: true }));
  await gateway.send('/v1/models');
  assert.deepEqual(
    upstream.requests.map(({ method, headers }) => [
      method,
      headers['openai-organization'],
      headers['user-agent'],
      headers['authorization'],
      headers['accept'],
    ]),
    [
      ['POST', 'org-1', 'mine/1', `Bearer ${KEYS.a}`, 'application/json'],
      ['POST', 'org-1', 'mine/1', `Bearer ${KEYS.b}`, 'text/event-stream'],
      ['GET', 'org-1', 'mine/1', `Bearer ${KEYS.a}`, 'application/json'],
    ],
  );
});
