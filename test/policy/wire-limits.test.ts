import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { replaceNow } from '../support/clock.ts';
import { assertLimited } from '../support/errors.ts';
import { chatBody, type Reply, type TestGateway } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';

// The gateway's clock stands still unless a test moves it: how fast a machine is decides nothing.
let nowMs = 1000;

/** The settings of one bucket. */
function bucket(burst: number, rps = 1): string {
  return `requests_per_second = ${rps}\nburst_capacity = ${burst}\n`;
}

interface Limits {
  readonly enabled?: boolean;
  readonly global?: string;
  readonly p?: string;
  readonly server?: string;
  readonly more?: string;
}

/** Two providers, `p` and `q`, and these limits. */
async function start(
  t: TestContext,
  { enabled = true, global = '', p, server = '', more = '' }: Limits,
) {
  replaceNow(t, () => nowMs);
  const ofProvider = p === undefined ? '' : `[rate_limit.providers.p]\n${p}`;
  const started = await scenario(t, {
    server,
    providers: { p: { lines: 'default_model = "m"' }, q: {} },
    more: `[rate_limit]\nenabled = ${enabled}\n${global}\n${ofProvider}\n${more}`,
  });
  const reached = () =>
    [...started.p.requests, ...started.q.requests].filter(({ method }) => method === 'POST').length;
  return { gateway: started.gateway, reached };
}

async function statusesOf(requests: readonly (() => Promise<Reply>)[]): Promise<number[]> {
  const statuses: number[] = [];
  for (const send of requests) statuses.push((await send()).status);
  return statuses;
}

const chat =
  (gateway: TestGateway, model = 'p/m', more: object = {}) =>
  async () =>
    gateway.chat(chatBody({ model, ...more }));

describe('the global limit', () => {
  test('refuses what is beyond the burst, and nothing of it reaches a provider', async (t) => {
    const { gateway, reached } = await start(t, { global: bucket(2) });
    assert.deepEqual(await statusesOf([chat(gateway), chat(gateway, 'q/m')]), [200, 200]);
    assertLimited(await gateway.chat(chatBody()));
    // A status and not an event, also where a stream was asked for.
    assertLimited(await gateway.chat(chatBody({ model: 'q/m', stream: true })));
    assert.equal(reached(), 2);
  });

  test('lets requests through again after the time it named', async (t) => {
    const { gateway } = await start(t, { global: bucket(1) });
    await gateway.chat(chatBody());
    const refused = await gateway.chat(chatBody());
    assertLimited(refused);
    assert.equal(refused.headers['retry-after'], '1');
    nowMs += 999;
    assertLimited(await gateway.chat(chatBody()));
    nowMs += 1;
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });

  test('does not count the health check, a preflight or a request without a token', async (t) => {
    const { gateway } = await start(t, { global: bucket(1), server: 'cors = true' });
    const withoutToken = { headers: { authorization: undefined } };
    const preflight = {
      method: 'OPTIONS',
      headers: { ...withoutToken.headers, 'access-control-request-method': 'POST' },
    };
    const uncounted = async () =>
      statusesOf([
        async () => gateway.send('/health'),
        async () => gateway.send('/health', { method: 'HEAD' }),
        async () => gateway.send('/v1/chat/completions', preflight),
        async () => gateway.send('/v1/models', withoutToken),
        async () => gateway.send('/nothing', withoutToken),
        async () => gateway.chat(chatBody(), withoutToken),
        async () => gateway.send('/v1/models', { headers: { authorization: 'Basic x' } }),
      ]);
    const answers = [200, 200, 204, 401, 401, 401, 401];
    assert.deepEqual(await uncounted(), answers);
    assert.equal((await gateway.chat(chatBody())).status, 200);
    // Nor are these refused once the limit is reached.
    assert.deepEqual(await uncounted(), answers);
    assertLimited(await gateway.chat(chatBody()));
  });

  const counted: Record<string, (gateway: TestGateway) => Promise<Reply>> = {
    'an unknown path': async (gateway) => gateway.send('/nothing'),
    'a path under another name': async (gateway) => gateway.send('//v1/models'),
    'the model list': async (gateway) => gateway.send('/v1/models'),
    'a wrong method': async (gateway) => gateway.send('/v1/models', { method: 'DELETE' }),
    'POST /health': async (gateway) => gateway.send('/health', { method: 'POST' }),
    'a wrong body': async (gateway) => gateway.chat('{'),
    'an unknown provider': async (gateway) => gateway.chat(chatBody({ model: 'nobody/m' })),
    'a completion': async (gateway) => gateway.chat(chatBody()),
  };
  test(`counts ${Object.keys(counted).join(', ')}`, async (t) => {
    const { gateway } = await start(t, { global: bucket(2) });
    for (const [what, send] of Object.entries(counted)) {
      assert.notEqual((await send(gateway)).status, 429, what);
      assert.equal((await gateway.send('/nothing')).status, 404);
      assertLimited(await send(gateway));
      nowMs += 2000;
    }
  });

  test('comes before the body: one that is wrong or too large is refused for the limit', async (t) => {
    const { gateway } = await start(t, {
      global: bucket(1),
      server: 'max_body_bytes = 200',
    });
    assert.equal((await gateway.chat(chatBody())).status, 200);
    for (const body of ['{', 'x'.repeat(300), chatBody({ model: 'nobody/m' })]) {
      assertLimited(await gateway.chat(body));
    }
  });

  test('admits exactly the burst of many requests at once', async (t) => {
    const { gateway, reached } = await start(t, { global: bucket(5) });
    const replies = await Promise.all(Array.from({ length: 20 }, chat(gateway)));
    const admitted = replies.filter(({ status }) => status === 200);
    assert.deepEqual([admitted.length, reached()], [5, 5]);
    for (const reply of replies.filter((one) => !admitted.includes(one))) assertLimited(reply);
  });
});

describe('the limit of a provider', () => {
  test('refuses what is beyond its burst, for this provider alone', async (t) => {
    const { gateway, reached } = await start(t, { p: bucket(1) });
    assert.equal((await gateway.chat(chatBody())).status, 200);
    assertLimited(await gateway.chat(chatBody()));
    assertLimited(await gateway.chat(chatBody({ stream: true })));
    assert.deepEqual(await statusesOf([chat(gateway, 'q/m'), chat(gateway, 'q/m')]), [200, 200]);
    assert.equal(reached(), 3);
  });

  test('counts every name that leads to the provider', async (t) => {
    const more = '[providers]\nprimary = "p"\n[aliases]\nnick = "p/x"\n"q/m" = "p/y"\n';
    const { gateway } = await start(t, { p: bucket(1), more });
    for (const model of ['nick', 'p', 'p/', 'p/a/b', 'anything', 'q/m']) {
      assert.equal((await gateway.chat(chatBody({ model }))).status, 200, model);
      assertLimited(await gateway.chat(chatBody()));
      nowMs += 1000;
    }
  });

  test('does not count requests that never come to the provider', async (t) => {
    const { gateway } = await start(t, { p: bucket(1) });
    const statuses = await statusesOf([
      async () => gateway.chat('{"model":"p/m"'),
      async () => gateway.chat({ model: 'p/m' }),
      async () => gateway.send('/v1/models'),
      chat(gateway, 'nobody/m'),
      chat(gateway, 'P/m'),
      chat(gateway),
    ]);
    assert.deepEqual(statuses, [400, 400, 200, 400, 400, 200]);
    assertLimited(await gateway.chat(chatBody()));
  });

  test('names a whole second also where the next token comes sooner', async (t) => {
    const { gateway } = await start(t, { p: bucket(1, 1000) });
    assert.equal((await gateway.chat(chatBody())).status, 200);
    const refused = await gateway.chat(chatBody());
    assertLimited(refused);
    assert.equal(refused.headers['retry-after'], '1');
    nowMs += 1;
    assert.equal((await gateway.chat(chatBody())).status, 200);
  });

  test('gives the global token back when it refuses: both are taken or neither', async (t) => {
    const { gateway } = await start(t, { global: bucket(3), p: bucket(1) });
    assert.equal((await gateway.chat(chatBody())).status, 200);
    for (let i = 0; i < 5; i += 1) assertLimited(await gateway.chat(chatBody()));
    assert.deepEqual(await statusesOf([chat(gateway, 'q/m'), chat(gateway, 'q/m')]), [200, 200]);
    assertLimited(await gateway.chat(chatBody({ model: 'q/m' })));
  });

  test('takes no token of the provider when the global limit refuses', async (t) => {
    const { gateway, reached } = await start(t, { global: bucket(1), p: bucket(2, 1) });
    assert.equal((await gateway.chat(chatBody({ model: 'q/m' }))).status, 200);
    for (let i = 0; i < 5; i += 1) assertLimited(await gateway.chat(chatBody()));
    nowMs += 1000;
    assert.equal((await gateway.chat(chatBody())).status, 200);
    assert.equal(reached(), 2);
  });
});

describe('no limit', () => {
  const off: Record<string, Limits> = {
    'enabled = false': { enabled: false, global: bucket(1), p: bucket(1) },
    'requests_per_second = 0': { global: bucket(1, 0), p: bucket(1, 0) },
    'enabled without a limit': {},
    'a limit for another provider': {
      p: undefined,
      more: '[rate_limit.providers.q]\n' + bucket(1),
    },
  };
  for (const [what, limits] of Object.entries(off)) {
    test(`${what}: nothing is refused`, async (t) => {
      const { gateway } = await start(t, limits);
      const replies = await Promise.all(Array.from({ length: 120 }, chat(gateway)));
      assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set([200]));
      assert.deepEqual(
        new Set(replies.map(({ headers }) => headers['retry-after'])),
        new Set([undefined]),
      );
    });
  }
});
