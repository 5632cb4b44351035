/**
 * Incidents in the log, on the page and in the metrics: beginning, sentence, affected
 * requests and end.
 */

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { describe, test } from 'node:test';

import type { Notice } from '../../src/incidents/notice.ts';
import { idle, replaceDate, stopClock } from '../support/clock.ts';
import { parseMetrics } from '../support/exposition.ts';
import { startFakeRedis } from '../support/fake-redis.ts';
import { openFeed } from '../support/feed.ts';
import { chatBody, type TestGateway } from '../support/gateway.ts';
import { buildOnce, emptyFolder, startServing } from '../support/process.ts';
import { byModel, scenario, type ProviderSettings } from '../support/scenario.ts';
import { eventually } from '../support/streams.ts';
import {
  answerWell,
  CHUNK,
  NOBODY_LISTENS,
  sendJson,
  type FakeUpstream,
  type Script,
} from '../support/upstream.ts';
import { LEFT_TO_SWEEPS } from '../support/sweep.ts';

/** Joins the page's texts about an incident. */
function textOf({ affected, causes, effect, subject, title }: Notice): string {
  const names = affected.map(({ clients, name, rest, text }) => {
    return ` ${name}: ${text}${rest}${clients ? ` (${clients})` : ''}.`;
  });
  const words = [title, effect].filter(Boolean).join(', ');
  return `${subject}: ${words}${causes.map((cause) => ` (${cause})`).join('')}.${names.join('')}`;
}

const TIME = String.raw`[\d-]+T[\d:.]+Z`;
const TWO = '[clients.agents]\nkey = "agents-key-canary"\n[clients.web]\nkey = "web-key-canary"\n';

/** Models from the settings: no list is fetched, and the names are labels. */
const MODELS = 'models = ["m", "small", "big"]';
/** A limit short enough to wait for. */
const SHORT = 'timeout = 1';
const streams =
  (end: (response: Parameters<Script>[1]) => void): Script =>
  (request, response) => {
    if (request.method !== 'POST') return sendJson(response, { data: [] });
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(CHUNK);
    return end(response);
  };
const failWith =
  (status: number, message: string): Script =>
  (_, response) =>
    sendJson(response, { error: { message } }, { status });
/** Applies the script to chats only, and answers a request for models with an empty list. */
const chats =
  (script: Script): Script =>
  (request, response) =>
    request.method === 'POST' ? script(request, response) : sendJson(response, { data: [] });

interface World {
  readonly gateway: TestGateway;
  readonly p: FakeUpstream;
  readonly clock: { nowMs: number };
  readonly ask: (model?: string, count?: number, more?: object) => Promise<unknown>;
}

interface Incident {
  readonly title: string;
  readonly provider?: ProviderSettings;
  readonly server?: string;
  readonly fallback?: readonly string[];
  readonly url?: string;
  /** Causes the incident; six requests by default. */
  readonly happen?: (world: World) => Promise<unknown>;
  readonly kind: string;
  readonly model?: string;
  /** The model to ask for until the incident is over. */
  readonly asked?: string;
  /** All sentences. `TIME` matches any time. */
  readonly sentence: string;
}

/** Part of the sentence if nothing was good before. */
const FROM_START = ', no success since the gateway’s start';

const INCIDENTS: readonly Incident[] = [
  {
    title: 'a provider is down',
    url: NOBODY_LISTENS,
    kind: 'unreachable',
    sentence: 'p: no connection (ECONNREFUSED 127.0.0.2:2). p/m: 6 of 6 failed (agents).',
  },
  {
    title: 'a provider is down, and another one answers instead',
    url: NOBODY_LISTENS,
    fallback: ['q'],
    kind: 'unreachable',
    sentence:
      'p: no connection, other providers answer (ECONNREFUSED 127.0.0.2:2). ' +
      'p/m: 6 of 6 answered by q (agents).',
  },
  {
    title: 'one model is down',
    provider: byModel({ small: chats(failWith(503, 'no capacity')) }),
    happen: async ({ ask }) => {
      await ask('p/big', 20);
      await ask('p/small');
    },
    kind: 'errors',
    model: 'small',
    sentence:
      `p/small: errors${FROM_START} (503: no capacity).` +
      ' p/small: 6 of 6 complete answers failed (agents).',
  },
  {
    title: 'a provider refuses the key',
    provider: chats(failWith(401, 'wrong key')),
    kind: 'key_refused',
    sentence: `p: our key refused${FROM_START} (401: wrong key). p/m: 6 of 6 failed (agents).`,
  },
  {
    title: 'a provider limits us',
    provider: chats((_, response) =>
      sendJson(
        response,
        { error: { message: 'slow down' } },
        { status: 429, headers: { 'retry-after': '600' } },
      ),
    ),
    kind: 'rate_limited',
    sentence:
      `p: limits us (429), asks us to wait until TIME${FROM_START} (slow down).` +
      ' p/m: 6 of 6 failed (agents).',
  },
  {
    title: 'a provider does not begin its answers',
    provider: { script: chats(() => {}), lines: SHORT },
    happen: async ({ ask }) => Promise.all(Array.from({ length: 6 }, () => ask('p/m', 1))),
    kind: 'timeout',
    sentence:
      `p: no answer in time${FROM_START} (no complete answer in 1000 ms).` +
      ' p/m: 6 of 6 failed (agents).',
  },
  {
    title: 'streams stall',
    provider: streams(() => {}),
    server: 'stream_idle_timeout = 1',
    happen: async ({ ask }) =>
      Promise.all(Array.from({ length: 6 }, () => ask('p/m', 1, { stream: true }))),
    kind: 'stall',
    sentence:
      `p: streams fall silent${FROM_START} (no event in 1000 ms).` +
      ' p/m: 6 of 6 failed (agents).',
  },
  {
    title: 'streams stall beside complete answers that are good',
    provider: (request, response) =>
      (request.body.includes('"stream":true') ? streams(() => {}) : answerWell)(request, response),
    server: 'stream_idle_timeout = 1',
    happen: async ({ ask }) => {
      await ask('p/m', 12);
      await Promise.all(Array.from({ length: 6 }, () => ask('p/m', 1, { stream: true })));
      await ask('p/m', 12);
    },
    kind: 'stall',
    model: 'm',
    sentence:
      `p/m: streams fall silent${FROM_START} (no event in 1000 ms).` +
      ' p/m: 6 of 6 streams failed (agents).',
  },
  {
    title: 'streams are cut',
    provider: streams((response) => setImmediate(() => response.destroy())),
    happen: async ({ ask }) => ask('p/m', 6, { stream: true }),
    kind: 'cut',
    sentence: `p: answers break off${FROM_START} (.*). p/m: 6 of 6 failed (agents).`,
  },
  {
    title: 'a provider answers nonsense',
    provider: chats((_, response) => response.end('<html>')),
    kind: 'nonsense',
    sentence: `p: unusable answers${FROM_START} (.*). p/m: 6 of 6 failed (agents).`,
  },
  {
    title: 'half of the requests fail',
    provider: byModel({ small: chats(failWith(500, 'out of memory')) }),
    happen: async ({ ask, p }) => {
      const broken = p.script;
      for (let at = 0; at < 4; at += 1) {
        p.script = at % 2 === 0 ? broken : answerWell;
        await ask('p/small', 2);
      }
    },
    kind: 'errors',
    asked: 'small',
    sentence: 'p: errors (500: out of memory). p/small: 4 of 8 failed (agents).',
  },
  {
    title: 'streams begin late',
    happen: async ({ ask, clock, gateway, p }) => {
      await ask('p/m', 12, { stream: true });
      clock.nowMs += 120_000;
      p.script = (request, response) => {
        if (request.method === 'POST') clock.nowMs += 4000;
        return answerWell(request, response);
      };
      await ask('p/m', 12, { stream: true });
      gateway.judge();
      // Requests are counted once the provider is known to be slow.
      await ask('p/m', 2, { stream: true });
    },
    kind: 'slow',
    sentence:
      'p: slow (first token after \\d+ ms, \\d+ ms is usual). p/m: \\d+ answered slowly (agents).',
  },
];

async function noticesOf(gateway: TestGateway): Promise<Notice[]> {
  gateway.judge();
  return (JSON.parse((await gateway.admin('/status')).text) as { incidents: Notice[] }).incidents;
}

async function metricOf(gateway: TestGateway, { kind, provider }: Notice) {
  const labels = { kind: kind!, ...(provider && { provider }) };
  return parseMetrics((await gateway.admin('/metrics')).text).sum('gateway_incident', labels);
}

/** Returns the only lasting incident. Log, page and metrics must agree on it. */
async function theOne(gateway: TestGateway, sentence: string): Promise<Notice> {
  const incidents = await noticesOf(gateway);
  assert.equal(incidents.length, 1, JSON.stringify(incidents));
  const [incident] = incidents as [Notice];
  assert.equal(incident.ended, undefined);
  assert.ok(incident.action);
  const escaped = sentence.replaceAll(/[().]/g, '\\$&').replaceAll('\\.*', '.*');
  const pattern = new RegExp(`^${escaped.replaceAll('TIME', TIME)}$`);
  assert.match(textOf(incident), pattern);
  const [line] = gateway.lines('incident');
  assert.equal(line!['level'], 'warn');
  for (const name of ['kind', 'provider', 'since', 'fault'] as const) {
    assert.equal(line![name], incident[name], name);
  }
  assert.equal(line!['all_models'] === true, incident.models?.length === 0);
  assert.equal(await metricOf(gateway, incident), 1);
  const metrics = parseMetrics((await gateway.admin('/metrics')).text);
  for (const model of incident.models ?? [])
    assert.equal(metrics.sum('gateway_incident_model', { model }), 1, 'the alert names it too');
  return incident;
}

async function assertOver(gateway: TestGateway, incident: Notice): Promise<void> {
  const incidents = await noticesOf(gateway);
  assert.deepEqual(
    incidents.map(({ kind, ended }) => [kind, ended !== undefined]),
    [[incident.kind, true]],
  );
  const [line] = gateway.lines('incident ended');
  assert.deepEqual(
    [line!['level'], line!['kind'], line!['since'], line!['ended']],
    ['info', incident.kind, incident.since, incidents[0]!.ended],
  );
  assert.equal(await metricOf(gateway, incident), 0);
}

describe('log, page and metrics show alike that', () => {
  for (const { title, happen, kind, model, sentence, url, ...incident } of INCIDENTS) {
    test(`${title}, until it is over`, async (t) => {
      const clock = stopClock(t, 1_000_000);
      const { provider = {}, asked = model ?? 'm' } = incident;
      const given = typeof provider === 'function' ? { script: provider } : provider;
      const world = await scenario<string>(t, {
        ...incident,
        providers: {
          p: { script: answerWell, ...given, lines: `${MODELS}\n${given.lines ?? ''}` },
          q: { lines: 'default_model = "d"\nmodels = []' },
        },
        more: `${TWO}[admin]\nport = 0`,
      });
      const { gateway, toml, p } = world;
      const wrong = url ? toml.replace(p!.baseUrl, `${url}/v1`) : toml;
      if (url) await gateway.reload(wrong);
      const ask = async (name = 'p/m', count = 6, more = {}) => {
        const headers = { authorization: 'Bearer agents-key-canary' };
        for (let at = 0; at < count; at += 1) {
          await gateway.chat(chatBody({ model: name, ...more }), { headers });
        }
      };
      await (happen ?? (({ ask: send }: World) => send()))({ gateway, p: p!, clock, ask });
      clock.nowMs += 1000;
      const told = await theOne(gateway, sentence);
      assert.deepEqual(
        [told.kind, told.provider, told.models?.[0]],
        [kind, 'p', model],
        JSON.stringify(told),
      );
      if (url) await gateway.reload(toml);
      p!.script = answerWell;
      for (let second = 0; second < 80; second += 5) {
        await ask(`p/${asked}`, 1, { stream: /slow|stall|cut/.test(kind) });
        clock.nowMs += 5000;
        gateway.judge();
      }
      await assertOver(gateway, told);
    });
  }

  test('a reload failed, until the next reload', async (t) => {
    const clock = stopClock(t, 1_000_000);
    const { gateway, toml } = await scenario(t, { more: '[admin]\nport = 0' });
    await gateway.reload(toml.replace('[server]', '[server]\nport = "x"\ntimeout = "y"'));
    const sentence = 'gateway: new settings refused, former ones in use (.*, and 1 more).';
    const told = await theOne(gateway, sentence);
    clock.nowMs += 5000;
    await gateway.reload(toml);
    await assertOver(gateway, told);
  });

  test('the clock was set, until it has stood for a while', async (t) => {
    const clock = stopClock(t, 1_000_000);
    const { gateway } = await scenario(t, { more: '[admin]\nport = 0' });
    const zeroMs = Date.now() - clock.nowMs;
    replaceDate(t, () => zeroMs + clock.nowMs + 3_600_000);
    const sentence = 'gateway: clock set, times before are of the old clock (set 3600 s ahead).';
    const told = await theOne(gateway, sentence);
    clock.nowMs += 45_000;
    await assertOver(gateway, told);
  });

  test('memory is short, until no request is refused for it', async (t) => {
    const clock = stopClock(t, 1_000_000);
    const { gateway } = await scenario(t, {
      server: 'max_buffered_bytes = 1048576',
      providers: {
        // The answer alone would fit.
        p: chats((_, response) => sendJson(response, { choices: [], x: 'y'.repeat(1_048_540) })),
      },
      more: '[admin]\nport = 0',
    });
    await gateway.chat(chatBody());
    const told = await theOne(
      gateway,
      'gateway: short of memory (max_buffered_bytes). p/m: 1 failed.',
    );
    const feed = await openFeed(t, gateway.adminPort);
    const [row] = (await feed.next('state')).providers;
    assert.equal(row.failed, undefined, 'of no provider');
    // Close the feed, because a second feed would get this second's view again.
    feed.close();
    clock.nowMs += 45_000;
    await assertOver(gateway, told);
  });

  test('a list of models cannot be read, until it can', async (t) => {
    const clock = stopClock(t, 1_000_000);
    const { gateway, p } = await scenario(t, {
      providers: { p: failWith(500, 'no list') },
      more: '[admin]\nport = 0',
    });
    await gateway.send('/v1/models');
    const told = await theOne(
      gateway,
      `p: no list of models, no request has failed${FROM_START} (status 500).`,
    );
    p.script = (_, response) => sendJson(response, { data: [] });
    clock.nowMs += 11_000;
    // The gateway asks for the list again by itself.
    while ((await noticesOf(gateway))[0]!.ended === undefined) await idle(20);
    await assertOver(gateway, told);
  });

  test('the store is away, until it answers', async (t) => {
    const clock = stopClock(t, 1_000_000);
    let isBroken = false;
    const redis = await startFakeRedis(t, (_, socket) => isBroken && socket.write(':1\r\n'));
    const { gateway } = await scenario(t, {
      more:
        `[rate_limit]\nenabled = true\nrequests_per_second = 1000\n` +
        `store = "redis://127.0.0.1:${redis.port}"\n[admin]\nport = 0`,
    });
    const count = async (isOver: boolean) => {
      const incidents = await noticesOf(gateway);
      return incidents.filter(({ ended }) => (ended !== undefined) === isOver).length;
    };
    isBroken = true;
    await gateway.chat(chatBody());
    clock.nowMs += 1000;
    await eventually(async () => (await count(false)) === 1, 'it is away');
    const cause = `127.0.0.1:${redis.port}: the reply is not RESP`;
    const sentence = `gateway: store of rate limits away, each gateway limits by itself (${cause}).`;
    const told = await theOne(gateway, sentence);
    isBroken = false;
    await eventually(async () => (await count(true)) === 1, 'it is back');
    await assertOver(gateway, told);
  });

  test('the store cannot be reached, and its address is given once', async (t) => {
    const clock = stopClock(t, 1_000_000);
    const { host } = new URL(NOBODY_LISTENS);
    const { gateway } = await scenario(t, {
      more:
        `[rate_limit]\nenabled = true\nrequests_per_second = 1000\n` +
        `store = "redis://${host}"\n[admin]\nport = 0`,
    });
    const has = async () => (await noticesOf(gateway)).length === 1;
    await gateway.chat(chatBody());
    clock.nowMs += 1000;
    await eventually(has, 'it is away');
    const words = 'gateway: store of rate limits away, each gateway limits by itself';
    await theOne(gateway, `${words}${FROM_START} (connect ECONNREFUSED ${host}).`);
  });
});

/** Preload: the program's clock runs ten times as fast. */
const FAST =
  '--import=data:text/javascript,' +
  'const%20now=performance.now.bind(performance);performance.now=()=>10*now();' +
  'const%20zero=Date.now();Date.now=()=>zero+performance.now()';

const skip = LEFT_TO_SWEEPS;
test('log lines are lost while standard output is not read', { skip }, async (t) => {
  await buildOnce();
  const toml = '[server]\nport = 0\nhost = "127.0.0.1"\n[admin]\nport = 0\n';
  const cwd = emptyFolder(t, { 'gateway.toml': toml });
  const { child, lines, port } = await startServing(t, [], { cwd, env: { NODE_OPTIONS: FAST } });
  await eventually(() => lines('started').length > 0, 'the start');
  const url = String(lines('started')[0]!['admin_url']);
  const next = async (isWanted: (incident: Notice | undefined) => boolean): Promise<string> => {
    let incidents: Notice[] = [];
    await eventually(async () => {
      const status = await fetch(`${url}status`);
      incidents = ((await status.json()) as { incidents: Notice[] }).incidents;
      return isWanted(incidents[0]);
    }, 'the incident');
    assert.deepEqual(
      incidents.map(({ kind }) => kind),
      ['log_lines'],
    );
    return textOf(incidents[0]!);
  };
  child.stdout!.pause();
  // 4 MiB in lines wait until they are read, and the path is escaped in each.
  const request = `GET /${'"'.repeat(199)} HTTP/1.1\r\nhost: localhost\r\n\r\n`;
  // Several connections, because a connection with more than 100 waiting requests is closed.
  for (let at = 0; at < 110; at += 1) {
    const client = connect(port, '127.0.0.1').resume();
    // The program ends before the client.
    client.on('error', () => {});
    client.write(request.repeat(90));
  }
  assert.match(
    await next((incident) => incident !== undefined),
    /^gateway: log lines lost \(standard output is not read\)\.$/,
  );
  child.stdout!.resume();
  assert.match(
    await next((incident) => incident!.ended !== undefined),
    /^gateway: log lines lost \(standard output is not read\)\.$/,
  );
  assert.equal(lines('log lines were dropped').length, 1);
});
