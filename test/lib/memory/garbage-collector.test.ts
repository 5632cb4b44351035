import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';

const MODULE = pathToFileURL('src/lib/memory/garbage-collector.ts');

/** Keeps young objects alive for a while, and prints the largest young generation in MiB. */
const PROGRAM = `
  import { getHeapSpaceStatistics } from 'node:v8';
  import { limitYoungGeneration } from '${MODULE.href}';
  limitYoungGeneration();
  const kept = [];
  let largest = 0;
  for (let round = 0; round < 2000; round += 1) {
    kept.push(Array.from({ length: 2000 }, (_, index) => ({ round, index: [index] })));
    if (kept.length > 60) kept.shift();
    await new Promise((resolve) => setImmediate(resolve));
    const young = getHeapSpaceStatistics().find((space) => space.space_name === 'new_space');
    largest = Math.max(largest, young.space_size);
  }
  console.log(largest / 1_048_576);
`;

test('the young generation grows to 16 MiB, and at most once more', () => {
  const args = ['--import', 'tsx', '--input-type=module', '--eval', PROGRAM];
  const { stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
  const largestMib = Number(stdout);
  assert.ok(largestMib >= 16, stderr);
  // Node 20 and 22 allow 32 MiB, and Node 24 and 26 allow more.
  assert.ok(largestMib < 32, stdout);
});
