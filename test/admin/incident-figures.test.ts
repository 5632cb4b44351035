/** The incidents in the words of metrics. */

import assert from 'node:assert/strict';
import { test, type TestContext } from 'node:test';

import { renderFigure } from '../../src/admin/figures.ts';
import { IncidentFigures } from '../../src/admin/incident-figures.ts';
import { Incidents, Subject } from '../../src/incidents/incidents.ts';
import { createRedactor } from '../../src/lib/secrets.ts';
import { Attempt, RequestHistory } from '../../src/request/history.ts';
import { Secret } from '../../src/lib/secret.ts';
import { replaceNow } from '../support/clock.ts';

function start(t: TestContext) {
  let nowMs = 1_000_000;
  replaceNow(t, () => nowMs);
  const incidents = new Incidents({
    logger: { log: () => undefined, isEnabled: () => true, lines: 0 },
    findMemoryHolder: () => undefined,
    onTrouble: () => undefined,
  });
  const subject = new Subject('p');
  const redact = createRedactor([new Secret('canary-of-a-key')]);
  const figures = new IncidentFigures(redact, (name) => name ?? 'unknown');
  const read = () => figures.read(incidents).map(renderFigure).join('');
  return {
    incidents,
    subject,
    read,
    pass: (seconds: number) => (nowMs += 1000 * seconds),
    /** Sets the state, and returns the label `cause`. */
    causeOf: (cause: string, kind: 'slow' | 'model_list' = 'slow') => {
      incidents.reportState(kind, cause, subject);
      incidents.advance();
      const text = read();
      return /^gateway_incident_info\{.*,cause="(.*)",fault=/m
        .exec(text)?.[1]
        ?.replaceAll('\\"', '"');
    },
    end: (kind: 'slow' | 'model_list') => {
      incidents.reportState(kind, undefined, subject);
      incidents.advance();
    },
  };
}

test('the cause of an incident stays while only numbers in it change', (t) => {
  const { causeOf, pass } = start(t);
  const first = 'first token after 851 ms, 12.5s is usual';
  assert.equal(causeOf(first), first);
  pass(600);
  assert.equal(causeOf('first token after 4,100 ms, 12s is usual'), first);
  pass(60);
  const limit = 'Limit 300, Used 290, Requested 12. Try again in 1.4s.';
  assert.equal(causeOf(limit), limit);
  pass(60);
  assert.equal(causeOf('Limit 3000, Used 2900, Requested 1. Try again in 20ms.'), limit);
  for (const other of [
    '10.0.0.4:6379: refused',
    '10.0.0.4:6380: refused',
    '503: busy',
    '500: busy',
    '10.0.0.5 holds 3.1 of 16.0 MiB',
    '10.0.0.6 holds 3.1 of 16.0 MiB',
    'client-1 holds 3.1 of 16.0 MiB',
    'client-2 holds 3.1 of 16.0 MiB',
    '502, text/html, "Busy"',
    '504, text/html, "Busy"',
  ]) {
    pass(60);
    assert.equal(causeOf(other), other);
  }
});

test('another cause of the same kind is a label after a minute, and of another kind at once', (t) => {
  const { causeOf, end, pass } = start(t);
  assert.equal(causeOf('one'), 'one');
  pass(59);
  assert.equal(causeOf('two'), 'one');
  pass(1);
  assert.equal(causeOf('two'), 'two');
  assert.equal(causeOf('three', 'model_list'), 'two');
  end('slow');
  assert.equal(causeOf('three', 'model_list'), 'three');
});

test('a cause in a label is cut, and has no key', (t) => {
  const { causeOf } = start(t);
  const cause = causeOf(`canary-of-a-key ${'"'.repeat(300)}`)!;
  assert.equal(cause, `[secret] ${'"'.repeat(191)}`);
});

test('a slow provider has the models that it has answered, and their clients', (t) => {
  const { causeOf, incidents, read, subject } = start(t);
  causeOf('first token after 4 s');
  subject.slowFrom = { first_token: 0 };
  const history = new RequestHistory();
  Object.assign(history, { model: 'fast', client: 'ci' });
  const attempt = new Attempt({ provider: { id: 'p', subject }, model: 'm', isStream: false }, '');
  history.attempt = history.addAttempt(attempt);
  incidents.recordRequest(history, 'ok');
  const labels = 'kind="slow",provider="p"';
  assert.deepEqual(
    read()
      .split('\n')
      .filter((line) => /^gateway_incident_(?:requests|model|client)/.test(line)),
    [
      `gateway_incident_requests{${labels},result="answered"} 0`,
      `gateway_incident_requests{${labels},result="failed"} 0`,
      `gateway_incident_requests{${labels},result="slow"} 1`,
      `gateway_incident_model{${labels},model="fast"} 1`,
      `gateway_incident_client{${labels},client="ci",result="slow"} 1`,
    ],
  );
});
