/** A provider with several keys, and a provider's fixed headers. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { replaceRandom, stopClock } from '../support/clock.ts';
import { assertError } from '../support/errors.ts';
import { chatBody, providerToml, startGateway, triesOf } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { eventually, linesOf } from '../support/streams.ts';
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
  /** Further lines for provider `p`. */
  readonly p?: string;
  /** Further sections. */
  readonly more?: string;
}

/** Starts provider `p` with a key for each script. A request with the key runs its script. */
async function start(
  t: TestContext,
  scripts: Partial<Record<Key, Script>>,
  { p = '', more = '' }: Settings = {},
) {
  const clock = stopClock(t);
  // Makes each backoff as short as it may be.
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
  /** Returns the keys received by the upstream since the last call, in order. */
  const asked = () =>
    upstream.requests
      .splice(0)
      .map(({ headers }) => nameOf(headers.authorization))
      .join('');
  /** Returns the cooldowns in the log. */
  const rests = () =>
    gateway
      .lines('key in cooldown')
      .map(({ level, provider, key, status, cooldown_ms }) =>
        [level, provider, key, status, cooldown_ms].join(' '),
      );
  /** Sends a request. Returns its status, `!` if `x-should-retry` is false, and the tried keys. */
  const ask = async (members: object = {}) => {
    const { status, headers } = await gateway.chat(chatBody(members));
    return `${status}${headers['x-should-retry'] === 'false' ? '!' : ''} ${asked()}`;
  };
  return { gateway, upstream, scripts, clock, asked, ask, rests };
}

/** Errors with the status 400 for a refused key. */
const REFUSED_WITH_400: Readonly<Record<string, object>> = {
  Gemini: [
    {
      error: {
        code: 400,
        message: 'API key not valid. Please pass a valid API key.',
        status: 'INVALID_ARGUMENT',
        details: [
          { '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason: 'API_KEY_INVALID' },
        ],
      },
    },
  ],
  xAI: {
    code: 'Client specified an invalid argument',
    error:
      'Incorrect API key provided: xa***. You can obtain an API key from https://console.x.ai.',
  },
  Anthropic: {
    type: 'error',
    error: {
      type: 'invalid_request_error',
      message: 'You have reached your specified API usage limits. You will regain access on',
    },
  },
  OpenAI: {
    error: { message: 'no', type: 'billing_limit_user_error', code: 'billing_hard_limit_reached' },
  },
  'OpenAI on behalf of others': {
    error: { message: 'no', type: 'invalid_request_error', code: 'invalid_api_key' },
  },
};
/** MiniMax's error, which it sends with the status 200. */
function minimax(status_code: number, status_msg: string) {
  return { choices: null, base_resp: { status_code, status_msg } };
}
/** Errors of a 403 because of a prompt: xAI's, OpenAI's and OpenRouter's. */
const FLAGGED: readonly object[] = [
  {
    code: 'permission-denied',
    error: 'Content violates usage guidelines. Team: t, Model: m',
    status: 403,
  },
  { error: { code: 'cyber_policy', message: 'no', status: 403 } },
  {
    error: {
      code: 403,
      message: 'This model requires moderation. Your input was flagged for "violence".',
    },
  },
];
const DENIED_MODEL = {
  error: {
    code: 'model_not_found',
    message: 'Project `p` has no access to model `m`',
    status: 403,
  },
};
/** Gemini's error for a limit. It has no header for its wait. */
const LIMITED = [
  {
    error: {
      code: 429,
      message: 'You exceeded your current quota. Please retry in 26.66s.',
      status: 'RESOURCE_EXHAUSTED',
      details: [
        { '@type': 'type.googleapis.com/google.rpc.Help', links: [] },
        { '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: '26.66s' },
      ],
    },
  },
];
/** The ways in which a provider sends an error. */
const WAYS: Readonly<Record<string, (error: object, status?: number) => Script>> = {
  'as a status':
    (error, status = 400) =>
    (_, response) =>
      sendJson(response, error, { status }),
  'in a 200': (error) => (_, response) => sendJson(response, error),
  'as the first event': (error) => (_, response) =>
    sendEvents(response, `data: ${JSON.stringify(error)}\n\n`),
  'as a later event': (error) => (_, response) =>
    sendEvents(response, `${CHUNK}data: ${JSON.stringify(error)}\n\n`),
};

/** Answers with this status to requests for the model `m-secret`, and any other request well. */
const forbids =
  (status: number): Script =>
  (request, response) =>
    (request.body.includes('"m-secret"') ? fail(status) : answerWell)(request, response);

describe('a pool of keys', () => {
  const cooldowns: [status: number, retryAfter: string | undefined, cooldownMs: number][] = [
    [401, undefined, 60_000],
    [401, '5', 60_000],
    [402, undefined, 60_000],
    [403, undefined, 60_000],
    [429, '7', 7000],
    [429, undefined, 1000],
    [429, '7200', 3_600_000],
  ];
  for (const [status, retryAfter, cooldownMs] of cooldowns) {
    const wait = retryAfter ?? 'none';
    test(`rests a key for ${cooldownMs} ms after ${status}, Retry-After: ${wait}`, async (t) => {
      const headers = retryAfter === undefined ? undefined : { 'retry-after': retryAfter };
      const { ask, clock, rests } = await start(t, { a: fail(status, headers), b: answerWell });
      assert.equal(await ask(), '200 ab');
      clock.nowMs += cooldownMs - 1;
      for (let count = 0; count < 3; count += 1) assert.equal(await ask(), '200 b');
      clock.nowMs += 1;
      assert.deepEqual([await ask(), await ask()], ['200 ab', '200 b']);
      const line = `warn p 1 ${status} ${cooldownMs}`;
      assert.deepEqual(rests(), [line, line]);
    });
  }

  test('lets a key rest that an event refuses in a stream which has begun', async (t) => {
    const { ask, clock, rests, scripts } = await start(t, { a: answerWell, b: answerWell });
    for (const status of [401, 402, 403, 429]) {
      const refusal = `data: ${JSON.stringify({ error: { message: 'no', status } })}\n\n`;
      scripts.a = (_, response) => sendEvents(response, CHUNK + refusal);
      assert.equal(await ask({ stream: true }), '200 a');
      assert.deepEqual([await ask(), await ask()], ['200 b', '200 b']);
      const ms = status === 429 ? 1000 : 60_000;
      assert.deepEqual(rests().at(-1), `warn p 1 ${status} ${ms}`);
      clock.nowMs += ms;
    }
  });

  for (const [way, toScript] of Object.entries(WAYS)) {
    test(`rests a key for the wait that a 429 has in its body ${way}`, async (t) => {
      const { ask, clock, rests } = await start(t, { a: toScript(LIMITED, 429), b: answerWell });
      const isLate = way === 'as a later event';
      const stream = way.endsWith('event');
      assert.equal(await ask({ stream }), isLate ? '200 a' : '200 ab');
      assert.deepEqual(rests(), ['warn p 1 429 27000']);
      clock.nowMs += 26_999;
      assert.deepEqual([await ask(), await ask()], ['200 b', '200 b']);
    });

    test(`rests a key that is refused with 400 ${way}, and tries the next key`, async (t) => {
      const isLate = way === 'as a later event';
      const stream = way.endsWith('event');
      for (const [provider, error] of Object.entries(REFUSED_WITH_400)) {
        const { ask, gateway, rests } = await start(t, { a: toScript(error), b: answerWell });
        assert.equal(await ask({ stream }), isLate ? '200 a' : '200 ab', provider);
        assert.deepEqual([await ask(), await ask()], ['200 b', '200 b']);
        assert.deepEqual(rests(), ['warn p 1 401 60000']);
        gateway.judge();
        const [incident] = gateway.lines('incident');
        const cause = '1 of 2 keys, the others are used: key 1: 401';
        assert.deepEqual([incident!['kind'], incident!['cause']], ['key_refused', cause]);
      }
    });
  }

  test('rests a key for 60 s whose account has no money by a 429, and falls back', async (t) => {
    const script = fail(429, {}, 'billing_not_active');
    const q = await startUpstream(t, answerWell);
    const more = `[providers]\nfallback = ["q"]\n${providerToml(q, 'q')}`;
    const { ask, clock, gateway, rests, scripts } = await start(
      t,
      { a: script, b: answerWell },
      { more },
    );
    assert.equal(await ask(), '200 ab');
    gateway.judge();
    const [incident] = gateway.lines('incident');
    assert.deepEqual(
      [incident!['kind'], incident!['cause']],
      ['key_refused', '1 of 2 keys, the others are used: key 1: 429'],
    );
    clock.nowMs += 59_999;
    assert.deepEqual([await ask(), await ask()], ['200 b', '200 b']);
    assert.deepEqual(rests(), ['warn p 1 429 60000']);
    scripts.b = script;
    assert.equal(await ask(), '200 b');
    assert.equal(q.requests.length, 1);
  });

  test('in cooldown as a whole tries the key whose cooldown ends first', async (t) => {
    const { ask, clock, gateway, rests } = await start(t, {
      a: fail(401),
      b: fail(429, { 'retry-after': '9' }),
      c: fail(429, { 'retry-after': '5' }),
    });
    assert.equal(await ask(), '429! abc', 'a repeat would try all keys again');
    assert.equal(await ask(), '429 c', 'only one key was tried');
    clock.nowMs += 1000;
    assert.equal(await ask(), '429 c');
    assert.equal(rests().length, 3, 'a longer rest is not logged again');
    assert.equal((await gateway.chat(chatBody())).headers['retry-after'], '5');
  });

  test('of revoked and limited keys falls back, also after the cooldowns for 401', async (t) => {
    const q = await startUpstream(t, answerWell);
    const { ask, clock } = await start(
      t,
      { a: fail(401), b: fail(429, { 'retry-after': '3600' }), c: fail(401) },
      { more: `[providers]\nfallback = ["q"]\n${providerToml(q, 'q')}` },
    );
    // First the other keys, in turn, and then the limited key.
    for (const expected of ['abc', 'b', 'b', 'cab', 'b']) {
      if (expected === 'cab') clock.nowMs += 60_000;
      assert.match(await ask(), new RegExp(`^200!? ${expected}$`));
    }
    assert.equal(q.requests.length, 5);
  });

  test('whose 429 comes before a 401 answers with the 429, also in the log', async (t) => {
    const limited = fail(429, { 'retry-after': '90', 'x-request-id': 'limited' });
    const { ask, gateway } = await start(t, { a: limited, b: fail(401) });
    assert.equal(await ask(), '429! ab');
    assert.equal(gateway.accessLines()[0]!['upstream_request_id'], 'limited');
  });

  test('serves again when a key works that was in cooldown for a 402 or 403', async (t) => {
    const limited = fail(429, { 'retry-after': '3600' });
    for (const status of [402, 403]) {
      const { ask } = await start(t, { a: limited, b: forbids(status) });
      assert.equal(await ask({ model: 'p/m-secret' }), '429! ab');
      assert.deepEqual([await ask(), await ask()], ['200 ab', '200 b']);
    }
    const other = await start(t, { a: forbids(402), b: forbids(403), c: fail(401) });
    assert.equal(await other.ask({ model: 'p/m-secret' }), '401! abc');
    // The rejected key is still in cooldown.
    for (const key of 'ababa') assert.equal(await other.ask(), `200 ${key}`);
  });

  test('tries no other key after a failure that is not about the key', async (t) => {
    const { ask, scripts, rests } = await start(t, { a: answerWell, b: answerWell });
    for (const status of [400, 404, 422, 500, 503]) {
      scripts.a = fail(status);
      assert.deepEqual([await ask(), await ask()], [`${status} a`, '200 b']);
    }
    assert.deepEqual(rests(), []);
  });

  for (const [way, toScript] of Object.entries(WAYS)) {
    test(`rests no key after a 403 about the request or the model ${way}`, async (t) => {
      const { ask, gateway, rests, scripts } = await start(t, { a: answerWell, b: answerWell });
      const stream = way.endsWith('event');
      for (const [index, error] of [...FLAGGED, DENIED_MODEL].entries()) {
        scripts.a = toScript(error, 403);
        const status = way === 'as a later event' ? 200 : 403;
        assert.equal(await ask({ stream }), `${status} a`, JSON.stringify(error));
        assert.equal(await ask(), '200 b');
        const { outcome, tries } = (await linesOf(gateway, 2 * index + 2)).at(-2)!;
        const [{ outcome: ofTry } = assert.fail()] = tries as { outcome: string }[];
        assert.deepEqual([outcome, ofTry], ['rejected', 'rejected']);
      }
      assert.deepEqual(rests(), []);
      gateway.judge();
      assert.deepEqual(gateway.lines('incident'), []);
    });
  }

  test('of three outcomes answers with the latest 429, or else with the latest', async (t) => {
    const limited = (seconds: number) => fail(429, { 'retry-after': `${seconds}` });
    const rows: [a: Script, b: Script, c: Script, asked: string, answer: string][] = [
      [limited(70), limited(80), limited(90), 'abc', '429 after 90'],
      [limited(70), fail(401), fail(403), 'abc', '429 after 70'],
      [fail(403), limited(80), fail(401), 'abc', '429 after 80'],
      [fail(401), limited(80), limited(90), 'abc', '429 after 90'],
      [fail(401), fail(403), fail(401), 'abc', '401'],
      [fail(401), fail(401), fail(403), 'abc', '403'],
      [limited(70), fail(500), limited(90), 'ab', '500'],
      [limited(70), fail(401), fail(404), 'abc', '404'],
    ];
    for (const [a, b, c, keys, answer] of rows) {
      const { asked, gateway } = await start(t, { a, b, c });
      const { status, headers } = await gateway.chat(chatBody());
      const wait = headers['retry-after'] === undefined ? '' : ` after ${headers['retry-after']}`;
      assert.deepEqual([asked(), `${status}${wait}`], [keys, answer]);
      assert.equal(gateway.accessLines()[0]!['status'], status);
    }
  });

  for (const [what, late] of [
    ['has worked', answerWell],
    ['is answered with a shorter wait', fail(429)],
  ] as const) {
    test(`rests a key although an earlier request ${what}`, async (t) => {
      let answerFirst = () => {};
      const { ask, gateway, scripts, clock, asked } = await start(t, {
        a: (request, response) => {
          answerFirst = () => void late(request, response);
          scripts.a = fail(429, { 'retry-after': '30' });
        },
        b: answerWell,
      });
      const first = gateway.chat(chatBody());
      await eventually(() => asked() === 'a', 'the first request');
      clock.nowMs += 1;
      assert.deepEqual([await ask(), await ask()], ['200 b', '200 ab']);
      answerFirst();
      assert.equal((await first).status, 200);
      clock.nowMs += 2000;
      asked();
      assert.deepEqual([await ask(), await ask()], ['200 b', '200 b']);
    });
  }
});

const REFUSALS: readonly (readonly [
  error: object,
  sent: number,
  status: number,
  message: string,
])[] = [
  ...Object.values(REFUSED_WITH_400).map(
    (error) => [error, 400, 401, 'Authentication failed'] as const,
  ),
  [
    { error: { message: 'Insufficient Balance' } },
    402,
    402,
    'API error: 402 - Insufficient Balance',
  ],
  [minimax(1004, 'login fail'), 200, 401, 'Authentication failed'],
  [minimax(1008, 'no balance'), 200, 402, 'API error: 402 - no balance'],
  [{ ...minimax(1008, 'none'), choices: [] }, 200, 402, 'API error: 402 - none'],
];

test('a single refused key is an incident, and a reason to ask others where a 4xx is', async (t) => {
  for (const [error, sent, status, message] of REFUSALS) {
    const { asked, gateway } = await scenario(t, {
      providers: { p: (_, response) => sendJson(response, error, { status: sent }), q: {} },
      fallback: ['q'],
      fallbackOn: [status],
      more: '[aliases]\nlocal = { targets = ["p/m", "q/m"], balance = "weighted", weights = [1, 0] }',
    });
    const own = { headers: { 'x-gateway-fallback': 'off' } };
    for (let count = 0; count < 3; count += 1) {
      assertError(await gateway.chat(chatBody(), own), {
        httpStatus: status,
        type: 'provider_error',
        code: 'API_ERROR',
        message,
        provider: 'p',
        status,
        headers: { 'x-gateway-provider': 'p' },
      });
    }
    const [line] = await linesOf(gateway, 3);
    assert.deepEqual([line!['outcome'], triesOf(line)], ['upstream_error', `p:${sent}`]);
    gateway.judge();
    assert.equal(gateway.lines('incident')[0]!['kind'], 'key_refused');
    assert.equal((await gateway.chat(chatBody())).status, 200, 'by fallback_on');
    const local = chatBody({ model: 'local' });
    for (let count = 0; count < 4; count += 1)
      assert.equal((await gateway.chat(local)).status, 200);
    // The circuit of the balanced target has opened.
    assert.deepEqual(asked(), [7, 5]);
  }
});

describe('the model list of a provider with several keys', () => {
  const list: Script = (_, response) => sendJson(response, { data: [{ id: 'm' }] });
  const both: Script = (request, response) =>
    request.method === 'GET' ? fail(403)(request, response) : answerWell(request, response);

  const rows: readonly (readonly [Partial<Record<Key, Script>>, asked: string, cause?: string])[] =
    [
      [{ a: both, b: list }, 'ab'],
      [{ a: fail(401), b: fail(403) }, 'ab', 'status 403'],
      [{ a: fail(402), b: list }, 'ab'],
      [{ a: fail(500), b: list }, 'a', 'status 500'],
      [{ a: fail(400), b: list }, 'a', 'status 400'],
      [{ a: WAYS['as a status']!(REFUSED_WITH_400['Gemini']!), b: list }, 'ab'],
    ];
  test('is requested with the next key if a key is refused', async (t) => {
    for (const [scripts, expected, cause] of rows) {
      const { gateway, asked, rests } = await start(t, scripts);
      const { data } = (await gateway.send('/v1/models')).json();
      assert.deepEqual([data.length, asked()], [cause ? 0 : 1, expected]);
      const isTold = () => gateway.log.join('').includes('"cause":');
      if (cause) await eventually(isTold, 'the line of the log');
      assert.equal(gateway.log.join('').includes(`"cause":"${cause}"`), cause !== undefined);
      assert.deepEqual(rests(), []);
    }
  });

  test('is not requested with a key in cooldown', async (t) => {
    const works: Script = (request, response) =>
      (request.method === 'GET' ? list : answerWell)(request, response);
    const { gateway, ask, asked } = await start(t, { a: fail(401), b: works });
    assert.equal(await ask(), '200 ab');
    assert.equal((await gateway.send('/v1/models')).json().data[0].id, 'p/m');
    assert.equal(asked(), 'b');
  });
});

test("a provider's fixed headers go with completions and lists, for every key", async (t) => {
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
