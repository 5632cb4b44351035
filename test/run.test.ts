/** The test runner fails if it has run no test. */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, test } from 'node:test';

import { ROOT } from './support/process.ts';

function runTests(...args: readonly string[]) {
  // Without NODE_TEST_CONTEXT, because a test runner within a test would run nothing.
  const env = { PATH: process.env['PATH'] };
  const command = ['--import', 'tsx', 'test/run.ts', ...args];
  return spawnSync(process.execPath, command, { cwd: ROOT, env, encoding: 'utf8' });
}

describe('the test runner', () => {
  for (const [what, ...args] of [
    ['no file has the name', 'no-file-has-this-name'],
    ['no test has the title', 'token-bucket', '--title=no test has this title'],
  ] as const) {
    test(`fails if ${what}`, () => {
      const { status, stderr } = runTests(...args);
      assert.equal(status, 1);
      assert.match(stderr, /^no test passed$/m);
    });
  }

  test('succeeds if a test passed', () => {
    const { status, stdout } = runTests('token-bucket');
    assert.equal(status, 0, stdout);
  });
});
