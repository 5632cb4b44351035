/** ARCHITECTURE.md leads along all files that a request runs. */

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { ROOT } from './support/process.ts';

test('the ten steps of ARCHITECTURE.md name the files that a streamed request runs, and no others', async () => {
  const [, steps = ''] = readFileSync(join(ROOT, 'ARCHITECTURE.md'), 'utf8').split(
    /^1\. |^Not on this way/m,
  );
  const run = steps.replaceAll(/^ {3}With it: .*$/gm, '');
  const named = new Set([...run.matchAll(/`([a-z/-]+\.ts)`/g)].map(([, name]) => name));
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', 'tsx', 'scripts/way.ts'],
    { cwd: ROOT, timeout: 120_000 },
  );
  const ran = [...stdout.matchAll(/^(\S+\.ts) \(/gm)].map(([, name]) => name);
  assert.deepEqual(named, new Set(ran));
});
