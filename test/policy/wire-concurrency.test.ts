/**
 * `max_concurrent_requests` beside rate limits. The worlds check the limits themselves (`limits`),
 * also over reloads.
 */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { replaceNow } from '../support/clock.ts';
import { assertLimited as limitedReply } from '../support/errors.ts';
import { parseMetrics } from '../support/exposition.ts';
import { chatBody, EACH_REFUSAL, type Reply, type TestGateway } from '../support/gateway.ts';
import { modelOf, scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import { completion, sendJson, type Script } from '../support/upstream.ts';

const assertLimited = (reply: Reply) => {
  limitedReply(reply, 'Too many requests at the same time');
  assert.equal(reply.headers['retry-after'], '1');
};

interface Settings extends Omit<ScenarioSettings<'p'>, 'providers'> {
  /** Further lines for provider `p`. */
  readonly p?: string;
}

/** Starts a gateway whose provider `p` answers after `open`. */
async function startHeld(t: TestContext, { p: lines, ...settings }: Settings) {
  const { opened, open } = createGate();
  const script: Script = async (_, response) => {
    await opened;
    sendJson(response, completion());
  };
  const { gateway, p } = await scenario(t, {
    ...settings,
    env: EACH_REFUSAL,
    providers: { p: { script, lines } },
  });
  return { gateway, p, open, chat: async () => gateway.chat(chatBody()) };
}

const ONE = 'max_concurrent_requests = 1';
const limitsOf = (gateway: TestGateway) => gateway.accessLines().map(({ reason }) => reason);

const TWO_TOKENS = 'requests_per_second = 1\nburst_capacity = 2';
const GLOBAL_BUCKET = `[rate_limit]\nenabled = true\n${TWO_TOKENS}`;
const REFUSALS: Readonly<Record<string, Settings>> = {
  server_concurrency: { server: ONE, more: GLOBAL_BUCKET },
  provider_concurrency: {
    p: ONE,
    more: `${GLOBAL_BUCKET}\n[rate_limit.providers.p]\n${TWO_TOKENS}`,
  },
};
for (const [limit, settings] of Object.entries(REFUSALS)) {
  test(`a request refused as ${limit} takes nothing of the rate limits`, async (t) => {
    replaceNow(t, () => 1000);
    const { gateway, p, open, chat } = await startHeld(t, settings);
    // The first request takes the first token. Five refused requests must leave the second.
    const first = chat();
    await eventually(() => p.requests.length === 1, 'the first request');
    for (let count = 0; count < 5; count += 1) assertLimited(await chat());
    assert.equal(limitsOf(gateway).at(-1), limit);
    open();
    assert.deepEqual([(await first).status, (await chat()).status], [200, 200]);
    assert.equal((await chat()).status, 429);
    assert.equal(limitsOf(gateway).at(-1), 'global');
  });
}

test('each limit counts the requests of its own, and of several full ones the outermost is named', async (t) => {
  const gates = new Map<string, () => void>();
  const holds: Script = async (request, response) => {
    // A reload asks for the list of models.
    if (request.method === 'GET') return sendJson(response, { data: [] });
    const { opened, open } = createGate();
    gates.set(modelOf(request), open);
    await opened;
    sendJson(response, completion());
  };
  const { gateway, asked, toml } = await scenario(t, {
    env: EACH_REFUSAL,
    server: 'max_concurrent_requests = 4',
    clients: {
      a: 'key = "a"\nmax_concurrent_requests = 2',
      b: 'key = "b"\nmax_concurrent_requests = 2',
      c: 'key = "c"',
    },
    providers: { p: { script: holds, lines: 'max_concurrent_requests = 3' }, q: holds },
    more: '[admin]\nport = 0\n',
  });
  const inFlight: Promise<Reply>[] = [];
  const ask = (key: string, model: string) =>
    gateway.chat(chatBody({ model }), { headers: { authorization: `Bearer ${key}` } });
  const begin = async (key: string, model: string) => {
    const before = gates.size;
    inFlight.push(ask(key, model));
    await eventually(() => gates.size > before, model);
  };
  let lines = 0;
  const refusalOf = async (key: string, model: string) => {
    assertLimited(await ask(key, model));
    lines += 1;
    await eventually(() => gateway.accessLines().length === lines, 'the line');
    const { reason, limit } = gateway.accessLines().at(-1)!;
    return [reason, limit].join(': ');
  };
  const full = (reason: string, name: string, max: number) =>
    `${reason}: ${name}.max_concurrent_requests: ${max} of ${max}`;
  const serverFull = full('server_concurrency', 'server', 4);
  await begin('a', 'p/1');
  await begin('a', 'p/2');
  assert.equal(await refusalOf('a', 'q/3'), full('client_concurrency', 'clients.a', 2));
  await begin('b', 'p/3');
  assert.equal(await refusalOf('b', 'p/4'), full('provider_concurrency', 'providers.p', 3));
  await begin('b', 'q/4');
  for (const key of ['a', 'b', 'c']) assert.equal(await refusalOf(key, 'q/5'), serverFull);
  gates.get('2')!();
  await inFlight[1];
  lines += 1;
  await eventually(() => gateway.accessLines().length === lines, 'the line');
  await begin('c', 'p/6');
  assert.equal(await refusalOf('c', 'q/7'), serverFull);
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  const client = (name: string) => sum('gateway_client_requests_in_flight', { client: name });
  const provider = (id: string) => sum('gateway_provider_requests_in_flight', { provider: id });
  assert.deepEqual(['a', 'b', 'c'].map(client), [1, 2, 1]);
  assert.deepEqual(['p', 'q'].map(provider), [3, 1]);
  assert.equal(sum('gateway_requests_in_flight'), 4);
  assert.deepEqual(asked(), [4, 1]);
  await gateway.reload(toml.replace('max_concurrent_requests = 4', 'max_concurrent_requests = 3'));
  assert.equal(await refusalOf('c', 'q/8'), serverFull.replace('4 of 4', '4 of 3'));
  for (const open of gates.values()) open();
  await Promise.all(inFlight);
  const after = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(after.sum('gateway_client_requests_in_flight'), 0);
  assert.equal(after.sum('gateway_provider_requests_in_flight'), 0);
});
