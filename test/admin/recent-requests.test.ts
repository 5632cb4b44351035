/** The requests that the page lists. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { RecentRequests } from '../../src/admin/recent-requests.ts';
import type { FinishedRequest, RequestFacts } from '../../src/request/facts.ts';

const good = { provider: 'q', model: 'm', outcome: 'ok', duration_ms: 5 } as const;
const bad = { provider: 'p', model: 'm', outcome: 'upstream_error', cause: 'no capacity' } as const;

type Given = Partial<Omit<FinishedRequest, 'facts'>> & { facts: Partial<RequestFacts> };

function record(...all: Given[]) {
  const hide = (text: string) => text.replaceAll('canary', '[secret]');
  const recent = new RecentRequests(Object.assign(hide, { mayChange: () => true }));
  const facts = { request_id: 'r', method: 'POST', path: '/', duration_ms: 1, bytes: 1 };
  for (const { facts: own, ...more } of all) {
    const times = { endTime: 1_700_000_000_000, durationMs: 1 };
    recent.add({ ...times, ...more, facts: { ...facts, outcome: 'ok', ...own } });
  }
  return recent;
}

test('a request is listed with its icon, the providers in turn and its cause', () => {
  const limit = 'clients.ci.max_concurrent_requests: 2 of 2';
  const recent = record(
    { facts: { tries: [good], status: 200, stream: true, first_byte_ms: 7, model: 'fast' } },
    { facts: { tries: [bad, good] } },
    { facts: { tries: [bad, { ...bad, outcome: 'internal_error' }], outcome: 'upstream_error' } },
    { facts: { tries: [{ ...bad, outcome: 'circuit_open' }, good] } },
    { facts: { outcome: 'rate_limited', limit }, refusal: 'client_concurrency' },
    { facts: { outcome: 'rate_limited', reason: 'global' }, refusal: 'global' },
    { facts: { outcome: 'upstream_error', stream: true, status: 502, first_byte_ms: 9 } },
  );
  const rows = recent.find({ kind: 'All', words: '' }).toReversed();
  assert.deepEqual(
    rows.map(({ cause, icon, model, tried }) => [icon, model, tried.join(' '), cause]),
    [
      ['good', 'fast', ',q', undefined],
      ['good', 'POST /', 'warn,p good,q', 'no capacity'],
      ['bad', 'POST /', 'bad,p off,p', 'no capacity'],
      ['good', 'POST /', 'off,p good,q', 'no capacity'],
      ['warn', 'POST /', 'off,not sent', limit],
      ['bad', 'POST /', 'off,not sent', 'global'],
      ['bad', 'POST /', 'off,not sent', undefined],
    ],
  );
  // An error answer has a first byte, but no token.
  assert.deepEqual([rows[0]!.first_ms, rows[6]!.first_ms], [7, undefined]);
});

test('requests are found by kind and by all of the words', () => {
  const recent = record(
    { facts: { client: 'ci', model: 'fast', request_id: 'A1', tries: [good] } },
    { facts: { client: 'ci', model: 'slow', outcome: 'timeout', tries: [bad, bad] } },
    { facts: { client: 'web', trace_id: 'canary', tries: [{ ...bad, outcome: 'limit' }, good] } },
  );
  const find = (kind: string, words = '') => recent.find({ kind, words }).map((one) => one.number);
  assert.deepEqual(find('All'), [3, 2, 1]);
  assert.deepEqual(find('Failed'), [2]);
  assert.deepEqual(find('Retried'), [2], 'a skipped provider was not asked');
  assert.deepEqual(find('All', 'failed CI'), [2]);
  assert.deepEqual(find('All', 'a1'), [1]);
  assert.deepEqual(find('All', ' p '), [3, 2]);
  assert.deepEqual(find('All', 'nothing'), []);
  assert.equal(recent.factsOf(3)!.trace_id, '[secret]');
  assert.equal(recent.factsOf(4), undefined);
});
