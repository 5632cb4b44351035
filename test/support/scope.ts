import type { TestContext } from 'node:test';

/**
 * Returns a stand-in for a test's context, for scripts. `close` runs the endings registered by
 * helpers, the latest first.
 */
export function createScope() {
  const endings: (() => unknown)[] = [];
  return {
    t: { after: (ending: () => unknown) => endings.push(ending) } as unknown as TestContext,
    async close() {
      for (const ending of endings.toReversed()) await ending();
    },
  };
}
