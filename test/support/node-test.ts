/**
 * Replaces `node:test` in `test/run.ts`: each test has a limit, is counted in the progress of the
 * run, and must leave nothing behind. Node's own `--test-timeout` limits a whole file, and a suite's
 * limit counts all its tests together.
 */

import { test as nodeTest, type TestContext, type TestOptions } from 'node:test';
import { fileURLToPath } from 'node:url';

import { setHangLimit } from './clock.ts';
import { checkLeftovers } from './leftovers.ts';
import { countTests, whileRunning } from './progress.ts';

export { after, before, describe, mock } from 'node:test';

type Body = (t: TestContext) => void | Promise<void>;

/** Against hangs only. A longer test sets `timeout`, and one that waits for a child `Infinity`. */
const TEST_LIMIT_MS = 120_000;

/** The test file, because `test/run.ts` joins a copy of this module to each. */
const FILE = fileURLToPath(import.meta.url);
countTests(FILE, 0);

/** `test` of `node:test`, but it fails after `timeout`, which a busy machine extends. */
export async function test(name: string, ...rest: [Body] | [TestOptions, Body]): Promise<void> {
  const [options, body] = rest.length === 2 ? rest : [{}, ...rest];
  const { timeout: limitMs = TEST_LIMIT_MS, ...others } = options;
  countTests(FILE, others.skip ? 0 : 1);
  return nodeTest(name, others, async (t) => {
    try {
      await whileRunning(async () => endWithin(limitMs, async () => body(t)));
      await checkLeftovers(t);
    } finally {
      countTests(FILE, -1);
    }
  });
}

/** Rejects if `run` takes longer than `limitMs` of `setHangLimit`. */
async function endWithin(limitMs: number, run: () => Promise<void>): Promise<void> {
  let stop = () => {};
  const limit = new Promise<never>((_, reject) => {
    const fail = () => reject(new Error(`the test took longer than ${limitMs} ms`));
    stop = setHangLimit(fail, limitMs);
  });
  try {
    await Promise.race([run(), limit]);
  } finally {
    stop();
  }
}
