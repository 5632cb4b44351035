/** `max_waiting` in a whole gateway: who waits, for how long, and where the wait is told. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { stopClock, useManualTimers } from '../support/clock.ts';
import { assertLimited } from '../support/errors.ts';
import { parseMetrics } from '../support/exposition.ts';
import {
  chatBody,
  EACH_REFUSAL,
  triesOf,
  type Reply,
  type TestGateway,
} from '../support/gateway.ts';
import { modelOf, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { eventually, linesOf, openChat } from '../support/streams.ts';
import { answerWell, completion, failWith, sendJson, type Script } from '../support/upstream.ts';

const ADMIN = '[admin]\nport = 0\n';
const ONE = 'max_concurrent_requests = 1\nmax_waiting = 20';

/** Returns a script that answers each request after `next`, and the models asked for so far. */
function holding() {
  const models: string[] = [];
  const held: (() => void)[] = [];
  const script: Script = (request, response) => {
    if (request.method === 'GET') return sendJson(response, { data: [] });
    models.push(modelOf(request));
    return void held.push(() => sendJson(response, completion()));
  };
  return { script, models, next: () => held.shift()!() };
}

/** Starts a gateway whose provider `p` has a single slot, which a first request holds. */
async function startFull(
  t: TestContext,
  { p = ONE, ...settings }: Omit<ScenarioSettings<'p'>, 'providers'> & { readonly p?: string } = {},
) {
  const { script, models, next } = holding();
  const made = await scenario(t, { ...settings, providers: { p: { script, lines: p } } });
  const { gateway } = made;
  const ask = (model: string, key?: string, signal?: AbortSignal): Promise<Reply> =>
    gateway.chat(chatBody({ model: `p/${model}` }), {
      ...(key && { headers: { authorization: `Bearer ${key}` } }),
      ...(signal && { signal }),
    });
  const first = ask('first');
  await eventually(() => models.length === 1, 'the first request');
  return { ...made, ask, first, models, next };
}

const waitingAt = async (gateway: TestGateway) =>
  parseMetrics((await gateway.admin('/metrics')).text).sum('gateway_provider_requests_waiting');

const untilWaiting = (gateway: TestGateway, count: number) =>
  eventually(async () => (await waitingAt(gateway)) === count, `${count} waiting`);

test('ten agents get their answers of a provider with one slot, with clients in turn', async (t) => {
  const { gateway, ask, models, next, first } = await startFull(t, {
    clients: { a: 'key = "a"', b: 'key = "b"' },
    server: '[server.auth]\nkeys = ["client-token-canary-9876543210"]',
    more: ADMIN,
  });
  const asked = [first];
  const names = ['a1', 'a2', 'a3', 'a4', 'a5', 'a6', 'b1', 'b2', 'b3'];
  for (const [index, name] of names.entries()) {
    asked.push(ask(name, name[0]));
    await untilWaiting(gateway, index + 1);
  }
  const { providers } = (await gateway.admin('/status')).json();
  assert.deepEqual([providers.p.inFlight, providers.p.details], [1, ['9 waiting']]);
  for (let count = 1; count <= 10; count += 1) {
    assert.equal(models.length, count);
    next();
    if (count < 10) await eventually(() => models.length === count + 1, `request ${count + 1}`);
  }
  const replies = await Promise.all(asked);
  assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set([200]));
  assert.deepEqual(models.slice(1), ['a1', 'b1', 'a2', 'b2', 'a3', 'b3', 'a4', 'a5', 'a6']);
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_queue_wait_seconds_count'), 9);
  assert.equal(sum('gateway_provider_requests_in_flight'), 0);
});

test('a wait has its own figure in line, header and metrics, and is no time of the provider', async (t) => {
  const clock = stopClock(t);
  const { gateway, ask, models, next, first } = await startFull(t, { more: ADMIN });
  const second = ask('second');
  await untilWaiting(gateway, 1);
  clock.nowMs += 3000;
  next();
  await first;
  await eventually(() => models.length === 2, 'the second request');
  clock.nowMs += 200;
  next();
  const { headers } = await second;
  assert.equal(headers['server-timing'], 'gateway;dur=0.0, queue;dur=3000.0, upstream;dur=200.0');
  assert.equal(headers['x-gateway-tries'], undefined);
  const [before, line] = await linesOf(gateway, 2);
  assert.equal(before!['waited_ms'], undefined);
  assert.deepEqual([line!['waited_ms'], line!['duration_ms']], [3000, 3200]);
  const tries = line!['tries'] as { outcome: string; duration_ms?: number }[];
  assert.deepEqual(
    tries.map((one) => [one.outcome, one.duration_ms]),
    [
      ['limit', undefined],
      ['ok', 200],
    ],
  );
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_queue_wait_seconds_sum'), 3);
  assert.equal(sum('gateway_processing_seconds_sum'), 0);
});

test('a full queue, and the end of the wait, are the 429 without a queue', async (t) => {
  const timers = useManualTimers(t);
  const { gateway, ask, next, first, models } = await startFull(t, {
    env: EACH_REFUSAL,
    server: 'queue_timeout = 7',
    p: 'max_concurrent_requests = 1\nmax_waiting = 1',
    more: ADMIN,
  });
  const second = ask('second');
  await untilWaiting(gateway, 1);
  const message = 'Too many requests at the same time';
  assertLimited(await ask('third'), message);
  timers.advance(7000);
  assertLimited(await second, message);
  assert.equal(await waitingAt(gateway), 0);
  const lines = await linesOf(gateway, 2);
  const limit = 'providers.p.max_concurrent_requests: 1 of 1';
  assert.deepEqual(
    lines.map((line) => [line['reason'], line['limit']]),
    [
      ['provider_concurrency', `${limit}; its queue was full`],
      ['provider_concurrency', `${limit}; the wait for a slot ended`],
    ],
  );
  assert.deepEqual(
    lines.map((line) => line['waited_ms'] !== undefined),
    [false, true],
  );
  next();
  await first;
  const fourth = ask('fourth');
  await eventually(() => models.length === 2, 'the fourth request');
  next();
  assert.equal((await fourth).status, 200);
});

test('the line of a request whose place another client takes says so', async (t) => {
  const { gateway, ask, next, first, models } = await startFull(t, {
    env: EACH_REFUSAL,
    clients: { a: 'key = "a"', b: 'key = "b"' },
    server: '[server.auth]\nkeys = ["client-token-canary-9876543210"]',
    p: 'max_concurrent_requests = 1\nmax_waiting = 2',
    more: ADMIN,
  });
  const a1 = ask('a1', 'a');
  await untilWaiting(gateway, 1);
  const a2 = ask('a2', 'a');
  await untilWaiting(gateway, 2);
  const b1 = ask('b1', 'b');
  assert.equal((await a2).status, 429);
  const [line] = await linesOf(gateway);
  const limit = 'providers.p.max_concurrent_requests: 1 of 1';
  assert.equal(line!['limit'], `${limit}; another client took its place in the queue`);
  for (let count = 2; count <= 3; count += 1) {
    next();
    await eventually(() => models.length === count, `request ${count}`);
  }
  next();
  await Promise.all([first, a1, b1]);
});

test('a try after a wait has what the wait leaves of the time limits', async (t) => {
  const clock = stopClock(t);
  const timers = useManualTimers(t);
  const { gateway, ask, next, first, models } = await startFull(t, {
    server: 'first_token_timeout = 7',
    p: `${ONE}\ntimeout = 10`,
    more: ADMIN,
  });
  const second = ask('second');
  await untilWaiting(gateway, 1);
  const stream = chatBody({ model: 'p/stream', stream: true });
  const third = gateway.chat(stream);
  await untilWaiting(gateway, 2);
  clock.nowMs += 2000;
  next();
  await first;
  await eventually(() => models.length === 2, 'the second request');
  assert.ok(timers.running().includes(8000));
  clock.nowMs += 1000;
  next();
  await second;
  await eventually(() => models.length === 3, 'the stream');
  assert.ok(timers.running().includes(4000));
  timers.advance(4000);
  assert.equal((await third).status, 504);
  next();
});

test('a request waits no longer than half of the timeout of its provider', async (t) => {
  stopClock(t);
  const timers = useManualTimers(t);
  const { gateway, ask, next, first } = await startFull(t, {
    p: `${ONE}\ntimeout = 6`,
    more: ADMIN,
  });
  const second = ask('second');
  await untilWaiting(gateway, 1);
  timers.advance(2999);
  assert.equal(await waitingAt(gateway), 1);
  timers.advance(1);
  assert.equal((await second).status, 429);
  next();
  assert.equal((await first).status, 200);
});

test('a slot that comes after half of the time limit is not taken', async (t) => {
  const clock = stopClock(t);
  useManualTimers(t);
  const { gateway, ask, models, next, first } = await startFull(t, {
    p: `${ONE}\ntimeout = 6`,
    more: ADMIN,
  });
  const second = ask('second');
  await untilWaiting(gateway, 1);
  // The timer of the wait is late, as on a busy machine.
  clock.nowMs += 3000;
  next();
  await first;
  assert.equal((await second).status, 429);
  assert.equal(models.length, 1);
});

test('a client that leaves gives its place up at once, and a drain ends waits', async (t) => {
  const { gateway, ask, models, next, first } = await startFull(t, {
    p: 'max_concurrent_requests = 1\nmax_waiting = 1',
    more: ADMIN,
  });
  const leaver = new AbortController();
  const left = ask('left', undefined, leaver.signal);
  await untilWaiting(gateway, 1);
  leaver.abort();
  await assert.rejects(left);
  await untilWaiting(gateway, 0);
  const stays = ask('stays');
  await untilWaiting(gateway, 1);
  const [line] = await linesOf(gateway);
  assert.deepEqual(
    [line!['outcome'], line!['reason'], typeof line!['waited_ms']],
    ['client_closed', 'client left before the answer', 'number'],
  );
  void gateway.drain(0, new GatewayError('internal', 'The gateway is shutting down'));
  assert.equal((await stays).status, 500);
  assert.equal((await first).status, 500);
  assert.deepEqual(models, ['first']);
  next();
});

test('a free fallback is asked first, and one that fails is followed by the wait', async (t) => {
  const { script, models, next } = holding();
  const { gateway, asked, q } = await scenario(t, {
    providers: { p: { script, lines: ONE }, q: answerWell },
    fallback: ['q'],
    more: ADMIN,
  });
  const ask = (model: string) => gateway.chat(chatBody({ model: `p/${model}` }));
  const first = ask('first');
  await eventually(() => models.length === 1, 'the first request');
  assert.equal((await ask('second')).headers['x-gateway-provider'], 'q');
  q.script = failWith(503);
  const third = ask('third');
  await untilWaiting(gateway, 1);
  next();
  await eventually(() => models.length === 2, 'the third request');
  next();
  const { headers, status } = await third;
  assert.deepEqual(
    [status, headers['x-gateway-provider'], headers['x-gateway-tries']],
    [200, 'p', '2'],
  );
  await first;
  assert.deepEqual(asked(), [2, 2]);
  assert.equal(triesOf(gateway.accessLines().at(-1)), 'p:limit q:503 p:200');
});

test('of several full targets, the one that is free first is asked', async (t) => {
  const [one, other] = [holding(), holding()];
  const { gateway } = await scenario(t, {
    providers: { p: { script: one.script, lines: ONE }, q: { script: other.script, lines: ONE } },
    more: `${ADMIN}[aliases]\nboth = ["p/m", "q/m"]\n`,
  });
  const ask = () => gateway.chat(chatBody({ model: 'both' }));
  const chats = [ask()];
  await eventually(() => one.models.length === 1, 'p');
  chats.push(ask());
  await eventually(() => other.models.length === 1, 'q');
  chats.push(ask());
  await untilWaiting(gateway, 2);
  other.next();
  await eventually(() => other.models.length === 2, 'q again');
  assert.equal(await waitingAt(gateway), 0);
  other.next();
  one.next();
  const replies = await Promise.all(chats);
  assert.deepEqual(
    replies.map(({ headers }) => headers['x-gateway-provider']),
    ['p', 'q', 'q'],
  );
});

test('a reload that adds slots ends waits, and one without the provider ends none', async (t) => {
  const { gateway, ask, models, next, toml } = await startFull(t, { more: ADMIN });
  const chats = [ask('second'), ask('third'), ask('fourth')];
  await untilWaiting(gateway, 3);
  const withSlots = (count: number) =>
    gateway.reload(
      toml.replace('max_concurrent_requests = 1', `max_concurrent_requests = ${count}`),
    );
  await withSlots(2);
  await eventually(() => models.length === 2, 'the second request');
  assert.equal(await waitingAt(gateway), 2);
  await gateway.reload(toml.replace('[providers.p]', '[providers.p]\nenabled = false'));
  next();
  await eventually(() => models.length === 3, 'the third request');
  // Unlimited.
  await withSlots(0);
  await eventually(() => models.length === 4, 'the fourth request');
  for (let count = 0; count < 3; count += 1) next();
  const replies = await Promise.all(chats);
  assert.deepEqual(
    replies.map(({ status }) => status),
    [200, 200, 200],
  );
});

/** Starts a gateway with an alias of the targets `p` and `q`, which have a single slot each. */
async function startBoth(t: TestContext, settings: Pick<ScenarioSettings<'p'>, 'server'> = {}) {
  const [one, other] = [holding(), holding()];
  const made = await scenario(t, {
    ...settings,
    providers: { p: { script: one.script, lines: ONE }, q: { script: other.script, lines: ONE } },
    more: `${ADMIN}[aliases]\nboth = ["p/m", "q/m"]\n`,
  });
  const { gateway } = made;
  const ask = (model = 'both') => gateway.chat(chatBody({ model }));
  return { ...made, ask, one, other };
}

const FAILURES_TO_OPEN = 3;

test('a target that fails after the wait is left for the others that were full', async (t) => {
  const { gateway, ask, one, other, q } = await startBoth(t);
  const chats = [ask()];
  await eventually(() => one.models.length === 1, 'p');
  chats.push(ask());
  await eventually(() => other.models.length === 1, 'q');
  const third = ask();
  await untilWaiting(gateway, 2);
  q.script = failWith(401);
  other.next();
  await untilWaiting(gateway, 1);
  one.next();
  await eventually(() => one.models.length === 2, 'p again');
  one.next();
  assert.equal((await third).headers['x-gateway-provider'], 'p');
  await Promise.all(chats);
  const [line] = gateway.accessLines().slice(-1);
  assert.equal(triesOf(line), 'p:limit q:limit q:401 p:200');
});

test('a first provider that fails after the wait with the client’s error is the answer', async (t) => {
  const { gateway, ask, one, other, p } = await startBoth(t, { server: 'queue_timeout = 5' });
  const chats = [ask()];
  await eventually(() => one.models.length === 1, 'p');
  chats.push(ask());
  await eventually(() => other.models.length === 1, 'q');
  const third = ask();
  await untilWaiting(gateway, 2);
  p.script = failWith(400);
  one.next();
  assert.equal((await third).status, 400);
  const [, line] = await linesOf(gateway, 2);
  assert.ok(Number(line!['waited_ms']) < 5000, 'the request has not waited for q');
  other.next();
  await Promise.all(chats);
  assert.equal(other.models.length, 1);
});

test('a slot of a target with an open circuit is not taken while another may come', async (t) => {
  const { gateway, ask, other, p, q } = await startBoth(t);
  const well = p.script;
  p.script = failWith(503);
  const holds = q.script;
  q.script = answerWell;
  for (let count = 1; count < FAILURES_TO_OPEN; count += 1) {
    assert.equal((await ask()).headers['x-gateway-provider'], 'q');
  }
  q.script = holds;
  p.script = (request, response) => {
    if (request.method === 'GET') return well(request, response);
    return void held.push(() => failWith(503)(request, response));
  };
  const held: (() => unknown)[] = [];
  const chats = [ask()];
  await eventually(() => held.length === 1, 'p');
  chats.push(ask());
  await eventually(() => other.models.length === 1, 'q');
  const third = ask();
  await untilWaiting(gateway, 2);
  held[0]!();
  // The request whose attempt has opened the circuit waits for q too.
  await untilWaiting(gateway, 2);
  for (let count = 2; count <= 3; count += 1) {
    other.next();
    await eventually(() => other.models.length === count, `q, time ${count}`);
  }
  other.next();
  await third;
  await Promise.all(chats);
  assert.equal(held.length, 1);
  const tries = gateway.accessLines().map((line) => triesOf(line));
  assert.ok(tries.includes('p:limit q:limit q:200'), String(tries));
});

test('the wait for a full target comes before a first one with an open circuit', async (t) => {
  const timers = useManualTimers(t);
  const { gateway, ask, other, p } = await startBoth(t, { server: 'queue_timeout = 7' });
  p.script = failWith(503);
  for (let count = 0; count < FAILURES_TO_OPEN; count += 1) {
    const chat = ask();
    await eventually(() => other.models.length === count + 1, 'q');
    other.next();
    assert.equal((await chat).status, 200);
  }
  p.script = answerWell;
  const first = ask();
  await eventually(() => other.models.length === 4, 'q');
  const chats = [ask()];
  await untilWaiting(gateway, 1);
  other.next();
  await first;
  await eventually(() => other.models.length === 5, 'q after the wait');
  chats.push(ask());
  await untilWaiting(gateway, 1);
  timers.advance(7000);
  assert.equal((await chats[1])!.headers['x-gateway-provider'], 'p');
  other.next();
  await Promise.all(chats);
  const tries = gateway
    .accessLines()
    .slice(-2)
    .map((line) => triesOf(line));
  assert.deepEqual(tries, ['p:circuit_open q:limit p:200', 'p:circuit_open q:limit q:200']);
});

test('a full provider’s 429 may be repeated, although a fallback has failed', async (t) => {
  const timers = useManualTimers(t);
  const { script, models, next } = holding();
  const { gateway } = await scenario(t, {
    providers: { p: { script, lines: ONE }, q: failWith(503) },
    fallback: ['q'],
    more: ADMIN,
  });
  const first = gateway.chat(chatBody());
  await eventually(() => models.length === 1, 'the first request');
  const second = gateway.chat(chatBody());
  await untilWaiting(gateway, 1);
  timers.advance(30_000);
  const { headers, status } = await second;
  assert.deepEqual(
    [status, headers['retry-after'], headers['x-should-retry']],
    [429, '1', undefined],
  );
  next();
  await first;
});

test('a rate limit that refuses after the wait gives the slot back', async (t) => {
  const clock = stopClock(t);
  const { gateway, ask, models, next, first } = await startFull(t, {
    env: EACH_REFUSAL,
    more: `${ADMIN}[rate_limit]
enabled = true
[rate_limit.providers.p]
requests_per_second = 1
burst_capacity = 2`,
  });
  const chats = [ask('second'), ask('third')];
  await untilWaiting(gateway, 2);
  next();
  await eventually(() => models.length === 2, 'the second request');
  next();
  const [second, third] = await Promise.all(chats);
  assert.deepEqual([second!.status, third!.status], [200, 429]);
  await first;
  const [, , line] = await linesOf(gateway, 3);
  assert.deepEqual([line!['reason'], line!['provider']], ['provider', 'p']);
  clock.nowMs += 1000;
  const fourth = ask('fourth');
  await eventually(() => models.length === 3, 'the fourth request');
  next();
  assert.equal((await fourth).status, 200);
});

test('a stream that waits is kept alive by comments', async (t) => {
  const timers = useManualTimers(t);
  const { gateway, next, models } = await startFull(t, {
    server: 'stream_keepalive = 2',
    more: ADMIN,
  });
  const chat = openChat(gateway.port, chatBody({ model: 'p/stream', stream: true }));
  await untilWaiting(gateway, 1);
  timers.advance(2000);
  await eventually(() => chat.text().startsWith(':'), 'a comment');
  next();
  await eventually(() => models.length === 2, 'the stream');
  chat.leave();
  next();
});
