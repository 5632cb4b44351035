/** Each row of list.txt has a place in the source and a test. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { test } from 'node:test';

import { ROOT } from '../support/process.ts';
import { PlaceFinder, readRows } from './rows.ts';

const ROWS = readRows(readFileSync(join(ROOT, 'test', 'mutations', 'list.txt'), 'utf8'));

test('the text of each row occurs once', () => {
  const places = new PlaceFinder(ROOT);
  const counts = ROWS.map((mutation) => ({ mutation, place: places.find(mutation) }));
  assert.deepEqual(
    counts.flatMap(({ mutation: { row }, place }) =>
      typeof place === 'number' ? [`${place} times: ${row}`] : [],
    ),
    [],
  );
});

test('the test of each row exists', () => {
  const names = readdirSync(join(ROOT, 'test'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.test.ts'))
    .map((path) => basename(path));
  const lost = ROWS.filter(({ tests }) => !names.some((name) => name.includes(tests)));
  assert.deepEqual(
    lost.map(({ row }) => row),
    [],
  );
});
