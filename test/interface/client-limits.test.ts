/** Rate limits of named clients, beside the global limit and the providers' limits. */

import assert from 'node:assert/strict';
import type { IncomingHttpHeaders } from 'node:http';
import { test, type TestContext } from 'node:test';

import { replaceDate, replaceNow } from '../support/clock.ts';
import { assertError, assertLimited } from '../support/errors.ts';
import { parseMetrics } from '../support/exposition.ts';
import { openFeed } from '../support/feed.ts';
import { chatBody, EACH_REFUSAL, STREAM } from '../support/gateway.ts';
import { linesOf } from '../support/streams.ts';
import { modelOf, scenario } from '../support/scenario.ts';
import {
  answerWell,
  completion,
  completionEvents,
  DONE,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

// The gateway's clock stands still unless a test moves it, so the machine's speed does not matter.
let nowMs = 1000;

const bucket = (burst: number, rps = 1) =>
  `requests_per_second = ${rps}\nburst_capacity = ${burst}\n`;

/** Sends the JSON in the model's name as `usage`, or as the total if it is a number. */
const answerCounted: Script = (request, response) => {
  const model = request.method === 'POST' ? modelOf(request) : '';
  if (!/^[\d{]/.test(model)) return answerWell(request, response);
  const said = JSON.parse(model) as unknown;
  const usage = typeof said === 'number' ? { total_tokens: said } : said;
  if (!request.body.includes('"stream":true'))
    return sendJson(response, { ...completion(), usage });
  const last = `data: ${JSON.stringify({ choices: [], usage })}\n\n${DONE}`;
  return sendEvents(response, completionEvents().replace(DONE, last));
};

/**
 * At noon in UTC starts clients `a` (keys `a` and `a2`) and `b` with these lines, a key `shared` without a client,
 * and providers `p` and `q`.
 */
async function start(
  t: TestContext,
  { a = '', b = '', more = '' }: { a?: string; b?: string; more?: string },
) {
  replaceNow(t, () => nowMs);
  const startTime = Date.parse('2026-11-29T12:00:00Z') - nowMs;
  replaceDate(t, () => startTime + nowMs);
  const started = await scenario(t, {
    env: EACH_REFUSAL,
    server: 'auth.keys = ["shared"]',
    clients: { a: `keys = ["a", "a2"]\n${a}`, b: `key = "b"\n${b}` },
    providers: { p: { script: answerCounted, lines: 'stream_usage = true' }, q: {} },
    more,
  });
  const { gateway } = started;
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } });
  return {
    ...started,
    as,
    /**
     * Sends chat completions in sequence, each given as `<key> <model>`. Returns their statuses.
     */
    statuses: async (...requests: readonly string[]) => {
      const found: number[] = [];
      for (const request of requests) {
        const [key = '', model = 'p/m'] = request.split(' ');
        found.push((await gateway.chat(chatBody({ model }), as(key))).status);
      }
      return found;
    },
    /** Waits for `lines` access lines. Returns the `reason` of each 429. */
    reasons: async (lines: number) => {
      await linesOf(gateway, lines);
      const limited = gateway.accessLines().filter(({ status }) => status === 429);
      return [...new Set(limited.map(({ reason }) => reason))];
    },
  };
}

const RATE_LIMITS = {
  'without [rate_limit]': '',
  'with [rate_limit] enabled = false':
    `[rate_limit]\nenabled = false\n${bucket(1)}` +
    `[rate_limit.providers.p]\n${bucket(1)}[rate_limit.providers.q]\n${bucket(1)}`,
  'with [rate_limit] enabled = true': '[rate_limit]\nenabled = true\n',
};
for (const [what, more] of Object.entries(RATE_LIMITS)) {
  test(`a client's limit holds for all its keys and for no other client, ${what}`, async (t) => {
    const { gateway, asked, as, statuses } = await start(t, { a: bucket(2), more });
    assert.deepEqual(await statuses('a', 'a2', 'a', 'a2'), [200, 200, 429, 429]);
    assertLimited(
      await gateway.chat(chatBody(), as('a')),
      'Rate limit exceeded: clients.a.requests_per_second',
    );
    assert.equal((await gateway.send('/v1/models', as('a2'))).status, 429);
    assert.equal((await gateway.send('/health', as('a'))).status, 200);
    assert.deepEqual(await statuses('b', 'b', 'b'), [200, 200, 200]);
    assert.deepEqual(await statuses('shared', 'shared', 'shared'), [200, 200, 200]);
    assert.deepEqual(asked(), [8, 0]);
    nowMs += 1000;
    assert.deepEqual(await statuses('a2', 'a'), [200, 429]);
  });
}

test('the global limit holds for all clients together, beside limits of their own', async (t) => {
  const more = `[rate_limit]\nenabled = true\n${bucket(3)}`;
  const { asked, reasons, statuses } = await start(t, { a: bucket(9), more });
  assert.deepEqual(
    await statuses('a', 'b', 'a', 'a', 'b', 'shared'),
    [200, 200, 200, 429, 429, 429],
  );
  assert.deepEqual(await reasons(6), ['global']);
  nowMs += 1000;
  assert.deepEqual(await statuses('b', 'a'), [200, 429]);
  assert.deepEqual(asked(), [4, 0]);
});

test("requests refused by clients' limits are counted apart", async (t) => {
  const { gateway, statuses } = await start(t, { a: bucket(1), more: '[admin]\nport = 0\n' });
  assert.deepEqual(await statuses('a', 'a', 'a'), [200, 429, 429]);
  await linesOf(gateway, 3);
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_refusals_total', { reason: 'client', client: 'a' }), 2);
  assert.equal(sum('gateway_requests_total', { client: 'a', outcome: 'rate_limited' }), 2);
});

/** Returns the refusal by a limit in `[clients.a]`. */
const limitedBy = (limit: string, seconds: number) => ({
  httpStatus: 429,
  type: 'rate_limit_error',
  code: 'RATE_LIMIT_ERROR',
  message: `Rate limit exceeded: clients.a.${limit}`,
  retry_after: seconds,
  headers: {
    'retry-after': String(seconds),
    ...(seconds > 60 ? { 'x-should-retry': 'false' } : {}),
  },
});

test('tokens_per_minute lets requests pass while its bucket is above zero', async (t) => {
  const { gateway, as, asked, statuses } = await start(t, { a: 'tokens_per_minute = 1000' });
  assert.deepEqual(await statuses('a p/400', 'a2 p/400', 'a p/400'), [200, 200, 200]);
  const refuse = async (seconds: number, stream = false) => {
    const reply = await gateway.chat(chatBody({ model: 'p/1', stream }), as('a2'));
    assertError(reply, limitedBy('tokens_per_minute', seconds));
  };
  // The bucket is at -200 tokens, and gets 1000 in 60 s.
  await refuse(13);
  const { reason, limit } = gateway.accessLines().at(-1)!;
  assert.equal(reason, 'client_tokens_per_minute');
  assert.equal(
    limit,
    'clients.a.tokens_per_minute: 1200 of 1000 tokens used, refilled at 1000 per minute',
  );
  nowMs += 12_000;
  await refuse(1, true);
  assert.deepEqual(
    await statuses('b p/5000', 'b', 'shared p/5000', 'shared'),
    [200, 200, 200, 200],
  );
  nowMs += 1000;
  assert.deepEqual(await statuses('a p/17', 'a'), [200, 429]);
  assert.deepEqual(asked(), [8, 0]);
});

test('a bucket with a part of a token refuses, and the line shows it as used up', async (t) => {
  const { gateway, statuses } = await start(t, { a: bucket(2) });
  assert.deepEqual(await statuses('a', 'a'), [200, 200]);
  nowMs += 600;
  assert.deepEqual(await statuses('a'), [429]);
  const { limit } = gateway.accessLines().at(-1)!;
  assert.equal(limit, 'clients.a: 2 of 2 requests used, refilled at 1 per second');
});

test('the tokens of a stream count at its end, if the answer reports them', async (t) => {
  const { gateway, as } = await start(t, { a: 'tokens_per_minute = 60' });
  const ask = async (usage: unknown, stream: boolean) => {
    const model = `p/${JSON.stringify(usage)}`;
    return (await gateway.chat(chatBody({ model, stream }), as('a'))).status;
  };
  const nothing = [{}, { total_tokens: -1 }, { total_tokens: '9' }, { prompt_tokens: 0.5 }];
  for (const stream of [true, false]) {
    for (let i = 0; i < 3; i += 1) {
      for (const usage of nothing) assert.equal(await ask(usage, stream), 200);
    }
    for (const total of [{}, { total_tokens: 0 }]) {
      assert.equal(await ask({ prompt_tokens: 40, completion_tokens: 30, ...total }, stream), 200);
      assert.equal(await ask(1, stream), 429, 'their sum counts without a total');
      nowMs += 71_000;
    }
    assert.equal(await ask({ prompt_tokens: 59, total_tokens: 59 }, stream), 200);
    assert.equal(await ask({ prompt_tokens: 1, total_tokens: 1 + Number(stream) }, stream), 200);
    assert.equal(await ask(1, stream), 429);
    nowMs += 61_000;
  }
  assert.equal(await ask(Number.MAX_SAFE_INTEGER, false), 200);
  const reply = await gateway.chat(chatBody(), as('a'));
  assertError(reply, limitedBy('tokens_per_minute', 1_000_000_000 - 60 + 1));
});

test('an empty usage behind the usage of a stream takes nothing back', async (t) => {
  const { gateway, as, p } = await start(t, { a: 'tokens_per_day = 7' });
  p.script = (_, response) => {
    const events = [{ total_tokens: 7 }, {}, null].map(
      (usage) => `data: ${JSON.stringify({ choices: [], usage })}\n\n`,
    );
    sendEvents(response, completionEvents().replace(DONE, events.join('') + DONE));
  };
  assert.equal((await gateway.chat(STREAM, as('a'))).status, 200);
  assertError(await gateway.chat(STREAM, as('a')), limitedBy('tokens_per_day', 43_200));
});

test('a usage before the first token of an answer that never begins takes none', async (t) => {
  const { gateway, as, p } = await start(t, { a: 'tokens_per_minute = 60' });
  p.script = (_, response) => {
    const usage = { total_tokens: 100 };
    sendEvents(response, `data: ${JSON.stringify({ choices: [], usage })}\n\n`);
  };
  assert.equal((await gateway.chat(STREAM, as('a'))).status, 502);
  assert.equal((await gateway.chat(STREAM, as('a'))).status, 502);
});

test('if several limits refuse, the answer names the limit with the longest wait', async (t) => {
  const a = 'requests_per_minute = 1\ntokens_per_minute = 60\ntokens_per_day = 864';
  const { gateway, as, statuses } = await start(t, {
    a,
    more: `[rate_limit]\nenabled = true\n${bucket(2)}`,
  });
  assert.deepEqual(await statuses('a p/1000'), [200]);
  // The minute is full again after 17 minutes, and the day ends after 12 hours.
  assertError(await gateway.chat(chatBody(), as('a')), limitedBy('tokens_per_day', 43_200));
  nowMs += 43_199_000;
  assertError(await gateway.chat(chatBody(), as('a')), limitedBy('tokens_per_day', 1));
  assert.deepEqual(
    await statuses('shared', 'shared', 'shared'),
    [200, 200, 429],
    'nothing is taken',
  );
  nowMs += 1000;
  assert.deepEqual(await statuses('a'), [200]);
});

test("a client named like another client's limit has its own bucket", async (t) => {
  const { gateway, toml, as, statuses } = await start(t, { a: 'requests_per_minute = 2' });
  const other = `${toml}[clients."a.requests_per_minute"]\nkey = "other"\n${bucket(2, 2)}`;
  await gateway.reload(other);
  await gateway.reload(`${other}# again\n`);
  assert.deepEqual(await statuses('a', 'a', 'a', 'other', 'other'), [200, 200, 429, 200, 200]);
  nowMs += 1000;
  assert.equal((await gateway.chat(chatBody(), as('a'))).status, 429, 'one token each 30 s');
  assert.equal((await gateway.chat(chatBody(), as('other'))).status, 200);
});

test('limits keep their levels over two reloads, and only a changed bucket begins anew', async (t) => {
  const a = `${bucket(9, 1)}requests_per_minute = 3\ntokens_per_day = 864`;
  const { gateway, toml, as, statuses } = await start(t, { a });
  assert.deepEqual(await statuses('a p/400', 'a p/m'), [200, 200]);
  for (const more of ['# one\n', '# two\n']) await gateway.reload(toml + more);
  assert.deepEqual(await statuses('a p/463', 'a'), [200, 429]);
  nowMs += 20_000;
  assertError(await gateway.chat(chatBody(), as('a')), limitedBy('tokens_per_day', 43_180));
  const raised = toml.replace('tokens_per_day = 864', 'tokens_per_day = 8640');
  await gateway.reload(raised);
  assert.deepEqual(await statuses('a p/1', 'a'), [200, 429], 'the minute has its one token still');
  await gateway.reload(raised.replace('requests_per_minute = 3', 'requests_per_minute = 2'));
  const { headers } = await gateway.chat(chatBody({ model: 'p/1' }), as('a'));
  assert.equal(headers['x-ratelimit-remaining-tokens'], String(8640 - 400 - 2 - 463 - 1));
  assert.deepEqual(await statuses('a p/1', 'a p/1'), [200, 429]);
});

test("a window's sum outlasts reloads without its limit or its client, until its end", async (t) => {
  const { gateway, toml, statuses } = await start(t, { a: 'tokens_per_day = 864' });
  const without = toml.replace('tokens_per_day = 864', 'tokens_per_day = 0');
  const renamed = toml.replace('[clients.a]', '[clients.c]');
  assert.notEqual(renamed, toml);
  assert.deepEqual(await statuses('a p/864', 'a'), [200, 429]);
  for (const between of [without, renamed]) {
    await gateway.reload(between);
    await gateway.reload(`${between}# again\n`);
    assert.deepEqual(await statuses('a p/9'), [200]);
    await gateway.reload(toml);
    assert.deepEqual(await statuses('a'), [429]);
  }
  await gateway.reload(without);
  nowMs += 43_200_000;
  await gateway.reload(toml);
  assert.deepEqual(await statuses('a p/864', 'a'), [200, 429], 'a new day');
});

test("a request that a provider's limit refuses leaves requests_per_minute alone", async (t) => {
  const more = `[rate_limit]\nenabled = true\n[rate_limit.providers.p]\n${bucket(1)}`;
  const counted = await start(t, { a: 'requests_per_minute = 2', more });
  const requests = ['a p/8', 'a', 'a', 'a q/m', 'a q/m'] as const;
  const expected = [200, 429, 429, 200, 429];
  assert.deepEqual(await counted.statuses(...requests), expected);
  assert.deepEqual(await counted.reasons(5), ['provider', 'client_requests_per_minute']);
  nowMs += 1000;
  const billed = await start(t, { a: 'tokens_per_minute = 9', more });
  assert.deepEqual(await billed.statuses(...requests), expected);
  assert.deepEqual(await billed.reasons(5), ['provider', 'client_tokens_per_minute']);
});

test("a provider's requests per minute refill evenly, and are no reason to ask another", async (t) => {
  const limit = '[rate_limit.providers.p]\nrequests_per_minute = 6\n';
  const more = `[rate_limit]\nenabled = true\n${limit}[aliases]\ntwo = ["p/m", "q/m"]\n`;
  const { as, asked, gateway, reasons, statuses } = await start(t, { more });
  const six = Array<string>(6).fill('a');
  const answered = six.map(() => 200);
  assert.deepEqual(await statuses(...six, 'a', 'b two', 'b q/m'), [...answered, 429, 429, 200]);
  assert.deepEqual(asked(), [6, 1]);
  const refused = await gateway.chat(chatBody(), as('a'));
  assertLimited(refused, 'Rate limit exceeded: rate_limit.providers.p.requests_per_minute');
  assert.equal(refused.headers['retry-after'], '10');
  assert.deepEqual(await reasons(10), ['provider_requests_per_minute']);
  nowMs += 10_000;
  assert.deepEqual(await statuses('b two', 'b two'), [200, 429]);
});

test("the metrics and the page show how full the clients' limits are", async (t) => {
  // The page shows no limit per second, which is full again at once.
  const a = `${bucket(9)}requests_per_minute = 60\ntokens_per_day = 86400`;
  const { gateway, statuses } = await start(t, { a, more: '[admin]\nport = 0\n' });
  assert.deepEqual(await statuses('a p/100000', 'a'), [200, 429]);
  await linesOf(gateway, 2);
  nowMs += 300;
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  const of = (name: string, limit: string) => sum(name, { limit, client: 'a' });
  assert.equal(of('gateway_limit', 'client_tokens_per_day'), 86_400);
  assert.equal(of('gateway_limit_used', 'client_tokens_per_day'), 100_000);
  assert.equal(of('gateway_limit', 'client_requests_per_minute'), 60);
  assert.equal(of('gateway_limit_used', 'client_requests_per_minute'), 1);
  assert.equal(sum('gateway_refusals_total', { reason: 'client_tokens_per_day', client: 'a' }), 1);
  const feed = await openFeed(t, gateway.adminPort);
  const { clients } = await feed.next('state');
  const { limits } = clients.find(({ id }: { id: string }) => id === 'a');
  assert.deepEqual(limits, [
    { icon: 'bar', unit: 'req/min', share: 1 / 60, text: '1 of 60' },
    { icon: 'warn', unit: 'tokens/day', share: 1, text: '100,000 of 86,400, 0 left' },
  ]);
});

const LIMIT_HEADERS = ['requests', 'tokens'].flatMap((unit) =>
  ['limit', 'remaining', 'reset'].map((name) => `x-ratelimit-${name}-${unit}`),
);
/** Returns the values of the six headers in their order, and `-` for a header that is absent. */
const limitsIn = ({ headers }: { readonly headers: IncomingHttpHeaders }) =>
  LIMIT_HEADERS.map((name) => String(headers[name] ?? '-')).join(' ');

test('an answer, a stream and a 429 show what is left of the limit on requests', async (t) => {
  const lines = 'requests_per_minute = 4';
  const { gateway, as } = await start(t, { a: lines, more: '[admin]\nport = 0\n' });
  assert.equal(limitsIn(await gateway.chat(chatBody(), as('a'))), '4 3 15s - - -');
  assert.equal(limitsIn(await gateway.chat(STREAM, as('a2'))), '4 2 30s - - -');
  assert.equal(limitsIn(await gateway.send('/v1/models', as('a'))), '4 1 45s - - -');
  assert.equal(limitsIn(await gateway.send('/v1/unknown', as('a'))), '4 0 1m0s - - -');
  const refused = await gateway.chat(chatBody(), as('a'));
  assert.equal(refused.status, 429);
  assert.equal(limitsIn(refused), '4 0 1m0s - - -');
  nowMs += 29_980;
  assert.equal(limitsIn(await gateway.chat(chatBody(), as('a'))), '4 0 46s - - -');
  // A key without a client, another client and a wrong key have no limits.
  for (const key of ['shared', 'b', 'wrong']) {
    assert.equal(limitsIn(await gateway.chat(chatBody(), as(key))), '- - - - - -');
  }
  assert.equal(limitsIn(await gateway.send('/health')), '- - - - - -');
});

test('headers show the limit with the least left, for requests and for tokens', async (t) => {
  const lines = 'requests_per_minute = 600\ntokens_per_minute = 1000\ntokens_per_day = 86400';
  const { gateway, as } = await start(t, { a: `${bucket(5, 20)}${lines}` });
  const say = async (model: string) => limitsIn(await gateway.chat(chatBody({ model }), as('a')));
  // Tokens are taken when an answer has ended, so the next answer shows them.
  assert.equal(await say('p/400'), '5 4 50ms 1000 1000 0s');
  assert.equal(await say('p/1000'), '5 3 100ms 1000 600 24s');
  nowMs += 1000;
  // The minute is at -384 tokens. It is full before the day, which lacks 1399.
  assert.equal((await gateway.chat(chatBody(), as('a'))).status, 429);
  assert.equal(await say('p/m'), '5 5 0s 1000 0 1m23s');
  nowMs += 600_000;
  assert.equal(await say('p/84039'), '5 4 50ms 1000 1000 0s');
  nowMs += 6_000_000;
  // The minute is full, and has more left than the day, which ends at midnight.
  assert.equal(await say('p/m'), '5 4 50ms 86400 961 10h9m59s');
});

test('of two limits with as much left, headers show the one that is full later', async (t) => {
  const { gateway, as } = await start(t, { a: `${bucket(2)}requests_per_minute = 2` });
  for (const expected of ['2 1 30s - - -', '2 0 1m0s - - -']) {
    assert.equal(limitsIn(await gateway.chat(chatBody(), as('a'))), expected);
  }
});

test("a client's own limits replace the provider's headers of the same names", async (t) => {
  const theirs = Object.fromEntries(LIMIT_HEADERS.map((name) => [name, '9']));
  const { gateway } = await scenario(t, {
    server: 'cors = true',
    clients: { limited: 'key = "a"\nrequests_per_minute = 5', other: 'key = "b"' },
    providers: {
      p: (_, response) =>
        sendJson(response, completion(), { headers: { ...theirs, 'x-ratelimit-reset': '7' } }),
    },
  });
  const ask = (key: string) =>
    gateway.chat(chatBody(), { headers: { authorization: `Bearer ${key}` } });
  const limited = await ask('a');
  assert.match(limitsIn(limited), /^5 4 1\ds - - -$/);
  assert.equal(limited.headers['x-ratelimit-reset'], '7');
  assert.match(limited.headers['access-control-expose-headers']!, /x-ratelimit-reset-requests/);
  assert.equal(limitsIn(await ask('b')), '9 9 9 9 9 9');
});

/** Starts client `a` with these lines, and a model `p/m` that costs 1 for each 100 tokens. */
async function startPriced(t: TestContext, a: string, more = '') {
  replaceNow(t, () => nowMs);
  let now = Date.parse('2026-11-29T12:00:00Z');
  replaceDate(t, () => now);
  const price = 'input_price_per_million = 10_000, output_price_per_million = 10_000';
  const usage = { prompt_tokens: 90, completion_tokens: 35, total_tokens: 125 };
  const started = await scenario(t, {
    env: EACH_REFUSAL,
    clients: { a: `key = "a"\n${a}` },
    providers: {
      p: {
        script: (_, response) => sendJson(response, { ...completion(), usage }),
        lines: `stream_usage = true\nmodel_details.m = { ${price} }`,
      },
    },
    more,
  });
  const ask = (model = 'p/m') =>
    started.gateway.chat(chatBody({ model }), { headers: { authorization: 'Bearer a' } });
  const setDate = (at: string) => {
    now = Date.parse(at);
  };
  return { ...started, ask, setDate };
}

test('cost_per_day refuses from its number on, until midnight in UTC', async (t) => {
  const { ask, gateway, setDate } = await startPriced(t, 'models = ["p/m"]\ncost_per_day = 3.5');
  for (const left of ['3.5', '2.25', '1']) {
    const { headers, status } = await ask();
    assert.equal(status, 200);
    assert.equal(headers['x-ratelimit-limit-cost'], '3.5');
    assert.equal(headers['x-ratelimit-remaining-cost'], left);
    assert.equal(headers['x-ratelimit-reset-cost'], '12h0m0s');
  }
  const refused = await ask();
  assertError(refused, limitedBy('cost_per_day', 43_200));
  assert.equal(refused.headers['x-ratelimit-remaining-cost'], '0');
  const { limit, reason } = gateway.accessLines().at(-1)!;
  assert.equal(reason, 'client_cost_per_day');
  assert.equal(limit, 'clients.a.cost_per_day: 3.75 of 3.5 used, until 2026-11-30T00:00:00.000Z');
  setDate('2026-11-29T23:59:30Z');
  const soon = await ask();
  assertError(soon, limitedBy('cost_per_day', 30));
  assert.equal(soon.headers['x-should-retry'], undefined);
  setDate('2026-11-30T00:00:00Z');
  assert.equal((await ask()).status, 200);
});

test('a small limit on cost has no exponent, in the headers and in the log', async (t) => {
  const { ask, gateway } = await startPriced(t, 'models = ["p/m"]\ncost_per_day = 1e-10');
  const { headers, status } = await ask();
  assert.equal(status, 200);
  assert.equal(headers['x-ratelimit-limit-cost'], '0.0000000001');
  assert.equal(headers['x-ratelimit-remaining-cost'], '0.0000000001');
  assert.equal((await ask()).status, 429);
  const { limit } = gateway.accessLines().at(-1)!;
  assert.match(String(limit), /^clients\.a\.cost_per_day: 1\.25 of 0\.0000000001 used, /);
});

test('tokens_per_month and cost_per_month end with the month, beside the day', async (t) => {
  const lines =
    'models = ["p/m"]\ntokens_per_day = 200\ntokens_per_month = 300\ncost_per_month = 4';
  const { ask, gateway, setDate } = await startPriced(t, lines, '[admin]\nport = 0\n');
  const statuses = async () => [(await ask()).status, (await ask()).status, (await ask()).status];
  assert.deepEqual(await statuses(), [200, 200, 429]);
  assertError(await ask(), limitedBy('tokens_per_day', 43_200));
  setDate('2026-11-30T12:00:00Z');
  assert.deepEqual(await statuses(), [200, 429, 429]);
  assertError(await ask(), limitedBy('tokens_per_month', 43_200));
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  const of = (name: string, limit: string) => sum(name, { limit, client: 'a' });
  assert.equal(of('gateway_limit', 'client_cost_per_month'), 4);
  assert.equal(of('gateway_limit_used', 'client_cost_per_month'), 3.75);
  assert.equal(of('gateway_limit_used', 'client_tokens_per_month'), 375);
  const feed = await openFeed(t, gateway.adminPort);
  const { clients } = await feed.next('state');
  const { limits } = clients.find(({ id }: { id: string }) => id === 'a');
  assert.deepEqual(
    limits.map(({ unit, text }: { unit: string; text: string }) => `${unit}: ${text}`),
    [
      'tokens/day: 125 of 200, 75 left',
      'tokens/month: 375 of 300, 0 left',
      'cost/month: 3.75 of 4, 0.25 left',
    ],
  );
  setDate('2026-12-01T00:00:00Z');
  assert.deepEqual(await statuses(), [200, 200, 429]);
  setDate('2026-12-02T00:00:00Z');
  assert.deepEqual(await statuses(), [200, 429, 429]);
});

test('with unpriced = "allow" an answer without a price costs nothing', async (t) => {
  const { ask } = await startPriced(t, 'cost_per_month = 1\nunpriced = "allow"');
  const statuses: number[] = [];
  for (const model of ['p/other', 'p/other', 'p/m', 'p/other']) {
    statuses.push((await ask(model)).status);
  }
  assert.deepEqual(statuses, [200, 200, 200, 429]);
});
