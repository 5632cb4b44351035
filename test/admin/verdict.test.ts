/** The first words of the page, from the views that the gateway's feed sends. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { Traffic } from '../../src/admin/traffic.ts';
import { replaceDate } from '../support/clock.ts';
import { openFeed } from '../support/feed.ts';
import { chatBody, type TestGateway } from '../support/gateway.ts';
import { ROOT } from '../support/process.ts';
import { scenario } from '../support/scenario.ts';
import { answerWell, sendJson } from '../support/upstream.ts';

type Counts = Readonly<Record<string, number>>;

// A module of the page, whose types nobody needs here.
const { awayText, endedOf, goesOn, statesOf } = (await import(
  join(ROOT, 'src/admin/page/incidents.js')
)) as {
  awayText: (circuit: object) => string;
  endedOf: (view: object) => Record<'subject' | 'words' | 'count' | 'cause' | 'ended', string>[];
  goesOn: (incident: object, next: readonly object[]) => boolean;
  statesOf: (id: string, view: object) => (string | false)[][];
};
const { iconOfTry } = (await import(join(ROOT, 'src/admin/page/requests.js'))) as {
  iconOfTry: (one: { readonly outcome: string }, failed: string) => string;
};
const { verdictOf, judge } = (await import(join(ROOT, 'src/admin/page/verdict.js'))) as {
  verdictOf: (view: object) => (string | false)[];
  judge: (counts: Counts) => { kind: string; count: number; total: number; end: string };
};

const NOW = '2026-11-22T10:15:30.000Z';
const TWO = '[clients.agents]\nkey = "agents-key-canary"\n[clients.web]\nkey = "web-key-canary"\n';

/** A view with these counts of the last minute. */
const view = (minute: Counts, more: object = {}) => {
  const rows = { clients: {}, providers: {}, requests: {} };
  return { minute, all: minute, incidents: [], now: NOW, ...rows, ...more };
};
const told = (one: object) => verdictOf(one).filter(Boolean).join(' | ');
const incident = (affected: object[] = []) => ({ kind: 'errors', provider: 'p', affected });

test('all is well only if the last minute had requests of which under a hundredth failed', () => {
  const cases: [counts: Counts, kind: string, figures?: string][] = [
    [{}, 'off'],
    [{ requests: 1 }, 'good'],
    [{ requests: 200, failed: 1 }, 'good'],
    [{ requests: 100, failed: 1 }, 'warn', '1 of 100 failed'],
    [{ requests: 4, failed: 4 }, 'warn', '4 of 4 failed'],
    // What a client's own limit refused is no part of either number.
    [{ requests: 1204, limited: 942 }, 'good'],
    [{ requests: 1204, limited: 942, failed: 2 }, 'good'],
    [{ requests: 1204, limited: 942, failed: 3 }, 'warn', '3 of 262 failed'],
    // Nothing was answered.
    [{ requests: 31, rejected: 31 }, 'warn', '31 of 31 rejected'],
    [{ requests: 31, limited: 31 }, 'warn', '31 of 31 refused'],
    [{ requests: 9, client_closed: 5, rejected: 4 }, 'warn', '5 of 9 left by clients'],
    [{ requests: 9, client_closed: 4, rejected: 4 }, 'good'],
  ];
  for (const [counts, kind, figures] of cases) {
    const { count, total, end, ...judged } = judge(counts);
    assert.equal(judged.kind, kind, JSON.stringify(counts));
    assert.equal(end && `${count} of ${total} ${end}`, figures ?? '', JSON.stringify(counts));
  }
});

test('the verdict is red, amber, grey or green, and below an incident it is figures', () => {
  const good = { requests: 120 };
  const failing = { providers: { q: { minute: { failed: 1 } }, p: { minute: { failed: 6 } } } };
  const LAST = '2026-11-22T10:09:54.000Z';
  const cases: [given: object, expected: string | RegExp][] = [
    [view(good), 'good | All well | 120 requests in the last minute, none failed.'],
    [
      view(
        { requests: 302, failed: 2 },
        {
          providers: {
            p: { minute: { requests: 2, failed: 2 } },
            q: { minute: { requests: 300 } },
          },
        },
      ),
      'warn | 2 of 302 requests failed | Too few for an incident: p 2.',
    ],
    [
      view({ requests: 389, failed: 7 }, failing),
      'warn | 7 of 389 requests failed | 1.8 % of the last minute. | Too few for an incident: p 6, q 1.',
    ],
    [
      view({ requests: 9, failed: 4 }, { incidents: [incident([{ failed: 4 }])] }),
      'bad | Requests fail | 4 of 9 in the last minute, 44.4 %. | 1 incident.',
    ],
    [
      view(good, { incidents: [incident([{ failed: 0, answered: 3 }]), incident()] }),
      'warn | Other providers answer | 120 requests in the last minute, none failed. | 2 incidents.',
    ],
    [
      view(good, { incidents: [{ ...incident([{ failed: 4 }]), quiet_since: LAST }] }),
      'warn | 1 incident | 120 requests in the last minute, none failed.',
    ],
    [
      view({}, { incidents: [{ ...incident([{ failed: 4 }]), quiet_since: LAST }] }),
      'warn | 1 incident | No request in the last minute.',
    ],
    [
      view(good, { incidents: [incident()] }),
      'warn | 1 incident | 120 requests in the last minute, none failed.',
    ],
    [
      view({ requests: 9, failed: 4 }, { incidents: [{ kind: 'reload' }] }),
      'warn | 4 of 9 requests failed | 44.4 % of the last minute. | 1 incident.',
    ],
    [
      view(good, { incidents: [{ ...incident([{ failed: 3 }]), ended: 'x' }] }),
      'good | All well | 120 requests in the last minute, none failed.',
    ],
    [
      view(
        { ...good, client_closed: 3 },
        { providers: { p: { minute: { requests: 4, failed: 1, client_closed: 3 } } } },
      ),
      'warn | 3 of 120 requests left by clients',
    ],
    [
      view(
        { ...good, client_closed: 3 },
        { providers: { p: { minute: { requests: 4, client_closed: 3 } } } },
      ),
      'good | All well | 120 requests in the last minute, none failed.',
    ],
    [
      view(
        { ...good, client_closed: 2 },
        { providers: { p: { minute: { requests: 2, client_closed: 2 } } } },
      ),
      'good | All well | 120 requests in the last minute, none failed.',
    ],
    [view({}), 'off | No traffic | No request in the last minute. None has ended since the start.'],
    [
      view({}, { requests: { 8: { time: '2026-11-22T10:09:52.000Z' }, 9: { time: LAST } } }),
      /^off \| No traffic \| No request in the last minute\. The last one ended at \d\d:09:54, 5 min ago\.$/,
    ],
    [
      view({}, { all: { requests: 3, failed: 3 } }),
      'off | No traffic | No request in the last minute. None has ended since the start. | Of the last 15 minutes 3 of 3 failed.',
    ],
    [
      view(good, { asOf: '10:14:44', silentMs: 46_000 }),
      'off | Connection lost | Everything below is as of 10:14:44, 46 s ago. Trying again every 2 s.',
    ],
  ];
  for (const [given, expected] of cases) {
    if (typeof expected === 'string') assert.equal(told(given), expected);
    else assert.match(told(given), expected);
  }
});

test('a provider whose connections are slow is amber, with its times, in verdict and table', () => {
  const cause = 'every fourth connect takes at least 4000 ms, 12 ms is usual';
  const slow = view({ requests: 9 }, { incidents: [{ ...incident(), kind: 'slow', cause }] });
  assert.equal(told(slow), 'warn | 1 incident | 9 requests in the last minute, none failed.');
  assert.deepEqual(statesOf('p', slow), [['warn', 'slow', cause]]);
  const [[, , other] = []] = statesOf('p', view({}, { incidents: [incident()] }));
  assert.equal(other, false, 'other causes are in the list of incidents');
});

test('an open circuit is that of a model\u2019s streams or complete answers, or of a provider', () => {
  const until = '2026-11-22T10:15:49.000Z';
  const texts = [{ model: 'm', stream: true }, { model: 'm', stream: false }, {}].map((circuit) =>
    awayText({ ...circuit, until }).replace(/\d\d:\d\d:\d\d$/, ''),
  );
  assert.deepEqual(texts, [
    'streams of m kept away until ',
    'complete answers of m kept away until ',
    'kept away until ',
  ]);
});

async function viewOf(t: TestContext, { adminPort }: TestGateway) {
  const feed = await openFeed(t, adminPort);
  const state = await feed.next('state');
  feed.close();
  // As the page has them: by their ids.
  const byId = (rows: { id: string }[]) => Object.fromEntries(rows.map((row) => [row.id, row]));
  return { ...state, providers: byId(state.providers), clients: byId(state.clients) };
}

test('two failures of a wrong key are neither "All well" nor "Good"', async (t) => {
  const { gateway } = await scenario(t, {
    providers: {
      p: (_, response) => sendJson(response, { error: { message: 'wrong key' } }, { status: 401 }),
      q: answerWell,
    },
    more: '[admin]\nport = 0',
  });
  await gateway.chat(chatBody({ model: 'q/m' }));
  // Two failures are no incident, whatever the threshold.
  for (let at = 0; at < 2; at += 1) await gateway.chat(chatBody({ model: 'p/m' }));
  const state = await viewOf(t, gateway);
  assert.deepEqual(
    told(state),
    'warn | 2 of 3 requests failed | 66.7 % of the last minute. | Too few for an incident: p 2.',
  );
  assert.deepEqual(
    [judge(state.providers.p.minute).kind, judge(state.providers.q.minute).kind],
    ['warn', 'good'],
  );
});

test("a try that the gateway itself has failed is not its provider's", () => {
  const iconOf = (outcome: string) => iconOfTry({ outcome }, 'bad');
  assert.deepEqual(['internal_error', 'circuit_open', 'limit'].map(iconOf), ['off', 'off', 'off']);
  assert.deepEqual(['upstream_error', 'ok'].map(iconOf), ['bad', 'good']);
});

test('a client refused by its own limit is shown with the limit, and is no failure', async (t) => {
  const limit = 'requests_per_minute = 3\n';
  const { gateway } = await scenario(t, {
    more: `${TWO.replace('[clients.web]', `${limit}[clients.web]`)}[admin]\nport = 0`,
  });
  const ask = async (client: string) =>
    gateway.chat(chatBody(), { headers: { authorization: `Bearer ${client}-key-canary` } });
  for (let at = 0; at < 10; at += 1) await ask('agents');
  await ask('web');
  const { minute, clients, ...state } = await viewOf(t, gateway);
  assert.deepEqual([minute.failed, minute.limited, minute.requests], [undefined, 7, 11]);
  const { since, ...overLimit } = clients.agents.overLimit;
  assert.ok(Date.parse(since) > 0);
  assert.deepEqual(overLimit, {
    limit: 'clients.agents.requests_per_minute: 3 of 3 requests used, refilled at 3 per minute',
    limited: 7,
    refused: 7,
    requests: 10,
  });
  assert.deepEqual([clients.agents.failed, clients.agents.limited], [undefined, 7]);
  assert.equal(clients.web.overLimit, undefined);
  assert.equal(
    told({ minute, clients, ...state }),
    'good | All well | 4 requests in the last minute, none failed. | 1 client at its limit.',
  );
});

test('refusals by a client\u2019s own limit begin anew after a minute without refusals', (t) => {
  let now = 1_700_000_000_000;
  replaceDate(t, () => now);
  const traffic = new Traffic(() => now);
  const facts = { request_id: 'x', method: 'POST', path: '/', duration_ms: 1, bytes: 1 };
  const since = (limit: string) => {
    const refused = { outcome: 'rate_limited', client: 'a', limit } as const;
    const times = { endedAtMs: now, durationMs: 1 };
    const refusal = 'client_concurrency';
    traffic.add({ facts: { ...facts, ...refused }, ...times, refusal }, undefined);
    const { overLimit } = traffic.report().clients['a']!;
    assert.equal(overLimit!.limit, limit);
    return overLimit!.since;
  };
  const first = since('clients.a.max_concurrent_requests: 2 of 2');
  now += 50_000;
  assert.equal(since('clients.a.max_concurrent_requests: 3 of 3'), first);
  const ended = new Date(now).toISOString();
  now += 70_000;
  // Refusals that have ended stay for an hour, as an incident does.
  const { clients } = traffic.report();
  assert.deepEqual(
    [clients['a']!.overLimit!.ended, clients['a']!.overLimit!.limited],
    [ended, undefined],
  );
  const endedAt = (ms: number, kind: string) => {
    const time = new Date(ms).toISOString();
    return { kind, since: time, ended: time };
  };
  const incidents = [endedAt(now, 'reload'), endedAt(now - 900_000, 'store')];
  const lines = endedOf({ clients, incidents });
  assert.deepEqual(
    lines.map(({ subject, words, count, cause }) => [subject, words, count, cause]),
    [
      ['gateway', 'new settings refused, former ones in use', false, undefined],
      ['a', 'at its own limit', '2 refused', 'clients.a.max_concurrent_requests: 3 of 3'],
      ['gateway', 'store of rate limits away', false, undefined],
    ],
  );
  assert.equal(told(view({ requests: 9 }, { clients })).includes('at its limit'), false);
  assert.ok(since('clients.a.max_concurrent_requests: 2 of 2') > first);
  now += 3_600_000;
  assert.equal(traffic.report().clients['a']!.overLimit, undefined);
});

test('a provider has one incident, whatever its kind, and the gateway one for each kind', () => {
  const [reload, store] = [{ kind: 'reload' }, { kind: 'store' }];
  const cases: [former: object, next: object[], goes: boolean][] = [
    [incident(), [{ ...incident(), kind: 'cut', models: [{ model: 'a' }] }], true],
    [incident(), [{ ...incident(), provider: 'q' }, reload], false],
    [reload, [store, incident()], false],
    [reload, [store, reload], true],
    [reload, [{ ...incident(), kind: 'reload' }], false],
  ];
  for (const [former, next, goes] of cases) assert.equal(goesOn(former, next), goes);
});

test('requests that a limit of the whole gateway refuses have failed', async (t) => {
  const more = '[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 1\n';
  const { gateway } = await scenario(t, { more: `${more}[admin]\nport = 0` });
  const statuses = await Promise.all(
    Array.from({ length: 5 }, async () => gateway.chat(chatBody())),
  );
  const refused = statuses.filter(({ status }) => status === 429).length;
  assert.ok(refused > 0);
  const { minute } = await viewOf(t, gateway);
  assert.deepEqual([minute.failed, minute.limited], [refused, undefined]);
});
