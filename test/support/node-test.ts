/**
 * Replaces `node:test` in `test/run.ts`: each test has a time limit, and must leave nothing behind.
 * Node's own `--test-timeout` limits a whole file, and a suite's limit counts all its tests
 * together.
 */

import { test as nodeTest, type TestContext, type TestOptions } from 'node:test';

import { setPatientTimeout } from './clock.ts';
import { checkLeftovers } from './leftovers.ts';

export { after, before, describe, mock } from 'node:test';

type Body = (t: TestContext) => void | Promise<void>;

/** Against hangs only. A longer test sets `timeout`. */
const TEST_LIMIT_MS = 120_000;

/**
 * `test` of `node:test`, but it fails after `timeout`. The limit counts only time in which the
 * process runs, because a busy machine takes many times as long as an idle machine.
 */
export async function test(name: string, ...rest: [Body] | [TestOptions, Body]): Promise<void> {
  const [options, body] = rest.length === 2 ? rest : [{}, ...rest];
  const { timeout: limitMs = TEST_LIMIT_MS, ...others } = options;
  return nodeTest(name, others, async (t) => {
    await endWithin(limitMs, async () => body(t));
    await checkLeftovers(t);
  });
}

/** Rejects if `run` takes longer than `limitMs` of the process's own time. */
async function endWithin(limitMs: number, run: () => Promise<void>): Promise<void> {
  let stop = () => {};
  const limit = new Promise<never>((_, reject) => {
    const fail = () => reject(new Error(`the test took longer than ${limitMs} ms`));
    stop = setPatientTimeout(fail, limitMs, { keepsAlive: false });
  });
  try {
    await Promise.race([run(), limit]);
  } finally {
    stop();
  }
}
