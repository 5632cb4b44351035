/** The verdict, the states of providers, and incidents in words. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';

import { Traffic } from '../../src/admin/traffic.ts';
import { Fault, Incident, moment } from '../../src/incidents/incident.ts';
import {
  describeIncident,
  describeRefusals,
  foldEnded,
  type Notice,
  sortNotices,
} from '../../src/incidents/notice.ts';
import {
  type Counts,
  judgeCounts,
  markOf,
  type Situation,
  statesOf,
  verdictOf,
} from '../../src/incidents/verdict.ts';
import { INCIDENT_KINDS } from '../../src/request/incident-kind.ts';
import { replaceDate } from '../support/clock.ts';
import { chatBody, type TestGateway } from '../support/gateway.ts';
import { ROOT } from '../support/process.ts';
import { scenario } from '../support/scenario.ts';
import { answerWell, sendJson } from '../support/upstream.ts';

const NOW_MS = 1_000_000;
const END = '2026-11-22T10:14:50.000Z';
const TWO = '[clients.agents]\nkey = "agents-key-canary"\n[clients.web]\nkey = "web-key-canary"\n';

/** An incident in words. */
function notice(more: Partial<Notice> = {}): Notice {
  return {
    id: 'i1',
    icon: 'warn',
    kind: 'errors',
    provider: 'p',
    client: undefined,
    subject: more.provider ?? 'p',
    models: undefined,
    title: 'errors',
    fault: 'the provider',
    effect: '',
    action: '',
    since: '2026-11-22T10:14:00.000Z',
    age: '1 min',
    ended: undefined,
    causes: ['no capacity'],
    failed: 0,
    answered: 0,
    slow: 0,
    affected: [],
    more: undefined,
    beganAtMs: NOW_MS - 90_000,
    endedAtMs: undefined,
    ...more,
  };
}

/** Returns an incident that ended so long ago. */
const endedNotice = (agoMs: number, more: Partial<Notice> = {}) =>
  notice({ icon: 'off', ended: END, endedAtMs: NOW_MS - agoMs, failed: 7, ...more });

/** A situation with these counts of the last minute. */
function situation(minute: Counts, more: Partial<Situation> = {}): Situation {
  const nothing = {
    providers: {},
    lasting: [],
    ended: [],
    suspected: new Set<string>(),
    last: undefined,
  };
  return { minute, all: minute, nowMs: NOW_MS, failedAtMs: new Map(), ...nothing, ...more };
}

const textOf = ({
  icon,
  title,
  notes,
}: Pick<ReturnType<typeof verdictOf>, 'icon' | 'title' | 'notes'>) =>
  [icon, title, ...notes].join(' | ');
const told = (one: Situation) => textOf(verdictOf(one));

test('all is well only if the last minute had requests of which under a hundredth failed', () => {
  const cases: [counts: Counts, icon: string, figures?: string][] = [
    [{}, 'off'],
    [{ requests: 1 }, 'good'],
    [{ requests: 200, failed: 1 }, 'good'],
    [{ requests: 100, failed: 1 }, 'warn', '1 of 100 failed'],
    [{ requests: 4, failed: 4 }, 'warn', '4 of 4 failed'],
    // Refusals by a client's own limit are no part of either number.
    [{ requests: 1204, limited: 942 }, 'good'],
    [{ requests: 1204, limited: 942, failed: 2 }, 'good'],
    [{ requests: 1204, limited: 942, failed: 3 }, 'warn', '3 of 262 failed'],
    // Nothing was answered.
    [{ requests: 31, rejected: 31 }, 'warn', '31 of 31 rejected'],
    [{ requests: 31, limited: 31 }, 'warn', '31 of 31 refused'],
    [{ requests: 9, client_closed: 5, rejected: 4 }, 'warn', '5 of 9 left by clients'],
    [{ requests: 9, client_closed: 4, rejected: 4 }, 'good'],
  ];
  for (const [counts, icon, figures] of cases) {
    const { count, total, end, ...judged } = judgeCounts(counts);
    assert.equal(judged.icon, icon, JSON.stringify(counts));
    assert.equal(end && `${count} of ${total} ${end}`, figures ?? '', JSON.stringify(counts));
  }
});

test('the verdict says who holds half of the memory', () => {
  const held = 'Bodies hold 40 of 67 MB, most ci: 33 MB.';
  assert.equal(
    told(situation({ requests: 9 }, { held }))
      .split(' | ')
      .at(-1),
    held,
  );
});

test('the verdict is red, amber, grey or green, and below an incident it is figures', () => {
  const good = { requests: 120 };
  const failing = { providers: { q: { failed: 1 }, p: { failed: 6 } } };
  const LAST = '2026-11-22T10:09:54.000Z';
  const bad = notice({ icon: 'bad', failed: 4 });
  const answered = notice({ answered: 3 });
  const client = notice({ client: 'ci', provider: undefined });
  const left = (requests: number, count: number, failed = 0) => ({
    providers: { p: { requests, failed, client_closed: count } },
  });
  const cases: [given: Situation, expected: string][] = [
    [situation(good), 'good | All well | 120 requests in the last minute, none failed.'],
    [
      situation(
        { requests: 302, failed: 2 },
        { providers: { p: { requests: 2, failed: 2 }, q: { requests: 300 } } },
      ),
      'warn | 2 of 302 requests failed | Too few for an incident: p 2.',
    ],
    [
      situation({ requests: 389, failed: 7 }, failing),
      'warn | 7 of 389 requests failed | 1.8 % of the last minute. | Too few for an incident: p 6, q 1.',
    ],
    [
      situation({ requests: 9, failed: 4 }, { ...sortNotices([bad]) }),
      'bad | Requests fail | 4 of 9 in the last minute, 44.4 %. | 1 incident.',
    ],
    [
      situation(good, { ...sortNotices([answered, notice()]) }),
      'warn | Other providers answer | 120 requests in the last minute, none failed. | 2 incidents.',
    ],
    [
      situation(good, { ...sortNotices([notice({ failed: 4 })]) }),
      'warn | 1 incident | 120 requests in the last minute, none failed.',
    ],
    [
      situation({}, { ...sortNotices([notice({ failed: 4 })]) }),
      'warn | 1 incident | No request in the last minute.',
    ],
    [
      situation(good, { ...sortNotices([notice(), client]) }),
      'warn | 1 incident | 120 requests in the last minute, none failed. | 1 incident, 1 client at its limit.',
    ],
    [
      situation({ requests: 9, failed: 4 }, { ...sortNotices([notice()]), ...failing }),
      'warn | 4 of 9 requests failed | 44.4 % of the last minute. | 1 incident.',
    ],
    [
      situation(good, { ...sortNotices([endedNotice(9000)]) }),
      'good | All well | 120 requests in the last minute, none failed.',
    ],
    [
      situation({ ...good, client_closed: 3 }, left(4, 3, 1)),
      'warn | 3 of 120 requests left by clients',
    ],
    [
      situation({ ...good, client_closed: 3 }, left(4, 3)),
      'good | All well | 120 requests in the last minute, none failed.',
    ],
    [
      situation({ ...good, client_closed: 2 }, left(2, 2)),
      'good | All well | 120 requests in the last minute, none failed.',
    ],
    [
      situation({}),
      'off | No traffic | No request in the last minute. | None has ended since the start.',
    ],
    [
      situation({}, { last: LAST }),
      `off | No traffic | No request in the last minute. | The last one ended at ${LAST}.`,
    ],
    [
      situation({}, { all: { requests: 3, failed: 3 } }),
      'off | No traffic | No request in the last minute. | None has ended since the start. | Of the last 15 minutes 3 of 3 failed.',
    ],
  ];
  for (const [given, expected] of cases) assert.equal(told(given), expected);
});

test('failures of the last minute before the end of their incident are over', () => {
  const minute = { requests: 254, failed: 54 };
  const providers = { north: { requests: 254, failed: 54 } };
  const over = endedNotice(20_000, { provider: 'north' });
  const given = situation(minute, { providers, ...sortNotices([over]) });
  assert.equal(
    told(given),
    `good | Over since ${END} | north: errors. | Before, 54 of 254 requests failed in the last minute.`,
  );
  assert.deepEqual(statesOf('north', given), [['good', 'Good', `over since ${END}`]]);
  const few = `warn | 54 of 254 requests failed | 21.3 % of the last minute. | Too few for an incident: north 54.`;
  // A failure after the end, an end long ago, and no end.
  assert.equal(told({ ...given, suspected: new Set(['north']) }), few);
  assert.equal(
    told({ ...given, ...sortNotices([endedNotice(61_000, { provider: 'north' })]) }),
    few,
  );
  assert.deepEqual(statesOf('north', { ...given, suspected: new Set(['north']) }), [
    ['warn', '54 of 254 failed', 'last minute'],
  ]);
  // Other failures are told apart.
  const south = { ...providers, south: { requests: 9, failed: 3 } };
  assert.equal(
    told({ ...given, providers: south }),
    `warn | 54 of 254 requests failed | 21.3 % of the last minute. | Over since ${END}: north: errors. | Too few for an incident: south 3.`,
  );
  // The gateway's own incidents fail requests without a try.
  const own = endedNotice(20_000, { provider: undefined, subject: 'gateway' });
  const gateway = situation(minute, { ...sortNotices([own]) });
  assert.match(told(gateway), /^good \| Over since .* \| gateway: errors\. \|/);
});

test('failures after the end of an incident, or of another cause, are not over', () => {
  const minute = { requests: 254, failed: 54 };
  const providers = { north: { requests: 254, failed: 54 } };
  const over = endedNotice(20_000, { provider: 'north' });
  const given = situation(minute, { providers, ...sortNotices([over]) });
  const iconAt = (id: string | undefined, agoMs: number, one = given) =>
    verdictOf({ ...one, failedAtMs: new Map([[id, NOW_MS - agoMs]]) }).icon;
  assert.deepEqual([iconAt('north', 20_000), iconAt('north', 19_999)], ['good', 'warn']);
  assert.deepEqual([iconAt('south', 1), iconAt('north', 30_000)], ['good', 'good']);
  // A bug fails requests beside an incident of a provider, or of memory.
  const memory = endedNotice(20_000, { provider: undefined, subject: 'gateway' });
  for (const one of [given, situation(minute, { ...sortNotices([memory]) })]) {
    assert.deepEqual(
      [iconAt(undefined, 59_999, one), iconAt(undefined, 60_000, one)],
      ['warn', 'good'],
    );
  }
  // No request was affected by a state.
  const list = endedNotice(5000, { provider: 'north', kind: 'model_list', failed: 0 });
  assert.equal(verdictOf({ ...given, ...sortNotices([list]) }).icon, 'warn');
  assert.deepEqual(statesOf('north', { ...given, ...sortNotices([list]) })[0]![0], 'warn');
  assert.equal(verdictOf({ ...given, ...sortNotices([list, over]) }).title, `Over since ${END}`);
  const answered = endedNotice(20_000, { provider: 'north', failed: 0, answered: 3 });
  assert.equal(verdictOf({ ...given, ...sortNotices([answered]) }).icon, 'good');
  const reload = endedNotice(5000, { provider: undefined, kind: 'reload', failed: 0 });
  assert.equal(verdictOf(situation(minute, { ...sortNotices([reload]) })).icon, 'warn');
});

test('a provider\u2019s state is its incidents with the cause of "slow", or its last minute', () => {
  const cause = 'every fourth connect takes at least 4000 ms, 12 ms is usual';
  const slow = notice({ kind: 'slow', title: 'slow', causes: [cause] });
  const failing = notice({ models: ['small', 'big'], icon: 'bad' });
  const given = situation({}, { ...sortNotices([failing, slow, notice({ provider: 'q' })]) });
  assert.deepEqual(statesOf('p', given), [
    ['bad', 'small, big: errors', ''],
    ['warn', 'slow', cause],
  ]);
  const minutes = { p: { requests: 214, failed: 5 }, q: { requests: 80 }, r: {} };
  const well = situation(
    {},
    { providers: minutes, ...sortNotices([endedNotice(90_000, { provider: 'q' })]) },
  );
  assert.deepEqual(statesOf('p', well), [['warn', '5 of 214 failed', 'last minute']]);
  assert.deepEqual(statesOf('q', well), [['good', 'Good', `7 failed until ${END}`]]);
  assert.deepEqual(statesOf('r', well), [['off', 'Not asked', '']]);
});

test('a row has the colour of the worst incident that affects it, or amber if it fails', () => {
  const row = {
    name: 'fast',
    shares: [1, 0],
    text: '',
    rest: '',
    clients: 'ci',
    words: '',
  } as const;
  const bad = notice({ icon: 'bad', affected: [row] });
  const failing = { requests: 9, failed: 4 };
  const markIn = (given: Situation, name: string, counts = failing) =>
    markOf(counts, given, (one) => one.name === name);
  assert.equal(
    markIn(situation(failing, { ...sortNotices([bad, notice({ affected: [row] })]) }), 'fast'),
    'bad',
  );
  assert.equal(markIn(situation(failing, { ...sortNotices([bad]) }), 'slow'), 'warn');
  assert.equal(markIn(situation({ requests: 9 }), 'slow'), undefined);
  const limited = notice({ client: 'ci', affected: [row] });
  assert.equal(
    markIn(situation({ requests: 9 }, { ...sortNotices([limited]) }), 'fast'),
    undefined,
  );
});

/** Describes an incident with these faults, of which all have ended if `isOver`. */
function describe(faults: readonly Fault[], { provider = 'p', isOver = false } = {}): Notice {
  const incident = new Incident(provider === '' ? undefined : provider);
  for (const fault of faults) {
    if (isOver) fault.ended = moment();
    incident.add(fault);
  }
  incident.setHasAllModels(faults.length === 1 && faults[0]!.model !== undefined);
  return describeIncident(incident, incident.toFacts());
}

function faultOf(...[kind, text, model]: [Parameters<Fault['add']>[0], string, string?]): Fault {
  const made = new Fault(model === undefined ? undefined : { name: model, isStream: false });
  made.add(kind, { text, key: kind === 'key_refused' ? 2 : undefined });
  return made;
}

test('an incident in words has its subject, each cause once, and what to do', () => {
  const two = describe([
    faultOf('errors', 'no capacity', 'a'),
    faultOf('timeout', 'no answer', 'b'),
  ]);
  assert.deepEqual(
    [two.subject, two.title, two.causes, two.models],
    ['p (a, b)', 'errors', ['no capacity', 'b: no answer'], ['a', 'b']],
  );
  assert.match(two.action, /fallback/);
  const all = describe([faultOf('key_refused', 'expired', 'a')]);
  assert.deepEqual([all.subject, all.causes, all.models], ['p', ['key 2: expired'], []]);
  const state = describe([faultOf('slow', 'first token after 4 s')]);
  assert.deepEqual([state.subject, state.title, state.models], ['p', 'slow', undefined]);
  const own = describe([faultOf('store', 'no answer')], { provider: '' });
  assert.deepEqual([own.subject, own.effect], ['gateway', 'each gateway limits by itself']);
  const machine = describe([faultOf('slow', 'p: first token after 4 s')], { provider: '' });
  assert.deepEqual([machine.subject, machine.title], ['gateway', 'all providers slow']);
  const other = new Fault();
  other.add('errors', { text: '503: no capacity', key: 2 });
  assert.deepEqual(describe([other]).causes, ['503: no capacity'], 'a key is named if refused');
  const unknown = describe([faultOf('errors', '404: aliases.fast: no model x', 'a')]);
  assert.equal(unknown.title, 'no such model (404)');
  assert.match(unknown.action, /name of the model/);
  assert.equal(describe([faultOf('errors', '404: no page', 'a')]).title, 'errors');
  const incident = new Incident('p');
  incident.add(faultOf('errors', 'no capacity', 'a'));
  const counts = { failed: 3, good: 1, answered: 0, by: undefined };
  const hit = { name: 'fast', stream: true, ...counts, clients: 'ci' };
  const failing = { ...incident.toFacts(), affected: [hit] };
  assert.equal(describeIncident(incident, failing).icon, 'bad');
  const quiet = describeIncident(incident, { ...failing, quiet_since: END });
  assert.deepEqual([quiet.icon, quiet.effect], ['warn', `no failure since ${END}`]);
  const hitBefore = describeIncident(incident, { ...failing, ended: END });
  assert.deepEqual([hitBefore.effect, hitBefore.failed], ['3 failed: fast (ci)', 3], 'who was hit');
  const answered = { ...hit, name: 'chat', failed: 0, answered: 4, by: 'q', clients: 'web' };
  const both = describeIncident(incident, { ...failing, affected: [hit, answered], ended: END });
  assert.equal(both.effect, '3 failed: fast (ci) · 4 answered by others: chat (web)');
  const slow = { ...hit, failed: 0, good: undefined };
  const slowBefore = describeIncident(incident, { ...failing, affected: [slow], ended: END });
  assert.equal(slowBefore.effect, 'fast (ci)');
  const textsOf = (stream: boolean | undefined, all_models?: true) => {
    const facts = { ...failing, affected: [{ ...hit, stream }], all_models };
    return describeIncident(incident, facts).affected[0]!.text;
  };
  assert.deepEqual(
    [textsOf(true), textsOf(false), textsOf(undefined), textsOf(true, true)],
    ['3 of 4 streams failed', '3 of 4 complete answers failed', '3 of 4 failed', '3 of 4 failed'],
  );
  const unread = { ...hit, name: '(model unknown)', stream: undefined, good: undefined };
  const [row] = describeIncident(incident, { ...failing, affected: [unread] }).affected;
  assert.deepEqual([row!.text, row!.rest], ['3 failed', ' before their bodies were read']);
  const keys = describe([faultOf('key_refused', '1 of 2 keys, the others are used: key 1: 401')]);
  assert.deepEqual([keys.title, keys.effect], ['1 of 2 keys refused', 'no request has failed']);
  const over = describe([faultOf('errors', 'no capacity', 'a')], { isOver: true });
  assert.deepEqual([over.icon, over.action, over.affected], ['off', '', []]);
});

test('ended incidents are a line for each provider, and one beyond three', () => {
  const many = ['a', 'b', 'c', 'd', 'e'].map((provider, at) =>
    endedNotice(1000 * at, { id: provider, provider, effect: '7 failed: fast (ci)' }),
  );
  const lines = foldEnded([...many, endedNotice(9000, { id: 'a2', provider: 'a' })]);
  assert.deepEqual(
    lines.map(({ id, subject, lines: own }) => [id, subject, own?.length]),
    [
      ['of a', 'a', 2],
      ['b', 'b', undefined],
      ['c', 'c', undefined],
      ['more', '2 more', 2],
    ],
  );
  assert.equal(lines[0]!.text, `2 times in the last hour, the last until ${END}`);
  const since = '2026-11-22T10:14:00.000Z';
  assert.equal(
    lines[1]!.text,
    `errors ${since} \u2013 ${END} \u00b7 50 s \u00b7 7 failed: fast (ci)`,
  );
});

async function statusOf(gateway: TestGateway) {
  return JSON.parse((await gateway.admin('/status')).text) as {
    verdict: ReturnType<typeof verdictOf>;
    incidents: Notice[];
    minute: Counts;
    providers: Record<string, { states: [string, string][] }>;
    clients: Record<string, { failed?: number; limited?: number; limits?: object[] }>;
  };
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
  const status = await statusOf(gateway);
  assert.deepEqual(
    textOf(status.verdict),
    'warn | 2 of 3 requests failed | 66.7 % of the last minute. | Too few for an incident: p 2.',
  );
  assert.deepEqual(
    [status.providers['p']!.states, status.providers['q']!.states],
    [[['warn', '2 of 2 failed']], [['good', 'Good']]],
  );
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
  const { clients, incidents, minute, verdict } = await statusOf(gateway);
  assert.deepEqual([minute.failed, minute.limited, minute.requests], [undefined, 7, 11]);
  const [{ affected, causes, client, subject, title } = notice(), ...others] = incidents;
  assert.deepEqual(others, []);
  assert.deepEqual([client, subject, title], ['agents', 'agents', 'at its own limit']);
  assert.deepEqual(causes, [
    'clients.agents.requests_per_minute: 3 of 3 requests used, refilled at 3 per minute',
  ]);
  assert.equal(affected[0]!.text, '7 of 10 refused');
  assert.deepEqual([clients['agents']!.failed, clients['agents']!.limited], [undefined, 7]);
  assert.deepEqual(clients['agents']!.limits, [
    { icon: 'warn', unit: 'req/min', share: 1, text: '3 of 3' },
  ]);
  assert.equal(
    textOf(verdict),
    'good | All well | 4 requests in the last minute, none failed. | 1 client at its limit.',
  );
});

test('the limit that refuses is shown if it has no bucket of a minute or a day', async (t) => {
  const limits = 'requests_per_second = 1\nburst_capacity = 1\nrequests_per_minute = 600\n';
  const { gateway } = await scenario(t, {
    more: `${TWO.replace('[clients.web]', `${limits}[clients.web]`)}[admin]\nport = 0`,
  });
  const headers = { authorization: 'Bearer agents-key-canary' };
  await Promise.all(Array.from({ length: 5 }, async () => gateway.chat(chatBody(), { headers })));
  const { clients } = await statusOf(gateway);
  const [refusing, minute] = clients['agents']!.limits as { icon: string; text: string }[];
  assert.match(refusing!.text, /^1 of 1 requests used, refilled at 1 per second$/);
  assert.deepEqual([refusing!.icon, minute!.icon], ['warn', 'bar']);
});

test('refusals by a client\u2019s own limit begin anew after a minute without refusals', (t) => {
  let now = 1_700_000_000_000;
  replaceDate(t, () => now);
  const zero = performance.now();
  let passed = 0;
  t.mock.method(performance, 'now', () => zero + passed);
  const traffic = new Traffic(() => now);
  const facts = { request_id: 'x', method: 'POST', path: '/', duration_ms: 1, bytes: 1 };
  const pass = (ms: number) => {
    now += ms;
    passed += ms;
  };
  const refuse = (limit: string) => {
    const refused = { outcome: 'rate_limited', client: 'a', limit } as const;
    const times = { endTime: now, durationMs: 1 };
    const refusal = 'client_concurrency';
    traffic.add({ facts: { ...facts, ...refused }, ...times, refusal }, undefined);
    const [refusals] = traffic.refusals().map(describeRefusals);
    assert.deepEqual(refusals!.causes, [limit]);
    return refusals!.since;
  };
  const first = refuse('clients.a.max_concurrent_requests: 2 of 2');
  pass(50_000);
  assert.equal(refuse('clients.a.max_concurrent_requests: 3 of 3'), first);
  const ended = new Date(now).toISOString();
  pass(70_000);
  // Refusals that have ended stay for an hour, as an incident does.
  const former = traffic.refusals().map(describeRefusals);
  assert.deepEqual([former[0]!.ended, former[0]!.affected], [ended, []]);
  const endedAt = (ms: number, id: string) =>
    notice({ id, ended: new Date(ms).toISOString(), endedAtMs: zero + ms - 1_700_000_000_000 });
  const { ended: sorted } = sortNotices([
    endedAt(now, 'new'),
    endedAt(now - 900_000, 'old'),
    ...former,
  ]);
  assert.deepEqual(
    sorted.map(({ id, effect }) => [id, effect]),
    [
      ['new', ''],
      ['client a', '2 refused'],
      ['old', ''],
    ],
  );
  assert.ok(refuse('clients.a.max_concurrent_requests: 2 of 2') > first);
  pass(3_600_001);
  assert.deepEqual(traffic.refusals(), []);
});

test('requests that a limit of the whole gateway refuses have failed', async (t) => {
  const more = '[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 1\n';
  const { gateway } = await scenario(t, { more: `${more}[admin]\nport = 0` });
  const statuses = await Promise.all(
    Array.from({ length: 5 }, async () => gateway.chat(chatBody())),
  );
  const refused = statuses.filter(({ status }) => status === 429).length;
  assert.ok(refused > 0);
  const { minute } = await statusOf(gateway);
  assert.deepEqual([minute.failed, minute.limited], [refused, undefined]);
});

test('failures behind an ended refusal of settings are told', async (t) => {
  const more = '[rate_limit]\nenabled = true\nrequests_per_second = 1\nburst_capacity = 1\n';
  const { gateway, toml } = await scenario(t, { more: `${more}[admin]\nport = 0` });
  await gateway.reload('[server]\nport = "x"');
  gateway.judge();
  await gateway.reload(toml);
  gateway.judge();
  await Promise.all(Array.from({ length: 5 }, async () => gateway.chat(chatBody())));
  const { incidents, minute, verdict } = await statusOf(gateway);
  assert.deepEqual(
    incidents.map(({ kind, ended }) => [kind, ended !== undefined]),
    [['reload', true]],
  );
  assert.equal(verdict.title, `${minute.failed} of 5 requests failed`);
  assert.equal(verdict.icon, 'warn');
});

test('figures have a list of requests, of the failed requests if they count failures', () => {
  const listOf = (minute: Counts) => verdictOf(situation(minute)).list;
  const listed = [{ requests: 4, failed: 4 }, { requests: 31, limited: 31 }, { requests: 1 }];
  assert.deepEqual(listed.map(listOf), ['Failed', 'All', undefined]);
});

test('docs/incidents.md has the words and what to do for each kind', async () => {
  const text = await readFile(join(ROOT, 'docs/incidents.md'), 'utf8');
  for (const kind of INCIDENT_KINDS) {
    const { action, fault, title } = describe([faultOf(kind, 'cause')]);
    assert.ok(text.includes(`| \`${kind}\` | ${title} | ${fault} | ${action} |`), kind);
  }
  const { action, fault, title } = describe([faultOf('slow', 'cause')], { provider: '' });
  assert.ok(text.includes(`| \`slow\` without a provider | ${title} | ${fault} | ${action} |`));
});
