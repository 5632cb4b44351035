/** Identifiers are unique and have the right form. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createIds, createUuid } from '../../src/lib/ids.ts';

test('ten thousand UUIDs are of version 4, and no two are the same', () => {
  const ids = Array.from({ length: 10_000 }, createUuid);
  for (const id of ids)
    assert.match(id, /^[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-a[\da-f]{3}-[\da-f]{12}$/);
  assert.equal(new Set(ids).size, ids.length);
});

test('each digit of an id occurs equally often, and only each x is replaced', () => {
  const create = createIds('00-xx');
  const counts = new Map<string, number>();
  for (let count = 0; count < 16_000; count += 1) {
    const id = create();
    assert.equal(id.slice(0, 3), '00-');
    for (const digit of id.slice(3)) counts.set(digit, (counts.get(digit) ?? 0) + 1);
  }
  assert.equal(counts.size, 16);
  for (const [digit, count] of counts)
    assert.ok(count > 1700 && count < 2300, `${digit}: ${count}`);
});
