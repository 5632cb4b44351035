/** The requests that an incident affects, by the faults that they have met. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import type { Outcome } from '../../src/lib/errors.ts';
import { AffectedRequests } from '../../src/incidents/affected-requests.ts';
import { Attempt, RequestHistory } from '../../src/request/history.ts';
import { stopClock } from '../support/clock.ts';

/** Starts an incident with the faults `has`, which the test may change. */
function start(t: TestContext, has: string[]) {
  const clock = stopClock(t, 1_000_000);
  const requests = new AffectedRequests((fault) => has.includes(fault));
  /** Ends a request for `name` a second later. */
  const end = (name: string, fault: string, client?: string, outcome: Outcome = 'timeout') => {
    clock.nowMs += 1000;
    const history = new RequestHistory();
    history.model = name;
    history.client = client;
    const provider = { id: 'q', subject: {} };
    history.attempt = new Attempt({ provider, model: 'm', isStream: false }, '');
    requests.add(history, outcome, { faults: [{ id: fault }], isByFaulty: false });
  };
  return { clock, end, has, requests };
}

test('the clients are those of the faults of the incident, the earliest request\u2019s first', (t) => {
  const { end, has, requests } = start(t, ['a', 'b']);
  end('x', 'a');
  end('y', 'b', 'of y');
  end('x', 'a', 'of x');
  end('y', 'b', 'later');
  const names = () => requests.clients.map(([client]) => client);
  assert.deepEqual(names(), ['of y', 'later', 'of x']);
  has.pop();
  assert.deepEqual(requests.clients, [['of x', 'failed']]);
  has.pop();
  assert.deepEqual(requests.clients, []);
});

test('requests have not failed since the latest failure among the faults of the incident', (t) => {
  const { clock, end, has, requests } = start(t, ['a', 'b']);
  end('x', 'a');
  end('y', 'b');
  const latest = Date.now();
  end('z', 'b', undefined, 'ok');
  clock.nowMs += 49_000;
  assert.equal(requests.quietSinceTime, undefined);
  clock.nowMs += 1;
  assert.equal(requests.quietSinceTime, latest);
  has.pop();
  assert.equal(requests.quietSinceTime, latest - 1000);
});

test('a name that has met several faults is listed once, with the provider that answered', (t) => {
  const { end, has, requests } = start(t, ['a', 'b']);
  end('x', 'a', 'one', 'ok');
  end('x', 'b', 'two');
  end('x', 'b', 'one');
  const counts = {
    failed: 2,
    answered: 1,
    by: 'q',
    good: 0,
    clients: 'one, two',
    stream: undefined,
  };
  assert.deepEqual(requests.toFacts(true).affected, [{ name: 'x', ...counts }]);
  has.shift();
  const ofB = { ...counts, answered: 0, by: undefined, clients: 'two, one' };
  assert.deepEqual(requests.toFacts(true).affected, [{ name: 'x', ...ofB }]);
});
