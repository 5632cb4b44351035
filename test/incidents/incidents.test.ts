/** The rules of docs/incidents.md, on the test's clock. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { Incidents, Subject } from '../../src/incidents/incidents.ts';
import { describeIncident } from '../../src/incidents/notice.ts';
import { GatewayError, type ErrorDetails, type Outcome } from '../../src/lib/errors.ts';
import type { CircuitReport } from '../../src/policy/circuit-breaker.ts';
import type { LogFacts } from '../../src/lib/log.ts';
import { RequestHistory, Attempt } from '../../src/request/history.ts';
import { replaceDate, replaceNow } from '../support/clock.ts';

const DOWN = {
  scope: 'provider' as const,
  cause: 'ECONNREFUSED: connect ECONNREFUSED 10.0.4.21:8000',
};
const BROKEN = { upstreamStatus: 503 };
const CUT = { problem: 'cut' as const };

/** The providers. `start` begins each test with new subjects. */
const P = { id: 'p', subject: new Subject('p') };
const Q = { id: 'q', subject: new Subject('q') };
const M = { provider: P, model: 'm', isStream: false };

type Details = ErrorDetails & {
  readonly kind?: 'provider' | 'timeout' | 'internal';
  readonly text?: string;
};

type Started = ReturnType<typeof start>;

/**
 * Starts incidents for the providers `p` and `q`. The clock of `performance.now()` begins at
 * `first`.
 */
function start(t: TestContext, first = 1_000_000) {
  let now = first;
  /** How far the system's clock is ahead of it. */
  let ahead = 1_800_000_000_000;
  replaceNow(t, () => now);
  replaceDate(t, () => now + ahead);
  const lines: [message: string, facts: LogFacts][] = [];
  let circuits: (CircuitReport & { readonly provider: string })[] = [];
  const newSubject = (id: string) =>
    new Subject(id, { report: () => circuits.filter(({ provider }) => provider === id) });
  let troubles = 0;
  const incidents = new Incidents({
    logger: {
      log: (level, message, facts = {}) => lines.push([`${level} ${message}`, facts]),
      isEnabled: () => true,
      get lines() {
        return lines.length;
      },
    },
    findMemoryHolder: () => undefined,
    onTrouble: () => (troubles += 1),
  });
  for (const provider of [P, Q]) provider.subject = newSubject(provider.id);
  const origin = first + ahead;
  const reported = () => incidents.report().lasting.map((one) => one.toFacts());
  const facts = () => {
    incidents.advance();
    return reported();
  };
  const failures = (details: Details) => {
    const { kind = 'provider', text = 'x', ...rest } = details;
    return new GatewayError(kind, text, rest);
  };
  return {
    incidents,
    newSubject,
    lines,
    facts,
    reported,
    failures,
    timeOf: (seconds: number) => new Date(origin + 1000 * seconds).toISOString(),
    /**
     * Advances, and returns the lasting incidents: kind, provider, and failing models unless they
     * are all.
     */
    lasting: () =>
      facts().map(({ kind, provider, models = [], all_models: all }) =>
        [kind, provider, ...(all ? [] : models.map(({ model }) => model))]
          .filter(Boolean)
          .join(' '),
      ),
    ended: () => {
      incidents.advance();
      return incidents.report().ended.map((one) => one.toFacts());
    },
    logged: () =>
      lines.map(([line, logFacts]) => {
        type Line = { kind: string; provider?: string; models?: { model: string }[] };
        const { kind, provider, models = [] } = logFacts as unknown as Line;
        const names = models.map(({ model }) => model);
        return [line, kind, provider, ...names].filter(Boolean).join(' ');
      }),
    troubles: () => troubles,
    open: (...names: [provider: string, model?: string, isStream?: boolean][]) => {
      circuits = names.map(([provider, model, isStream = false]) => {
        const state = { state: 'open', failures: 3, cooldownMs: 0, halfOpenAtMs: 0 } as const;
        const ofModel = { operation: 'chat', isStream: model === undefined ? undefined : isStream };
        return { ...state, ...ofModel, provider, model, isProbed: false };
      });
    },
    /** Turns the open circuits half-open. */
    halfOpen: () => {
      circuits = circuits.map((one) => ({ ...one, state: 'half-open' }));
    },
    /** Sets the system's clock ahead. */
    setClock: (seconds: number) => {
      ahead += 1000 * seconds;
    },
    /** Lets time pass in one second steps. */
    pass: (seconds: number) => {
      for (let count = 0; count < seconds; count += 1) {
        now += 1000;
        incidents.advance();
      }
    },
    /** Ends tries, each with its own request. */
    ask: (
      model: string,
      details?: Details,
      more: {
        count?: number;
        client?: string;
        provider?: string;
        by?: string;
        begun?: boolean;
        /** How many seconds ago the tries began. */
        ago?: number;
        stream?: boolean;
        lookupMs?: number;
        connection?: 'new';
      } = {},
    ) => {
      const {
        count = 1,
        client = 'agents',
        provider = 'p',
        by = provider,
        begun = false,
        ago = 0,
        stream = false,
        lookupMs,
        connection,
      } = more;
      for (let at = 0; at < count; at += 1) {
        const history = new RequestHistory();
        history.client = client;
        history.model = model;
        const ask = (id: string, failure?: GatewayError) => {
          now -= 1000 * ago;
          const asked = { provider: id === 'p' ? P : Q, model, isStream: stream };
          const attempt = new Attempt(asked, '');
          now += 1000 * ago;
          attempt.decidedAtMs = now;
          attempt.lookupMs = lookupMs;
          attempt.connection = connection;
          attempt.sentAtMs = now;
          if (begun || !failure) attempt.hasAnswer = true;
          if (begun) incidents.addGood(attempt);
          history.addAttempt(attempt);
          history.attempt = attempt;
          attempt.failure = failure;
          if (failure) incidents.recordFailure(attempt, failure);
          else incidents.addGood(attempt);
        };
        const failure = details && failures(details);
        ask(provider, failure);
        if (by !== provider) ask(by);
        const outcome: Outcome = by === provider ? (failure?.outcome ?? 'ok') : 'ok';
        if (outcome !== 'ok') history.failure = failure;
        incidents.recordRequest(history, outcome);
      }
    },
  };
}

test('a provider that is down is an incident after three tries, since the first', (t) => {
  const { ask, facts, lasting, logged, pass, timeOf, troubles } = start(t);
  ask('small', DOWN, { count: 2 });
  pass(2);
  assert.deepEqual([lasting(), logged(), troubles()], [[], [], 1]);
  ask('small', DOWN, { count: 3 });
  assert.deepEqual(lasting(), ['unreachable p']);
  ask('small', DOWN, { client: 'web', by: 'q' });
  const [{ affected, models, ...fact } = assert.fail()] = facts();
  const cause = { kind: 'unreachable', cause: 'ECONNREFUSED 10.0.4.21:8000' } as const;
  const common = {
    ...cause,
    since: timeOf(0),
    since_start: true,
    ended: undefined,
    key: undefined,
    until: undefined,
    failures: 6,
  };
  const more = {
    quiet_since: undefined,
    all_models: true,
    more_models: undefined,
    states: undefined,
    more: undefined,
  };
  const none = { model: undefined, stream: undefined };
  assert.deepEqual(fact, { ...common, ...none, provider: 'p', ...more });
  assert.deepEqual(models, [{ ...common, model: 'small', stream: false }]);
  const small = { name: 'small', stream: false, failed: 5, good: 0, answered: 1, by: 'q' };
  assert.deepEqual(affected, [{ ...small, clients: 'agents, web' }]);
  assert.deepEqual(logged(), ['warn incident unreachable p small']);
});

test('half of five tries in a minute are an incident, and fewer are not', (t) => {
  for (const [good, isOne] of [
    [2, true],
    [3, true],
    [4, false],
  ] as const) {
    const { ask, lasting, pass } = start(t);
    ask('m', undefined, { count: good });
    ask('m', BROKEN, { count: 3 });
    assert.deepEqual(lasting(), isOne ? ['errors p'] : []);
    pass(5);
    ask('m');
    pass(61);
    ask('m', BROKEN);
    assert.deepEqual(lasting(), [], 'a single failure in its minute');
  }
});

test('half of four tries are too few', (t) => {
  const { ask, lasting } = start(t);
  ask('m', BROKEN, { count: 2 });
  ask('m');
  ask('m', BROKEN);
  assert.deepEqual(lasting(), []);
});

test('five failures in a row are an incident, however many tries were good before', (t) => {
  const { ask, lasting } = start(t);
  ask('m', undefined, { count: 500 });
  ask('m', BROKEN, { count: 4 });
  assert.deepEqual(lasting(), []);
  ask('m', BROKEN);
  assert.deepEqual(lasting(), ['errors p']);
});

test('three failures in a row are an incident after a minute without a success', (t) => {
  const { ask, facts, lasting, pass, timeOf } = start(t);
  ask('m');
  ask('m', BROKEN, { count: 2 });
  pass(70);
  assert.deepEqual(lasting(), [], 'two');
  ask('m');
  ask('m', BROKEN, { count: 3 });
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
  test(`three failures in a row, six minutes apart, are a lasting incident: ${what}`, (t) => {
    const { ask, ended, lasting, lines, pass } = start(t);
    const failure = { problem: 'cut' } as const;
    for (let round = 1; round <= 6; round += 1) {
      ask('m', failure, { begun });
      assert.deepEqual(lasting(), round < 3 ? [] : ['cut p'], `after ${round}`);
      pass(360);
      assert.deepEqual(lasting(), round < 3 ? [] : ['cut p'], `six minutes after ${round}`);
    }
    ask('m');
    pass(1);
    const last = lines.at(-1)![0];
    assert.deepEqual([lasting(), ended().length, last], [[], 1, 'info incident ended']);
  });
}

test('a forgotten incident begins again with the next failure', (t) => {
  const { ask, lasting, pass } = start(t);
  for (let round = 1; round <= 5; round += 1) {
    ask('m', BROKEN);
    assert.deepEqual(lasting(), round < 3 ? [] : ['errors p'], `after ${round}`);
    pass(1200);
    assert.deepEqual(lasting(), [], 'forgotten');
  }
});

test('three failures in a row of different models are an incident', (t) => {
  const { ask, facts, lasting, pass } = start(t);
  ask('a', BROKEN);
  pass(120);
  ask('b', BROKEN);
  pass(20);
  assert.deepEqual(lasting(), []);
  ask('c', BROKEN);
  assert.deepEqual(lasting(), ['errors p']);
  const names = facts()[0]!.models!.map(({ model }) => model);
  assert.deepEqual(names, ['b', 'c'], 'the models of the last minute');
});

test('five failures in a row make two failing models', (t) => {
  const { ask, lasting } = start(t);
  ask('a', undefined, { count: 20 });
  ask('b', undefined, { count: 20 });
  ask('a', BROKEN, { count: 4 });
  assert.deepEqual(lasting(), []);
  ask('b', BROKEN);
  assert.deepEqual(lasting(), ['errors p']);
});

test('a model whose latest try was good does not fail with its provider', (t) => {
  const { ask, lasting } = start(t);
  ask('b', BROKEN);
  ask('b');
  ask('a', BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p a']);
});

test('a stream that breaks does not extend a row that a good try has ended', (t) => {
  const { ask, failures, incidents, lasting, pass } = start(t);
  const failure = failures({ problem: 'cut' });
  const begin = (laterMs: number) => {
    const attempt = new Attempt(M, '');
    const decidedAtMs = performance.now() + laterMs;
    Object.assign(attempt, { decidedAtMs, hasAnswer: true });
    incidents.addGood(attempt);
    return attempt;
  };
  for (let round = 1; round <= 4; round += 1) {
    ask('m', undefined, { count: 3 });
    const broken = begin(0);
    for (let at = 0; at < 2; at += 1) ask('m', BROKEN);
    begin(0.5);
    incidents.recordFailure(broken, failure);
    pass(90);
    assert.deepEqual(lasting(), []);
  }
});

test('an open circuit is an incident until it is closed', (t) => {
  const { ask, lasting, open, pass } = start(t);
  ask('m');
  ask('m', BROKEN, { count: 3 });
  assert.deepEqual(lasting(), []);
  open(['p', 'm']);
  assert.deepEqual(lasting(), ['errors p']);
  pass(20);
  ask('m');
  assert.deepEqual(lasting(), ['errors p']);
  open();
  assert.deepEqual(lasting(), []);
});

test("a provider's circuit is open for all its failed models, a model's for itself", (t) => {
  const { ask, lasting, open } = start(t);
  for (const model of ['a', 'b', 'c']) ask(model);
  for (const model of ['a', 'b']) ask(model, BROKEN);
  open(['q'], ['p', 'b']);
  assert.deepEqual(lasting(), ['errors p b']);
  open(['p']);
  assert.deepEqual(lasting(), ['errors p b a']);
});

test('a half-open circuit, which may never be asked again, does not keep an incident', (t) => {
  const { ask, halfOpen, lasting, open, pass } = start(t);
  ask('m', BROKEN, { count: 3 });
  open(['p', 'm']);
  assert.deepEqual(lasting(), ['errors p']);
  pass(20);
  ask('m');
  halfOpen();
  assert.deepEqual(lasting(), []);
});

test('the first minute of a process is judged like any other', (t) => {
  const { ask, lasting, pass } = start(t, 0);
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

test('an incident ends when the newest 15 s have a good try and hardly a failure', (t) => {
  const { ask, ended, lasting, logged, pass, timeOf, incidents } = start(t);
  ask('m', DOWN, { count: 10 });
  pass(30);
  assert.deepEqual(lasting(), ['unreachable p'], 'no request since');
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
  const [{ since, ended: at, failures, models } = assert.fail()] = ended();
  assert.deepEqual([since, at, failures], [timeOf(0), timeOf(31), 11]);
  assert.deepEqual([models![0]!.model, models![0]!.ended], ['m', timeOf(31)]);
  assert.deepEqual(logged(), [
    'warn incident unreachable p m',
    'info incident ended unreachable p m',
  ]);
  assert.equal(incidents.advance(), true, 'the line about the end may be repeated');
  pass(60);
  assert.equal(incidents.advance(), false, 'nothing is left to look at');
  pass(3601);
  assert.deepEqual(ended(), []);
});

test('an incident ends with less than a tenth of failures', (t) => {
  for (const [good, isOver] of [
    [9, false],
    [10, true],
  ] as const) {
    const { ask, lasting, pass } = start(t);
    ask('m', DOWN, { count: 10 });
    lasting();
    pass(20);
    ask('m', DOWN);
    ask('m', undefined, { count: good });
    assert.deepEqual(lasting(), isOver ? [] : ['unreachable p']);
  }
});

test('an incident does not end while the latest try has failed', (t) => {
  const { ask, lasting, pass } = start(t);
  ask('m', DOWN, { count: 10 });
  lasting();
  pass(20);
  ask('m', undefined, { count: 100 });
  ask('m', DOWN);
  assert.deepEqual(lasting(), ['unreachable p']);
  ask('m');
  assert.deepEqual(lasting(), []);
});

test('a single failure after an outage is no new incident', (t) => {
  const { ask, ended, lasting, pass } = start(t);
  ask('m', DOWN, { count: 40 });
  lasting();
  pass(21);
  ask('m', undefined, { count: 20 });
  pass(1);
  assert.deepEqual(lasting(), []);
  ask('m', DOWN);
  pass(1);
  assert.deepEqual([lasting(), ended().length], [[], 1]);
});

test('an incident ended at the first good try after its failures', (t) => {
  const { ask, ended, lasting, pass, timeOf } = start(t);
  ask('m', DOWN, { count: 5 });
  lasting();
  pass(5);
  ask('m');
  pass(5);
  ask('m', DOWN);
  pass(10);
  ask('m');
  pass(21);
  ask('m');
  assert.deepEqual(
    ended().map((one) => one.ended),
    [timeOf(20)],
  );
});

test('an incident without requests is forgotten after a quarter of an hour', (t) => {
  const { ask, ended, lasting, pass, timeOf } = start(t);
  ask('m', DOWN, { count: 5 });
  pass(900);
  assert.deepEqual(lasting(), ['unreachable p']);
  pass(1);
  assert.deepEqual([lasting(), ended()[0]!.ended], [[], timeOf(0)]);
});

test('a provider has one incident, which lists its failing models', (t) => {
  const { ask, facts, lasting, logged, pass, timeOf } = start(t);
  ask('big', undefined, { count: 10 });
  ask('small', BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p small']);
  pass(2);
  ask('big', { kind: 'timeout' }, { count: 7 });
  assert.deepEqual(lasting(), ['timeout p']);
  const models = facts()[0]!.models!.map(({ model, kind, since }) => [model, kind, since]);
  assert.deepEqual(models, [
    ['big', 'timeout', timeOf(2)],
    ['small', 'errors', timeOf(0)],
  ]);
  pass(21);
  ask('big');
  assert.deepEqual(lasting(), ['errors p small'], 'the other model is well again');
  ask('small');
  assert.deepEqual(lasting(), []);
  assert.deepEqual(logged(), [
    'warn incident errors p small',
    'warn incident timeout p big small',
    'info incident ended timeout p big small',
  ]);
});

test('an incident that has ended says all models if they were all at its worst', (t) => {
  const cases: [what: string, models: Record<string, string>, all: true | undefined][] = [
    // A character for every ten seconds: x fails, o is good.
    ['one after the other recovers', { a: 'xxxoooooooooo', b: 'xxxxxxxxxoooo' }, true],
    ['the last one, beside others', { a: 'xxxxxxooooooo', b: '      ooooooo' }, true],
    ['one of two', { a: 'xxxxxxooooooo', b: 'ooooooooooooo' }, undefined],
    [
      'more models later',
      { a: 'xxxxxxooooooo', b: '  xxxxooooooo', c: '  ooooooooooo' },
      undefined,
    ],
  ];
  for (const [what, models, all] of cases) {
    const { ask, ended, pass } = start(t);
    for (let step = 0; step < 13; step += 1) {
      for (const [model, steps] of Object.entries(models)) {
        if (steps[step] === 'x') ask(model, BROKEN, { count: 5 });
        if (steps[step] === 'o') ask(model, undefined, { count: 5 });
      }
      pass(10);
    }
    const shown = ended().map(({ all_models: isAll }) => isAll);
    assert.deepEqual(shown, [all], what);
  }
});

test('models without requests for a minute do not count for the whole provider', (t) => {
  const { ask, lasting, pass } = start(t);
  ask('big', undefined, { count: 10 });
  pass(50);
  ask('small', BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p small']);
  pass(15);
  assert.deepEqual(lasting(), ['errors p']);
  pass(60);
  assert.deepEqual(lasting(), ['errors p'], 'no requests');
});

test('an incident keeps its models while there are no requests', (t) => {
  const { ask, lasting, pass } = start(t);
  ask('big', undefined, { count: 10 });
  ask('small', BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p small']);
  pass(120);
  assert.deepEqual(lasting(), ['errors p small']);
});

test('an incident says since when no request has failed', (t) => {
  const { ask, ended, facts, pass, setClock, timeOf } = start(t);
  const quietSince = () => facts()[0]!.quiet_since;
  ask('m', BROKEN, { count: 4 });
  assert.equal(quietSince(), undefined);
  pass(50);
  assert.equal(quietSince(), undefined, 'still in the figures of the minute');
  pass(1);
  assert.equal(quietSince(), timeOf(0));
  // Neither a request that another provider answers nor the clock changes that.
  ask('m', BROKEN, { by: 'q' });
  setClock(-3600);
  assert.equal(quietSince(), timeOf(0));
  ask('m', BROKEN);
  assert.equal(quietSince(), undefined);
  pass(60);
  assert.equal(quietSince(), timeOf(51 - 3600));
  ask('m');
  pass(1);
  assert.deepEqual(
    ended().map(({ quiet_since: since }) => since),
    [undefined],
  );
});

test('a model that answers again leaves the incident within 20 s', (t) => {
  const { ask, lasting, pass } = start(t);
  for (let second = 0; second < 60; second += 1) {
    ask('a', BROKEN);
    ask('b', BROKEN);
    pass(1);
  }
  for (let second = 1; second <= 30; second += 1) {
    ask('a');
    ask('b', BROKEN);
    pass(1);
    if (second === 5) assert.deepEqual(lasting(), ['errors p']);
    if (second >= 20) assert.deepEqual(lasting(), ['errors p b'], `${second} s after the outage`);
  }
});

test('a model that fails beside many good tries of its provider ends when it works again', (t) => {
  const { ask, lasting, pass } = start(t);
  for (let second = 0; second < 30; second += 1) {
    ask('big', undefined, { count: 50 });
    ask('small', BROKEN);
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

test('the ten models with the most failures are listed, and how many more there are', (t) => {
  const { ask, facts, lasting } = start(t);
  for (let at = 0; at < 14; at += 1) ask(`m-${at}`, BROKEN, { count: 5 + at });
  lasting();
  const [{ models, more_models: more, failures } = assert.fail()] = facts();
  assert.deepEqual([models!.length, models![0]!.model, more], [10, 'm-13', 4]);
  assert.equal(failures, 14 * 5 + (13 * 14) / 2);
});

test('most failures decide the kind', (t) => {
  const { ask, facts, pass } = start(t);
  const cases: [kind: string, details: Details, begun?: boolean][] = [
    ['unreachable', DOWN],
    ['lookup_failed', { ...DOWN, problem: 'lookup' }],
    ['certificate', { ...DOWN, problem: 'certificate' }],
    ['key_refused', { scope: 'key', upstreamStatus: 401 }],
    ['rate_limited', { upstreamStatus: 429, retryAfterSeconds: 7 }],
    ['errors', { upstreamStatus: 404 }],
    ['errors', { upstreamStatus: 500 }, true],
    ['timeout', { kind: 'timeout', cause: 'no first event in 1000 ms' }],
    ['stall', { kind: 'timeout', cause: 'no event in 1000 ms' }, true],
    ['cut', { problem: 'cut' }, true],
    ['cut', { problem: 'cut' }],
    ['nonsense', { text: 'the answer was not valid HTTP' }],
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
  const [{ kind, cause, until, since } = assert.fail()] = facts();
  assert.deepEqual([kind, cause], ['rate_limited', 'slow down']);
  assert.equal(Date.parse(until!) - Date.parse(since), 7000);
});

test('the cause of errors and of a refused key has its status', (t) => {
  const { ask, facts } = start(t);
  ask('m', { scope: 'key', upstreamStatus: 401, cause: 'Incorrect API key' }, { count: 5 });
  assert.equal(facts()[0]!.cause, '401: Incorrect API key');
});

test('an outage of all models ends with the first success of any of them', (t) => {
  for (const isAll of [true, false]) {
    const { ask, ended, lasting, open, pass, timeOf } = start(t);
    if (!isAll) ask('c');
    for (const model of ['a', 'b']) ask(model, DOWN, { count: 5 });
    open(['p', 'b']);
    pass(5);
    ask('a', DOWN);
    pass(1);
    ask('a', undefined, { count: 2 });
    pass(14);
    open();
    ask('b', undefined, { count: 2 });
    pass(2);
    for (const model of ['a', 'b']) ask(model, undefined, { count: 100 });
    pass(20);
    assert.deepEqual(lasting(), []);
    const [{ ended: at, models } = assert.fail()] = ended();
    assert.equal(at, timeOf(isAll ? 6 : 20));
    assert.deepEqual(new Set(models!.map((one) => one.ended)), new Set([timeOf(6), timeOf(20)]));
  }
});

test('each kind of an incident is counted and logged once', (t) => {
  const { ask, incidents, lasting, logged } = start(t);
  ask('m', BROKEN, { count: 5 });
  for (let round = 0; round < 3; round += 1) {
    lasting();
    ask('m', DOWN, { count: 10 });
    lasting();
    ask('m', BROKEN, { count: 10 });
  }
  assert.deepEqual(
    [...incidents.counts],
    [
      ['errors', 1],
      ['unreachable', 1],
    ],
  );
  assert.deepEqual(logged(), ['warn incident errors p m', 'warn incident unreachable p m']);
});

test('a lasting incident is logged again each minute, with its counts by then', (t) => {
  const { ask, lines, pass } = start(t);
  for (let minute = 0; minute < 3; minute += 1) {
    ask('m', DOWN, { count: 5 });
    pass(60);
  }
  pass(2);
  assert.deepEqual(
    lines.map(([line, { failures }]) => [line, failures]),
    [5, 10, 15, 15].map((failures) => ['warn incident', failures]),
  );
});

test('the latest 60 lines of the log tell a lasting incident, and its end for a minute', (t) => {
  const { ask, lines, pass } = start(t);
  const told = () => lines.filter(([line]) => line !== 'info request');
  /** Writes access lines for some seconds, 14 in each. */
  const serve = (seconds: number, isTold: boolean) => {
    for (let second = 0; second < seconds; second += 1) {
      ask('m', isTold ? DOWN : undefined);
      for (let line = 0; line < 14; line += 1) lines.push(['info request', {}]);
      pass(1);
      const latest = lines.slice(-60).map(([line]) => line);
      if (lines.length > 60 && isTold) assert.ok(latest.includes('warn incident'));
    }
  };
  serve(30, true);
  const lasting = told().length;
  assert.ok(lasting >= 9 && lasting <= 30 * (14 / 40), `${lasting} lines in 30 s`);
  serve(21, false);
  const ended = () => told().filter(([line]) => line === 'info incident ended');
  assert.ok(ended().length > 0);
  serve(50, false);
  assert.ok(lines.slice(-60).some(([line]) => line === 'info incident ended'));
  const { what, fault, action, ended: at } = ended()[0]![1];
  assert.deepEqual(
    [what, fault, action],
    ['no connection', 'the provider, or the network to it', undefined],
  );
  assert.deepEqual(new Set(ended().map(([, facts]) => facts['ended'])), new Set([at]));
  serve(30, false);
  const { length } = told();
  serve(30, false);
  assert.equal(told().length, length, 'a minute later');
});

test('a busy log repeats the line of an incident every two seconds at most', (t) => {
  const { ask, lines, pass } = start(t);
  ask('m', DOWN, { count: 5 });
  for (let second = 0; second < 20; second += 1) {
    for (let line = 0; line < 1000; line += 1) lines.push(['info request', {}]);
    pass(1);
  }
  const told = lines.filter(([line]) => line === 'warn incident');
  assert.equal(told.length, 10);
  const { what, fault, action } = told[0]![1];
  assert.deepEqual(
    [what, fault, action],
    [
      'no connection',
      'the provider, or the network to it',
      'Look whether its address is right and reachable from here.',
    ],
  );
});

test('lines of other incidents do not repeat the line of an incident', (t) => {
  const { incidents, lines, newSubject, pass } = start(t);
  for (let provider = 0; provider < 45; provider += 1) {
    incidents.reportState('model_list', '404', newSubject(`p${provider}`));
  }
  pass(20);
  assert.equal(lines.length, 45);
});

test('the line of an end is not repeated once a further incident lasts', (t) => {
  const { ask, lines, pass } = start(t);
  ask('m', DOWN, { count: 5 });
  pass(21);
  ask('m');
  pass(2);
  ask('m', DOWN, { count: 5 });
  for (let line = 0; line < 40; line += 1) lines.push(['info request', {}]);
  pass(3);
  assert.deepEqual(
    lines.map(([line]) => line).filter((line) => line !== 'info request'),
    ['warn incident', 'info incident ended', 'warn incident'],
  );
});

test('the line of an end is not repeated once the provider of new settings fails', (t) => {
  const { ask, incidents, lines, newSubject, pass } = start(t);
  ask('m', DOWN, { count: 5 });
  pass(1);
  incidents.dispose(P.subject);
  P.subject = newSubject('p');
  ask('m', DOWN, { count: 5 });
  pass(1);
  for (let line = 0; line < 40; line += 1) lines.push(['info request', {}]);
  pass(3);
  assert.deepEqual(
    lines.map(([line]) => line).filter((line) => line !== 'info request'),
    ['warn incident', 'info incident ended', 'warn incident', 'warn incident'],
  );
});

test('an incident whose kind changes is logged each minute for each kind', (t) => {
  const { ask, logged, pass } = start(t);
  ask('m', BROKEN, { count: 5 });
  pass(30);
  ask('m', DOWN, { count: 10 });
  pass(40);
  assert.deepEqual(logged(), ['warn incident errors p m', 'warn incident unreachable p m']);
  pass(25);
  assert.deepEqual(logged().slice(2), ['warn incident unreachable p m']);
});

test('a fault without a success before it has lasted since the start', (t) => {
  const cases: [what: string, isSo: true | undefined, run: (one: Started) => void][] = [
    ['no try was good', true, ({ ask }) => ask('m', BROKEN, { count: 5 })],
    [
      'a try was good before',
      undefined,
      ({ ask, pass }) => {
        ask('m');
        pass(300);
        ask('m', BROKEN, { count: 5 });
      },
    ],
    [
      'another model was good',
      true,
      ({ ask }) => {
        ask('other');
        ask('m', BROKEN, { count: 5 });
      },
    ],
    ['each stream has broken', true, ({ ask }) => ask('m', CUT, { count: 5, begun: true })],
    [
      'a try was good meanwhile',
      undefined,
      ({ ask }) => {
        ask('m', BROKEN, { count: 5 });
        ask('m');
        ask('m', BROKEN, { count: 5 });
      },
    ],
    [
      'a reload has changed the provider',
      undefined,
      ({ ask, incidents }) => {
        incidents.dispose(Q.subject);
        Q.subject = new Subject('q', undefined, false);
        ask('m', BROKEN, { count: 5, provider: 'q' });
      },
    ],
    [
      'the tries of a model were dropped, which may have been this one',
      undefined,
      ({ ask, pass }) => {
        ask('m');
        pass(61);
        for (let at = 0; at < 200; at += 1) ask(`m${at}`);
        ask('m', BROKEN, { count: 5 });
      },
    ],
    [
      'the list of models was never read',
      true,
      ({ incidents }) => incidents.reportState('model_list', 'status 500', P.subject),
    ],
    [
      'the list of models was read before',
      undefined,
      ({ incidents }) => {
        incidents.reportState('model_list', undefined, P.subject);
        incidents.reportState('model_list', 'status 500', P.subject);
      },
    ],
    [
      'a key was refused, and nothing says whether it had worked',
      undefined,
      ({ incidents }) => incidents.reportState('key_refused', 'key 2: 401', P.subject),
    ],
  ];
  for (const [what, isSo, run] of cases) {
    const started = start(t);
    run(started);
    const [{ since_start: is, models } = assert.fail(what)] = started.facts();
    assert.equal(is, isSo, what);
    assert.equal(models?.[0]!.since_start, models && isSo, what);
    const [incident] = started.incidents.report().lasting;
    const { effect } = describeIncident(incident!, incident!.toFacts());
    assert.equal(/no success since the gateway’s start/.test(effect), isSo === true, what);
  }
});

test('an incident is from the start if the fault that began first is', (t) => {
  const { ask, facts, pass } = start(t);
  ask('b');
  ask('a', BROKEN, { count: 5 });
  pass(5);
  ask('b', BROKEN, { count: 9 });
  const [{ models, since_start: is } = assert.fail()] = facts();
  assert.deepEqual(
    [is, ...models!.map((one) => [one.model, one.since_start])],
    [true, ['b', undefined], ['a', true]],
  );
});

test('each incident has its pair of lines, however soon after the former one', (t) => {
  const { ask, logged, pass } = start(t);
  for (let round = 0; round < 6; round += 1) {
    ask('m', DOWN, { count: 5 });
    pass(21);
    ask('m');
    pass(9);
  }
  const pair = ['warn incident unreachable p m', 'info incident ended unreachable p m'];
  assert.deepEqual(logged(), Array.from({ length: 6 }, () => pair).flat());
  ask('m', DOWN, { count: 5 });
  pass(1);
  assert.equal(logged().at(-1), pair[0], 'the last word is the incident that lasts');
});

test('a stream that breaks is a single, failed try', (t) => {
  const { ask, lasting } = start(t);
  ask('m', undefined, { count: 2 });
  ask('m', { problem: 'cut' }, { count: 5, begun: true });
  assert.deepEqual(lasting(), ['cut p']);
});

test('of equally many failures the incident has the kind of the streams', (t) => {
  for (const order of [
    [true, false],
    [false, true],
  ]) {
    const { ask, lasting } = start(t);
    for (const stream of order) {
      ask('m', stream ? { problem: 'cut' } : DOWN, { count: 8, begun: stream, stream });
    }
    assert.deepEqual(lasting(), ['cut p']);
  }
});

test('streams that break beside as many that do not are half of all tries', (t) => {
  const { ask, lasting } = start(t);
  for (let round = 0; round < 3; round += 1) {
    ask('m', undefined, { begun: false });
    ask('m', { problem: 'cut' }, { begun: true });
  }
  assert.deepEqual(lasting(), ['cut p']);
});

test("clients' mistakes and the gateway's own failures count for no provider", (t) => {
  const { ask, incidents, lasting, pass } = start(t);
  ask('m', { upstreamStatus: 400, scope: 'client' }, { count: 20 });
  assert.equal(incidents.advance(), false);
  const cause = 'EMFILE: open files';
  ask('m', { kind: 'internal', problem: 'descriptors', cause }, { count: 20 });
  assert.deepEqual(lasting(), ['descriptors']);
  pass(45);
  assert.deepEqual(lasting(), []);
});

test('a look at incidents begins, ends and counts nothing', (t) => {
  const { ask, incidents, lines, pass, reported } = start(t);
  ask('m', DOWN, { count: 5 });
  assert.deepEqual([reported(), lines], [[], []]);
  incidents.advance();
  for (let look = 0; look < 5; look += 1) assert.equal(reported()[0]!.failures, 5);
  pass(21);
  ask('m');
  for (let look = 0; look < 5; look += 1) assert.equal(reported().length, 1);
  incidents.advance();
  assert.deepEqual([reported(), lines.length], [[], 2]);
});

test('the ten most affected names and their clients are listed', (t) => {
  const { ask, facts, incidents, lasting } = start(t);
  ask('m', DOWN, { count: 5 });
  for (let at = 0; at < 120; at += 1) {
    ask(`n-${at}`, DOWN, { count: at === 60 ? 3 : 1, client: `c-${at}` });
    ask('m', DOWN, { client: `c-${at}` });
  }
  lasting();
  const { affected, more } = facts()[0]!;
  const names = affected.map(({ name, failed }) => [name, failed]);
  assert.deepEqual([names.length, names[0], names[1], more], [10, ['m', 125], ['n-60', 3], 90]);
  assert.match(affected[0]!.clients!, /^agents, c-0, .* and 90 more$/);
  const { clients } = incidents.report().lasting[0]!.requests;
  assert.deepEqual([clients[0]![0], clients.length], ['agents', 10]);
});

test('requests to models that work are not affected', (t) => {
  const { ask, facts, lasting } = start(t);
  ask('small', BROKEN, { count: 5 });
  ask('big', undefined, { count: 5 });
  ask('small');
  ask('small', BROKEN, { provider: 'q' });
  // For example, the gateway's own time limit.
  ask('big', { kind: 'timeout', scope: 'gateway' });
  lasting();
  const names = facts()[0]!.affected.map(({ name, failed, good }) => [name, failed, good]);
  assert.deepEqual(names, [['small', 5, 1]]);
});

test('an incident began with the first failure of all its models', (t) => {
  const { ask, facts, lasting, pass, timeOf } = start(t);
  ask('b', undefined, { count: 2 });
  ask('b', BROKEN);
  pass(2);
  ask('a', BROKEN, { count: 5 });
  lasting();
  const [{ models, since } = assert.fail()] = facts();
  assert.deepEqual([models!.map(({ model }) => model), since], [['a', 'b'], timeOf(0)]);
});

test('an incident began with its first failing try, or when a stream broke', (t) => {
  const { ask, facts, lasting, pass, timeOf } = start(t);
  pass(60);
  ask('a', BROKEN, { count: 5, ago: 20 });
  ask('b', BROKEN, { count: 20, ago: 20, begun: true });
  lasting();
  const [{ models, since } = assert.fail()] = facts();
  assert.deepEqual(
    models!.map((one) => [one.model, one.since]),
    [
      ['b', timeOf(60)],
      ['a', timeOf(40)],
    ],
  );
  assert.equal(since, timeOf(40));
});

test('a model with a long name is counted with all others like it', (t) => {
  const { ask, lasting } = start(t);
  ask('m', undefined, { count: 20 });
  ask('x'.repeat(257), BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p (other models)']);
  ask('x'.repeat(256), BROKEN, { count: 6 });
  assert.match(lasting()[0]!, /^errors p x{128} /);
});

test('an incident that lasts for days keeps at most 300 of its models', (t) => {
  const { ask, ended, facts, pass } = start(t);
  ask('dead', BROKEN, { count: 5 });
  for (let round = 0; round < 10; round += 1) {
    for (let at = 0; at < 100; at += 1) ask(`made-up-${round}-${at}`, BROKEN, { count: 3 });
    pass(1);
    for (let at = 0; at < 100; at += 1) ask(`made-up-${round}-${at}`, undefined, { count: 50 });
    pass(70);
    ask('dead', BROKEN);
  }
  assert.equal(facts()[0]!.models!.length, 1);
  ask('dead', undefined, { count: 50 });
  const [{ models, more_models: more = 0 } = assert.fail()] = ended();
  assert.ok(models!.length + more <= 300, `${more} more`);
});

test('a model that fails is not forgotten for names that clients make up', (t) => {
  const { ask, ended, lasting, pass } = start(t);
  ask('dead', BROKEN, { count: 5 });
  pass(61);
  for (let at = 0; at < 1000; at += 1) ask(`made-up-${at}`);
  assert.deepEqual(lasting(), ['errors p dead']);
  ask('dead');
  assert.deepEqual([lasting(), ended().length], [[], 1]);
});

test('names that clients make up take no more memory than 200 of them', (t) => {
  const { ask, facts, lasting, pass } = start(t);
  for (let at = 0; at < 1000; at += 1) ask(`made-up-${at}`);
  ask('x'.repeat(300), BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p (other models)'], 'a long name is not shown');
  pass(61);
  ask('late', BROKEN, { count: 5 });
  ask('other');
  assert.deepEqual(lasting(), ['errors p (other models) late']);
  pass(1000);
  for (let at = 0; at < 300; at += 1) ask(`dead-${at}`, BROKEN, { count: 5 });
  lasting();
  const [{ models, more_models: more = 0 } = assert.fail()] = facts();
  assert.equal(models!.length + more, 201);
  assert.deepEqual([models![0]!.model, models![0]!.failures], ['(other models)', 500]);
});

test('states last until they are right again, and events until it is quiet', (t) => {
  const { ended, facts, incidents, lasting, logged, pass, timeOf } = start(t);
  incidents.reportState('reload', 'port: found "x", and 1 more');
  incidents.reportState('model_list', 'status 500', P.subject);
  incidents.reportState('log_lines', 'ENOSPC: no space left on device');
  assert.deepEqual(lasting(), ['reload', 'model_list p', 'log_lines'], 'the oldest first');
  assert.equal(facts()[0]!.cause, 'port: found "x", and 1 more');
  pass(44);
  incidents.reportState('log_lines', 'ENOSPC: no space left on device');
  pass(44);
  assert.equal(lasting().length, 3);
  pass(1);
  assert.deepEqual(lasting(), ['reload', 'model_list p']);
  incidents.reportState('reload', undefined);
  incidents.reportState('model_list', undefined, P.subject);
  incidents.reportState('model_list', undefined, Q.subject);
  assert.deepEqual(
    ended().map(({ kind, ended: at }) => [kind, at]),
    [
      ['model_list', timeOf(89)],
      ['reload', timeOf(89)],
      ['log_lines', timeOf(44)],
    ],
  );
  assert.equal(incidents.counts.get('log_lines'), 1);
  assert.ok(
    logged().every((line) => !line.includes('log_lines')),
    'its line would be lost',
  );
});

test('the store is away after a second without an answer', (t) => {
  const { incidents, lasting, lines, pass } = start(t);
  const fail = () => incidents.reportState('store', '10.0.0.9:6379: no answer in 50 ms');
  for (let late = 0; late < 5; late += 1) {
    for (let at = 0; at < 5; at += 1) fail();
    incidents.advance();
    incidents.reportState('store', undefined);
    pass(1);
  }
  assert.deepEqual([lasting(), lines], [[], []], 'a busy machine makes it late now and then');
  fail();
  pass(1);
  assert.deepEqual(lasting(), ['store']);
  incidents.reportState('store', undefined);
  assert.deepEqual(lasting(), []);
});

test('times of day come from the clock at that time, whatever is set later', (t) => {
  const { ask, ended, facts, pass, setClock, timeOf } = start(t);
  ask('m', { upstreamStatus: 429, retryAfterSeconds: 7 }, { count: 3 });
  setClock(3600);
  pass(10);
  const [{ since, until } = assert.fail()] = facts();
  assert.deepEqual([since, until], [timeOf(0), timeOf(7)]);
  ask('m');
  pass(20);
  ask('m');
  assert.deepEqual(ended()[0]!.ended, timeOf(3600 + 10));
  ask('n', BROKEN, { count: 3 });
  assert.equal(facts()[0]!.since, timeOf(3600 + 30));
});

test('a clock set by more than a minute is an incident until it has stood for a while', (t) => {
  const { ended, incidents, lasting, lines, pass, setClock } = start(t);
  const check = (seconds: number) => {
    pass(5);
    setClock(seconds);
    incidents.checkClock();
    return lasting();
  };
  for (const seconds of [0, 59, -59, 60]) assert.deepEqual(check(seconds), []);
  assert.deepEqual(check(3600), ['clock']);
  assert.deepEqual(check(0), ['clock']);
  pass(45);
  assert.deepEqual(lasting(), []);
  assert.equal(ended()[0]!.cause, 'set 3600 s ahead');
  pass(60);
  assert.deepEqual(check(-86_400), ['clock']);
  const causes = lines.map(([line, { cause }]) => `${line}: ${cause as string}`);
  assert.deepEqual(causes, [
    'warn incident: set 3600 s ahead',
    'info incident ended: set 3600 s ahead',
    'warn incident: set 86400 s back',
  ]);
});

test('a state that is found late began and ended earlier', (t) => {
  const { ended, facts, incidents, pass, timeOf } = start(t);
  incidents.reportState('slow', 'first token after 900 ms, 200 ms before', P.subject, 30_000);
  assert.equal(facts()[0]!.since, timeOf(-30));
  pass(120);
  incidents.reportState('slow', undefined, P.subject, 30_000);
  assert.equal(ended()[0]!.ended, timeOf(90));
});

test('requests of a slow provider are those that were slow', (t) => {
  const { ask, facts, incidents } = start(t);
  incidents.reportState('slow', 'every fourth connect takes at least 900 ms', P.subject);
  P.subject.slowFrom = { connect: 400 };
  ask('m', undefined, { ago: 5 });
  ask('m', undefined, { ago: 0.399, connection: 'new' });
  ask('m', undefined, { ago: 0.9, connection: 'new', lookupMs: 600 });
  assert.deepEqual(facts()[0]!.affected, []);
  ask('m', undefined, { ago: 0.4, connection: 'new' });
  P.subject.slowFrom = { first_token: 800 };
  ask('m', undefined, { ago: 0.799 });
  ask('m', undefined, { ago: 0.9, lookupMs: 600 });
  ask('n', undefined, { ago: 0.8 });
  assert.deepEqual(
    facts()[0]!.affected.map(({ name, good }) => [name, good]),
    [
      ['m', 1],
      ['n', 1],
    ],
  );
});

test('the clients of an incident have the worst result of their requests', (t) => {
  const { ask, facts, incidents } = start(t);
  ask('m', DOWN, { count: 5, client: 'ci' });
  for (const client of ['ci', 'web']) ask('m', DOWN, { by: 'q', client });
  incidents.reportState('slow', 'first token after 4 s', Q.subject);
  Q.subject.slowFrom = { first_token: 0 };
  ask('m', undefined, { provider: 'q', client: 'web' });
  facts();
  assert.deepEqual(
    incidents.report().lasting.map(({ requests }) => requests.clients),
    [
      [
        ['ci', 'failed'],
        ['web', 'answered'],
      ],
      [['web', 'slow']],
    ],
  );
});

test('requests of slow lookups are those that waited for one', (t) => {
  const { ask, facts, incidents } = start(t);
  incidents.reportState('lookup_slow', 'lookup of p.test takes up to 4.0 s', P.subject);
  ask('m');
  ask('m', undefined, { lookupMs: 499 });
  assert.deepEqual(facts()[0]!.affected, []);
  ask('m', undefined, { lookupMs: 500 });
  ask('m', undefined, { lookupMs: 4000, provider: 'q' });
  assert.deepEqual(
    facts()[0]!.affected.map(({ name, good, clients }) => [name, good, clients]),
    [['m', 1, 'agents']],
  );
});

test('good requests are counted while an incident lasts, until its end is known', (t) => {
  const { ask, ended, facts, pass } = start(t);
  ask('m', DOWN, { count: 5 });
  ask('m', undefined, { count: 2 });
  assert.deepEqual([facts()[0]!.failures, facts()[0]!.affected[0]!.good], [5, 2]);
  for (let at = 0; at < 16; at += 1) {
    pass(5);
    ask('m');
  }
  const [{ failures, affected } = ended()[0]!] = ended();
  assert.deepEqual([failures, affected[0]!.failed, affected[0]!.good], [5, 5, undefined]);
});

test('requests without memory or descriptors are listed by name and client', (t) => {
  for (const [kind, details] of [
    ['memory', { limit: 'memory' }],
    ['descriptors', { problem: 'descriptors' }],
  ] as const) {
    const { facts, incidents } = start(t);
    const history = new RequestHistory();
    Object.assign(history, { client: 'agents', model: 'fast' });
    history.failure = new GatewayError(kind === 'memory' ? 'rateLimit' : 'internal', 'x', details);
    incidents.recordFailure(new Attempt(M, ''), history.failure);
    for (let at = 0; at < 2; at += 1) incidents.recordRequest(history, history.failure.outcome);
    const [{ kind: found, affected, provider } = facts()[0]!] = facts();
    assert.deepEqual([found, provider], [kind, undefined]);
    const { name, failed, good, clients } = affected[0]!;
    assert.deepEqual(
      { name, failed, good, clients },
      { name: 'fast', failed: 2, good: undefined, clients: 'agents' },
    );
  }
});

test('requests without memory for their body are listed by client', (t) => {
  const { facts, incidents, lasting, pass } = start(t);
  const history = new RequestHistory();
  history.client = 'agents';
  history.failure = new GatewayError('rateLimit', 'x', { limit: 'memory' });
  incidents.recordRequest(history, history.failure.outcome);
  const [{ cause, affected } = assert.fail()] = facts();
  const { name, failed, clients } = affected[0]!;
  assert.deepEqual([name, failed, clients], ['(model unknown)', 1, 'agents']);
  assert.equal(cause, 'max_buffered_bytes');
  pass(44);
  assert.deepEqual(lasting(), ['memory']);
  pass(1);
  assert.deepEqual(lasting(), []);
});

test("a provider's state is part of its incident, behind failing requests", (t) => {
  const { ask, facts, incidents, lasting, logged, pass } = start(t);
  incidents.reportState('model_list', 'ECONNREFUSED', P.subject);
  assert.deepEqual(lasting(), ['model_list p']);
  ask('m', DOWN, { count: 5 });
  for (let at = 0; at < 9; at += 1) incidents.reportState('key_refused', 'key 2: 401', P.subject);
  assert.deepEqual(lasting(), ['unreachable p']);
  const states = facts()[0]!.states!.map(({ kind, cause }) => `${kind}: ${cause}`);
  assert.deepEqual(states, ['model_list: ECONNREFUSED', 'key_refused: key 2: 401']);
  pass(21);
  ask('m');
  incidents.reportState('model_list', undefined, P.subject);
  assert.deepEqual(lasting(), ['key_refused p']);
  assert.equal(facts()[0]!.models, undefined);
  incidents.reportState('key_refused', undefined, P.subject);
  assert.deepEqual(lasting(), []);
  assert.deepEqual(logged(), [
    'warn incident model_list p',
    'warn incident unreachable p m',
    'warn incident key_refused p',
    'info incident ended unreachable p m',
  ]);
});

test('the states of an incident are listed without its models and its first state', (t) => {
  const { ask, facts, incidents } = start(t);
  const kinds = () =>
    facts().map(({ kind, states, all_models: all }) => [kind, states?.map((one) => one.kind), all]);
  incidents.reportState('model_list', 'ECONNREFUSED', P.subject);
  assert.deepEqual(kinds(), [['model_list', undefined, undefined]]);
  incidents.reportState('key_refused', 'key 2: 401', P.subject);
  assert.deepEqual(kinds(), [['model_list', ['key_refused'], undefined]]);
  for (const model of ['a', 'b']) ask(model, DOWN, { count: 5 });
  assert.deepEqual(kinds(), [['unreachable', ['model_list', 'key_refused'], true]]);
});

test('the key of the latest failure is given by its place among the keys, from 1', (t) => {
  const { facts, failures, incidents } = start(t);
  for (const key of [0, 0, 1]) {
    const attempt = new Attempt(M, '', key);
    incidents.recordFailure(attempt, failures({ scope: 'key' }));
  }
  assert.deepEqual(
    facts().map(({ kind, key }) => [kind, key]),
    [['key_refused', 2]],
  );
});

test('the latest 50 incidents that have ended are kept', (t) => {
  const { ended, incidents, timeOf, pass } = start(t);
  assert.deepEqual(ended(), []);
  for (let round = 0; round < 60; round += 1) {
    incidents.reportState('model_list', 'status 500', P.subject);
    pass(1);
    incidents.reportState('model_list', undefined, P.subject);
    pass(1);
  }
  const times = ended().map((one) => one.ended);
  assert.deepEqual([times.length, times[0], times[49]], [50, timeOf(119), timeOf(21)]);
});

test('a provider whose keys are all refused is one incident, counted once', (t) => {
  const { ask, incidents, lasting, logged, pass } = start(t);
  const refused = { scope: 'key' as const };
  for (let round = 0; round < 4; round += 1) {
    ask('m', refused, { count: 2 });
    incidents.reportState('key_refused', 'key 1: 401, key 2: 401', P.subject);
    pass(1);
    assert.deepEqual(lasting(), ['key_refused p']);
  }
  pass(21);
  incidents.reportState('key_refused', undefined, P.subject);
  ask('m');
  assert.deepEqual(lasting(), []);
  assert.deepEqual([...incidents.counts], [['key_refused', 1]]);
  assert.deepEqual(logged(), [
    'warn incident key_refused p',
    'info incident ended key_refused p m',
  ]);
});

test('a provider with changed settings is another: its incident ends', (t) => {
  const { ask, ended, incidents, lasting, newSubject } = start(t);
  ask('m', DOWN, { count: 5 });
  ask('m', DOWN, { count: 5, provider: 'q' });
  incidents.reportState('model_list', 'status 500', P.subject);
  lasting();
  incidents.dispose(P.subject);
  assert.equal(ended().length, 1);
  assert.deepEqual(lasting(), ['unreachable q']);
  ask('m', DOWN, { count: 9 });
  ask('m');
  incidents.reportState('model_list', 'status 500', P.subject);
  incidents.reportState('key_refused', 'key 1: 401', P.subject);
  assert.deepEqual(lasting(), ['unreachable q']);
  P.subject = newSubject('p');
  ask('m', DOWN, { count: 3 });
  assert.deepEqual(lasting().toSorted(), ['unreachable p', 'unreachable q']);
});

test('a provider that leaves the settings takes its incident with it', (t) => {
  const { ask, ended, incidents, lasting } = start(t);
  incidents.reportState('model_list', 'status 500', Q.subject);
  ask('m', DOWN, { count: 5, provider: 'q' });
  ask('m', DOWN, { count: 5 });
  assert.equal(lasting().length, 2);
  incidents.dispose(Q.subject);
  assert.deepEqual(lasting(), ['unreachable p']);
  assert.equal(ended().length, 1);
  ask('m', DOWN, { count: 5, provider: 'q' });
  assert.deepEqual(lasting(), ['unreachable p']);
});

test('the latest failure of each provider is known, also after the end of its incident', (t) => {
  const { ask, ended, incidents, pass } = start(t, 1_000_000);
  const failed = () => [...incidents.report().failedAtMs];
  ask('m', BROKEN, { count: 5 });
  pass(21);
  ask('m', undefined, { count: 20 });
  assert.deepEqual([ended().length, failed()], [1, [['p', 1_000_000]]]);
  pass(20);
  ask('m', BROKEN);
  ask('m', undefined, { count: 19 });
  assert.deepEqual([ended().length, incidents.report().suspected.size], [1, 0]);
  assert.deepEqual(failed(), [['p', 1_041_000]]);
  // A try at the provider of former settings fails after the reload.
  incidents.dispose(P.subject);
  pass(1);
  ask('m', BROKEN);
  assert.deepEqual(failed(), [['p', 1_042_000]]);
  pass(61);
  incidents.dispose(Q.subject);
  assert.deepEqual(failed(), []);
});

test('a failure is the gateway\u2019s own without a failed try, a client\u2019s limit and an incident', (t) => {
  const cases: [isOwn: boolean, outcome: Outcome, failure: GatewayError, tried?: 'circuit_open'][] =
    [
      [true, 'internal_error', new GatewayError('internal', 'x')],
      [true, 'rate_limited', new GatewayError('rateLimit', 'x', { limit: 'global' })],
      [true, 'rate_limited', new GatewayError('rateLimit', 'x', { limit: 'provider_concurrency' })],
      [false, 'rate_limited', new GatewayError('rateLimit', 'x', { limit: 'client_concurrency' })],
      [false, 'rate_limited', new GatewayError('rateLimit', 'x', { limit: 'memory' })],
      [false, 'internal_error', new GatewayError('internal', 'x', { problem: 'descriptors' })],
      [false, 'refused', new GatewayError('invalidRequest', 'x')],
      [false, 'client_closed', new GatewayError('provider', 'x')],
      [true, 'upstream_error', new GatewayError('provider', 'x')],
      [false, 'upstream_error', new GatewayError('provider', 'x'), 'circuit_open'],
    ];
  for (const [isOwn, outcome, failure, tried] of cases) {
    const { incidents } = start(t);
    const history = new RequestHistory();
    history.failure = failure;
    if (tried) history.addAttempt(new Attempt(M, '')).outcome = tried;
    incidents.recordRequest(history, outcome);
    assert.equal(incidents.report().failedAtMs.has(undefined), isOwn, `${outcome} ${tried}`);
  }
  const { ask, incidents } = start(t);
  ask('m', { upstreamStatus: 429 });
  ask('m', BROKEN);
  assert.deepEqual([...incidents.report().failedAtMs.keys()], ['p']);
});

test('failures that are too few when an incident ends may become the next', (t) => {
  const { ask, ended, facts, lasting, pass, timeOf } = start(t);
  ask('a', BROKEN, { count: 5 });
  lasting();
  pass(21);
  ask('b', undefined, { count: 3 });
  ask('b', BROKEN);
  ask('a');
  assert.deepEqual([lasting(), ended().length], [[], 1]);
  ask('b', BROKEN, { count: 4, client: 'web' });
  assert.deepEqual(lasting(), ['errors p b']);
  const [{ since, failures, affected } = assert.fail()] = facts();
  assert.deepEqual([since, failures], [timeOf(21), 5]);
  assert.deepEqual([affected[0]!.failed, affected[0]!.clients], [4, 'web']);
});

const STALLED = { kind: 'timeout', cause: 'no event in 1000 ms' } as const;

test('streams that stall are an incident beside complete answers that are good', (t) => {
  const { ask, ended, facts, lasting, pass, timeOf } = start(t);
  for (let second = 0; second < 30; second += 1) {
    ask('m', undefined, { count: 4 });
    ask('m', STALLED, { begun: true, stream: true });
    pass(1);
  }
  assert.deepEqual(lasting(), ['stall p m']);
  const [{ models, affected } = assert.fail()] = facts();
  assert.deepEqual(
    models!.map(({ model, stream, failures }) => [model, stream, failures]),
    [['m', true, 30]],
  );
  const [{ failed, good } = assert.fail()] = affected;
  assert.deepEqual([failed, good], [30, 0], 'the complete answers have not met the fault');
  ask('m', undefined, { count: 100 });
  assert.deepEqual(lasting(), ['stall p m'], 'not until a stream is good');
  pass(20);
  ask('m', undefined, { stream: true });
  assert.deepEqual([lasting(), ended()[0]!.ended], [[], timeOf(50)]);
});

test('a stall is since the stream fell silent, and another cause has its status', (t) => {
  const { ask, facts, pass, timeOf } = start(t);
  pass(30);
  ask('m', { ...STALLED, silentMs: 20_000 }, { begun: true, stream: true, count: 3 });
  assert.equal(facts()[0]!.since, timeOf(10));
  ask('n', { ...BROKEN, cause: 'no capacity', upstreamStatus: 503 }, { count: 9 });
  ask('n', { ...BROKEN, cause: '503, text/html', upstreamStatus: 503 }, { count: 9 });
  const causeOfN = () => facts()[0]!.models!.find(({ model }) => model === 'n')!.cause;
  assert.equal(causeOfN(), '503, text/html');
  ask('n', { ...BROKEN, cause: 'no capacity', upstreamStatus: 503 });
  assert.equal(causeOfN(), '503: no capacity');
});

test('complete answers that fail are an incident beside streams that are good', (t) => {
  const { ask, facts, lasting } = start(t);
  ask('m', undefined, { count: 50, stream: true });
  ask('m', BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p m']);
  assert.deepEqual(facts()[0]!.models![0]!.stream, false);
});

test('a model whose streams and complete answers fail is listed once', (t) => {
  const { ask, ended, facts, lasting, pass, timeOf } = start(t);
  ask('m', BROKEN, { count: 5 });
  lasting();
  pass(2);
  ask('m', STALLED, { count: 7, begun: true, stream: true, client: 'web' });
  lasting();
  const [{ kind, models, more_models: more, affected, failures } = assert.fail()] = facts();
  assert.deepEqual([kind, failures, more], ['stall', 12, undefined]);
  const [{ ...model } = assert.fail(), ...others] = models!;
  assert.deepEqual(others, []);
  assert.deepEqual(
    [model.model, model.stream, model.kind, model.since, model.failures],
    ['m', undefined, 'stall', timeOf(0), 12],
  );
  assert.deepEqual(
    affected.map(({ name, failed, clients }) => [name, failed, clients]),
    [['m', 12, 'agents, web']],
  );
  pass(21);
  ask('m');
  pass(1);
  const [{ models: left } = assert.fail()] = facts();
  assert.deepEqual([left!.length, left![0]!.stream, left![0]!.failures], [1, true, 7]);
  ask('m', undefined, { stream: true });
  const [{ models: gone } = assert.fail()] = ended();
  assert.deepEqual(
    gone!.map((one) => [one.model, one.failures, one.since, one.ended]),
    [['m', 12, timeOf(0), timeOf(24)]],
  );
});

test('five failed streams in a row make their models fail beside good complete answers', (t) => {
  const { ask, facts, lasting } = start(t);
  for (const model of ['a', 'b']) ask(model, undefined, { count: 20, stream: true });
  for (let round = 0; round < 5; round += 1) {
    assert.deepEqual(lasting(), [], `after ${round}`);
    ask('a');
    ask(round < 4 ? 'a' : 'b', BROKEN, { stream: true });
  }
  lasting();
  const names = facts()[0]!.models!.map(({ model, stream }) => [model, stream]);
  assert.deepEqual(names, [
    ['a', true],
    ['b', true],
  ]);
});

test('three failures in a row are an incident, whether of streams or not', (t) => {
  const { ask, lasting } = start(t);
  ask('m', DOWN, { stream: true });
  ask('m', DOWN);
  assert.deepEqual(lasting(), []);
  ask('m', DOWN, { stream: true });
  assert.deepEqual(lasting(), ['unreachable p']);
});

test("the circuit of a model's streams does not keep its complete answers in an incident", (t) => {
  const { ask, facts, lasting, open } = start(t);
  ask('m', undefined, { count: 9, stream: true });
  ask('m', undefined, { count: 9 });
  ask('m', BROKEN, { stream: true });
  ask('m', BROKEN);
  open(['p', 'm', true]);
  assert.deepEqual(lasting(), ['errors p m']);
  assert.deepEqual(facts()[0]!.models![0]!.stream, true);
  open(['p']);
  lasting();
  assert.equal(facts()[0]!.models![0]!.stream, undefined, "the provider's own is for both");
});

test('the names in an incident are those of requests to its models', (t) => {
  const { ask, facts, incidents, lasting, pass } = start(t);
  const names = () => facts()[0]!.affected.map(({ name, failed }) => [name, failed]);
  ask('well', undefined, { count: 5 });
  ask('well', BROKEN, { client: 'first' });
  ask('well');
  ask('dead', BROKEN, { count: 5, client: 'second' });
  assert.deepEqual([lasting(), names()], [['errors p dead'], [['dead', 5]]]);
  assert.equal(incidents.report().lasting[0]!.requests.clients[0]![0], 'second');
  // Its earlier failures count once the incident has it.
  ask('well', BROKEN, { count: 5, client: 'first' });
  lasting();
  assert.deepEqual(names(), [
    ['well', 6],
    ['dead', 5],
  ]);
  assert.equal(incidents.report().lasting[0]!.requests.clients[0]![0], 'first');
  ask('other', undefined, { count: 5 });
  ask('other', BROKEN);
  ask('other');
  lasting();
  pass(30);
  ask('other', undefined, { count: 5 });
  lasting();
  // The failure before it recovered is none of this incident's.
  ask('other', BROKEN, { count: 5 });
  lasting();
  assert.deepEqual(
    names().find(([name]) => name === 'other'),
    ['other', 5],
  );
});

test('an alias is counted once, for a model of the incident if a try has met one', (t) => {
  const { failures, facts, incidents, lasting } = start(t);
  const ask = (models: readonly string[], isGood = false) => {
    const history = new RequestHistory();
    history.model = 'alias';
    for (const model of models) {
      const attempt = new Attempt({ provider: P, model, isStream: false }, '');
      history.addAttempt(attempt);
      history.attempt = attempt;
      attempt.decidedAtMs = performance.now();
      if (isGood && model === models.at(-1)) incidents.addGood(attempt);
      else incidents.recordFailure(attempt, failures(BROKEN));
    }
    incidents.recordRequest(history, isGood ? 'ok' : 'upstream_error');
  };
  const counts = () => {
    const [{ failed, answered, good } = assert.fail()] = facts()[0]!.affected;
    return [failed, answered, good];
  };
  for (let round = 0; round < 5; round += 1) ask(['a', 'b']);
  lasting();
  assert.deepEqual(counts(), [5, 0, 0], 'both fail');
  ask(['a', 'c'], true);
  assert.deepEqual(counts(), [5, 1, 0], 'another model has answered');
  ask(['c', 'a']);
  assert.deepEqual(counts(), [6, 1, 0], 'the second try has met the fault');
  ask(['b', 'a'], true);
  assert.deepEqual(counts(), [6, 1, 1], 'a model of the incident has answered');
});

test('a model that fails in both ways has failed since the first and until the last of them', (t) => {
  const { ask, ended, lasting, pass, timeOf } = start(t);
  ask('m', STALLED, { count: 5, begun: true, stream: true });
  lasting();
  pass(3);
  ask('m', BROKEN, { count: 9 });
  lasting();
  pass(21);
  ask('m');
  pass(10);
  ask('m', undefined, { stream: true });
  const [{ models } = assert.fail()] = ended();
  assert.deepEqual(
    models!.map(({ kind, failures, since, ended: at }) => [kind, failures, since, at]),
    [['errors', 14, timeOf(0), timeOf(34)]],
  );
});

test('an incident has the requests to models that are counted together', (t) => {
  const { ask, facts, lasting } = start(t);
  ask('m', undefined, { count: 20 });
  ask('x'.repeat(257), BROKEN, { count: 5 });
  assert.deepEqual(lasting(), ['errors p (other models)']);
  assert.deepEqual(
    facts()[0]!.affected.map(({ failed }) => failed),
    [5],
  );
});

test('the line of one kind of incident does not hold back the line of another', (t) => {
  const { ask, incidents, logged, pass } = start(t);
  incidents.reportState('model_list', 'status 500', P.subject);
  pass(1);
  incidents.reportState('model_list', undefined, P.subject);
  pass(1);
  ask('m', BROKEN, { count: 3 });
  pass(1);
  assert.deepEqual(logged(), [
    'warn incident model_list p',
    'info incident ended model_list p',
    'warn incident errors p m',
  ]);
});

test('an incident in the log has a line for each further kind, however soon', (t) => {
  const { ask, logged, pass } = start(t);
  ask('m', BROKEN, { count: 5 });
  pass(21);
  ask('m');
  pass(1);
  ask('m', { kind: 'timeout' }, { count: 5 });
  pass(1);
  ask('m', BROKEN, { count: 9 });
  pass(1);
  assert.deepEqual(logged(), [
    'warn incident errors p m',
    'info incident ended errors p m',
    'warn incident timeout p m',
    'warn incident errors p m',
  ]);
});
