/** What runs the tests: a run that tests nothing is no success. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';

import { ROOT } from './support/process.ts';
import { ONLY_ONE_WORKER } from './support/workers.ts';

interface Run {
  readonly args: readonly string[];
  readonly workers?: string;
}

function runTests({ args, workers = '' }: Run) {
  // Without NODE_TEST_CONTEXT, by which a test runner within a test runs nothing.
  const env = { PATH: process.env['PATH'], TEST_WORKERS: workers };
  const command = ['--import', 'tsx', 'test/run.ts', ...args];
  return spawnSync(process.execPath, command, { cwd: ROOT, env, encoding: 'utf8' });
}

const NO_FILE = ['no-file-has-this-name'];
const NO_TITLE = ['token-bucket', '--title=no test has this title'];

describe('the test runner', () => {
  const skip = ONLY_ONE_WORKER;
  for (const [what, run, options] of [
    ['no file has the name', { args: NO_FILE }, {}],
    ['no file has the name, with two workers', { args: NO_FILE, workers: '2' }, { skip }],
    ['no test has the title', { args: NO_TITLE }, {}],
    ['no test has the title, with two workers', { args: NO_TITLE, workers: '2' }, { skip }],
  ] as const) {
    test(`fails if ${what}`, options, () => {
      const { status, stderr } = runTests(run);
      assert.equal(status, 1);
      assert.match(stderr, /^no test passed$/m);
    });
  }

  test('fails if TEST_WORKERS is no number of workers', () => {
    for (const workers of ['two', '0', '-1']) {
      const { status, stderr } = runTests({ args: ['token-bucket'], workers });
      assert.equal(status, 1);
      assert.match(stderr, /TEST_WORKERS is not a number of workers/);
    }
  });

  test('succeeds if a test passed', () => {
    const { status, stdout } = runTests({ args: ['token-bucket'] });
    assert.equal(status, 0, stdout);
  });
});
