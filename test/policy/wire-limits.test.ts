import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { replaceNow } from '../support/clock.ts';
import { assertLimited } from '../support/errors.ts';
import { chatBody, type Reply, type SendOptions, type TestGateway } from '../support/gateway.ts';
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

type Send = (gateway: TestGateway) => Promise<Reply>;
const chat =
  (body: unknown): Send =>
  async (gateway) =>
    gateway.chat(body);
const get =
  (path: string, options: SendOptions = {}): Send =>
  async (gateway) =>
    gateway.send(path, options);
const model = (name: string) => chat(chatBody({ model: name }));

async function statusesOf(gateway: TestGateway, requests: readonly Send[]): Promise<number[]> {
  const statuses: number[] = [];
  for (const send of requests) statuses.push((await send(gateway)).status);
  return statuses;
}

describe('the global limit', () => {
  test('does not count the health check, a preflight or a request without a token', async (t) => {
    const { gateway } = await start(t, { global: bucket(1), server: 'cors = true' });
    const headers = { authorization: undefined };
    const preflight = { ...headers, 'access-control-request-method': 'POST' };
    const uncounted = [
      get('/health'),
      get('/health', { method: 'HEAD' }),
      get('/v1/chat/completions', { method: 'OPTIONS', headers: preflight }),
      get('/v1/models', { headers }),
      get('/nothing', { headers }),
      get('/v1/models', { headers: { authorization: 'Basic x' } }),
    ];
    const answers = [200, 200, 204, 401, 401, 401];
    assert.deepEqual(await statusesOf(gateway, uncounted), answers);
    assert.equal((await gateway.chat(chatBody())).status, 200);
    // Nor are these refused once the limit is reached.
    assert.deepEqual(await statusesOf(gateway, uncounted), answers);
    assertLimited(await gateway.chat(chatBody()));
  });

  const counted: Record<string, Send> = {
    'an unknown path': get('/nothing'),
    'a path under another name': get('//v1/models'),
    'the model list': get('/v1/models'),
    'a wrong method': get('/v1/models', { method: 'DELETE' }),
    'POST /health': get('/health', { method: 'POST' }),
    'a wrong body': chat('{'),
    'an unknown provider': model('nobody/m'),
    'a completion': model('p/m'),
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
});

describe('the limit of a provider', () => {
  for (const [perSecond, waitMs] of [
    [1, 1000],
    [1000, 1],
  ] as const) {
    test(`of ${perSecond} requests a second refuses what is beyond its burst, for this provider alone, until a token is there, and names a whole second`, async (t) => {
      const { gateway, reached } = await start(t, { p: bucket(1, perSecond) });
      assert.equal((await gateway.chat(chatBody())).status, 200);
      const refused = await gateway.chat(chatBody());
      assertLimited(refused);
      assert.equal(refused.headers['retry-after'], '1');
      nowMs += waitMs - 0.1;
      assertLimited(await gateway.chat(chatBody({ stream: true })));
      assert.deepEqual(await statusesOf(gateway, [model('q/m'), model('q/m')]), [200, 200]);
      assert.equal(reached(), 3);
      nowMs += 0.1;
      assert.equal((await gateway.chat(chatBody())).status, 200);
    });
  }
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
      const replies = await Promise.all(
        Array.from({ length: 120 }, async () => gateway.chat(chatBody())),
      );
      assert.deepEqual(new Set(replies.map(({ status }) => status)), new Set([200]));
      assert.ok(replies.every(({ headers }) => headers['retry-after'] === undefined));
    });
  }
});
