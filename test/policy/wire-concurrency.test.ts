/** `max_concurrent_requests`: of the server, of clients and of providers. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { replaceNow } from '../support/clock.ts';
import { assertLimited as limitedReply } from '../support/errors.ts';
import { chatBody, CLIENT_TOKEN, type Reply, type TestGateway } from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { createGate, eventually } from '../support/streams.ts';
import {
  beginStream,
  CHUNK,
  completion,
  completionEvents,
  sendJson,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';

const assertLimited = (reply: Reply) => {
  limitedReply(reply, 'Too many requests at the same time');
  assert.equal(reply.headers['retry-after'], '1');
};

interface Settings extends Omit<ScenarioSettings<'p'>, 'providers'> {
  /** Lines of the provider `p`. */
  readonly p?: string;
}

/** Provider `p`, which begins streams at once and finishes everything after `open`, and `q`, which answers. */
async function startHeld(t: TestContext, { p: lines, ...settings }: Settings = {}) {
  const { opened, open } = createGate();
  const script: Script = async (request, response) => {
    const isStream = request.body.includes('"stream":true');
    if (isStream) await beginStream(CHUNK)(request, response);
    await opened;
    if (isStream) response.end(completionEvents());
    else sendJson(response, completion());
  };
  const started = await scenario(t, { ...settings, providers: { p: { script, lines }, q: {} } });
  const { gateway } = started;
  const chat = async () => gateway.chat(chatBody());
  return { ...started, open, chat };
}

const ONE = 'max_concurrent_requests = 1';
const limitsOf = (gateway: TestGateway) => gateway.accessLines().map(({ reason }) => reason);

const inFlight = async ({ requests }: FakeUpstream, count: number) =>
  eventually(() => requests.length === count, `${count} requests at the provider`);

test('the limits of server and client hold beside each other; /health and wrong keys are not counted', async (t) => {
  const { gateway, p, open, chat } = await startHeld(t, {
    server: 'max_concurrent_requests = 2\n[server.auth]\nkeys = ["team-key-0001"]',
    clients: { alice: `key = "${CLIENT_TOKEN}"\n${ONE}` },
  });
  const withKey = (key: string) => ({ headers: { authorization: `Bearer ${key}` } });
  const first = chat();
  await inFlight(p, 1);
  assertLimited(await chat());
  const second = gateway.chat(chatBody(), withKey('team-key-0001'));
  await inFlight(p, 2);
  assertLimited(await gateway.chat(chatBody(), withKey('team-key-0001')));
  assert.deepEqual(limitsOf(gateway), ['client_concurrency', 'server_concurrency']);
  assert.equal((await gateway.send('/health')).status, 200);
  assert.equal((await gateway.chat(chatBody(), withKey('wrong'))).status, 401);
  open();
  assert.deepEqual([(await first).status, (await second).status], [200, 200]);
});

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
  test(`what is refused as ${limit} takes nothing of the rate limits`, async (t) => {
    replaceNow(t, () => 1000);
    const { gateway, p, open, chat } = await startHeld(t, settings);
    // Of two tokens, one is in use while five requests are refused: the other is still there, and no third.
    const first = chat();
    await inFlight(p, 1);
    for (let count = 0; count < 5; count += 1) assertLimited(await chat());
    assert.equal(limitsOf(gateway).at(-1), limit);
    open();
    assert.deepEqual([(await first).status, (await chat()).status], [200, 200]);
    assert.equal((await chat()).status, 429);
    assert.equal(limitsOf(gateway).at(-1), 'global');
  });
}

test('what is in flight over reloads counts on, also where the provider was removed meanwhile, and a new limit counts it too', async (t) => {
  const { gateway, p, open, chat, toml } = await startHeld(t, { p: ONE });
  const withLimit = async (limit: number) =>
    gateway.reload(toml.replace(ONE, `max_concurrent_requests = ${limit}`));
  const replies = [chat()];
  await inFlight(p, 1);
  await gateway.reload(toml.replace('[providers.p]', '[providers.r]'));
  await gateway.reload(toml);
  assertLimited(await chat());
  await withLimit(0);
  replies.push(chat());
  await inFlight(p, 2);
  await withLimit(2);
  assertLimited(await chat());
  await withLimit(3);
  replies.push(chat());
  await inFlight(p, 3);
  open();
  for (const reply of replies) assert.equal((await reply).status, 200);
  await withLimit(1);
  assert.equal((await chat()).status, 200);
});
