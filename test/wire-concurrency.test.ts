/** `max_concurrent_requests`: of the server, of clients and of providers. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { SharedCounter } from '../src/lib/shared-memory.ts';
import { CircuitBreaker } from '../src/policy/circuit-breaker.ts';
import { replaceNow } from './support/clock.ts';
import { assertError } from './support/errors.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  providerToml,
  startGateway,
  triesOf,
  type Reply,
  type TestGateway,
} from './support/gateway.ts';
import { startHeldUpstream } from './support/held-stream.ts';
import { createGate, eventually, openChat } from './support/streams.ts';
import { sweep } from './support/sweep.ts';
import {
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
} from './support/upstream.ts';

function assertLimited(reply: Reply): void {
  assertError(reply, {
    httpStatus: 429,
    type: 'rate_limit_error',
    code: 'RATE_LIMIT_ERROR',
    message: 'Too many requests at the same time',
    retry_after: 1,
    headers: {
      'retry-after': '1',
      ...(reply.headers['x-gateway-provider'] ? { 'x-gateway-provider': 'p' } : {}),
    },
  });
}

/** A held upstream that knows how many requests it answers at the same time. */
async function startHeld(t: TestContext) {
  const { upstream, finish } = await startHeldUpstream(t);
  const seen = { now: 0, most: 0 };
  const answer = upstream.script;
  upstream.script = async (request, response) => {
    seen.now += 1;
    seen.most = Math.max(seen.most, seen.now);
    void request.closed.then(() => (seen.now -= 1));
    return answer(request, response);
  };
  return { upstream, seen, open: finish };
}

const limitsOf = (gateway: TestGateway) => gateway.accessLines().map(({ reason }) => reason);

const inFlight = async ({ requests }: FakeUpstream, count: number) =>
  eventually(() => requests.length === count, `${count} requests at the provider`);

const MANY = sweep(1000, 200);

describe(`of ${MANY} requests at once for a provider that takes eight`, { concurrency: 1 }, () => {
  test('eight are answered and the others are refused, without a fallback', async (t) => {
    const { upstream, seen, open } = await startHeld(t);
    const toml = providerToml(upstream, 'p', 'max_concurrent_requests = 8');
    const gateway = await startGateway(t, { toml });
    const replies = Array.from({ length: MANY }, async () => gateway.chat(chatBody()));
    await eventually(() => gateway.accessLines().length === MANY - 8, 'the others are refused');
    await inFlight(upstream, 8);
    open();
    const all = await Promise.all(replies);
    assert.equal(all.filter(({ status }) => status === 200).length, 8);
    const refused = all.filter(({ status }) => status !== 200);
    refused.forEach(assertLimited);
    assert.equal(refused.length, MANY - 8);
    assert.equal(seen.most, 8);
    assert.equal(
      limitsOf(gateway).filter((limit) => limit === 'provider_concurrency').length,
      MANY - 8,
    );
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });

  test('the others are answered by the fallback, which never sees the eight', async (t) => {
    const { upstream, seen, open } = await startHeld(t);
    const other = await startUpstream(t);
    const toml = [
      '[providers]\nfallback = ["q"]',
      providerToml(upstream, 'p', 'max_concurrent_requests = 8'),
      providerToml(other, 'q'),
    ].join('\n');
    const gateway = await startGateway(t, { toml });
    const replies = Array.from({ length: MANY }, async () => gateway.chat(chatBody()));
    // First what costs little to look at.
    await eventually(() => other.requests.length === MANY - 8, 'the fallback is asked');
    await eventually(() => gateway.accessLines().length === MANY - 8, 'the fallback answers');
    assert.ok(gateway.accessLines().every((line) => triesOf(line) === 'p:limit q:200'));
    open();
    assert.ok((await Promise.all(replies)).every(({ status }) => status === 200));
    assert.deepEqual(
      [upstream.requests.length, seen.most, other.requests.length],
      [8, 8, MANY - 8],
    );
  });
});

test('a stream counts until its end, and until its client leaves', async (t) => {
  const { upstream, open } = await startHeld(t);
  const toml = providerToml(upstream, 'p', 'max_concurrent_requests = 1');
  const gateway = await startGateway(t, { toml });
  const first = openChat(gateway.port);
  await first.response;
  assertLimited(await gateway.chat(chatBody()));
  first.leave();
  await eventually(() => gateway.accessLines().length === 2, 'the stream is over');
  const second = openChat(gateway.port);
  await second.response;
  assertLimited(await gateway.chat(chatBody({ stream: true })));
  open();
  await second.ended;
  await eventually(() => gateway.accessLines().length === 4, 'the second stream is over');
  assert.equal((await gateway.chat(chatBody())).status, 200);
});

test('what ends with an error, or is never sent to a provider, no longer counts', async (t) => {
  const upstream = await startUpstream(t, (_, response) => sendJson(response, {}, { status: 500 }));
  const limited = 'max_concurrent_requests = 1';
  const client = `[clients.alice]\nkey = "${CLIENT_TOKEN}"\n${limited}\n`;
  const toml = `[server]\n${limited}\n${client}${providerToml(upstream, 'p', limited)}`;
  const gateway = await startGateway(t, { toml });
  for (const status of [500, 500, 500]) {
    assert.equal((await gateway.chat(chatBody())).status, status);
    assert.equal((await gateway.chat('{')).status, 400);
    assert.equal((await gateway.chat(chatBody({ model: 'nobody/m' }))).status, 400);
    assert.equal((await gateway.send('/v1/unknown')).status, 404);
    assert.equal((await gateway.send('/v1/models')).status, 200);
  }
});

test('the limits of server and client hold beside each other; /health and wrong keys are not counted', async (t) => {
  const { upstream, open } = await startHeld(t);
  const toml = [
    '[server]\nmax_concurrent_requests = 2',
    `[server.auth]\nkeys = ["team-key-0001"]`,
    `[clients.alice]\nkey = "${CLIENT_TOKEN}"\nmax_concurrent_requests = 1`,
    providerToml(upstream),
  ].join('\n');
  const gateway = await startGateway(t, { toml });
  const withKey = (key: string) => ({ headers: { authorization: `Bearer ${key}` } });
  const first = gateway.chat(chatBody());
  await inFlight(upstream, 1);
  assertLimited(await gateway.chat(chatBody()));
  const second = gateway.chat(chatBody(), withKey('team-key-0001'));
  await inFlight(upstream, 2);
  assertLimited(await gateway.chat(chatBody(), withKey('team-key-0001')));
  assert.deepEqual(limitsOf(gateway), ['client_concurrency', 'server_concurrency']);
  assert.equal((await gateway.send('/health')).status, 200);
  assert.equal((await gateway.chat(chatBody(), withKey('wrong'))).status, 401);
  open();
  assert.deepEqual([(await first).status, (await second).status], [200, 200]);
});

/** Of two tokens, one is in use while five requests are refused: the other is still there, and no third. */
async function assertRefusalsTakeNothing(
  t: TestContext,
  limit: string,
  sections: readonly string[],
  ofProvider = '',
) {
  const { upstream, open } = await startHeld(t);
  replaceNow(t, () => 1000);
  const toml = [...sections, providerToml(upstream, 'p', ofProvider)].join('\n');
  const gateway = await startGateway(t, { toml });
  const first = gateway.chat(chatBody());
  await inFlight(upstream, 1);
  for (let count = 0; count < 5; count += 1) assertLimited(await gateway.chat(chatBody()));
  assert.equal(limitsOf(gateway).at(-1), limit);
  open();
  assert.deepEqual([(await first).status, (await gateway.chat(chatBody())).status], [200, 200]);
  assert.equal((await gateway.chat(chatBody())).status, 429);
  assert.equal(limitsOf(gateway).at(-1), 'global');
}

const TWO_TOKENS = 'requests_per_second = 1\nburst_capacity = 2';
const GLOBAL_BUCKET = `[rate_limit]\nenabled = true\n${TWO_TOKENS}`;

test('what is refused takes nothing of the rate limits', async (t) => {
  const sections = ['[server]\nmax_concurrent_requests = 1', GLOBAL_BUCKET];
  await assertRefusalsTakeNothing(t, 'server_concurrency', sections);
});

test('what the limit of a provider refuses takes nothing of the rate limits either', async (t) => {
  const sections = [GLOBAL_BUCKET, `[rate_limit.providers.p]\n${TWO_TOKENS}`];
  const ofProvider = 'max_concurrent_requests = 1';
  await assertRefusalsTakeNothing(t, 'provider_concurrency', sections, ofProvider);
});

test('a fallback whose circuit another thread probes meanwhile keeps its token', async (t) => {
  const p = await startUpstream(t, (_, response) => sendJson(response, {}, { status: 503 }));
  const q = await startUpstream(t);
  replaceNow(t, () => 1000);
  const oneToken = 'requests_per_second = 1\nburst_capacity = 1';
  const toml = [
    `[rate_limit]\nenabled = true\n[rate_limit.providers.q]\n${oneToken}`,
    `[providers]\nfallback = ["q"]\n${providerToml(p)}${providerToml(q, 'q')}`,
  ];
  const gateway = await startGateway(t, { toml: toml.join('\n') });
  // oxlint-disable-next-line typescript/unbound-method
  const { recordAttempt } = CircuitBreaker.prototype;
  const lost = t.mock.method(
    CircuitBreaker.prototype,
    'recordAttempt',
    function (this: CircuitBreaker, ...[provider, model]: Parameters<typeof recordAttempt>) {
      return provider.id === 'q' ? 'open' : recordAttempt.call(this, provider, model);
    },
  );
  assert.equal((await gateway.chat(chatBody())).status, 503);
  assert.equal(triesOf(gateway.accessLines()[0]), 'p:503 q:resting');
  lost.mock.restore();
  const reply = await gateway.chat(chatBody());
  assert.deepEqual([reply.status, reply.headers['x-gateway-provider']], [200, 'q']);
  assert.equal((await gateway.chat(chatBody())).status, 503, 'there was one token');
});

test('what is in flight at a provider that a reload removes counts on when another one brings it back', async (t) => {
  const { upstream, open } = await startHeld(t);
  const toml = providerToml(upstream, 'p', 'max_concurrent_requests = 1');
  const gateway = await startGateway(t, { toml });
  const first = gateway.chat(chatBody());
  await inFlight(upstream, 1);
  await gateway.reload(providerToml(upstream, 'q'));
  await gateway.reload(toml);
  assertLimited(await gateway.chat(chatBody()));
  open();
  assert.equal((await first).status, 200);
  assert.equal((await gateway.chat(chatBody())).status, 200);
});

test('what is in flight over a reload counts on, and a new limit counts it too', async (t) => {
  const { upstream, open } = await startHeld(t);
  const toml = (limit: number) => providerToml(upstream, 'p', `max_concurrent_requests = ${limit}`);
  const gateway = await startGateway(t, { toml: toml(0) });
  const replies = [gateway.chat(chatBody()), gateway.chat(chatBody())];
  await inFlight(upstream, 2);
  await gateway.reload(toml(2));
  assertLimited(await gateway.chat(chatBody()));
  await gateway.reload(toml(3));
  replies.push(gateway.chat(chatBody()));
  await inFlight(upstream, 3);
  open();
  for (const reply of replies) assert.equal((await reply).status, 200);
  await gateway.reload(toml(1));
  assert.equal((await gateway.chat(chatBody())).status, 200);
});

test('a provider that was not asked because of its limit keeps its circuit as it is', async (t) => {
  const { opened, open } = createGate();
  const upstream = await startUpstream(t, async ({ body }, response) => {
    if (!body.includes('held')) return sendJson(response, {}, { status: 503 });
    await opened;
    return sendEvents(response, completionEvents());
  });
  const other = await startUpstream(t);
  const toml = [
    '[providers]\nfallback = ["q"]',
    providerToml(upstream, 'p', 'max_concurrent_requests = 1'),
    providerToml(other, 'q'),
  ].join('\n');
  const gateway = await startGateway(t, { toml });
  const tries = async () => {
    await gateway.chat(chatBody());
    return triesOf(gateway.accessLines().at(-1));
  };
  assert.deepEqual([await tries(), await tries()], ['p:503 q:200', 'p:503 q:200']);
  const held = openChat(gateway.port, chatBody({ model: 'p/held', stream: true }));
  await inFlight(upstream, 3);
  assert.equal(await tries(), 'p:limit q:200');
  open();
  await held.ended;
  await eventually(() => gateway.accessLines().length === 4, 'the stream is over');
  assert.deepEqual([await tries(), await tries()], ['p:503 q:200', 'p:resting q:200']);
});

for (const isResting of [false, true]) {
  const what = isResting ? 'that rested, and then had no free slot,' : 'without a free slot';
  test(`the 429 of a provider ${what} is answered and logged as its own if the fallback fails`, async (t) => {
    const { opened, open } = createGate();
    t.after(open);
    const upstream = await startUpstream(t, async ({ body }, response) => {
      if (!body.includes('held')) return sendJson(response, {}, { status: 503 });
      await opened;
      return sendEvents(response, completionEvents());
    });
    const failures = isResting ? 3 : 0;
    const hold = async () => {
      openChat(gateway.port, chatBody({ model: 'p/held', stream: true }));
      await inFlight(upstream, failures + 1);
    };
    const other = await startUpstream(t, async (_, response) => {
      if (isResting && other.requests.length > failures) await hold();
      sendJson(response, {}, { status: 500, headers: { 'x-request-id': 'of-q' } });
    });
    const toml = [
      '[providers]\nfallback = ["q"]',
      providerToml(upstream, 'p', 'max_concurrent_requests = 1'),
      providerToml(other, 'q'),
    ].join('\n');
    const gateway = await startGateway(t, { toml });
    for (let round = 0; round < failures; round += 1) await gateway.chat(chatBody());
    if (!isResting) await hold();
    const { status, headers } = await gateway.chat(chatBody());
    assert.deepEqual([status, headers['x-gateway-provider']], [429, 'p']);
    await eventually(() => gateway.accessLines().length === failures + 1, 'the access line');
    const line = gateway.accessLines().at(-1);
    assert.equal(triesOf(line), isResting ? 'p:resting q:500 p:limit' : 'p:limit q:500');
    assert.deepEqual(
      [line?.['provider'], line?.['upstream_request_id'], line?.['reason']],
      ['p', undefined, 'provider_concurrency'],
    );
  });
}

/** A gateway whose provider has one slot and one retry: it holds `p/held` until `open`, and answers others with 503. */
async function startFailing(t: TestContext, sections: readonly string[] = []) {
  const { opened, open } = createGate();
  const upstream = await startUpstream(t, async ({ body }, response) => {
    if (body.includes('held')) {
      await opened;
      return sendEvents(response, completionEvents());
    }
    const headers: Record<string, string> = body.includes('slow') ? { 'retry-after': '2' } : {};
    return sendJson(response, {}, { status: 503, headers });
  });
  const p = providerToml(upstream, 'p', 'max_concurrent_requests = 1\nretries = 1');
  const toml = ['[logging]\nlevel = "debug"', ...sections, p].join('\n');
  const gateway = await startGateway(t, { toml });
  const chat = async (content: string) => {
    const before = gateway.accessLines().length;
    const { status } = await gateway.chat(chatBody({ messages: [{ role: 'user', content }] }));
    await eventually(() => gateway.accessLines().length > before, 'the access line');
    return `${status}, ${triesOf(gateway.accessLines().at(-1))}`;
  };
  const endedTries = () => gateway.log.filter((line) => line.includes('"message":"try"')).length;
  /** While it waits for its retry, another request takes the slot. */
  const chatWithoutSlot = async () => {
    const [asked, ended] = [upstream.requests.length, endedTries()];
    const retried = chat('slow');
    await eventually(() => endedTries() === ended + 1, 'the first try has ended');
    const held = openChat(gateway.port, chatBody({ model: 'p/held', stream: true }));
    await inFlight(upstream, asked + 2);
    const result = await retried;
    const lines = gateway.accessLines().length;
    open();
    await held.ended;
    await eventually(() => gateway.accessLines().length === lines + 1, 'the stream is over');
    return result;
  };
  return { chat, chatWithoutSlot };
}

describe('a retry that finds no free slot at its provider', { concurrency: 1 }, () => {
  test('leaves the failure before it as the answer', async (t) => {
    const { chatWithoutSlot } = await startFailing(t);
    assert.equal(await chatWithoutSlot(), '503, p:503 p:limit');
  });

  test('leaves the failure before it to the circuit', async (t) => {
    const q = providerToml(await startUpstream(t), 'q');
    const { chat, chatWithoutSlot } = await startFailing(t, ['[providers]\nfallback = ["q"]', q]);
    assert.equal(await chat('hi'), '200, p:503 p:503 q:200');
    assert.equal(await chat('hi'), '200, p:503 p:503 q:200');
    assert.equal(await chatWithoutSlot(), '200, p:503 p:limit q:200');
    assert.equal(await chat('hi'), '200, p:resting q:200');
  });
});

test('a provider whose last slot another thread takes meanwhile keeps its circuit as it is', async (t) => {
  const upstream = await startUpstream(t, (_, response) => sendJson(response, {}, { status: 503 }));
  const toml = [
    '[providers]\nfallback = ["q"]',
    providerToml(upstream, 'p', 'max_concurrent_requests = 7'),
    providerToml(await startUpstream(t), 'q'),
  ].join('\n');
  const gateway = await startGateway(t, { toml, isInProcess: true });
  let isTaken = false;
  // oxlint-disable-next-line typescript/unbound-method
  const { addWithin } = SharedCounter.prototype;
  t.mock.method(
    SharedCounter.prototype,
    'addWithin',
    function (this: SharedCounter, amount: number, max: number) {
      return !(isTaken && max === 7) && addWithin.call(this, amount, max);
    },
  );
  const tries = async () => {
    await gateway.chat(chatBody());
    return triesOf(gateway.accessLines().at(-1));
  };
  assert.deepEqual([await tries(), await tries()], ['p:503 q:200', 'p:503 q:200']);
  isTaken = true;
  assert.equal(await tries(), 'p:limit q:200');
  isTaken = false;
  assert.deepEqual([await tries(), await tries()], ['p:503 q:200', 'p:resting q:200']);
});
