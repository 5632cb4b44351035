/** The table of circuits. For their effects on requests, see wire-circuit.test.ts. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { type ErrorDetails, GatewayError } from '../../src/lib/errors.ts';
import { CircuitBreaker } from '../../src/policy/circuit-breaker.ts';
import { stopClock } from '../support/clock.ts';

const REST_MS = 10_000;

/** A model asked for complete answers. */
const target = (model: string) => ({ model, operation: 'chat', isStream: false });
const BROKEN = new GatewayError('provider', 'broken');
const UNREACHABLE = new GatewayError('provider', 'refused', { scope: 'provider' });

function startBreaker(t: TestContext, redact: (text: string) => string = String) {
  const lines: unknown[][] = [];
  const log = (...line: unknown[]) => lines.push(line);
  const breaker = new CircuitBreaker('p', { log, isEnabled: () => true }, redact);
  /** Records failures of a model, or of connections to the provider. */
  const fail = (count: number, model?: string) => {
    const failure = model === undefined ? UNREACHABLE : BROKEN;
    const asked = target(model ?? 'any');
    for (; count > 0; count -= 1) breaker.recordOutcome(asked, failure);
  };
  const state = (model: string) => breaker.stateOf(target(model));
  return { breaker, clock: stopClock(t), fail, lines, state };
}

test('the 1,000 models that failed last are kept, with names of up to 256 characters', (t) => {
  const { fail, lines, state } = startBreaker(t);
  fail(3, 'first');
  fail(3, 'kept');
  for (let index = 0; index < 998; index += 1) fail(1, `${index}`);
  assert.deepEqual([state('first'), state('kept')], ['open', 'open']);
  fail(1, 'one more');
  assert.deepEqual([state('first'), state('kept')], ['closed', 'open']);
  const closed = { provider: 'p', model: 'first', stream: false };
  assert.deepEqual(lines.at(-1), ['info', 'breaker closed', closed]);
  fail(3, 'x'.repeat(256));
  fail(1000, 'x'.repeat(257));
  assert.deepEqual([state('x'.repeat(256)), state('x'.repeat(257))], ['open', 'closed']);
});

test('a circuit opens for a provider without connections, until a model answers or fails', (t) => {
  const { breaker, clock, fail, lines, state } = startBreaker(t);
  const provider = { provider: 'p', model: undefined, stream: undefined };
  const reached = [BROKEN, undefined, new GatewayError('invalidRequest', 'refused')];
  for (const outcome of [...reached, BROKEN]) {
    fail(3);
    assert.equal(state('m'), 'open');
    breaker.recordOutcome(target('m'), outcome);
    assert.equal(state('m'), 'closed');
    assert.deepEqual(lines.at(-1), ['info', 'breaker closed', provider]);
  }
  assert.equal(lines.length, 8, 'a model that failed once has had no circuit to close');
  fail(3, 'm');
  clock.nowMs += REST_MS;
  const probe = breaker.beginProbe(target('m'));
  breaker.recordOutcome(target('m'), UNREACHABLE, probe);
  probe.release();
  clock.nowMs += 2 * REST_MS - 1;
  assert.equal(state('m'), 'open', 'its probe has failed too');
  clock.nowMs += 1;
  assert.equal(state('m'), 'half-open');
});

test('a rest takes 10, 20, 40 and then 60 s if probes fail, and 10 s after a success', (t) => {
  const { breaker, clock, fail, state } = startBreaker(t);
  const lastsFor = (ms: number) => {
    clock.nowMs += ms - 1;
    assert.equal(state('m'), 'open', `until ${ms} ms have passed`);
    clock.nowMs += 1;
    assert.equal(state('m'), 'half-open', `after ${ms} ms`);
  };
  const probe = () => breaker.beginProbe(target('m'));
  fail(3, 'm');
  lastsFor(REST_MS);
  for (const seconds of [20, 40, 60, 60]) {
    const begun = probe();
    // A request from before the circuit opened fails late.
    fail(1, 'm');
    breaker.recordOutcome(target('m'), BROKEN, begun);
    begun.release();
    lastsFor(1000 * seconds);
  }
  const undecided = probe();
  fail(1, 'm');
  undecided.release();
  assert.equal(state('m'), 'half-open', 'the late failure of an older request has no effect');
  probe();
  breaker.recordOutcome(target('m'), undefined);
  fail(3, 'm');
  // Requests sent before the rest began do not make it longer.
  fail(2, 'm');
  lastsFor(REST_MS);
  probe().release();
  fail(1, 'm');
  lastsFor(REST_MS);
});

test('a circuit is reported with the end of its rest, unless it is closed', (t) => {
  const { breaker, clock, fail } = startBreaker(t);
  const rest = { cooldownMs: REST_MS, isProbed: false };
  const ofModel = { operation: 'chat', isStream: false, ...rest };
  const short = () => breaker.report().map((one) => [one.model, one.state, one.halfOpenAtMs]);
  fail(3, 'a');
  fail(1, 'failed once');
  clock.nowMs += 6000;
  fail(4, 'b');
  const untilMs = clock.nowMs + REST_MS;
  assert.deepEqual(breaker.report(), [
    { state: 'open', model: 'a', failures: 3, ...ofModel, halfOpenAtMs: untilMs - 6000 },
    { state: 'open', model: 'b', failures: 4, ...ofModel, halfOpenAtMs: untilMs },
  ]);
  clock.nowMs += 4000;
  const ofB = ['b', 'open', untilMs];
  assert.deepEqual(short(), [['a', 'half-open', untilMs - 6000], ofB]);
  breaker.beginProbe(target('a'));
  assert.deepEqual(short(), [['a', 'open', clock.nowMs + REST_MS], ofB]);
  breaker.recordOutcome(target('b'), undefined);
  assert.equal(breaker.report().length, 1);
  fail(3);
  const own = { model: undefined, operation: undefined, isStream: undefined, failures: 3 };
  const halfOpenAtMs = clock.nowMs + REST_MS;
  const reported = { state: 'open', ...own, ...rest, halfOpenAtMs };
  assert.deepEqual(breaker.report().at(-1), reported);
});

test('an outage counts, another failure is an answer, and a doubtful one is neither', (t) => {
  const failure = (details: ErrorDetails) => new GatewayError('api', 'boom', details);
  /** Records the failure after two outages. */
  const effectOf = (error: GatewayError, isBalanced: boolean) => {
    const { breaker, fail, state } = startBreaker(t);
    fail(2, 'm');
    breaker.recordOutcome({ ...target('m'), isBalanced }, error);
    if (state('m') === 'open') return 'failure';
    fail(1, 'm');
    return state('m') === 'open' ? 'neither' : 'answer';
  };
  const outages = [502, 503, 504, 529].map((status) => failure({ status }));
  const answers = [501, 404, 429].map((status) => failure({ status }));
  answers.push(failure({ status: 401, scope: 'key' }));
  for (const error of outages) assert.equal(effectOf(error, false), 'failure');
  for (const error of answers) assert.equal(effectOf(error, false), 'answer');
  // The gateway chose the target of a balanced alias, and another target may have the right key.
  for (const error of answers.slice(1)) assert.equal(effectOf(error, true), 'failure');
  assert.equal(effectOf(failure({ status: 404, problem: 'model gone' }), false), 'failure');
  const doubtful = [
    failure({ status: 500 }),
    failure({ status: 429, scope: 'client' }),
    failure({ status: 503, scope: 'client' }),
  ];
  for (const error of doubtful) {
    assert.equal(effectOf(error, false), 'neither', `${error.status}`);
    assert.equal(effectOf(error, true), 'neither', `${error.status}, balanced`);
  }
});

test('failed connections open the circuit of the provider for all models', (t) => {
  const { breaker, fail, state } = startBreaker(t);
  for (let round = 0; round < 3; round += 1) {
    assert.equal(state('other'), 'closed');
    breaker.recordOutcome(target('m'), UNREACHABLE);
  }
  assert.deepEqual([state('m'), state('other')], ['open', 'open']);
  fail(1, 'other');
  assert.deepEqual([state('m'), state('other')], ['closed', 'closed']);
});

test('a probing stream succeeds once, with data ten seconds after its first', (t) => {
  const { breaker, clock, fail, state } = startBreaker(t);
  fail(3, 'm');
  clock.nowMs += REST_MS;
  const probe = breaker.beginProbe(target('m'));
  probe.onData();
  clock.nowMs += 9999;
  probe.onData();
  assert.equal(state('m'), 'open');
  clock.nowMs += 1;
  probe.onData();
  assert.equal(state('m'), 'closed');
  fail(3, 'm');
  probe.onData();
  assert.equal(state('m'), 'open', 'it failed after its success');
});

test('a replaced provider closes its circuits, and ignores its late failures', (t) => {
  const { breaker, fail, lines, state } = startBreaker(t);
  fail(3, 'm');
  fail(1, 'other');
  breaker.dispose();
  const fields = { provider: 'p', model: 'm', stream: false, reason: 'reload' };
  assert.deepEqual(lines.at(-1), ['info', 'breaker closed', fields]);
  assert.equal(lines.length, 2);
  for (const model of ['m', undefined]) fail(3, model);
  assert.equal(state('m'), 'closed');
  assert.equal(lines.length, 2);
});

test('an opened circuit is logged once as a warning, and its report is redacted', (t) => {
  const redact = (text: string) => text.replace('secret', '***');
  const { breaker, fail, lines } = startBreaker(t, redact);
  fail(4, 'a secret\n');
  const messages = lines.map(([level, message]) => `${String(level)} ${String(message)}`);
  assert.deepEqual(messages, ['warn breaker opened', 'debug breaker stays open']);
  assert.equal(breaker.report()[0]!.model, String.raw`a ***\u000a`);
});

test('the endpoints of a model have circuits of their own', (t) => {
  const { breaker, lines, state } = startBreaker(t);
  const message = { ...target('m'), operation: 'messages' };
  for (let round = 0; round < 3; round += 1) {
    breaker.recordOutcome(message, BROKEN);
    breaker.recordOutcome(target('m'), undefined);
  }
  assert.deepEqual([breaker.stateOf(message), state('m')], ['open', 'closed']);
  const fields = { provider: 'p', model: 'm', operation: 'messages', stream: false };
  const more = { cause: BROKEN.message, failures: 3, cooldown_ms: REST_MS };
  assert.deepEqual(lines, [['warn', 'breaker opened', { ...fields, ...more }]]);
});

test("a model's streams and its complete answers have circuits of their own", (t) => {
  const { breaker, clock, fail, lines, state } = startBreaker(t);
  const stream = { ...target('m'), isStream: true };
  const states = () => [breaker.stateOf(stream), state('m')];
  for (let round = 0; round < 3; round += 1) {
    breaker.recordOutcome(stream, BROKEN);
    // Neither an answer nor a failure of the other kind ends or extends the row.
    breaker.recordOutcome(target('m'), round === 1 ? BROKEN : undefined);
  }
  assert.deepEqual(states(), ['open', 'closed']);
  const fields = { provider: 'p', model: 'm', stream: true, cause: BROKEN.message };
  assert.deepEqual(lines, [
    ['warn', 'breaker opened', { ...fields, failures: 3, cooldown_ms: REST_MS }],
  ]);
  clock.nowMs += REST_MS;
  assert.deepEqual(states(), ['half-open', 'closed']);
  fail(3, 'm');
  const probe = breaker.beginProbe(stream);
  breaker.recordOutcome(stream, undefined, probe);
  assert.deepEqual(states(), ['closed', 'open']);
  fail(3);
  assert.deepEqual(states(), ['open', 'open'], 'without a connection');
});
