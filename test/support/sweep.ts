/**
 * What `npm test` tries in part, and `npm run test:sweeps` as a whole: the same property with many inputs.
 * `TEST_SWEEPS=only` runs the files that have such tests, or are left out of `npm test`; `TEST_SWEEPS=all` runs all files.
 */

export const SWEEPS = process.env['TEST_SWEEPS'] || undefined;

/** Returns `whole` in a run of the sweeps, else `part`. */
export function sweep<T>(whole: T, part: T): T {
  return SWEEPS ? whole : part;
}

/** For tests that are left to the sweeps. */
export const LEFT_TO_SWEEPS = !SWEEPS && 'npm run test:sweeps has it';
