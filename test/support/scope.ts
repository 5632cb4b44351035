/** What the helpers need of a test's context, for scripts that are no tests. */

import type { TestContext } from 'node:test';

export interface Scope {
  /** Stands in for a test: helpers leave with it what has to be done at the end. */
  readonly t: TestContext;
  /** Does it, the latest first. */
  close(): Promise<void>;
}

export function createScope(): Scope {
  const endings: (() => unknown)[] = [];
  return {
    t: { after: (ending: () => unknown) => endings.push(ending) } as unknown as TestContext,
    async close() {
      for (const ending of endings.toReversed()) await ending();
    },
  };
}
