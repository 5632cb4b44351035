/** Whole gateways on a virtual clock. `npm run test:worlds -- COUNT` runs more worlds. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

import { ROOT } from '../support/process.ts';
import { generate } from './generate.ts';
import { problemsOf } from './shrink.ts';

const WORLDS = Number(process.env['WORLDS'] ?? 1500);

async function checkSeed(seed: number): Promise<void> {
  const problems = await problemsOf(generate(seed));
  const hint = `npm run test:worlds -- --seed=${seed} prints it whole`;
  assert.equal(problems.length, 0, `seed ${seed}: ${problems.join('\n')}\n(${hint})`);
}

test('every check holds in the worlds in which it once failed', async () => {
  const rows = readFileSync(join(ROOT, 'test/worlds/seeds.txt'), 'utf8').trimEnd().split('\n');
  for (const row of rows) if (!row.startsWith('#')) await checkSeed(Number(row.split(' ', 1)[0]));
});

test(`every check holds in ${WORLDS} worlds`, async () => {
  for (let seed = 1; seed <= WORLDS; seed += 1) await checkSeed(seed);
});
