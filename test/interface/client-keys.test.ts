/** `[clients.<name>]`: accepted keys, and places with a client's name. */

import assert from 'node:assert/strict';
import crypto, { createHash } from 'node:crypto';
import { syncBuiltinESMExports } from 'node:module';
import { describe, test } from 'node:test';

import { Traffic } from '../../src/admin/traffic.ts';
import { checkHere } from '../support/check.ts';
import { stopClock, useManualTimers } from '../support/clock.ts';
import { assertError, NOT_AUTHENTICATED } from '../support/errors.ts';
import { parseMetrics } from '../support/exposition.ts';
import { openFeed } from '../support/feed.ts';
import { chatBody } from '../support/gateway.ts';
import { modelOf, scenario } from '../support/scenario.ts';
import { linesOf } from '../support/streams.ts';
import { failWith, sendJson } from '../support/upstream.ts';

const SHARED = 'zqx-KwTbgm-5512';
const OLD = 'vwk-GzPxrd-9034';
const NEW = 'hjf-BvNqws-2876';
const OTHER = 'pbt-XdKjmz-4418';
const KEYS = [SHARED, OLD, NEW, OTHER];

/** A client with two keys, another with a key from the environment, and a key without a client. */
const WHO = `[server.auth]
keys = ["${SHARED}"]
[clients.alice]
keys = ["${OLD}", "${NEW}"]
[clients."bob@team-2"]
key = "\${BOB_KEY}"
`;
const ENV = { BOB_KEY: OTHER };
const ALICE = { alice: `key = "${OLD}"` };
const ADMIN = '[admin]\nport = 0\n';

/** The accepted `Authorization` values, with the name on the access line. */
const SERVED: Readonly<Record<string, string>> = {
  [`Bearer ${OLD}`]: 'alice',
  [`Bearer ${NEW}`]: 'alice',
  [`bearer   ${NEW} `]: 'alice',
  [`Bearer ${OTHER}`]: 'bob@team-2',
  [`Bearer ${SHARED}`]: 'none',
};
const REFUSED: readonly (string | undefined)[] = [
  [undefined, '', 'Bearer', 'Bearer ', 'Bearer anything', 'Bearer alice', 'Bearer bob@team-2'],
  ['Bearer ${BOB_KEY}', `Bearer ${OLD.toLowerCase()}`, `Bearer ${OLD.toUpperCase()}`],
  [`Bearer ${OLD.slice(0, -1)}`, `Bearer ${OLD}x`, `Bearer ${OLD} ${NEW}`, `Bearer "${OLD}"`],
  [`Bearer ${OLD},${NEW}`, `Bearer alice:${OLD}`, `Basic ${OLD}`, OLD],
  [`Basic ${Buffer.from(`alice:${OLD}`).toString('base64')}`],
  [`Bearer ${createHash('sha256').update(OLD).digest('hex')}`],
].flat();

test("only clients' keys and [server.auth] keys are accepted, and name the client", async (t) => {
  const { p: upstream, gateway } = await scenario(t, { more: WHO, env: ENV });
  let lines = 0;
  for (const authorization of [...Object.keys(SERVED), ...REFUSED]) {
    const client = SERVED[authorization ?? ''];
    upstream.requests.length = 0;
    const options = { headers: { authorization } };
    const replies = [
      await gateway.chat(chatBody(), options),
      await gateway.send('/v1/models', options),
      await gateway.send('/v1/nothing', options),
    ];
    const what = `${authorization} ${replies[0]!.text}`;
    if (client === undefined) for (const reply of replies) assertError(reply, NOT_AUTHENTICATED);
    else
      assert.deepEqual(
        [200, 200, 404],
        replies.map(({ status }) => status),
        what,
      );
    const chats = upstream.requests.filter(({ method }) => method === 'POST');
    assert.equal(chats.length, client === undefined ? 0 : 1, what);
    lines += replies.length;
    await linesOf(gateway, lines);
    for (const line of gateway.accessLines().slice(-replies.length)) {
      assert.equal('client' in line, client !== undefined && client !== 'none', what);
      assert.equal(line['client'] ?? 'none', client ?? 'none', what);
    }
  }
  assert.equal(
    (await gateway.send('/health', { headers: { authorization: undefined } })).status,
    200,
  );
});

test('a key that is known by its digest is hidden in the lines of its own requests', async (t) => {
  const token = 'engineering/Kw-5512-zqxTbgmRvPn';
  const expired = 'research-two/77-hjfBvNqwsLk';
  const digestOf = (text: string) => createHash('sha256').update(text).digest('hex');
  const clients = {
    engineering: `key_sha256 = "${digestOf(token)}"`,
    'research-two': `key_sha256 = "${digestOf(expired)}"\nexpires = 2020-01-01`,
  };
  const more = `[logging]\nlevel = "trace"\nverbose = true\nheaders = ["x-session-id"]
${ADMIN}[aliases]\n"engineering/K-large" = "p/m"\n`;
  const lines = 'forward_headers = ["x-session-id", "x-plain"]';
  const { p, gateway } = await scenario(t, { clients, more, providers: { p: { lines } } });
  const feed = await openFeed(t, gateway.adminPort);
  p.script = (_, response) =>
    sendJson(response, { error: { message: `the prompt has ${token}` } }, { status: 422 });
  const encoded = Buffer.from(token).toString('hex').replace(/../g, '%$&');
  const headers = {
    authorization: `Bearer ${token}`,
    'x-session-id': `s-${token}`,
    'x-plain': 'engineering',
    'user-agent': `agent ${encodeURIComponent(token)}`,
  };
  const refused = await gateway.chat(chatBody({ model: 'engineering/K-large' }), { headers });
  assert.equal(refused.json().error.message, 'API error: 422 - the prompt has [secret]');
  const [{ headers: forwarded } = assert.fail('nothing sent')] = p.requests;
  assert.equal(forwarded['x-session-id'], undefined, 'no key of a client goes to a provider');
  assert.equal(forwarded['x-plain'], 'engineering');
  await gateway.chat(chatBody({ model: `p/${token}` }), { headers });
  await gateway.chat(chatBody({ model: `${token}/m` }), { headers });
  const paths = [`/v1/${token}/x`, `/v1/${encoded}`, `/v1/${'x'.repeat(180)}${token}`];
  for (const path of paths) await gateway.send(path, { headers });
  const old = { authorization: `Bearer ${expired}` };
  await gateway.send(`/v1/${expired}`, { headers: old });
  const all = await linesOf(gateway, 7);
  await feed.next('requests', (data) => JSON.stringify(data).includes('expired token'));
  const shown = gateway.log.join('') + JSON.stringify(feed.events);
  for (const hidden of [token, expired, encoded, token.slice(12), token.slice(0, 14)]) {
    assert.ok(!shown.toLowerCase().includes(hidden.toLowerCase()), hidden);
  }
  const [first] = all;
  assert.deepEqual([first!['client'], first!['model']], ['engineering', 'engineering/K-large']);
  assert.equal(all.at(-1)!['client'], 'research-two');
  assert.deepEqual(first!['headers'], { 'x-session-id': 's-[secret]' });
  assert.deepEqual(
    all.slice(3).map((line) => line['path']),
    ['/v1/[secret]/x', '/v1/[secret]', `/v1/${'x'.repeat(180)}[secret]`, '/v1/[secret]'],
  );
});

test('such a key is hidden in incidents and circuits if it is sent as a model', async (t) => {
  const token = 'zqx/Kw-5512-TbgmRvPn';
  const digest = createHash('sha256').update(token).digest('hex');
  const { asked, gateway, p } = await scenario(t, {
    clients: { alice: `key_sha256 = "${digest}"` },
    more: `[logging]\nlevel = "trace"\n${ADMIN}`,
    providers: { p: failWith(503), q: failWith(503) },
    fallback: ['q'],
  });
  const feed = await openFeed(t, gateway.adminPort);
  const headers = { authorization: `Bearer ${token}` };
  for (let count = 0; count < 4; count += 1)
    await gateway.chat(chatBody({ model: `p/${token}` }), { headers });
  assert.deepEqual(asked(), [4, 3]);
  assert.equal(modelOf(p.requests[0]!), token);
  gateway.judge();
  const metrics = await gateway.admin('/metrics');
  await feed.next('state', (data) => JSON.stringify(data).includes('[secret]'));
  const shown = gateway.log.join('') + JSON.stringify(feed.events) + metrics.text;
  assert.ok(!shown.includes(token) && !shown.includes(JSON.stringify(token).slice(1, -1)));
  const [opened] = gateway.lines('breaker opened');
  assert.equal(opened!['model'], '[secret]');
  assert.equal(gateway.lines('incident').length, 2);
});

test("a client's key may be given by its digest alone, in digits of either case", async (t) => {
  const digestOf = (text: string) => createHash('sha256').update(text).digest('hex');
  const [digest, newDigest] = [digestOf(OTHER), digestOf(NEW)];
  const clients = {
    alice: `key = "${OLD}"\nkey_sha256 = "\${NEW_DIGEST}"`,
    bob: `key_sha256 = "${digest.toUpperCase()}"`,
    echo: `key_sha256 = "${digestOf(`${SHARED}\n`)}"`,
  };
  const more = `[logging]\nlevel = "trace"\n${ADMIN}`;
  const { p, gateway } = await scenario(t, { clients, more, env: { NEW_DIGEST: newDigest } });
  const accepted = new Map([
    [OLD, 'alice'],
    [NEW, 'alice'],
    [OTHER, 'bob'],
  ]);
  const refused = [digest, digest.toUpperCase(), newDigest, `${NEW}x`, SHARED];
  let lines = 0;
  for (const token of [...accepted.keys(), ...refused]) {
    const reply = await gateway.chat(chatBody(), { headers: { authorization: `Bearer ${token}` } });
    const client = accepted.get(token);
    if (client === undefined) assertError(reply, NOT_AUTHENTICATED);
    else assert.equal(reply.status, 200, token);
    lines += 1;
    assert.equal((await linesOf(gateway, lines)).at(-1)!['client'], client, token);
  }
  assert.equal(p.requests.filter(({ method }) => method === 'POST').length, accepted.size);
  const feed = await openFeed(t, gateway.adminPort);
  const { settings } = await feed.next('settings');
  assert.equal(new Map<string, unknown>(settings).get('clients.bob.key_sha256'), '[secret]');
  const shown = [...gateway.log, JSON.stringify(feed.events)].join('').toLowerCase();
  for (const hidden of [digest, newDigest]) assert.ok(!shown.includes(hidden.slice(0, 8)));
});

test('an expired key is answered as a wrong key, from the moment when it expires', async (t) => {
  const clock = stopClock(t);
  const expiresAfter = (ms: number) => new Date(Date.now() + ms).toISOString();
  const alice = (expires: string) =>
    `key = "${OLD}"\nexpires = ${expires}\nrequests_per_minute = 9`;
  const clients = { alice: alice(expiresAfter(2000)), bob: `key = "${OTHER}"` };
  const { gateway, toml } = await scenario(t, { clients, more: ADMIN });
  const ask = (key: string) =>
    gateway.chat(chatBody(), { headers: { authorization: `Bearer ${key}` } });
  clock.nowMs += 1999;
  assert.equal((await ask(OLD)).status, 200);
  clock.nowMs += 1;
  const expired = await ask(OLD);
  const wrong = await ask(`${OLD}x`);
  assertError(expired, NOT_AUTHENTICATED);
  assert.equal(expired.text, wrong.text);
  const headersOf = ({ headers }: typeof wrong) => {
    return { ...headers, date: '', 'x-request-id': '' };
  };
  assert.deepEqual(headersOf(expired), headersOf(wrong));
  assert.equal((await ask(OTHER)).status, 200);
  await gateway.reload(toml.replace(/expires = .*/, `expires = ${expiresAfter(1000)}`));
  assert.equal((await ask(OLD)).status, 200);
  await gateway.reload(toml);
  assert.equal((await ask(OLD)).status, 401);
  const lines = await linesOf(gateway, 6);
  assert.deepEqual(
    lines.map(({ client, reason }) => [client, reason]),
    [
      ['alice', undefined],
      ['alice', 'expired token'],
      [undefined, 'unknown token'],
      ['bob', undefined],
      ['alice', undefined],
      ['alice', 'expired token'],
    ],
  );
  const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
  assert.equal(sum('gateway_refusals_total', { reason: 'expired_token', client: 'alice' }), 2);
  assert.equal(sum('gateway_requests_total', { client: 'alice', outcome: 'refused' }), 2);
});

test('a key about to expire is warned of by log and page, once an hour has passed', async (t) => {
  const timers = useManualTimers(t);
  const clock = stopClock(t);
  const [hour, day] = [3_600_000, 86_400_000];
  const expires = new Date(Date.now() + 7 * day + 1.5 * hour).toISOString();
  const clients = { alice: `key = "${OLD}"\nexpires = ${expires}` };
  const { gateway, toml } = await scenario(t, { clients, more: ADMIN });
  const pass = (ms: number) => {
    clock.nowMs += ms;
    timers.advance(ms);
    return gateway.lines('settings warning').map(({ cause }) => cause);
  };
  const [soon, over] = ['expires', 'expired'].map(
    (word) => `clients.alice.expires: the client's key ${word} at ${expires}`,
  );
  assert.deepEqual(pass(hour), []);
  assert.deepEqual(pass(hour), [soon]);
  const feed = await openFeed(t, gateway.adminPort);
  assert.deepEqual((await feed.next('settings')).warnings, [soon]);
  assert.deepEqual(pass(hour), [soon], 'the warning is known');
  clock.nowMs += 7 * day;
  assert.deepEqual(pass(hour), [soon, over]);
  const { stdout } = await checkHere(['--check=offline'], { GATEWAY_CONFIG_TOML: toml });
  assert.ok(stdout.includes(`\nwarning    ${over}\n`), stdout);
});

test('a token is compared with every key, so that timing reveals none', async (t) => {
  const { gateway } = await scenario(t, { more: WHO, env: ENV });
  const { mock } = t.mock.method(crypto, 'timingSafeEqual');
  syncBuiltinESMExports();
  t.after(() => {
    mock.restore();
    syncBuiltinESMExports();
  });
  for (const key of [...KEYS, 'unknown']) {
    mock.resetCalls();
    await gateway.send('/v1/nothing', { headers: { authorization: `Bearer ${key}` } });
    assert.equal(mock.callCount(), KEYS.length, key);
  }
});

describe("a client's name", () => {
  test('is a label of gateway_requests_total, and a row of the page', async (t) => {
    const { gateway } = await scenario(t, { more: `${WHO}${ADMIN}`, env: ENV });
    for (const key of [OLD, NEW, OTHER, SHARED, 'wrong']) {
      await gateway.chat(chatBody(), { headers: { authorization: `Bearer ${key}` } });
    }
    await linesOf(gateway, 5);
    const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
    const count = (labels: Record<string, string>) => sum('gateway_requests_total', labels);
    assert.equal(count({ client: 'alice', outcome: 'ok' }), 2);
    assert.equal(count({ client: 'bob@team-2', outcome: 'ok' }), 1);
    assert.equal(count({ outcome: 'ok' }), 4);
    assert.equal(count({ outcome: 'refused' }), 1);
    const feed = await openFeed(t, gateway.adminPort);
    const requests = await feed.next('requests');
    const { clients } = await feed.next('state');
    assert.deepEqual(
      requests.map(({ client }: { client?: string }) => client),
      ['alice', 'alice', 'bob@team-2', undefined, undefined],
    );
    const rows = clients.map(({ id, ...row }: Record<string, unknown>) => [id, row]);
    assert.deepEqual(rows, [
      ['alice', { requests: 2, rank: 1 }],
      ['bob@team-2', { requests: 1, rank: 1 }],
      ['without a name', { requests: 1, rank: 1 }],
      ['no valid key', { requests: 1, rejected: 1, rank: 1 }],
    ]);
  });

  test('is shown for 500 clients, and later clients share a row', () => {
    const traffic = new Traffic(() => 0);
    const facts = { request_id: 'x', method: 'GET', path: '/', duration_ms: 1, bytes: 1 };
    for (let at = 0; at < 1000; at += 1) {
      const client = `c${at % 600}`;
      const request = { facts: { ...facts, client, outcome: 'ok' as const }, endTime: 1 };
      traffic.add({ ...request, durationMs: 1 }, undefined);
    }
    const clients = Object.entries(traffic.report().clients);
    assert.equal(clients.length, 501);
    assert.deepEqual(
      clients
        .map(([name, { requests }]) => `${name} ${requests}`)
        .filter((_, at) => at % 250 === 0),
      ['c0 2', 'c250 2', 'other 100'],
    );
  });

  test('is a label, as are the models that it may name, and no others', async (t) => {
    const alice = `${ALICE.alice}\nmodels = ["p/own", "p/family-*"]`;
    const { gateway } = await scenario(t, { clients: { alice }, more: ADMIN });
    for (const model of ['p/own', 'p/family-1', 'p/family-*']) {
      await gateway.chat(chatBody({ model }), { headers: { authorization: `Bearer ${OLD}` } });
    }
    await linesOf(gateway, 3);
    const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
    const count = (gen_ai_original_model: string) =>
      sum('gen_ai_server_request_duration_seconds_count', { gen_ai_original_model });
    assert.deepEqual([count('p/own'), count('other'), count('p/family-*')], [1, 2, 0]);
  });

  test('is all that is shown of its key: no part of it, and no hash', async (t) => {
    const logging = '[logging]\nlevel = "trace"\nverbose = true\n';
    const { p: upstream, gateway } = await scenario(t, { more: logging + WHO + ADMIN, env: ENV });
    const bodies: string[] = [];
    for (const key of [...KEYS, `${OLD}x`]) {
      const options = { headers: { authorization: `Bearer ${key}` } };
      for (const model of ['p/m', 'nobody/m', `p/${key}`, key]) {
        await gateway.chat(chatBody({ model }), options);
      }
      bodies.push((await gateway.send('/v1/models', options)).text);
    }
    await linesOf(gateway, 25);
    const feed = await openFeed(t, gateway.adminPort);
    await feed.next('state');
    const metrics = (await gateway.admin('/metrics')).text;
    const paths = ['/status', '/requests', '/requests?number=1'];
    const asked = await Promise.all(paths.map(async (path) => (await gateway.admin(path)).text));
    const events = JSON.stringify(feed.events);
    const shown = [...gateway.log, ...bodies, metrics, ...asked, events].join('\n');
    assert.ok(shown.includes('alice') && shown.includes('bob@team-2'));
    for (const key of KEYS) {
      const hash = createHash('sha256').update(key).digest();
      const parts = Array.from({ length: key.length - 5 }, (_, at) => key.slice(at, at + 6));
      const hashes = (['hex', 'base64', 'base64url'] as const).map((encoding) =>
        hash.toString(encoding).slice(0, 8),
      );
      for (const part of [...parts, ...hashes]) {
        const at = shown.toLowerCase().indexOf(part.toLowerCase());
        assert.equal(at, -1, shown.slice(Math.max(0, at - 100), at + 100));
      }
    }
    for (const { headers, body } of upstream.requests) {
      assert.ok(!KEYS.some((key) => JSON.stringify(headers).includes(key)), String(body));
    }
  });
});
