/** Patterns for names. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { canMeet, capture, matches } from '../../src/lib/pattern.ts';

test('a pattern matches the whole name, with any text in place of each *', () => {
  const rows: readonly (readonly [pattern: string, names: string, others: string])[] = [
    ['a', 'a', 'ab ba A'],
    ['*', 'a * a/b', ''],
    ['a*', 'a ab a*', 'ba'],
    ['*a', 'a ba', 'ab'],
    ['*b*', 'b abc bb', 'ac'],
    ['a*c*e', 'ace abcde accee', 'ac ae aec acex'],
    ['ab*ba', 'abba ab-ba', 'aba'],
    ['a*bb*b', 'abbb a-bb-b', 'abb'],
    ['a*a*', 'aa aba', 'a ab'],
    ['a**b', 'ab acb', 'a'],
    ['a.c', 'a.c', 'abc'],
  ];
  for (const [pattern, names, others] of rows) {
    for (const name of names.split(' ')) assert.ok(matches(pattern, name), `${pattern} ${name}`);
    for (const name of others.split(' ')) {
      if (name) assert.ok(!matches(pattern, name), `${pattern} ${name}`);
    }
  }
});

test('a pattern with many stars takes no longer than the name', () => {
  assert.ok(!matches(`${'*a'.repeat(1000)}b`, 'a'.repeat(100_000)));
});

test('a capture has the text at the place of each *', () => {
  assert.deepEqual(capture('a', 'a'), []);
  assert.deepEqual(capture('a*', 'a'), ['']);
  assert.deepEqual(capture('a*c*', 'abcde'), ['b', 'de']);
  assert.deepEqual(capture('*/*', 'a/b/c'), ['a', 'b/c']);
  assert.equal(capture('a*a', 'a'), undefined);
});

test('two patterns can meet if a name matches both', () => {
  const meeting = ['a a', 'a* ab', 'a* *b', 'a*c ab*', '* a*', 'a*b*c abc', 'ab*c a*bc'];
  const apart = ['a b', 'a* b*', '*a *b', 'a* ba', 'a*c a*d', '*a* b'];
  for (const pair of [...meeting, ...apart]) {
    const [a = '', b = ''] = pair.split(' ');
    assert.equal(canMeet(a, b), meeting.includes(pair), pair);
    assert.equal(canMeet(b, a), meeting.includes(pair), pair);
  }
});
