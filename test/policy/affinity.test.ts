/** Sessions, and the ranking of keys and targets for a session. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { type SessionSource, rankedFor, sessionOf } from '../../src/policy/affinity.ts';

test("a session is the first of header, cache key, client name and the client's key", () => {
  const headers = {
    'x-session-id': 'a',
    'x-session-affinity': 'b',
    authorization: 'Bearer e',
  };
  const history = { promptCacheKey: 'c', client: 'd' };
  const empty = { promptCacheKey: undefined, client: undefined };
  const { authorization } = headers;
  const callers: readonly (readonly [SessionSource, session: string | undefined])[] = [
    [{ headers, history }, 'a'],
    [{ headers: { ...headers, 'x-session-id': '' }, history }, 'b'],
    [{ headers: { authorization }, history }, 'c'],
    [{ headers: { authorization }, history: { ...history, promptCacheKey: undefined } }, 'd'],
    [{ headers: { authorization }, history: empty }, 'Bearer e'],
    [{ headers: {}, history: empty }, undefined],
  ];
  for (const [caller, session] of callers) assert.equal(sessionOf(caller), session);
});

const SESSIONS = Array.from({ length: 3000 }, (_, index) => `session ${index}`);

/** Counts how many sessions have each name first. */
function firsts(names: readonly string[], shares?: ReadonlyMap<string, number>): number[] {
  const counts = names.map(() => 0);
  for (const session of SESSIONS) counts[rankedFor(session, names, shares)[0]!]! += 1;
  return counts;
}

test('a ranking has each name once, and is the same each time', () => {
  const names = ['a', 'b', 'c', 'd'];
  for (const session of SESSIONS.slice(0, 50)) {
    const ranked = rankedFor(session, names);
    assert.equal(ranked.length, 4);
    assert.deepEqual(new Set(ranked), new Set([0, 1, 2, 3]));
    assert.deepEqual(rankedFor(session, names), ranked);
  }
  assert.deepEqual(rankedFor('s', []), []);
});

test('sessions spread evenly, or in proportion to the shares', () => {
  for (const count of firsts(['a', 'b', 'c'])) assert.ok(Math.abs(count - 1000) < 120, `${count}`);
  const shares = new Map([
    ['a', 1],
    ['b', 3],
    ['c', 0],
  ]);
  const [a = 0, b = 0, c] = firsts(['a', 'b', 'c'], shares);
  assert.ok(Math.abs(a - 750) < 100 && Math.abs(b - 2250) < 100, `${a} ${b}`);
  assert.equal(c, 0);
});

test('without a name, only its own sessions move', () => {
  const all = ['a', 'b', 'c'];
  const less = ['a', 'c'];
  for (const session of SESSIONS) {
    const before = all[rankedFor(session, all)[0]!]!;
    const after = less[rankedFor(session, less)[0]!]!;
    if (before !== 'b') assert.equal(after, before);
  }
});
