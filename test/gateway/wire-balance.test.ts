/** `balance` of an alias, and `key_affinity` of a provider. */

import assert from 'node:assert/strict';
import { describe, test, type TestContext } from 'node:test';

import { stopClock } from '../support/clock.ts';
import { chatBody, triesOf } from '../support/gateway.ts';
import { modelOf, scenario } from '../support/scenario.ts';
import { eventually, openChat } from '../support/streams.ts';
import {
  answerWell,
  CHUNK,
  completionEvents,
  failWith,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const ALIAS = '[aliases]\nlocal = { targets = ["p/m", "q/m", "r/m"], balance = "least_busy" }\n';
const LOCAL = chatBody({ model: 'local' });

describe('an alias with balance = "least_busy"', { concurrency: true }, () => {
  test("does not ask the next target after a client's mistake", async (t) => {
    const flag: Script = (_, response) =>
      sendJson(response, { error: 'Content violates usage guidelines.' }, { status: 403 });
    const policy = failWith(403, { code: 'content_policy' });
    const request = failWith(500, { code: 'invalid_prompt' });
    for (const script of [failWith(400), policy, flag, request]) {
      const { asked, gateway } = await scenario(t, {
        providers: { p: script, q: script, r: script },
        more: ALIAS,
      });
      for (let i = 0; i < 6; i += 1) await gateway.chat(LOCAL);
      assert.deepEqual(asked(), [2, 2, 2]);
    }
  });

  test('rests a target that refuses its key or lacks the model', async (t) => {
    for (const p of [failWith(401), failWith(404, { code: 'model_not_found' })]) {
      const { asked, gateway } = await scenario(t, { providers: { p, q: {}, r: {} }, more: ALIAS });
      for (let i = 0; i < 12; i += 1) assert.equal((await gateway.chat(LOCAL)).status, 200);
      assert.equal(asked()[0], 3);
    }
  });

  test('keeps asking a target whose content policy refuses prompts', async (t) => {
    for (const [status, code] of [
      [403, 'cyber_policy'],
      [503, 'content_policy_violation'],
    ] as const) {
      const p = failWith(status, { code });
      const { asked, gateway } = await scenario(t, { providers: { p, q: {}, r: {} }, more: ALIAS });
      for (let i = 0; i < 12; i += 1) await gateway.chat(LOCAL);
      assert.deepEqual(asked(), [4, 4, 4]);
      gateway.judge();
      assert.deepEqual(gateway.lines('breaker opened', 'incident'), []);
    }
  });

  test('does not blame a target for an event larger than max_buffered_bytes', async (t) => {
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
      assert.deepEqual(gateway.lines('incident'), []);
    }
  });
});

test('a fallback behind a balanced alias is no target of it', async (t) => {
  const providers = { p: failWith(503), q: failWith(503), r: failWith(401), s: answerWell };
  const alias = '[aliases]\nlocal = { targets = ["p/m", "q/m"], balance = "least_busy" }\n';
  const { asked, gateway } = await scenario(t, { providers, fallback: ['r', 's'], more: alias });
  for (let i = 0; i < 9; i += 1) assert.equal((await gateway.chat(LOCAL)).status, 200);
  // Both targets rest after three failures. A target that refuses its key would rest too.
  const rested = gateway.lines('breaker opened').map(({ provider }) => String(provider));
  assert.deepEqual(rested.toSorted(), ['p', 'q']);
  assert.equal(asked()[2], 9);
});

test('a weighted alias spreads its first targets exactly by their weights', async (t) => {
  const more = ALIAS.replace('"least_busy"', '"weighted", weights = [5, 1, 1]');
  const { gateway } = await scenario(t, { providers: { p: {}, q: {}, r: {} }, more });
  for (let i = 0; i < 14; i += 1) assert.equal((await gateway.chat(LOCAL)).status, 200);
  // From nginx's commit for this method: { 5, 1, 1 } becomes a a b a c a a.
  const round = ['p', 'p', 'q', 'p', 'r', 'p', 'p'].map((id) => `${id}:200`);
  assert.deepEqual(gateway.accessLines().map(triesOf), [...round, ...round]);
});

describe('an alias with balance = "fastest"', () => {
  const more = ALIAS.replace('least_busy', 'fastest');
  const STREAM = { ...LOCAL, stream: true };
  const isStream = (request: { readonly body: Buffer }) => request.body.includes('"stream":true');

  /** Starts the gateway on a clock that only `after` and the test move. */
  async function start(t: TestContext, scripts: (after: After) => Record<'p' | 'q' | 'r', Script>) {
    const clock = stopClock(t);
    const after: After = (ms) => (request, response) => {
      if (!isStream(request)) return answerWell(request, response);
      clock.nowMs += ms;
      return sendEvents(response, completionEvents());
    };
    const started = await scenario(t, { providers: scripts(after), more });
    const ask = async (count: number, body: object = STREAM, expected = 200) => {
      for (let i = 0; i < count; i += 1)
        assert.equal((await started.gateway.chat(body)).status, expected);
    };
    return { ...started, after, ask, clock };
  }
  /** Returns a script that begins streams after so many milliseconds. */
  type After = (ms: number) => Script;

  test('asks the target whose streams begin first, when each has three times', async (t) => {
    const scripts = (after: After) => ({ p: after(200), q: after(1), r: after(300) });
    const { ask, asked } = await start(t, scripts);
    await ask(9);
    assert.deepEqual(asked(), [3, 3, 3]);
    await ask(31);
    assert.deepEqual(asked(), [4, 32, 4], 'one stream in twenty asks another target');
  });

  test('is not decided by a cold start', async (t) => {
    const { after, ask, asked, p } = await start(t, (begin) => {
      return { p: begin(9000), q: begin(50), r: begin(60) };
    });
    await ask(1);
    p.script = after(10);
    await ask(9 + 8);
    assert.deepEqual(asked(), [3 + 9, 3, 3]);
  });

  test('leaves a target that begins to fail at once', async (t) => {
    const scripts = (after: After) => ({ p: after(1), q: after(50), r: after(60) });
    const { ask, asked, gateway, p } = await start(t, scripts);
    await ask(20);
    const [before = 0] = asked();
    p.script = failWith(500);
    await ask(40);
    assert.equal(asked()[0]! - before, 2 + 1, 'two failures show it, and one stream looks again');
    assert.deepEqual(gateway.lines('breaker opened'), [], 'a plain 500 opens no circuit');
  });

  test('leaves a target whose streams begin at once and fail then', async (t) => {
    const event = `data: ${JSON.stringify({ error: { message: 'x', status_code: 500 } })}\n\n`;
    const breaking: Script = (_, response) => sendEvents(response, CHUNK + event);
    const scripts = (after: After) => ({ p: breaking, q: after(50), r: after(60) });
    const { ask, asked } = await start(t, scripts);
    await ask(9);
    const before = asked();
    await ask(30);
    assert.ok(asked()[0]! - before[0]! <= 2, String([before, asked()]));
  });

  test('takes a failure of the client for no time', async (t) => {
    const refuse: Script = (request, response) =>
      (isStream(request) ? failWith(400) : answerWell)(request, response);
    const { ask, asked } = await start(t, () => ({ p: refuse, q: refuse, r: refuse }));
    await ask(30, STREAM, 400);
    assert.deepEqual(asked(), [10, 10, 10], 'in turn, without a time');
  });

  test('takes no time from a complete answer, good or not', async (t) => {
    const scripts = (after: After) => ({ p: after(150), q: after(1), r: after(300) });
    const { ask, asked, clock, q } = await start(t, scripts);
    await ask(9);
    const streams = q.script;
    let answers = 0;
    q.script = (request, response) => {
      if (isStream(request)) return streams(request, response);
      clock.nowMs += 4000;
      answers += 1;
      return (answers % 2 === 0 ? failWith(500) : answerWell)(request, response);
    };
    await ask(8, LOCAL);
    await ask(1);
    assert.deepEqual([answers, asked()], [8, [3 + 4, 3 + 8 + 1, 3]]);
  });

  test('leaves a target that has begun to hang', async (t) => {
    const scripts = (after: After) => ({ p: after(1), q: after(30), r: after(30) });
    const { ask, asked, clock, gateway, p } = await start(t, scripts);
    await ask(12);
    const before = asked();
    p.script = () => {};
    // The clients leave before the first token, so no time limit has passed.
    for (let i = 0; i < 6; i += 1) {
      const sum = () => asked().reduce((all, count) => all + count, 0);
      const count = sum();
      const stream = openChat(gateway.port, STREAM);
      await eventually(() => sum() > count, 'the request');
      clock.nowMs += 200;
      stream.leave();
      await eventually(() => gateway.accessLines().length === 13 + i, 'the access line');
    }
    assert.ok(asked()[0]! - before[0]! <= 3, String([before, asked()]));
  });

  test('does not wait for ever for the three times of a target that hangs', async (t) => {
    const scripts = (after: After) => ({ p: () => {}, q: after(30), r: after(40) });
    const { asked, clock, gateway } = await start(t, scripts);
    for (let i = 0; i < 19; i += 1) {
      const [before = 0] = asked();
      const stream = openChat(gateway.port, STREAM);
      let hasAnswer = false;
      stream.response.then(
        () => (hasAnswer = true),
        () => {},
      );
      await eventually(() => hasAnswer || asked()[0]! > before, 'an answer, or p is asked');
      clock.nowMs += 20;
      if (asked()[0]! > before) stream.leave();
      await eventually(() => gateway.accessLines().length === 1 + i, 'the access line');
    }
    assert.deepEqual(asked(), [3, 13, 3]);
  });

  test('keeps the times of unchanged providers over a reload', async (t) => {
    const scripts = (after: After) => ({ p: after(200), q: after(1), r: after(300) });
    const { ask, asked, gateway, toml } = await start(t, scripts);
    await ask(9);
    await gateway.reload(`${toml}"other-*" = "p/m"\n`);
    await ask(9);
    assert.deepEqual(asked(), [3, 12, 3]);
  });
});

test('a wildcard alias is balanced whatever names its clients send', async (t) => {
  for (const [balance, order] of [
    ['"weighted", weights = [5, 1, 1]', 'p p q p r p p'],
    ['"least_busy"', 'p q r p q r p'],
  ] as const) {
    const targets = '["p/m-*", "q/m-*", "r/m"]';
    const more = `[aliases]\n"local-*" = { targets = ${targets}, balance = ${balance} }\n`;
    const { gateway, p } = await scenario(t, { providers: { p: {}, q: {}, r: {} }, more });
    for (let i = 0; i < 7; i += 1) {
      assert.equal((await gateway.chat(chatBody({ model: `local-${i}` }))).status, 200);
    }
    assert.equal(gateway.accessLines().map(triesOf).join(' '), order.replace(/\w/g, '$&:200'));
    assert.equal(modelOf(p.requests[0]!), 'm-0');
  }
});

test('a target named twice in a weighted alias has both weights, and one try', async (t) => {
  const targets =
    '[aliases]\nlocal = { targets = ["p/x", "q/y", "p/x"], balance = "weighted", weights = [1, 1, 2] }\n';
  const providers = { p: { script: failWith(503) }, q: {} };
  const { gateway } = await scenario(t, { providers, more: targets });
  for (let i = 0; i < 4; i += 1) assert.equal((await gateway.chat(LOCAL)).status, 200);
  const first = gateway.accessLines().map(triesOf);
  assert.deepEqual(first, ['p:503 q:200', 'p:503 q:200', 'q:200', 'p:503 q:200']);
});

const KEYS = ['key-of-org-one', 'key-of-org-two', 'key-of-org-three'];
const affinity = (keys: readonly string[]) =>
  `api_keys = ${JSON.stringify(keys)}\nkey_affinity = true`;

test('key_affinity keeps one key for each session, also over a reload', async (t) => {
  const { gateway, p, toml } = await scenario(t, { providers: { p: { lines: affinity(KEYS) } } });
  // `scenario` sets a single key. Here it is in a list of keys.
  const all = toml.replace(/^api_key = .*\n/m, '');
  await gateway.reload(all);
  const sessions = Array.from({ length: 40 }, (_, i) => `session ${i}`);
  const keyOf = async (session: string, headers: object = { 'x-session-id': session }) => {
    await gateway.chat(chatBody(), { headers: { ...headers } });
    return p.requests.at(-1)!.headers.authorization!.slice('Bearer '.length);
  };
  const own = new Map<string, string>();
  for (const session of [...sessions, ...sessions]) {
    const key = await keyOf(session);
    assert.equal(key, own.get(session) ?? key);
    own.set(session, key);
  }
  const renamed = sessions.map((session) => ({
    'x-session-id': '',
    'x-session-affinity': session,
  }));
  for (const [index, headers] of renamed.entries())
    assert.equal(await keyOf('', headers), own.get(sessions[index]!), 'an empty name is none');
  const counts = KEYS.map((key) => [...own.values()].filter((one) => one === key).length);
  assert.ok(Math.min(...counts) >= 5, counts.join());
  const [gone, ...others] = KEYS;
  await gateway.reload(all.replace(affinity(KEYS), affinity(others)));
  for (const session of sessions) {
    const key = await keyOf(session);
    if (own.get(session) !== gone) assert.equal(key, own.get(session));
  }
});
