/**
 * `max_concurrent_requests` beside rate limits. The worlds check the limits themselves (`limits`),
 * also over reloads.
 */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { replaceNow } from '../support/clock.ts';
import { assertLimited as limitedReply } from '../support/errors.ts';
import { chatBody, type Reply, type TestGateway } from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
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
  const { gateway, p } = await scenario(t, { ...settings, providers: { p: { script, lines } } });
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
