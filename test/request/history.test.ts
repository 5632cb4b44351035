/** How long a request took, and what the log has of its tries. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { GatewayError } from '../../src/lib/errors.ts';
import { Attempt, RequestHistory } from '../../src/request/history.ts';
import { stopClock } from '../support/clock.ts';

const FAILED = new GatewayError('provider', 'no');

function attemptAt(id: string): Attempt {
  const asked = { provider: { id, subject: {} }, model: 'm', isStream: false };
  return new Attempt(asked, `http://${id}`);
}

test("the providers' time spans all attempts that were sent, and the rest is the gateway's", (t) => {
  const clock = stopClock(t, 0);
  const history = new RequestHistory();
  /** Adds an attempt that begins now. */
  const begin = (id: string) => history.addAttempt(attemptAt(id));
  const skip = (id: string, outcome: 'limit' | 'circuit_open') => {
    begin(id).outcome = outcome;
  };
  assert.equal(history.timeSpent(1500), undefined, 'the body is not read');
  history.bodyReadAtMs = 1000;
  assert.deepEqual(history.timeSpent(1500), { gatewayMs: 500 });
  clock.nowMs = 1010;
  skip('a', 'circuit_open');
  assert.deepEqual(history.timeSpent(1500), { gatewayMs: 500 }, 'no provider was asked');
  clock.nowMs = 1020;
  const first = begin('b');
  clock.nowMs = 1120;
  first.recordEnd(FAILED);
  assert.deepEqual(history.timeSpent(1150), { gatewayMs: 50, upstreamMs: 100 });
  clock.nowMs = 1200;
  const second = begin('b');
  clock.nowMs = 1230;
  second.recordEnd(FAILED);
  clock.nowMs = 1240;
  skip('c', 'limit');
  assert.deepEqual(history.timeSpent(1300), { gatewayMs: 90, upstreamMs: 210 });
  clock.nowMs = 1250;
  const third = begin('d');
  assert.deepEqual(history.timeSpent(1300), { gatewayMs: 20, upstreamMs: 280 }, 'it runs');
  clock.nowMs = 1400;
  third.beginAnswer();
  assert.deepEqual(history.timeSpent(1407), { gatewayMs: 27, upstreamMs: 380 });
  clock.nowMs = 9000;
  third.recordEnd();
  assert.deepEqual(history.timeSpent(1407), { gatewayMs: 27, upstreamMs: 380 });
  assert.deepEqual(history.timeSpent(1390), { gatewayMs: 20, upstreamMs: 370 }, 'a comment came');
  assert.deepEqual(
    history.attempts.map((one) => [one.provider, one.toFacts().duration_ms]),
    [
      ['a', undefined],
      ['b', 100],
      ['b', 30],
      ['c', undefined],
      ['d', 150],
    ],
  );
  assert.deepEqual(history.asked, [first, second, third]);
});

test('a wait for a slot is time neither of the gateway nor of a provider', (t) => {
  const clock = stopClock(t, 0);
  const waited = (firstAtMs?: number) => {
    const history = new RequestHistory();
    history.bodyReadAtMs = 1000;
    clock.nowMs = firstAtMs ?? 0;
    if (firstAtMs !== undefined) history.addAttempt(attemptAt('q')).recordEnd(FAILED);
    history.waits = [{ beganAtMs: 1100, endedAtMs: 1400 }];
    return history;
  };
  const only = waited();
  assert.deepEqual(only.timeSpent(1410), { gatewayMs: 110, queueMs: 300 });
  clock.nowMs = 1405;
  const own = only.addAttempt(attemptAt('p'));
  clock.nowMs = 1600;
  own.beginAnswer();
  assert.deepEqual(only.timeSpent(1610), { gatewayMs: 115, upstreamMs: 195, queueMs: 300 });
  const early = { gatewayMs: 100, upstreamMs: 0, queueMs: 50 };
  assert.deepEqual(only.timeSpent(1150), early, 'a comment came during the wait');
  assert.equal(only.timeSpent(1050)!.queueMs, 0, 'a comment came before the wait');
  const behind = waited(1020);
  const failed = { gatewayMs: 110, upstreamMs: 0, queueMs: 300 };
  assert.deepEqual(behind.timeSpent(1410), failed, 'no slot came');
  clock.nowMs = 1405;
  behind.addAttempt(attemptAt('p'));
  assert.deepEqual(behind.timeSpent(1505), { gatewayMs: 20, upstreamMs: 185, queueMs: 300 });
  only.waits = [...only.waits, { beganAtMs: 1605, endedAtMs: 1615 }];
  clock.nowMs = 1620;
  only.addAttempt(attemptAt('q'));
  const twice = { gatewayMs: 105, upstreamMs: 215, queueMs: 310 };
  assert.deepEqual(only.timeSpent(1630), twice, 'the request has waited twice');
});

test('an attempt keeps the headers of its answer no longer than the answer takes to begin', () => {
  const attempt = attemptAt('a');
  attempt.headers = new Map([['x-long', 'x'.repeat(2000)]]);
  attempt.beginAnswer();
  assert.equal(attempt.headers, undefined);
});

test('the times of an attempt are those of its own connection', (t) => {
  const clock = stopClock(t, 1000);
  const facts = (connection: 'new' | 'reused') => {
    const attempt = attemptAt('a');
    clock.nowMs += 40;
    Object.assign(attempt, { connection, sentAtMs: clock.nowMs, lookupMs: 12.4 });
    clock.nowMs += 300;
    attempt.recordEnd(FAILED);
    const { connect_ms, duration_ms, lookup_ms } = attempt.toFacts();
    return [connect_ms, duration_ms, lookup_ms];
  };
  assert.deepEqual(facts('new'), [40, 340, 12]);
  assert.deepEqual(facts('reused'), [undefined, 340, 12]);
});

test('the last usage counts', () => {
  const attempt = attemptAt('a');
  for (const prompt_tokens of [1, 4]) attempt.noteUsage({ prompt_tokens });
  assert.equal(attempt.usage?.prompt_tokens, 4);
});

test('a usage without a count above 0 replaces none', () => {
  const attempt = attemptAt('a');
  attempt.noteUsage({});
  for (const name of ['prompt_tokens', 'completion_tokens', 'total_tokens'] as const) {
    attempt.noteUsage({ [name]: 7 });
    for (const empty of [{}, undefined, { [name]: 0 }, { [name]: '9' }]) attempt.noteUsage(empty);
    assert.equal(attempt.usage?.[name], 7);
  }
});
