/**
 * Sweeps test one property with many inputs: some inputs in `npm test`, all in `npm run
 * test:sweeps`. `TEST_SWEEPS=only` runs the files with sweeps and the files left out by `npm test`;
 * `TEST_SWEEPS=all` runs all files.
 */

export const SWEEPS = process.env['TEST_SWEEPS'] || undefined;

/** Returns `whole` in a run of the sweeps, else `part`. */
export function sweep<T>(whole: T, part: T): T {
  return SWEEPS ? whole : part;
}

/** The `skip` option for tests run by sweeps only. */
export const LEFT_TO_SWEEPS = !SWEEPS && 'npm run test:sweeps has it';
