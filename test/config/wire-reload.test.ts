/** Settings changed while the gateway runs: their effects, the kept state, and refused settings. */

import assert from 'node:assert/strict';
import { rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { ServerResponse } from 'node:http';
import { describe, test, type TestContext } from 'node:test';

import { nextSettings, loadConfig } from '../../src/config/config.ts';
import { readSettings } from '../../src/config/read-settings.ts';
import {
  createProviders,
  disposeFormer,
  type ProviderState,
} from '../../src/gateway/provider-state.ts';
import { Incidents } from '../../src/incidents/incidents.ts';
import { Reservation } from '../../src/lib/memory/byte-budget.ts';
import { GatewayError } from '../../src/lib/errors.ts';
import { Secret } from '../../src/lib/secret.ts';
import { createRedactor } from '../../src/lib/secrets.ts';
import { createLimiters } from '../../src/policy/limiters.ts';
import { Attempt } from '../../src/request/history.ts';
import { replaceNow } from '../support/clock.ts';
import { parseMetrics } from '../support/exposition.ts';
import { openFeed } from '../support/feed.ts';
import {
  chatBody,
  CLIENT_TOKEN,
  PROVIDER_KEY,
  providerToml,
  startGateway,
  type LogLine,
  type TestGateway,
} from '../support/gateway.ts';
import { createMemoryProbe } from '../support/memory.ts';
import { emptyFolder } from '../support/process.ts';
import { sendRaw } from '../support/raw.ts';
import { createGate, errorAfter, eventually, openChat } from '../support/streams.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';
import {
  CHUNK,
  completion,
  completionEvents,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
} from '../support/upstream.ts';
import { newBudget } from '../support/shared.ts';

const ADMIN = '[admin]\nport = 0\n';

/** Returns the log lines with one of these messages, without their times. */
const linesOf = (gateway: TestGateway, ...messages: string[]): LogLine[] =>
  gateway.lines(...messages).map(({ time: _time, ...line }) => line);

const causeOf = (gateway: TestGateway) =>
  String(linesOf(gateway, 'reload failed').at(-1)?.['cause']);

const lastChange = (gateway: TestGateway) =>
  ((linesOf(gateway, 'reloaded').at(-1)?.['changed'] ?? []) as string[]).join();

const withToken = (token: string) => ({ headers: { authorization: `Bearer ${token}` } });

const statusWith = async (gateway: TestGateway, token: string) =>
  (await gateway.chat(chatBody(), withToken(token))).status;

/** Sends a request with each token, in sequence. Returns the statuses. */
async function statusesWith(gateway: TestGateway, ...tokens: string[]): Promise<number[]> {
  const statuses: number[] = [];
  for (const token of tokens) statuses.push(await statusWith(gateway, token));
  return statuses;
}

/** Returns the provider that answers. */
async function answererOf(gateway: TestGateway, model = 'p/m') {
  return (await gateway.chat(chatBody({ model }))).headers['x-gateway-provider'];
}

/** Returns the providers that answer `count` requests, in sequence. */
async function answerersOf(gateway: TestGateway, count: number): Promise<string> {
  const ids = [];
  for (let round = 0; round < count; round += 1) ids.push(await answererOf(gateway));
  return ids.join('');
}

describe('after a reload', () => {
  test('added, removed and moved providers take effect', async (t) => {
    const [old, moved] = [await startUpstream(t), await startUpstream(t)];
    const gateway = await startGateway(t, { toml: providerToml(old) + providerToml(old, 'gone') });
    assert.equal(await answererOf(gateway), 'p');
    await gateway.reload(providerToml(moved) + providerToml(moved, 'added'));
    assert.equal(await answererOf(gateway), 'p');
    assert.equal(await answererOf(gateway, 'added/m'), 'added');
    assert.deepEqual([old.requests.length, moved.requests.length], [1, 2]);
    const unknown = await gateway.chat(chatBody({ model: 'gone/m' }));
    assert.equal(unknown.json().error.message, 'Unknown provider: gone');
    const names = lastChange(gateway).split(',');
    for (const name of ['p.base_url', 'added.base_url', 'gone.api_key'])
      assert.ok(names.includes(`providers.${name}`), name);
    assert.ok(!names.includes('providers.p.api_key'), String(names));
  });

  test("a provider's new key is used and hidden", async (t) => {
    const key = 'new.canary.0123456789';
    const upstream = await startUpstream(t, ({ headers }, response) => {
      const message = `wrong key ${headers.authorization?.split(' ')[1]}`;
      sendJson(response, { error: { message } }, { status: 400 });
    });
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    await gateway.reload(providerToml(upstream).replace(PROVIDER_KEY, key));
    const reply = await gateway.chat(chatBody());
    assert.equal(upstream.requests[0]!.headers.authorization, `Bearer ${key}`);
    assert.match(reply.text, /wrong key \[secret\]/);
    assert.ok(!gateway.log.join('').includes(key));
    assert.equal(lastChange(gateway), 'providers.p.api_key');
  });

  test('a name that begins as a key does is in each line, and the key in none', async (t) => {
    const upstream = await startUpstream(t, ({ headers }, response) => {
      const message = `${'x'.repeat(180)} ${headers.authorization?.split(' ')[1]}`;
      sendJson(response, { error: { message } }, { status: 400 });
    });
    const providers = providerToml(upstream, 'internal')
      .replace(PROVIDER_KEY, 'internal-key-000000')
      .concat('[aliases]\n"frontier-large" = "internal/m"\n');
    const client = (name: string) => `[clients.${name}]\nkey = "${name}-1b2c3d4e5f60718293"\n`;
    const toml = providers + client('engineering') + client('frontier');
    const gateway = await startGateway(t, { toml });
    const body = chatBody({ model: 'frontier-large' });
    await gateway.chat(body, withToken('engineering-1b2c3d4e5f60718293'));
    await eventually(() => gateway.lines('request').length === 1, 'the access line');
    const { client: name, model, provider, tries } = gateway.lines('request')[0]!;
    assert.deepEqual([name, model, provider], ['engineering', 'frontier-large', 'internal']);
    assert.match(JSON.stringify(tries), /"provider":"internal".*"cause":"x{180} \[secret\]"/);
    await gateway.reload(providers + client('accounting'));
    const changed = ['engineering', 'frontier', 'accounting'].map((one) => `clients.${one}.`);
    for (const section of changed) assert.ok(lastChange(gateway).includes(section), section);
    assert.doesNotMatch(gateway.log.join(''), /1b2c|internal-key/);
  });

  test('bytes that are not HTTP are answered by the new settings too', async (t) => {
    const gateway = await startGateway(t, {});
    const answer = async () => (await sendRaw(gateway.port, 'nonsense\r\n\r\n')).text;
    assert.doesNotMatch(await answer(), /access-control-allow-origin/i);
    await gateway.reload('[server]\ncors = true');
    assert.match(await answer(), /access-control-allow-origin: \*/i);
  });

  test('connections to providers are reused, whatever else has changed', async (t) => {
    const [upstream, other] = [await startUpstream(t), await startUpstream(t)];
    const seen = new Set<unknown>();
    upstream.script = (_, response) => {
      for (const socket of upstream.sockets) seen.add(socket);
      sendJson(response, completion());
    };
    const toml = (round: number) => {
      const others = providerToml(other, `other${round}`);
      return `[server]\nretries = ${round}\n${providerToml(upstream)}${others}`;
    };
    const gateway = await startGateway(t, { toml: toml(0) });
    for (let round = 1; round < 7; round += 1) {
      assert.equal(await answererOf(gateway), 'p');
      await gateway.reload(toml(round));
    }
    assert.equal(seen.size, 1);
  });

  test('the list of models is fetched again only if its provider has changed', async (t) => {
    const upstream = await startUpstream(t, (_, response) =>
      sendJson(response, { data: [{ id: 'listed' }] }),
    );
    const gateway = await startGateway(t, { toml: providerToml(upstream) });
    const ids = async () =>
      ((await gateway.send('/v1/models')).json() as { data: { id: string }[] }).data.map(
        ({ id }) => id,
      );
    assert.deepEqual(await ids(), ['p/listed']);
    await gateway.reload(`${providerToml(upstream)}[aliases]\nfast = "p/listed"\n`);
    assert.deepEqual(await ids(), ['p/listed', 'fast']);
    assert.equal(upstream.requests.length, 1);
    await gateway.reload(providerToml(upstream, 'p', 'default_model = "d"'));
    assert.deepEqual(await ids(), ['p/listed', 'p/d']);
    assert.equal(upstream.requests.length, 2);
  });

  test('a key stays in its cooldown, unless its provider has changed', async (t) => {
    replaceNow(t, () => 1000);
    const upstream = await startUpstream(t, ({ headers }, response) => {
      if (headers.authorization === 'Bearer revoked-canary')
        sendJson(response, {}, { status: 401 });
      else sendJson(response, completion());
    });
    const keys = 'api_keys = ["revoked-canary", "good-canary"]';
    const toml = (more: string, own = '') =>
      `${more}\n[providers.p]\nbase_url = "${upstream.baseUrl}"\n${keys}\n${own}`;
    const gateway = await startGateway(t, { toml: toml('') });
    const cooldowns = () => linesOf(gateway, 'key in cooldown').length;
    assert.equal(await answerersOf(gateway, 4), 'pppp');
    assert.deepEqual([upstream.requests.length, cooldowns()], [5, 1]);
    await gateway.reload(toml('[server]\ncors = true'));
    assert.equal(await answerersOf(gateway, 4), 'pppp');
    assert.deepEqual([upstream.requests.length, cooldowns()], [9, 1]);
    await gateway.reload(toml('', 'default_model = "d"'));
    assert.equal(await answerersOf(gateway, 4), 'pppp');
    assert.deepEqual([upstream.requests.length, cooldowns()], [14, 2]);
  });

  test('the results of requests to a former provider do not reach its successor', () => {
    const logger = { log() {}, isEnabled: () => false, lines: 0 };
    const findMemoryHolder = () => undefined;
    const incidents = new Incidents({ logger, findMemoryHolder, onTrouble() {} });
    const parts = { incidents, logger, redact: createRedactor([]) };
    const providersWith = (retries: number, before?: ReturnType<typeof createProviders>) => {
      const toml = `[providers.p]\nbase_url = "http://p/v1"\napi_key = "k"\nretries = ${retries}\n`;
      const config = loadConfig({ toml, env: {} });
      return createProviders(config, parts, createLimiters(config).ofProviders, before);
    };
    const target = { model: 'm', operation: 'chat', isStream: false };
    const fail3 = (provider: ProviderState) => {
      const failure = new GatewayError('provider', 'x', { scope: 'provider' });
      for (let count = 0; count < 3; count += 1) {
        provider.breaker.recordOutcome(target, failure);
        incidents.recordFailure(new Attempt({ ...target, provider }, ''), failure);
      }
      incidents.advance();
    };
    const subjects = () => incidents.report().lasting.length;
    const before = providersWith(0);
    const former = before.get('p')!;
    const same = providersWith(0, before).get('p')!;
    assert.ok(same.breaker === former.breaker && same.subject === former.subject);
    disposeFormer(before, new Map([['p', same]]), incidents);
    fail3(former);
    assert.deepEqual([former.breaker.stateOf(target), subjects()], ['open', 1]);
    const after = providersWith(1, before);
    const current = after.get('p')!;
    disposeFormer(before, after, incidents);
    fail3(former);
    assert.equal(current.breaker.stateOf(target), 'closed');
    assert.deepEqual([former.breaker.report(), subjects()], [[], 0]);
    fail3(current);
    former.breaker.recordOutcome(target, undefined);
    incidents.addGood(new Attempt({ ...target, provider: former }, ''));
    incidents.advance();
    assert.deepEqual([current.breaker.stateOf(target), subjects()], ['open', 1]);
  });
});

describe('a request in flight over a reload', () => {
  /** Starts a provider that answers after `open`. A stream begins at once. */
  async function startWaiting(t: TestContext, rest: (response: ServerResponse) => void) {
    const { opened, open } = createGate();
    const upstream = await startUpstream(t, async ({ body, method }, response) => {
      if (method === 'GET') return sendJson(response, { data: [] });
      if (body.includes('"stream":true')) response.writeHead(200, EVENTS).write(CHUNK);
      await opened;
      return rest(response);
    });
    return { upstream, open };
  }

  test('keeps its provider, its key and its fallback', async (t) => {
    const { upstream, open: fail } = await startWaiting(t, (response) =>
      sendJson(response, {}, { status: 503 }),
    );
    const [former, latter] = [await startUpstream(t), await startUpstream(t)];
    const toml = (fallback: FakeUpstream) =>
      `[providers]\nfallback = ["q"]\n${providerToml(upstream)}${providerToml(fallback, 'q')}`;
    const gateway = await startGateway(t, { toml: toml(former) });
    const answerer = answererOf(gateway);
    await eventually(() => upstream.requests.length === 1, 'the request');
    await gateway.reload(toml(latter));
    fail();
    assert.equal(await answerer, 'q');
    assert.deepEqual([former.requests.length, latter.requests.length], [1, 0]);
    assert.equal(await answererOf(gateway), 'q');
    assert.equal(latter.requests.length, 1);
  });

  test('ends well as a stream of a removed provider, and counts as open', async (t) => {
    const { upstream, open: finish } = await startWaiting(t, (response) =>
      response.end(completionEvents()),
    );
    const gateway = await startGateway(t, { toml: providerToml(upstream) + ADMIN });
    const openStreams = async () =>
      parseMetrics((await gateway.admin('/metrics')).text).sum('gateway_open_streams');
    const stream = openChat(gateway.port);
    await eventually(() => stream.text() === CHUNK, 'the first event');
    await gateway.reload(ADMIN);
    assert.equal(await openStreams(), 1);
    finish();
    assert.equal(await stream.ended, CHUNK + completionEvents());
    await eventually(async () => (await openStreams()) === 0, 'it is over');
  });

  test("has its provider's key hidden, even after further reloads", async (t) => {
    const { upstream, open: fail } = await startWaiting(t, (response) =>
      response.end(`data: {"error":{"message":"key ${FORMER_KEY} was revoked"}}\n\n`),
    );
    const toml = (key: string) => providerToml(upstream).replace(PROVIDER_KEY, key);
    const gateway = await startGateway(t, { toml: toml(FORMER_KEY) });
    const stream = openChat(gateway.port);
    await eventually(() => stream.text() === CHUNK, 'the first event');
    for (let round = 0; round < 20; round += 1)
      await gateway.reload(toml(`later-key-${round}-canary`));
    fail();
    assert.match(errorAfter(await stream.ended, CHUNK).message, /key \[secret\] was revoked/);
    await eventually(() => gateway.accessLines().length === 1, 'the access line');
    assert.match(gateway.log.join(''), /\[secret\] was revoked/);
    assert.ok(!gateway.log.join('').includes(FORMER_KEY));
  });
});

const EVENTS = { 'content-type': 'text/event-stream' };
/** A key without the shape of any vendor's keys. */
const FORMER_KEY = 'former.canary.0123456789';

test('a redactor hides all keys in use and the latest 100 former keys', () => {
  // Different in their first eight characters, because a key cut after them is hidden, too.
  const keyOf = (name: string, at: number) => `${name}${String(at).padStart(4, '0')}-canary.`;
  const secrets = (name: string, count: number) =>
    Array.from({ length: count }, (_, at) => new Secret(keyOf(name, at)));
  const redact = createRedactor(secrets('aaaa', 2));
  redact.add(secrets('bbbb', 150));
  redact.add([...secrets('cccc', 1), ...secrets('bbbb', 1)]);
  const isHidden = (name: string, at: number) => {
    const text = keyOf(name, at);
    assert.equal(redact.mayChange(text), redact(text) !== text, text);
    return redact(text) === '[secret]';
  };
  assert.ok(isHidden('cccc', 0) && isHidden('bbbb', 0), 'in use');
  assert.ok(isHidden('bbbb', 149) && isHidden('bbbb', 50), 'among the latest 100');
  assert.ok(!isHidden('bbbb', 49) && !isHidden('aaaa', 0), 'older');
});

test('a former key that became the value of a header stays hidden like a key', () => {
  const text = 'https://canary.example';
  const redact = createRedactor([new Secret(text)]);
  redact.add([new Secret(text, { isKey: false })]);
  assert.equal(redact('at https://can'), 'at [secret]');
  redact.add([new Secret(text), new Secret(text, { isKey: false })]);
  assert.equal(redact('at https://can'), 'at [secret]');
});

test('a lower max_buffered_bytes lets nothing in until enough is freed', () => {
  const budget = newBudget(100);
  const held = new Reservation(budget);
  held.resize(80);
  budget.limits = { ...budget.limits, maxBufferedBytes: 50 };
  const next = new Reservation(budget);
  assert.throws(() => next.resize(1), /too many bytes/);
  held.resize(60);
  assert.equal(budget.reservedBytes, 60);
  assert.throws(() => next.resize(1), /too many bytes/);
  held.close();
  next.resize(50);
  next.close();
  assert.equal(budget.reservedBytes, 0);
});

describe('a reload with wrong settings', () => {
  test('changes nothing, and logs each problem as --check prints it', async (t) => {
    const upstream = await startUpstream(t);
    const toml = `[server.auth]\nkeys = ["key-one"]\n${providerToml(upstream)}`;
    const gateway = await startGateway(t, { toml });
    await gateway.reload(
      '[server]\nprot = 1\ntimeout = "soon"\n[server.auth]\nkeys = ["key-two"]\n',
    );
    const causes = [
      'server.timeout: found "soon", expected an integer from 1 to 2147483',
      'server.prot: unknown key; did you mean "port"?',
    ];
    assert.deepEqual(
      linesOf(gateway, 'reloaded', 'reload failed'),
      causes.map((cause) => ({ level: 'error', message: 'reload failed', cause })),
    );
    assert.deepEqual(await statusesWith(gateway, 'key-one', 'key-two'), [200, 401]);
    await gateway.reload('[server\n');
    assert.match(causeOf(gateway), /line 1, column/);
    assert.equal(await statusWith(gateway, 'key-one'), 200);
    await gateway.reload(toml);
    assert.deepEqual(linesOf(gateway, 'reloaded'), [{ level: 'info', message: 'reloaded' }]);
  });

  test('that would leave callers without keys changes nothing', async (t) => {
    const upstream = await startUpstream(t);
    const provider = providerToml(upstream);
    const named = '[clients.alice]\nkey = "alice-key"\n';
    const gateway = await startGateway(t, { toml: named + provider });
    await gateway.reload(provider);
    assert.match(causeOf(gateway), /^server\.auth: no key/);
    assert.equal(await statusWith(gateway, 'any'), 401);
    await gateway.reload(`[server.auth]\nkeys = ["team-key"]\n${provider}`);
    assert.equal(await statusWith(gateway, 'alice-key'), 401);
    await gateway.reload(`[server.auth]\nenabled = false\n${provider}`);
    assert.equal(await statusWith(gateway, 'any'), 200);
    await gateway.reload(provider);
    assert.equal(linesOf(gateway, 'reload failed').length, 1);
  });

  test('of a file cut off at any line end opens the gateway to nobody', async (t) => {
    const upstream = await startUpstream(t);
    const shared = `[server]\nretries = 0\n${providerToml(upstream)}`;
    for (const auth of ['[server.auth]\nkeys = [\n"key-one"]', '[clients.a]\nkey = "key-one"']) {
      const lines = `${shared}\n${auth}\n`.split('\n');
      const gateway = await startGateway(t, { toml: lines.join('\n') });
      for (let count = 0; count < lines.length; count += 1) {
        await gateway.reload(lines.slice(0, count).join('\n'));
        assert.equal(await statusWith(gateway, 'other'), 401, `${count} lines`);
      }
      await gateway.reload(`${shared}\n[server.auth]\nkeys = []\n`);
      assert.equal(await statusWith(gateway, 'other'), 401);
      await gateway.reload(lines.join('\n'));
      assert.equal(await statusWith(gateway, 'key-one'), 200);
    }
  });

  test('of a file that is empty, or cannot be found, fails', (t) => {
    const path = join(emptyFolder(t), 'gateway.toml');
    const read = () => readSettings({ config: path }, {}, { wasFound: true });
    for (const text of ['', ' \n']) {
      writeFileSync(path, text);
      assert.throws(() => read(), { name: 'ConfigError', message: `${path}: is empty now` });
    }
    rmSync(path);
    symlinkSync(path, path);
    const message = `${path}: cannot be read (ELOOP)`;
    assert.throws(() => read(), { name: 'ConfigError', message });
    rmSync(path);
    writeFileSync(path, '[server]\nretries = 2\n');
    assert.equal(read().config.server.retries, 2);
  });

  test('is a figure of /metrics until a reload succeeds', async (t) => {
    const gateway = await startGateway(t, { toml: ADMIN });
    const figures = async () => {
      const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
      const name = 'gateway_config_last_reload_success';
      return [sum(`${name}ful`), sum(`${name}_timestamp_seconds`)] as const;
    };
    const [isSuccessful, startedAt] = await figures();
    await gateway.reload('[nonsense]\n');
    assert.deepEqual(await figures(), [0, startedAt]);
    await gateway.reload(ADMIN);
    const [isSuccessfulAgain, reloadedAt] = await figures();
    assert.deepEqual([isSuccessful, isSuccessfulAgain], [1, 1]);
    assert.ok(reloadedAt > startedAt);
  });

  test('because of a bug is logged with the stack, and the gateway goes on', async (t) => {
    const upstream = await startUpstream(t);
    let isBroken = false;
    const gateway = await startGateway(t, {
      toml: providerToml(upstream),
      adjust: (config) => {
        if (isBroken) throw new TypeError('thrown by a test');
        return config;
      },
    });
    isBroken = true;
    await gateway.reload('');
    assert.match(causeOf(gateway), /thrown by a test\n +at /);
    assert.equal(await answererOf(gateway), 'p');
  });
});

describe('what needs a restart', () => {
  const load = (toml: string) => loadConfig({ toml, env: {} });
  const server = 'server.port = 8081\nserver.host = "127.0.0.1"\n';
  const running = load(`${server}admin.port = 9000\n`);
  const cases: Record<string, string> = {
    'server.port': `${server.replace('8081', '8082')}admin.port = 9000\n`,
    'server.host,server.upstream':
      server.replace('0.1', '0.2') + 'server.upstream = "fetch"\nadmin.port = 9000\n',
    'admin.port,admin.keys': `${server}admin = { port = 9001, keys = ["key-of-admin"] }\n`,
    'admin.port': server,
    'rate_limit.store,rate_limit.prefix':
      server + 'admin.port = 9000\nrate_limit = { store = "redis://h", prefix = "p" }\n',
  };
  for (const [names, toml] of Object.entries(cases)) {
    test(`${names} is named, and keeps its value`, () => {
      const next = load(`${toml}logging.level = "debug"\n`);
      const named = names.split(',');
      const { config, changed, needRestart } = nextSettings(running, next);
      assert.deepEqual(needRestart.toSorted(), named.toSorted());
      assert.deepEqual(changed, ['logging.level']);
      assert.deepEqual(config.admin, running.admin);
      assert.equal(config.rateLimit.store, undefined);
      const { host, port, upstream } = config.server;
      assert.deepEqual([host, port, upstream], ['127.0.0.1', 8081, 'auto']);
      const fixed = [...config.resolved].filter(([key]) => /^admin|host|port|upstream/.test(key));
      assert.deepEqual(
        fixed,
        [...running.resolved].filter(([key]) => /^admin|host|port|upstream/.test(key)),
      );
      assert.equal(config.resolved.get('logging.level'), 'debug');
    });
  }
});

test('only new warnings are logged', async (t) => {
  const gateway = await startGateway(t, { toml: '[aliases]\na = "none/m"\n' });
  await gateway.reload('[aliases]\na = "none/m"\nb = "none/m"\n');
  assert.deepEqual(linesOf(gateway, 'settings warning'), [
    {
      level: 'warn',
      message: 'settings warning',
      cause: 'aliases.b: provider "none" is not registered',
    },
  ]);
});

test('a warning is logged by the reload that brings it, whenever it comes back', async (t) => {
  const toml = (key: string) =>
    `[providers.p]\nbase_url = "http://127.0.0.2:2"\napi_key = "${key}"`;
  const gateway = await startGateway(t, { toml: toml(PROVIDER_KEY) });
  const count = () => linesOf(gateway, 'settings warning').length;
  const unset = toml('${UNSET_CANARY}');
  await gateway.reload(unset);
  const [warning] = linesOf(gateway, 'settings warning');
  assert.match(String(warning?.['cause']), /UNSET_CANARY/);
  const known = count();
  await gateway.reload(unset);
  await gateway.reload(`${unset}\ntimeout = 7`);
  assert.equal(count(), known, 'the warning is known');
  await gateway.reload(toml(PROVIDER_KEY));
  assert.equal(count(), known);
  await gateway.reload(unset);
  assert.equal(count(), 2 * known, 'the warning is new again');
});

test("a request in flight counts in its client's limit after reloads without it", async (t) => {
  const { opened, open } = createGate();
  const upstream = await startUpstream(t, async (_, response) => {
    await opened;
    sendJson(response, completion());
  });
  const other = '[clients.other]\nkey = "other-key-canary"\n';
  const limited = '[clients.agents]\nkey = "agents-key-canary"\nmax_concurrent_requests = 1\n';
  const provider = providerToml(upstream);
  const gateway = await startGateway(t, { toml: limited + other + provider });
  const first = statusWith(gateway, 'agents-key-canary');
  await eventually(() => upstream.requests.length === 1, 'the request');
  await gateway.reload(other + provider);
  assert.equal(await statusWith(gateway, 'agents-key-canary'), 401);
  await gateway.reload(limited + other + provider);
  assert.equal(await statusWith(gateway, 'agents-key-canary'), 429);
  open();
  assert.equal(await first, 200);
  assert.equal(await statusWith(gateway, 'agents-key-canary'), 200);
});

describe('the operator sees', () => {
  test('the new settings on an open page, and each request once', async (t) => {
    const upstream = await startUpstream(t, (_, response) => sendJson(response, completion()));
    const gateway = await startGateway(t, { toml: ADMIN + providerToml(upstream) });
    const feed = await openFeed(t, gateway.adminPort);
    const valueOf = (data: { settings: [string, unknown][] }, name: string) =>
      new Map(data.settings).get(name);
    const first = await feed.next('settings');
    assert.equal(valueOf(first, 'server.cors'), false);
    await answererOf(gateway);
    await feed.next('requests', (requests) => requests.length === 1);
    const auth = '[server]\ncors = true\n[server.auth]\nkeys = ["key-canary-42"]\n';
    await gateway.reload(auth + ADMIN + providerToml(upstream));
    const second = await feed.next('settings');
    assert.equal(valueOf(second, 'server.cors'), true);
    assert.equal(valueOf(second, 'server.auth.keys'), '[secret]');
    await feed.next('state');
    await feed.next('state');
    const names = feed.events.map(({ name }) => name);
    assert.equal(names.filter((name) => name === 'settings').length, 2);
    const requests = feed.events.filter(({ name }) => name === 'requests');
    assert.deepEqual(requests.flatMap(({ data }) => data as unknown[]).length, 1);
    assert.ok(!JSON.stringify(feed.events).includes('canary'));
  });

  test('new providers, and their models by name, in the metrics', async (t) => {
    const answer = (model: string) => ({ data: [{ id: model }] });
    const upstream = await startUpstream(t, ({ method, url }, response) =>
      sendJson(
        response,
        method === 'GET' ? answer(`listed-of-${url.split('/')[1]}`) : completion(),
      ),
    );
    const own = { baseUrl: upstream.baseUrl.replace('/v1', '/new/v1') };
    const gateway = await startGateway(t, { toml: ADMIN + providerToml(upstream) });
    await gateway.reload(`${ADMIN}${providerToml(own, 'new')}[aliases]\nnick = "new/hidden"\n`);
    await eventually(() => upstream.requests.length > 0, 'its list is asked for');
    await gateway.send('/v1/models');
    for (const model of ['new/listed-of-new', 'nick']) await gateway.chat(chatBody({ model }));
    const { text } = await gateway.admin('/metrics');
    assert.match(text, /gen_ai_original_model="nick",gen_ai_request_model="hidden"/);
    assert.match(text, /gen_ai_original_model="new\/listed-of-new"/);
    assert.match(text, /gateway_breaker_circuits\{provider="new",state="open"\} 0/);
    assert.doesNotMatch(text, /gateway_breaker_circuits{provider="p"/);
    assert.equal((await gateway.admin('/ready')).status, 200);
    await gateway.reload(ADMIN);
    assert.deepEqual((await gateway.admin('/ready')).json(), { status: 'no provider' });
  });
});

const RELOADS = 200;

test(
  `${RELOADS} reloads leave nothing of the former settings in memory`,
  { timeout: 300_000, skip: LEFT_TO_SWEEPS },
  async (t) => {
    const upstream = await startUpstream(t, (_, response) =>
      sendEvents(response, completionEvents()),
    );
    /** About 200 kB settings with other values in each round. */
    const toml = (round: number) => {
      const aliases = Array.from(
        { length: 50 },
        (_, at) => `a${at} = "p/m-${'x'.repeat(4000)}${round}"`,
      );
      return [
        `[server]\nretries = ${round % 10}`,
        `[server.auth]\nkeys = ["${CLIENT_TOKEN}", "key-${round}-canary"]`,
        `[rate_limit]\nenabled = true\nrequests_per_second = ${1000 + round}`,
        `[aliases]\n${aliases.join('\n')}`,
        providerToml(upstream, 'p', `default_model = "m${round}"`),
      ].join('\n');
    };
    const gateway = await startGateway(t, { toml: toml(0) });
    const collect = createMemoryProbe();
    // Collects often, because V8's caches of code and regular expressions age at each collection.
    const measure = () => Math.min(...Array.from({ length: 12 }, collect));
    const reload = async (round: number) => {
      await gateway.reload(toml(round));
      await openChat(gateway.port).ended;
      gateway.log.splice(0);
    };
    for (let round = 1; round <= 20; round += 1) await reload(round);
    const before = measure();
    for (let round = 21; round <= 20 + RELOADS; round += 1) await reload(round);
    const growth = measure() - before;
    t.diagnostic(`${Math.round(growth / 1000)} kB in ${RELOADS} reloads`);
    // A leaking reload would keep 200 kB.
    assert.ok(growth < 8_000_000, `${growth} bytes`);
  },
);
