/**
 * What `test/run.ts` puts in place of `node:test`: the same, with a time limit for each test and a look at what it leaves. Node's own
 * `--test-timeout` limits a whole file, and the limit of a suite counts all its tests together.
 */

import { test as nodeTest, type TestContext, type TestOptions } from 'node:test';

import { checkLeftovers } from './leftovers.ts';

export { after, before, describe, mock } from 'node:test';

type Body = (t: TestContext) => void | Promise<void>;

/** Against hangs only: a busy machine takes many times as long as an idle one. A test that needs longer says so in its options. */
const TEST_LIMIT_MS = 120_000;

/** `test` of `node:test`, which fails by its name when it takes longer than the limit. */
export async function test(name: string, ...rest: [Body] | [TestOptions, Body]): Promise<void> {
  const [options, body] = rest.length === 2 ? rest : [{}, ...rest];
  return nodeTest(name, { timeout: TEST_LIMIT_MS, ...options }, async (t) => {
    await body(t);
    await checkLeftovers(t);
  });
}
