/** What the helpers need of a test's context, for scripts that are no tests. */

import type { TestContext } from 'node:test';

/** `t` stands in for a test: helpers leave with it what has to be done at the end. `close` does it, the latest first. */
export function createScope() {
  const endings: (() => unknown)[] = [];
  return {
    t: { after: (ending: () => unknown) => endings.push(ending) } as unknown as TestContext,
    async close() {
      for (const ending of endings.toReversed()) await ending();
    },
  };
}
