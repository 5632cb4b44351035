/** Incidents in a whole gateway: their beginnings and ends, also over reloads. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { stopClock } from '../support/clock.ts';
import { chatBody, startGateway, STREAM, type TestGateway } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { createGate, eventually, linesOf } from '../support/streams.ts';
import {
  answerWell,
  CHUNK,
  DONE,
  failWith,
  sendEvents,
  startUpstream,
  type Script,
} from '../support/upstream.ts';

const ADMIN = '[admin]\nport = 0';

/** Lets incidents begin and end, and returns the /metrics samples with this prefix. */
async function samplesOf(gateway: TestGateway, prefix: string): Promise<string[]> {
  gateway.judge();
  const { text } = await gateway.admin('/metrics');
  return text.split('\n').filter((line) => line.startsWith(prefix));
}
const lasting = async (gateway: TestGateway) =>
  (await samplesOf(gateway, 'gateway_incident{')).map((line) =>
    line.replace(/^gateway_incident\{kind="(\w+)",?|"?\} 1$/g, '$1 '),
  );

describe('a refused key of two is an incident', () => {
  const settings = (baseUrl: string, keys: readonly string[], more = ADMIN) =>
    `${more}\n[providers.p]\nmodels = ["m"]\nbase_url = "${baseUrl}"\n` +
    `api_keys = ${JSON.stringify(keys)}`;
  const [A, B] = ['sk-key-a-canary-01', 'sk-key-b-canary-02'] as const;

  /** Starts provider `p`, which refuses the first key while `isRefused`. */
  async function start(t: Parameters<typeof scenario>[0], more?: string) {
    const clock = stopClock(t);
    const state = { isRefused: true };
    const upstream = await startUpstream(t, (request, response) => {
      const isA = request.headers.authorization === `Bearer ${A}`;
      return (isA && state.isRefused ? failWith(401) : answerWell)(request, response);
    });
    const toml = (...keys: string[]) => settings(upstream.baseUrl, keys, more);
    const gateway = await startGateway(t, { toml: toml(A, B) });
    return { clock, gateway, state, toml };
  }

  test('from its first refusal to its first success, however often metrics are read', async (t) => {
    const { clock, gateway, state } = await start(t);
    const look = async () => [
      ...(await samplesOf(gateway, 'gateway_incident{')),
      ...(await samplesOf(gateway, 'gateway_incidents_total{kind="key_refused"')),
      ...(await samplesOf(gateway, 'gateway_keys_accepted')),
    ];
    const refused = [
      'gateway_incident{kind="key_refused",provider="p"} 1',
      'gateway_incidents_total{kind="key_refused"} 1',
      'gateway_keys_accepted{provider="p"} 1',
    ];
    await gateway.chat(chatBody());
    for (let scrape = 0; scrape < 12; scrape += 1) {
      assert.deepEqual(await look(), refused, `scrape ${scrape}`);
      clock.nowMs += 18_000;
      if (scrape % 2 === 0) await gateway.chat(chatBody());
    }
    state.isRefused = false;
    // After its cooldown, it is the key's turn again.
    clock.nowMs += 60_000;
    for (let round = 0; round < 2; round += 1) await gateway.chat(chatBody());
    assert.deepEqual(await look(), [
      'gateway_incidents_total{kind="key_refused"} 1',
      'gateway_keys_accepted{provider="p"} 2',
    ]);
  });

  test('also without an admin listener, and both its lines are logged', async (t) => {
    const { clock, gateway, state } = await start(t, '');
    await gateway.chat(chatBody());
    await eventually(() => gateway.lines('incident').length === 1, 'the line of the incident');
    const [{ kind, provider, cause, model } = assert.fail()] = gateway.lines('incident');
    const told = '1 of 2 keys, the others are used: key 1: 401';
    assert.deepEqual([kind, provider, cause, model], ['key_refused', 'p', told, undefined]);
    state.isRefused = false;
    clock.nowMs += 60_000;
    for (let round = 0; round < 2; round += 1) await gateway.chat(chatBody());
    gateway.judge();
    assert.equal(gateway.lines('incident ended').length, 1);
  });

  test('until a reload takes the key away', async (t) => {
    const { gateway, toml } = await start(t);
    await gateway.chat(chatBody());
    assert.deepEqual(await lasting(gateway), ['key_refused provider="p ']);
    await gateway.reload(toml(B));
    assert.deepEqual(await lasting(gateway), []);
  });
});

test('a key refused with 403 is accepted again when another such key works', async (t) => {
  const clock = stopClock(t);
  let forbids = true;
  const upstream = await startUpstream(t, (request, response) =>
    (forbids ? failWith(403) : answerWell)(request, response),
  );
  const keys = '["sk-key-a-canary-01", "sk-key-b-canary-02"]';
  const provider = `[providers.p]\nmodels = ["m"]\nbase_url = "${upstream.baseUrl}"`;
  const toml = `${ADMIN}\n${provider}\napi_keys = ${keys}`;
  const gateway = await startGateway(t, { toml });
  await gateway.chat(chatBody());
  assert.deepEqual(await samplesOf(gateway, 'gateway_keys_accepted'), [
    'gateway_keys_accepted{provider="p"} 0',
  ]);
  forbids = false;
  clock.nowMs += 60_000;
  await gateway.chat(chatBody());
  assert.deepEqual(await samplesOf(gateway, 'gateway_keys_accepted'), [
    'gateway_keys_accepted{provider="p"} 2',
  ]);
});

describe('over reloads', () => {
  const isOfList = (request: { readonly method?: string | undefined }) => request.method === 'GET';
  const noList: Script = (request, response) =>
    (isOfList(request) ? failWith(500) : answerWell)(request, response);

  test('a failed list of models is an incident until the settings list the models', async (t) => {
    const { gateway, toml } = await scenario(t, { providers: { p: noList }, more: ADMIN });
    await gateway.send('/v1/models');
    assert.deepEqual(await lasting(gateway), ['model_list provider="p ']);
    await gateway.reload(toml.replace('[providers.p]', '[providers.p]\nmodels = ["m"]'));
    assert.deepEqual(await lasting(gateway), []);
    assert.equal((await samplesOf(gateway, 'gateway_incident{')).length, 0);
  });

  test('a list requested before a reload is no incident of the new settings', async (t) => {
    const gate = createGate();
    let asked = 0;
    const late: Script = async (request, response) => {
      asked += 1;
      await gate.opened;
      return failWith(500)(request, response);
    };
    const { gateway, toml } = await scenario(t, {
      providers: { p: late, q: { lines: 'models = ["m"]' } },
      more: ADMIN,
    });
    const list = gateway.send('/v1/models');
    await eventually(() => asked > 0, 'the fetch');
    const without = toml.replace(/\[providers\.p\][^[]*/, '');
    await gateway.reload(without);
    gate.open();
    await list;
    assert.deepEqual(await lasting(gateway), []);
    await gateway.reload(without.replace('[server]', '[server]\ncors = true'));
    assert.deepEqual(await lasting(gateway), []);
  });

  test('tries begun before a reload are no incident of the new settings', async (t) => {
    const gate = createGate();
    let asked = 0;
    const late: Script = async (request, response) => {
      asked += 1;
      await gate.opened;
      return failWith(503)(request, response);
    };
    const { gateway, toml } = await scenario(t, {
      providers: { p: { script: late, lines: 'models = ["m"]' } },
      more: ADMIN,
    });
    const chats = Array.from({ length: 6 }, () => gateway.chat(chatBody()));
    await eventually(() => asked === 6, 'all requests');
    await gateway.reload(toml.replace('[providers.p]', '[providers.p]\nretries = 1'));
    gate.open();
    await Promise.all(chats);
    await linesOf(gateway, 6);
    assert.deepEqual(await lasting(gateway), []);
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
    assert.deepEqual(await lasting(gateway), ['errors provider="p ']);
  });

  test('a provider that a reload has not changed keeps its incident', async (t) => {
    const { gateway, toml } = await scenario(t, {
      providers: { p: { script: failWith(503), lines: 'models = ["m"]' } },
      more: ADMIN,
    });
    for (let round = 0; round < 3; round += 1) await gateway.chat(chatBody());
    await gateway.reload(toml.replace('[server]', '[server]\ncors = true'));
    assert.deepEqual(await lasting(gateway), ['errors provider="p ']);
  });
});

test('four requests with a wrong key are an incident', async (t) => {
  const { gateway } = await scenario(t, {
    providers: { p: { script: failWith(401), lines: 'models = ["m"]' } },
    more: ADMIN,
  });
  for (let round = 0; round < 4; round += 1) {
    assert.equal((await gateway.chat(chatBody())).status, 401);
  }
  assert.deepEqual(await lasting(gateway), ['key_refused provider="p ']);
  assert.equal(gateway.lines('incident')[0]!['failures'], 4);
  const ofClients = await samplesOf(gateway, 'gateway_incident_client');
  assert.deepEqual(ofClients, [], 'no client has a name');
});

describe('the incident of short memory names the holder, and the refused client', () => {
  const LARGE = 700_000;
  for (const [what, bodyBytes, answerBytes] of [
    ['a request', LARGE, 0],
    ['an answer', 0, LARGE],
  ] as const) {
    test(`which holds ${what}`, async (t) => {
      const body = (bytes: number) => chatBody({ x: 'y'.repeat(bytes) });
      const gate = createGate();
      const slow: Script = async (_, response) => {
        const answer = JSON.stringify({ choices: [], x: 'y'.repeat(answerBytes) });
        const length = { 'content-length': answer.length };
        response.writeHead(200, { 'content-type': 'application/json', ...length }).flushHeaders();
        await gate.opened;
        response.end(answer);
      };
      const { gateway } = await scenario(t, {
        providers: { p: { script: slow, lines: 'models = ["m"]' } },
        server: 'max_buffered_bytes = 1048576',
        clients: {
          agents: 'key = "agents-key-0123456789"',
          web: 'key = "web-key-0123456789"',
        },
        more: ADMIN,
      });
      const ask = async (bytes: number, client: string) => {
        const headers = { authorization: `Bearer ${client}-key-0123456789` };
        return gateway.chat(body(bytes), { headers });
      };
      const isHeld = async () => {
        const [line = ''] = await samplesOf(gateway, 'gateway_buffered_bytes');
        return Number(line.split(' ')[1]) >= LARGE;
      };
      const held = ask(bodyBytes, 'agents');
      await eventually(isHeld, 'the held bytes');
      assert.equal((await ask(LARGE, 'web')).status, 429);
      await lasting(gateway);
      const [line] = gateway.lines('incident');
      assert.equal(line!['kind'], 'memory');
      const refused = gateway.lines('request').find((one) => one['reason'] === 'memory');
      assert.equal(refused!['limit'], line!['cause']);
      assert.equal(line!['cause'], 'max_buffered_bytes: agents holds 0.7 of 1.0 MiB');
      assert.deepEqual(await samplesOf(gateway, 'gateway_incident_client'), [
        'gateway_incident_client{kind="memory",client="web",result="failed"} 1',
      ]);
      const ofClients = 'gateway_client_buffered_bytes';
      const [ofAgents, ...ofOthers] = await samplesOf(gateway, ofClients);
      assert.match(ofAgents!, /^gateway_client_buffered_bytes\{client="agents"\} 7\d{5}$/);
      assert.deepEqual(ofOthers, [`${ofClients}{client="web"} 0`, `${ofClients} 0`]);
      assert.deepEqual(line!['affected'], [
        { name: '(model unknown)', failed: 1, answered: 0, clients: 'web' },
      ]);
      gate.open();
      assert.equal((await held).status, 200);
    });
  }
});

describe('three unusable answers are an incident', () => {
  const streams: readonly [kind: string, what: string, events: string][] = [
    ['cut', 'streams that end before their first token', ': wait\n\n'],
    ['cut', 'streams of [DONE] alone', DONE],
    ['cut', 'streams that end before they are finished', CHUNK],
    ['cut', 'streams that end inside an event', `${CHUNK}data: {"choices":[{"index":0,`],
    ['nonsense', 'texts in the place of streams', 'hello'],
  ];
  for (const [kind, what, events] of streams) {
    test(`${kind}: ${what}`, async (t) => {
      const script: Script = (_, response) => sendEvents(response, events);
      const { gateway } = await scenario(t, {
        providers: { p: { script, lines: 'models = ["m"]' } },
        more: ADMIN,
      });
      for (let round = 0; round < 3; round += 1) await gateway.chat(STREAM);
      assert.deepEqual(await lasting(gateway), [`${kind} provider="p `]);
    });
  }
});
