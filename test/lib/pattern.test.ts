/** Patterns for names. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { matchesPattern } from '../../src/lib/pattern.ts';

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
    for (const name of names.split(' '))
      assert.ok(matchesPattern(pattern, name), `${pattern} ${name}`);
    for (const name of others.split(' ')) {
      if (name) assert.ok(!matchesPattern(pattern, name), `${pattern} ${name}`);
    }
  }
});

test('a pattern with many stars takes no longer than the name', () => {
  assert.ok(!matchesPattern(`${'*a'.repeat(1000)}b`, 'a'.repeat(100_000)));
});
