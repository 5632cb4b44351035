/** The module of incidents on a clock of the test's: what begins, when it ends, and whom it hits. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { RequestHistory, Attempt } from '../../src/request/history.ts';
import { GatewayError, type ErrorDetails, type Outcome } from '../../src/lib/errors.ts';
import type { LogFacts } from '../../src/lib/log.ts';
import { Incidents } from '../../src/policy/incidents.ts';
import { StepCounts } from '../../src/policy/watch.ts';

const DOWN = {
  scope: 'provider' as const,
  cause: 'ECONNREFUSED: connect ECONNREFUSED 10.0.4.21:8000',
};

const P = { id: 'p', digest: 'of p' };
const Q = { id: 'q', digest: 'of q' };

/** Incidents of the providers `p` and `q`, with the second as the unit of time. */
function start(first = 1_000_000) {
  // On the clock of `performance.now()`, and at the beginning of a step.
  let now = first;
  /** Of the system's clock, before that of `performance.now()`. */
  let ahead = 1_800_000_000_000;
  const lines: [message: string, facts: LogFacts][] = [];
  let circuits: { provider: string; model: string | undefined; state: 'open' | 'half-open' }[] = [];
  let troubles = 0;
  const incidents = new Incidents({
    clock: { now: () => now },
    date: { now: () => now + ahead },
    logger: {
      log: (level, message, facts = {}) => lines.push([`${level} ${message}`, facts]),
      isEnabled: () => true,
    },
    circuits: () => circuits,
    onTrouble: () => (troubles += 1),
  });
  incidents.watch([P, Q]);
  const origin = first + ahead;
  const timeOf = (seconds: number) => new Date(origin + 1000 * seconds).toISOString();
  const facts = () => incidents.report().lasting.map((one) => one.toFacts());
  return {
    incidents,
    lines,
    timeOf,
    facts,
    /** The kinds that last, with their provider and model. */
    lasting: () =>
      facts().map(({ kind, provider, model }) => [kind, provider, model].filter(Boolean).join(' ')),
    ended: () => incidents.report().ended.map((one) => one.toFacts()),
    troubles: () => troubles,
    open: (...names: [provider: string, model?: string][]) => {
      circuits = names.map(([provider, model]) => ({ provider, model, state: 'open' }));
    },
    /** As those that were open ten seconds later. */
    halfOpen: () => {
      circuits = circuits.map((one) => ({ ...one, state: 'half-open' }));
    },
    /** Sets the system's clock so many seconds ahead. */
    setClock: (seconds: number) => {
      ahead += 1000 * seconds;
    },
    /** Lets time pass second by second. */
    pass: (seconds: number) => {
      for (let count = 0; count < seconds; count += 1) {
        now += 1000;
        incidents.advance();
      }
    },
    /** Ends a try, and a request of it alone. */
    ask: (
      model: string,
      details?: ErrorDetails & { kind?: 'provider' | 'timeout' | 'internal' },
      more: {
        count?: number;
        client?: string;
        provider?: string;
        by?: string;
        begun?: boolean;
      } = {},
    ) => {
      const { count = 1, client = 'agents', provider = 'p', by = provider, begun = false } = more;
      for (let at = 0; at < count; at += 1) {
        const history = new RequestHistory();
        history.client = client;
        history.model = model;
        const ask = (id: string, failure?: GatewayError) => {
          const attempt = new Attempt({ id, digest: `of ${id}`, chatUrl: '' }, model);
          attempt.endedAtMs = now;
          if (begun || !failure) attempt.hasAnswer = true;
          if (begun) incidents.watches.addGood(attempt);
          history.addAttempt(attempt);
          history.attempt = attempt;
          if (failure) incidents.recordFailure(attempt, failure);
          else incidents.watches.addGood(attempt);
        };
        const { kind = 'provider', ...rest } = details ?? {};
        const failure = details && new GatewayError(kind, 'x', { provider, ...rest });
        ask(provider, failure);
        if (by !== provider) ask(by);
        const outcome: Outcome = by === provider ? (failure?.outcome ?? 'ok') : 'ok';
        if (outcome !== 'ok') history.failure = failure;
        incidents.recordRequest(history, outcome);
      }
    },
  };
}

test('a provider that is down is an incident with the third try, since the first one', () => {
  const { ask, facts, lasting, lines, pass, timeOf, troubles } = start();
  ask('small', DOWN, { count: 2 });
  pass(2);
  assert.deepEqual([lasting(), lines, troubles()], [[], [], 1]);
  ask('small', DOWN, { count: 3 });
  assert.deepEqual(lasting(), ['unreachable p']);
  ask('small', DOWN, { client: 'web', by: 'q' });
  const [{ hit, ...fact } = {}] = facts();
  assert.deepEqual(fact, {
    kind: 'unreachable',
    provider: 'p',
    model: undefined,
    since: timeOf(0),
    ended: undefined,
    cause: 'ECONNREFUSED 10.0.4.21:8000',
    key: undefined,
    until: undefined,
    failures: 6,
    more: undefined,
  });
  const small = { name: 'small', failed: 5, good: 0, answered: 1, by: 'q' };
  assert.deepEqual(hit, [{ ...small, clients: 'agents, web' }]);
  assert.deepEqual(
    lines.map(([line]) => line),
    ['warn incident'],
  );
});

test('half of five tries in a minute are an incident, fewer are none', () => {
  for (const [good, isOne] of [
    [3, true],
    [4, false],
  ] as const) {
    const { ask, lasting, pass } = start();
    ask('m', undefined, { count: good });
    ask('m', { upstreamStatus: 503 }, { count: 3 });
    assert.deepEqual(lasting(), isOne ? ['errors p'] : []);
    pass(5);
    ask('m');
    pass(61);
    ask('m', { upstreamStatus: 503 });
    assert.deepEqual(lasting(), [], 'it is alone in its minute');
  }
});

test('the last five in a row are an incident, however many were good before', () => {
  const { ask, lasting } = start();
  ask('m', undefined, { count: 500 });
  ask('m', { upstreamStatus: 503 }, { count: 4 });
  assert.deepEqual(lasting(), []);
  ask('m', { upstreamStatus: 503 });
  assert.deepEqual(lasting(), ['errors p']);
});

test('three failures in a row are an incident once nothing has succeeded for a minute', () => {
  const { ask, facts, lasting, pass, timeOf } = start();
  ask('m');
  ask('m', { upstreamStatus: 503 }, { count: 2 });
  pass(70);
  assert.deepEqual(lasting(), [], 'two');
  ask('m');
  ask('m', { upstreamStatus: 503 }, { count: 3 });
  pass(54);
  assert.deepEqual(lasting(), [], 'a good try in the minute before');
  pass(7);
  assert.deepEqual(lasting(), ['errors p']);
  assert.equal(facts()[0]!.since, timeOf(0));
});

for (const [what, begun] of [
  ['requests', false],
  ['streams, which break', true],
] as const) {
  test(`a quiet gateway whose every request fails, one in six minutes, tells with the third and goes on telling: ${what}`, () => {
    const { ask, ended, lasting, lines, pass } = start();
    const failure = { problem: 'cut' } as const;
    for (let round = 1; round <= 6; round += 1) {
      ask('m', failure, { begun });
      assert.deepEqual(lasting(), round < 3 ? [] : ['cut p'], `after ${round}`);
      pass(360);
      assert.deepEqual(lasting(), round < 3 ? [] : ['cut p'], `six minutes after ${round}`);
    }
    ask('m');
    pass(1);
    assert.deepEqual([lasting(), ended().length, lines.length], [[], 1, 2]);
  });
}

test('a gateway that is quieter than an incident is remembered tells with each failure after the third', () => {
  const { ask, lasting, pass } = start();
  for (let round = 1; round <= 5; round += 1) {
    ask('m', { upstreamStatus: 503 });
    assert.deepEqual(lasting(), round < 3 ? [] : ['errors p'], `after ${round}`);
    pass(1200);
    assert.deepEqual(lasting(), [], 'forgotten');
  }
});

test('a stream that breaks does not go on with the row before it if another try was good meanwhile', () => {
  const { ask, incidents, lasting, pass } = start();
  const failure = new GatewayError('provider', 'the answer was cut off', { provider: 'p' });
  const begin = (endedAtMs: number) => {
    const attempt = new Attempt({ ...P, chatUrl: '' }, 'm');
    Object.assign(attempt, { endedAtMs, hasAnswer: true });
    incidents.watches.addGood(attempt);
    return attempt;
  };
  for (let round = 1; round <= 4; round += 1) {
    ask('m', undefined, { count: 3 });
    const broken = begin(round);
    for (let at = 0; at < 2; at += 1) ask('m', { upstreamStatus: 503 });
    begin(round + 0.5);
    incidents.recordFailure(broken, failure);
    pass(90);
    assert.deepEqual(lasting(), []);
  }
});

test('an open circuit is an incident until it is closed', () => {
  const { ask, lasting, open, pass } = start();
  ask('m');
  ask('m', { upstreamStatus: 503 }, { count: 3 });
  assert.deepEqual(lasting(), []);
  open(['p', 'm']);
  assert.deepEqual(lasting(), ['errors p']);
  pass(20);
  ask('m');
  assert.deepEqual(lasting(), ['errors p']);
  open();
  assert.deepEqual(lasting(), []);
});

test('a half-open circuit, which may never be asked again, does not keep an incident', () => {
  const { ask, halfOpen, lasting, open, pass } = start();
  ask('m', { upstreamStatus: 503 }, { count: 3 });
  open(['p', 'm']);
  assert.deepEqual(lasting(), ['errors p']);
  pass(20);
  ask('m');
  halfOpen();
  assert.deepEqual(lasting(), []);
});

test('the first minute of a process is judged like any other', () => {
  const { ask, lasting, pass } = start(0);
  for (let round = 0; round < 4; round += 1) {
    ask('m', DOWN, { count: 2 });
    ask('m');
  }
  pass(1);
  assert.deepEqual(lasting(), ['unreachable p']);
  for (let second = 0; second < 25; second += 1) {
    ask('m', undefined, { count: 2 });
    pass(1);
  }
  assert.deepEqual(lasting(), []);
});

test('it ends when the newest 15 s have a good try and hardly a failure, since the first good one', () => {
  const { ask, ended, lasting, lines, pass, timeOf, incidents } = start();
  ask('m', DOWN, { count: 10 });
  pass(30);
  assert.deepEqual(lasting(), ['unreachable p'], 'nobody has asked since');
  ask('m', DOWN);
  pass(1);
  ask('m');
  pass(5);
  assert.deepEqual(lasting(), ['unreachable p'], 'half of the newest have failed');
  for (let second = 0; second < 15; second += 1) {
    ask('m');
    pass(1);
  }
  assert.deepEqual(lasting(), []);
  const [{ since, ended: at, failures } = {}] = ended();
  assert.deepEqual([since, at, failures], [timeOf(0), timeOf(31), 11]);
  assert.deepEqual(
    lines.map(([line]) => line),
    ['warn incident', 'info incident ended'],
  );
  assert.equal(incidents.advance(), false, 'nothing is left to look at');
  pass(3601);
  assert.deepEqual(ended(), []);
});

test('it ends with a tenth of failures less one, and not with a tenth', () => {
  for (const [good, isOver] of [
    [9, false],
    [10, true],
  ] as const) {
    const { ask, lasting, pass } = start();
    ask('m', DOWN, { count: 10 });
    pass(20);
    ask('m', undefined, { count: good });
    ask('m', DOWN);
    assert.deepEqual(lasting(), isOver ? [] : ['unreachable p']);
  }
});

test('what nobody asks for any more is forgotten after a quarter of an hour', () => {
  const { ask, ended, lasting, pass, timeOf } = start();
  ask('m', DOWN, { count: 5 });
  pass(900);
  assert.deepEqual(lasting(), ['unreachable p']);
  pass(1);
  assert.deepEqual([lasting(), ended()[0]!.ended], [[], timeOf(0)]);
});

test('a model that fails alone is the model\u2019s incident, all of them the provider\u2019s', () => {
  const { ask, lasting, lines, pass } = start();
  ask('big', undefined, { count: 10 });
  ask('small', { upstreamStatus: 503 }, { count: 5 });
  assert.deepEqual(lasting(), ['errors p small']);
  ask('big', { upstreamStatus: 500 }, { count: 10 });
  assert.deepEqual(lasting(), ['errors p']);
  ask('big', undefined, { count: 10 });
  assert.deepEqual(lasting(), ['errors p small']);
  pass(20);
  ask('big', undefined, { count: 3 });
  ask('small');
  assert.deepEqual(lasting(), []);
  const told = lines.map(([line, { model }]) => [line, model]);
  assert.deepEqual(told, [
    ['warn incident', 'small'],
    ['info incident ended', 'small'],
  ]);
});

test('after an outage of two models the one that answers again leaves the incident to the other one within 20 s', () => {
  const { ask, lasting, pass } = start();
  const ill = { upstreamStatus: 503 };
  for (let second = 0; second < 60; second += 1) {
    ask('a', ill);
    ask('b', ill);
    pass(1);
  }
  for (let second = 1; second <= 30; second += 1) {
    ask('a');
    ask('b', ill);
    pass(1);
    if (second === 5) assert.deepEqual(lasting(), ['errors p']);
    if (second >= 20) assert.deepEqual(lasting(), ['errors p b'], `${second} s after the outage`);
  }
});

test('a model that fails beside many good tries of its provider ends when it works again', () => {
  const { ask, lasting, pass } = start();
  for (let second = 0; second < 30; second += 1) {
    ask('big', undefined, { count: 50 });
    ask('small', { upstreamStatus: 503 });
    pass(1);
  }
  assert.deepEqual(lasting(), ['errors p small']);
  for (let second = 0; second < 20; second += 1) {
    ask('big', undefined, { count: 50 });
    ask('small');
    pass(1);
  }
  assert.deepEqual(lasting(), []);
});

test('two models that fail beside one that works are two incidents', () => {
  const { ask, lasting } = start();
  ask('big', undefined, { count: 10 });
  for (const model of ['a', 'b']) ask(model, { upstreamStatus: 503 }, { count: 5 });
  assert.deepEqual(lasting(), ['errors p a', 'errors p b']);
});

test('no connection is the whole provider\u2019s, whatever its models did before', () => {
  const { ask, lasting } = start();
  ask('big', undefined, { count: 10 });
  ask('small', DOWN, { count: 5 });
  assert.deepEqual(lasting(), ['unreachable p']);
});

test('kinds, by what most failures say', () => {
  const { ask, facts, pass } = start();
  const cases: [kind: string, details: Parameters<typeof ask>[1], begun?: boolean][] = [
    ['unreachable', DOWN],
    ['key_refused', { upstreamStatus: 401 }],
    ['key_refused', { upstreamStatus: 403 }],
    ['rate_limited', { upstreamStatus: 429, retryAfterSeconds: 7 }],
    ['errors', { upstreamStatus: 404 }],
    ['errors', { upstreamStatus: 500 }, true],
    ['timeout', { kind: 'timeout', cause: 'no first event in 1000 ms' }],
    ['stall', { kind: 'timeout', cause: 'no event in 1000 ms' }, true],
    ['cut', { problem: 'cut' }, true],
    ['cut', { problem: 'cut' }],
    ['nonsense', {}],
  ];
  for (const [kind, details, begun = false] of cases) {
    ask('m', details, { count: 6, begun });
    assert.equal(facts()[0]!.kind, kind, JSON.stringify(details));
    pass(20);
    ask('m');
    assert.deepEqual(facts(), []);
    pass(61);
  }
  ask('m', { upstreamStatus: 500, cause: 'out of memory' }, { count: 4 });
  ask('m', { upstreamStatus: 429, retryAfterSeconds: 7, cause: 'slow down' }, { count: 5 });
  const [{ kind, cause, until, since } = {}] = facts();
  assert.deepEqual([kind, cause], ['rate_limited', 'slow down']);
  assert.equal(Date.parse(until!) - Date.parse(since!), 7000);
});

test('a stream that breaks is one try, which has failed', () => {
  const { ask, lasting } = start();
  ask('m', undefined, { count: 2 });
  ask('m', { problem: 'cut' }, { count: 5, begun: true });
  assert.deepEqual(lasting(), ['cut p']);
});

test('the mistakes of clients and the failures of the gateway count for no provider', () => {
  const { ask, incidents, lasting, pass } = start();
  ask('m', { upstreamStatus: 400, scope: 'client' }, { count: 20 });
  assert.equal(incidents.advance(), false);
  ask(
    'm',
    { kind: 'internal', problem: 'descriptors', cause: 'EMFILE: open files' },
    { count: 20 },
  );
  assert.deepEqual(lasting(), ['descriptors']);
  pass(15);
  assert.deepEqual(lasting(), []);
});

test('the log has at most one pair of lines in a minute', () => {
  const { ask, lines, pass } = start();
  for (let round = 0; round < 6; round += 1) {
    ask('m', DOWN, { count: 5 });
    pass(20);
    ask('m');
    pass(10);
  }
  const messages = lines.map(([line]) => line);
  const pair = ['warn incident', 'info incident ended'];
  assert.deepEqual(messages, [...pair, ...pair, ...pair]);
});

test('whom it hits: names and clients, the ten with the most, and how many more', () => {
  const { ask, facts } = start();
  ask('m', DOWN, { count: 5 });
  for (let at = 0; at < 120; at += 1) {
    ask(`n-${at}`, DOWN, { count: at === 60 ? 3 : 1, client: `c-${at}` });
    ask('m', DOWN, { client: `c-${at}` });
  }
  const { hit, more } = facts()[0]!;
  const names = hit.map(({ name, failed }) => [name, failed]);
  assert.deepEqual([names.length, names[0], names[1], more], [10, ['m', 125], ['n-60', 3], 90]);
  assert.match(hit[0]!.clients!, /^agents, c-0, .* and 90 more$/);
});

test('a model that fails beside another one keeps its incident until it is well', () => {
  const { ask, ended, lasting, lines, pass } = start();
  ask('well', undefined, { count: 60 });
  ask('dead', { upstreamStatus: 503 }, { count: 20 });
  ask('ill', { upstreamStatus: 503 }, { count: 5 });
  pass(1);
  assert.deepEqual(lasting().toSorted(), ['errors p dead', 'errors p ill']);
  ask('ill', undefined, { count: 10 });
  pass(1);
  assert.deepEqual(lasting().toSorted(), ['errors p dead', 'errors p ill']);
  pass(20);
  ask('ill', undefined);
  ask('dead', { upstreamStatus: 503 });
  pass(1);
  assert.deepEqual(lasting(), ['errors p dead']);
  assert.deepEqual(
    ended().map(({ model }) => model),
    ['ill'],
  );
  assert.deepEqual(
    lines.map(([line, facts]) => [line, facts['model']]),
    [
      ['warn incident', 'dead'],
      ['warn incident', 'ill'],
      ['info incident ended', 'ill'],
    ],
  );
});

test('a try that fails of a model that works makes the incident of another one not the provider’s', () => {
  const { ask, lasting, lines, pass } = start();
  ask('works', undefined, { count: 20 });
  ask('dead', { upstreamStatus: 503 }, { count: 30 });
  pass(1);
  ask('works', { upstreamStatus: 503 });
  pass(1);
  assert.deepEqual(lasting(), ['errors p dead']);
  ask('works', { upstreamStatus: 503 }, { count: 4 });
  pass(1);
  assert.deepEqual(lasting(), ['errors p'], 'it no longer works: five in a row');
  assert.equal(lines.length, 1, 'it goes on as that of the provider');
});

test('a provider whose line has gone on as that of a model gets another one when it fails again', () => {
  const { ask, lasting, lines, pass } = start();
  ask('a', { upstreamStatus: 503 }, { count: 5 });
  ask('b', { upstreamStatus: 503 }, { count: 5 });
  pass(1);
  assert.deepEqual(lasting(), ['errors p']);
  ask('b', undefined, { count: 20 });
  pass(21);
  assert.deepEqual(lasting(), ['errors p a']);
  ask('a', undefined, { count: 20 });
  ask('b', { upstreamStatus: 503 }, { count: 4 });
  pass(1);
  assert.deepEqual(lasting(), []);
  pass(61);
  ask('b', { upstreamStatus: 503 }, { count: 5 });
  pass(1);
  assert.deepEqual(lasting(), ['errors p']);
  assert.deepEqual(
    lines.map(([line, facts]) => [line, facts['model']]),
    [
      ['warn incident', undefined],
      ['info incident ended', 'a'],
      ['warn incident', 'b'],
    ],
  );
});

test('the failures of a model that is well again make no incident of the whole provider', () => {
  const { ask, lasting, lines, pass } = start();
  for (let second = 0; second < 30; second += 1) {
    ask('dead', { upstreamStatus: 503 }, { count: 6 });
    ask('flaky', undefined, { count: 2 });
    pass(1);
  }
  assert.deepEqual(lasting(), ['errors p dead']);
  for (let second = 0; second < 20; second += 1) {
    ask('dead', undefined, { count: 2 });
    if (second % 2 === 0) ask('flaky', { upstreamStatus: 503 });
    ask('flaky');
    pass(1);
  }
  assert.deepEqual(lasting(), []);
  assert.deepEqual(
    lines.map(([line, facts]) => [line, facts['model']]),
    [
      ['warn incident', 'dead'],
      ['info incident ended', 'dead'],
    ],
  );
});

test('the line of a provider goes on as that of one model, and each other one has its own', () => {
  const { ask, lasting, lines, pass } = start();
  ask('a', { upstreamStatus: 503 }, { count: 5 });
  ask('b', { upstreamStatus: 503 }, { count: 5 });
  pass(1);
  ask('works', undefined, { count: 20 });
  pass(1);
  assert.deepEqual(lasting().toSorted(), ['errors p a', 'errors p b']);
  assert.deepEqual(
    lines.map(([line, facts]) => [line, facts['model']]),
    [
      ['warn incident', undefined],
      ['warn incident', 'b'],
    ],
  );
});

test('names of models that clients make up take no more memory than 200 of them', () => {
  const { ask, incidents, lasting, pass } = start();
  for (let at = 0; at < 1000; at += 1) ask(`made-up-${at}`);
  pass(61);
  ask('x'.repeat(300), { upstreamStatus: 503 }, { count: 5 });
  ask('other');
  assert.deepEqual(lasting(), ['errors p'], 'a long name is not told');
  pass(361);
  ask('late', { upstreamStatus: 503 }, { count: 5 });
  ask('other', undefined, { count: 20 });
  assert.ok(incidents.report().lasting.some(({ model }) => model === 'late'));
});

test('states of the gateway\u2019s own last until they are right again, and what happens until it is quiet', () => {
  const { ended, facts, incidents, lasting, pass } = start();
  incidents.set('reload', 'port: found "x", and 1 more');
  incidents.set('model_list', 'status 500', P);
  incidents.set('log_lines', '3 lines');
  assert.deepEqual(lasting(), ['reload', 'model_list p', 'log_lines']);
  assert.equal(facts()[0]!.cause, 'port: found "x", and 1 more');
  pass(14);
  incidents.set('log_lines', '4 lines');
  pass(14);
  assert.equal(lasting().length, 3);
  pass(1);
  assert.deepEqual(lasting(), ['reload', 'model_list p']);
  incidents.set('reload', undefined);
  incidents.set('model_list', undefined, P);
  incidents.set('model_list', undefined, Q);
  assert.deepEqual(
    ended().map(({ kind }) => kind),
    ['model_list', 'reload', 'log_lines'],
  );
  assert.equal(incidents.counts.get('log_lines'), 1);
});

test('the store is away after a second without an answer', () => {
  const { incidents, lasting, lines, pass } = start();
  const fail = () => incidents.set('store', '10.0.0.9:6379: no answer in 50 ms');
  for (let late = 0; late < 5; late += 1) {
    for (let at = 0; at < 5; at += 1) fail();
    incidents.advance();
    incidents.set('store', undefined);
    pass(1);
  }
  assert.deepEqual([lasting(), lines], [[], []], 'on a busy machine it is late now and then');
  fail();
  pass(1);
  assert.deepEqual(lasting(), ['store']);
  incidents.set('store', undefined);
  assert.deepEqual(lasting(), []);
});

test('slow is four times the usual median of first tokens, until it is less than twice', () => {
  const { facts, incidents, lasting } = start();
  const judge = (newestMs?: number, formerMs?: number) => {
    incidents.judgeSlow('p', { newestMs, formerMs });
    return lasting();
  };
  assert.deepEqual(judge(), []);
  assert.deepEqual(judge(1000), [], 'nothing to compare with');
  assert.deepEqual(judge(799, 200), []);
  assert.deepEqual(judge(800, 200), ['slow p']);
  assert.equal(facts()[0]!.cause, 'first token after 800 ms, 200 ms before');
  // What was slow for a quarter of an hour does not become usual.
  assert.deepEqual(judge(800, 800), ['slow p']);
  assert.deepEqual(judge(400, 800), ['slow p']);
  assert.deepEqual(judge(399, 800), []);
  assert.deepEqual(judge(0, 0), [], 'no time is not slow');
});

test('slow is a state that counts no failures, however often it is looked at', () => {
  const { facts, incidents } = start();
  for (let look = 0; look < 9; look += 1) {
    incidents.judgeSlow('p', { newestMs: 900 + look, formerMs: 200 });
  }
  const [{ failures, cause } = assert.fail(), ...others] = facts();
  assert.deepEqual([failures, others], [undefined, []]);
  assert.equal(cause, 'first token after 908 ms, 200 ms before');
});

test('times of day are those of the clock when they were noted, whatever is set later', () => {
  const { ask, ended, facts, pass, setClock, timeOf } = start();
  ask('m', { upstreamStatus: 429, retryAfterSeconds: 7 }, { count: 3 });
  setClock(3600);
  pass(10);
  const [{ since, until } = assert.fail()] = facts();
  assert.deepEqual([since, until], [timeOf(0), timeOf(7)]);
  ask('m');
  pass(20);
  ask('n', { upstreamStatus: 503 }, { count: 3 });
  assert.deepEqual(ended()[0]!.ended, timeOf(3600 + 10));
  assert.equal(facts()[0]!.since, timeOf(3600 + 30));
});

test('slow began and ended half a minute before the median of a minute says so', () => {
  const { ended, facts, incidents, pass, timeOf } = start();
  incidents.judgeSlow('p', { newestMs: 900, formerMs: 200 });
  assert.equal(facts()[0]!.since, timeOf(-30));
  pass(120);
  incidents.judgeSlow('p', { newestMs: 200, formerMs: 200 });
  assert.equal(ended()[0]!.ended, timeOf(90));
});

test('what is good is told while an incident lasts: it ends later than it is over', () => {
  const { ask, ended, facts, pass } = start();
  ask('m', DOWN, { count: 5 });
  ask('m', undefined, { count: 2 });
  assert.deepEqual([facts()[0]!.failures, facts()[0]!.hit[0]!.good], [5, 2]);
  for (let at = 0; at < 16; at += 1) {
    pass(5);
    ask('m');
  }
  const [{ failures, hit } = ended()[0]!] = ended();
  assert.deepEqual([failures, hit[0]!.failed, hit[0]!.good], [5, 5, undefined]);
});

test('a second model that fails has a line of its own', () => {
  const { ask, lines, pass } = start();
  ask('big', undefined, { count: 10 });
  for (const model of ['a', 'b']) {
    ask(model, { upstreamStatus: 503 }, { count: 5 });
    pass(1);
  }
  const told = lines.map(([line, { model }]) => [line, model]);
  assert.deepEqual(told, [
    ['warn incident', 'a'],
    ['warn incident', 'b'],
  ]);
});

test('requests that the gateway had no memory or descriptor for are told by name and client', () => {
  for (const [kind, details] of [
    ['memory', { limit: 'memory' }],
    ['descriptors', { provider: 'p', problem: 'descriptors' }],
  ] as const) {
    const { facts, incidents } = start();
    const history = new RequestHistory();
    Object.assign(history, { client: 'agents', model: 'fast' });
    history.failure = new GatewayError(kind === 'memory' ? 'rateLimit' : 'internal', 'x', details);
    incidents.recordFailure(new Attempt({ ...P, chatUrl: '' }, 'm'), history.failure);
    for (let at = 0; at < 2; at += 1) incidents.recordRequest(history, history.failure.outcome);
    const [{ kind: found, hit, provider } = facts()[0]!] = facts();
    assert.deepEqual([found, provider], [kind, undefined]);
    const { name, failed, good, clients } = hit[0]!;
    assert.deepEqual(
      { name, failed, good, clients },
      { name: 'fast', failed: 2, good: undefined, clients: 'agents' },
    );
  }
});

test('requests that had no memory for their body are told by their client', () => {
  const { facts, incidents } = start();
  const history = new RequestHistory();
  history.client = 'agents';
  history.failure = new GatewayError('rateLimit', 'x', { limit: 'memory' });
  incidents.recordRequest(history, history.failure.outcome);
  const { name, failed, clients } = facts()[0]!.hit[0]!;
  assert.deepEqual([name, failed, clients], ['(body not read)', 1, 'agents']);
});

test('what fails because its provider does is not told beside it', () => {
  const { ask, incidents, lasting } = start();
  ask('m', DOWN, { count: 5 });
  incidents.advance();
  incidents.set('model_list', 'ECONNREFUSED', P);
  incidents.set('key_refused', 'key 2: 401', P);
  assert.deepEqual(lasting(), ['unreachable p']);
  assert.deepEqual([...incidents.counts.keys()], ['unreachable']);
});

test('counts of a step that is no longer one of the latest are gone, and come no more', () => {
  const counts = new StepCounts(3, 2);
  const sums = (step: number, steps?: number) => [...counts.sums(step, steps)];
  for (const step of [0, 5, 5, 6]) counts.add(step, 1);
  assert.deepEqual(
    [sums(6), sums(6, 1), sums(5)],
    [
      [0, 3],
      [0, 1],
      [0, 2],
    ],
  );
  counts.add(2, 1, -1);
  counts.add(5, 1, -1);
  assert.deepEqual(
    [sums(6), sums(8)],
    [
      [0, 2],
      [0, 1],
    ],
  );
  counts.add(8, 0);
  assert.deepEqual(
    [sums(8), sums(20)],
    [
      [1, 1],
      [0, 0],
    ],
  );
});

test('a provider whose settings have changed is another one: its incidents end, and what was begun before tells nothing', () => {
  const { ask, incidents, lasting } = start();
  ask('m', DOWN, { count: 5 });
  ask('m', DOWN, { count: 5, provider: 'q' });
  incidents.set('model_list', 'status 500', P);
  incidents.judgeSlow('p', { newestMs: 900, formerMs: 200 });
  incidents.watch([{ id: 'p', digest: 'of other settings' }, Q]);
  assert.deepEqual(lasting(), ['unreachable q']);
  ask('m', DOWN, { count: 9 });
  incidents.set('model_list', 'status 500', P);
  incidents.set('key_refused', 'key 1: 401', P);
  assert.deepEqual(lasting(), ['unreachable q']);
  incidents.judgeSlow('p', { newestMs: 500, formerMs: 200 });
  assert.deepEqual(lasting(), ['unreachable q'], 'what was usual is not known any more');
  incidents.watch([P, Q]);
  ask('m', DOWN, { count: 3 });
  assert.deepEqual(lasting().toSorted(), ['unreachable p', 'unreachable q']);
});

test('a provider that leaves the settings takes its incidents with it, and others go on', () => {
  const { ask, ended, incidents, lasting } = start();
  incidents.set('model_list', 'status 500', Q);
  incidents.advance();
  ask('m', DOWN, { count: 5, provider: 'q' });
  ask('m', DOWN, { count: 5 });
  assert.equal(lasting().length, 2);
  incidents.watch([P]);
  assert.deepEqual(lasting(), ['unreachable p']);
  assert.equal(ended().length, 2);
  ask('m', DOWN, { count: 5, provider: 'q' });
  assert.deepEqual(lasting(), ['unreachable p']);
});
