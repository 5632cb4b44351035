/** `balance = "least_busy"` and `"weighted"` of an alias, and `key_affinity` of a provider. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { describe, test, type TestContext } from 'node:test';

import { chatBody, triesOf, withoutRefill, type SendOptions } from '../support/gateway.ts';
import { scenario, type ScenarioSettings } from '../support/scenario.ts';
import { eventually } from '../support/streams.ts';
import {
  answerWell,
  CHUNK,
  completion,
  failWith,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const ALIAS = '[aliases]\nlocal = { targets = ["p/m", "q/m", "r/m"], balance = "least_busy" }\n';
const LOCAL = chatBody({ model: 'local' });

/** Providers `p`, `q` and `r` that keep each request until `finish`. */
async function startHeld(t: TestContext, more = ALIAS, lines = '') {
  const waiting: Record<'p' | 'q' | 'r', ServerResponse[]> = { p: [], q: [], r: [] };
  const hold = (id: keyof typeof waiting) => {
    const script: Script = (_, response) => waiting[id].push(response);
    return { script, lines };
  };
  const providers = { p: hold('p'), q: hold('q'), r: hold('r') };
  const started = await scenario(t, { providers, more });
  const { gateway } = started;
  const counts = () => Object.values(waiting).map(({ length }) => length);
  const arrived = async (count: number) =>
    eventually(() => counts().reduce((sum, one) => sum + one) === count, `${count} requests held`);
  const replies: Promise<unknown>[] = [];
  /** Answers this many of a provider's. */
  const finish = (id: keyof typeof waiting, count = waiting[id].length) => {
    for (const response of waiting[id].splice(0, count)) sendJson(response, completion());
  };
  return {
    ...started,
    counts,
    arrived,
    /** Sends a request and waits until one more is held. */
    send: async (model = 'local') => {
      const before = counts().reduce((sum, one) => sum + one);
      replies.push(gateway.chat(chatBody({ model })));
      await arrived(before + 1);
    },
    finish,
    /** Answers all that are held, and returns when their clients have them. */
    end: async () => {
      for (const id of ['p', 'q', 'r'] as const) finish(id);
      await Promise.all(replies);
    },
  };
}

describe('an alias with balance = "least_busy"', { concurrency: true }, () => {
  test('asks the next one if a target has no key, no such model or no token left, and leaves that one alone', async (t) => {
    const refusals = [401, 403, 404, 429].map((status) => [failWith(status), 3] as const);
    // Its circuit opens, unless a client may have asked for a model that is not there.
    for (const [script, count] of [
      ...refusals,
      [failWith(404, { code: 'model_not_found' }), 4] as const,
    ]) {
      const providers = { p: script, q: answerWell, r: answerWell };
      const { asked, gateway } = await scenario(t, { providers, more: ALIAS });
      for (let i = 0; i < 12; i += 1) assert.equal((await gateway.chat(LOCAL)).status, 200);
      assert.equal(asked()[0], count);
      assert.ok(!gateway.accessLines().some((line) => triesOf(line)!.includes('circuit_open')));
    }
    const more = `${ALIAS}[rate_limit]\nenabled = true\n[rate_limit.providers.p]\nrequests_per_second = 1\nburst_capacity = 1\n`;
    const limited = await scenario(t, {
      adjust: withoutRefill,
      providers: { p: {}, q: {}, r: {} },
      more,
    });
    for (let i = 0; i < 9; i += 1) assert.equal((await limited.gateway.chat(LOCAL)).status, 200);
    assert.equal(limited.asked()[0], 1);
  });

  test('does not ask the next one for what a client has done wrong', async (t) => {
    const refuse: Script = (_, response) =>
      sendJson(response, { error: { message: 'no', code: 'content_policy' } }, { status: 403 });
    for (const script of [failWith(400), refuse]) {
      const { asked, gateway } = await scenario(t, {
        providers: { p: script, q: script, r: script },
        more: ALIAS,
      });
      for (let i = 0; i < 6; i += 1) await gateway.chat(LOCAL);
      assert.deepEqual(asked(), [2, 2, 2]);
    }
  });

  test('does not blame a target for an answer that the gateway has no room for', async (t) => {
    const long = `data: {"x":"${'y'.repeat(1_100_000)}"}\n\n`;
    for (const events of [long, CHUNK + long]) {
      const p: Script = (_, response) => sendEvents(response, events);
      const { asked, gateway } = await scenario(t, {
        server: 'max_buffered_bytes = 1048576',
        providers: { p, q: {}, r: {} },
        more: ALIAS,
      });
      for (let i = 0; i < 12; i += 1) await gateway.chat({ ...LOCAL, stream: true });
      assert.deepEqual(asked(), [4, 4, 4]);
      for (let i = 0; i < 10; i += 1) await gateway.chat({ ...LOCAL, model: 'p/m', stream: true });
      assert.ok(gateway.lines('incident').every(({ kind }) => kind === 'memory'));
    }
  });

  test('with balance = "order" asks as a list does', async (t) => {
    const more = ALIAS.replace('least_busy', 'order');
    const { counts, end, send } = await startHeld(t, more);
    for (let i = 0; i < 3; i += 1) await send();
    assert.deepEqual(counts(), [3, 0, 0]);
    await end();
  });
});

const weighted = (weights: readonly number[]) =>
  ALIAS.replace('"least_busy"', `"weighted", weights = ${JSON.stringify(weights)}`);

describe('a weighted alias', { concurrency: true }, () => {
  const startWeighted = async (
    t: TestContext,
    weights: readonly number[],
    settings: Partial<ScenarioSettings<'p' | 'q' | 'r'>> = {},
  ) => {
    const more = weighted(weights);
    const started = await scenario(t, { providers: { p: {}, q: {}, r: {} }, more, ...settings });
    const ask = async (count: number) => {
      for (let i = 0; i < count; i += 1) {
        const reply = await started.gateway.chat(LOCAL);
        assert.equal(reply.status, 200);
      }
      return started.gateway.accessLines().slice(-count).map(triesOf);
    };
    return { ...started, ask };
  };

  test('asks its targets first in the proportion of their weights, exactly and spread evenly', async (t) => {
    const { ask, asked } = await startWeighted(t, [5, 1, 1]);
    // The example of nginx's own commit: { 5, 1, 1 } becomes a a b a c a a.
    const round = ['p', 'p', 'q', 'p', 'r', 'p', 'p'].map((id) => `${id}:200`);
    assert.deepEqual(await ask(14), [...round, ...round]);
    assert.deepEqual(asked(), [10, 2, 2]);
  });

  test('has other shares from a reload on, while requests are in flight', async (t) => {
    const { counts, end, gateway, send, toml } = await startHeld(t, weighted([1, 0, 0]));
    for (let i = 0; i < 3; i += 1) await send();
    await gateway.reload(toml.replace('[1,0,0]', '[1,3,0]'));
    for (let i = 0; i < 8; i += 1) await send();
    assert.deepEqual(counts(), [5, 6, 0]);
    await end();
  });

  test('gives each session a target of its own if all providers have key_affinity, and each target its share of them', async (t) => {
    const lines = 'key_affinity = true';
    const providers = { p: { lines }, q: { lines }, r: { lines } };
    const { asked, gateway } = await startWeighted(t, [0, 1, 3], { providers });
    const targets = new Map<object, unknown>();
    for (const headers of [...SESSIONS, ...SESSIONS.toReversed()]) {
      const reply = await gateway.chat(LOCAL, { headers });
      const target = reply.headers['x-gateway-provider'];
      assert.equal(target, targets.get(headers) ?? target);
      targets.set(headers, target);
    }
    const [p = 0, q = 0, r = 0] = asked();
    assert.equal(p, 0);
    assert.ok(q >= 6 && r > 2 * q, `${q} and ${r} of ${2 * SESSIONS.length}`);
  });
});

const KEYS = ['key-of-org-one', 'key-of-org-two', 'key-of-org-three'];
const affinity = (keys = KEYS) => `api_keys = ${JSON.stringify(keys)}\nkey_affinity = true`;

/** One provider with several keys, of which `refused` are answered with this status. */
async function startKeys(t: TestContext, { clients }: Pick<ScenarioSettings<'p'>, 'clients'> = {}) {
  const refused = new Map<string, number>();
  const script: Script = (request, response) => {
    const status = refused.get(request.headers.authorization!.slice('Bearer '.length));
    return status ? failWith(status)(request, response) : answerWell(request, response);
  };
  const { gateway, p, toml } = await scenario(t, {
    clients,
    providers: { p: { script, lines: affinity() } },
  });
  // The single key of `scenario` is one of several here.
  const all = toml.replace(/^api_key = .*\n/m, '');
  await gateway.reload(all);
  return {
    gateway,
    refused,
    reload: async (keys: readonly string[]) =>
      gateway.reload(all.replace(affinity(), affinity([...keys]))),
    /** The keys that one request was tried with. */
    keysOf: async (headers: SendOptions['headers'], body: object = {}) => {
      const before = p.requests.length;
      await gateway.chat(chatBody(body), { headers });
      return p.requests.slice(before).map((one) => one.headers.authorization!.slice(7));
    },
  };
}

const SESSIONS = Array.from({ length: 40 }, (_, i) => ({ 'x-session-id': `session ${i}` }));

describe('a provider with key_affinity', { concurrency: true }, () => {
  test('is asked with one key for each session, and with all keys for many; a reload moves only the sessions of a key that is gone', async (t) => {
    const { keysOf, reload } = await startKeys(t);
    const own = new Map<object, string>();
    for (const headers of [...SESSIONS, ...SESSIONS]) {
      const [key = ''] = await keysOf(headers);
      assert.equal(key, own.get(headers) ?? key);
      own.set(headers, key);
    }
    const counts = KEYS.map((key) => [...own.values()].filter((one) => one === key).length);
    assert.ok(Math.min(...counts) >= 5, counts.join());
    const [gone, ...others] = KEYS;
    await reload(others);
    for (const headers of SESSIONS) {
      const [key] = await keysOf(headers);
      if (own.get(headers) !== gone) assert.equal(key, own.get(headers));
    }
  });

  test('takes the first of x-session-id, x-session-affinity and prompt_cache_key for the session, for streams and after a reload too', async (t) => {
    const { keysOf, reload } = await startKeys(t);
    const names = ['x-session-id', 'x-session-affinity'] as const;
    /** A session for each key. */
    const sessions = new Map<string, string>();
    for (let i = 0; sessions.size < KEYS.length; i += 1) {
      const [key = ''] = await keysOf({ [names[0]]: `session ${i}` });
      sessions.set(key, `session ${i}`);
    }
    const [first = '', second = '', third = ''] = sessions.values();
    const [ofFirst, ofSecond, ofThird] = sessions.keys();
    const body = { prompt_cache_key: third };
    for (const stream of [false, true]) {
      const ask = async (headers: SendOptions['headers'], more: object = body) =>
        keysOf(headers, { stream, ...more });
      assert.deepEqual(await ask({ [names[0]]: first, [names[1]]: second }), [ofFirst]);
      assert.deepEqual(await ask({ [names[0]]: '', [names[1]]: second }), [ofSecond]);
      assert.deepEqual(await ask({ [names[0]]: '', [names[1]]: '' }), [ofThird]);
      const [ofCaller] = await ask({}, {});
      const longest = 's'.repeat(64);
      assert.deepEqual(
        await ask({}, { prompt_cache_key: longest }),
        await ask({ [names[0]]: longest }, {}),
      );
      const unusable = ['', `${longest}s`, 1, null, { prompt_cache_key: second }];
      for (const value of unusable) {
        assert.deepEqual(await ask({}, { prompt_cache_key: value }), [ofCaller]);
      }
      assert.deepEqual(await ask({}, { metadata: body }), [ofCaller], 'not inside a member');
      await reload([...KEYS].toReversed());
    }
  });
});
