/**
 * What the processes of a run have begun and ended, in a file that `test/run.ts` reads. If a process
 * is killed, `test/run.ts` names the files that did not run to their end, and ends the process
 * groups that were left behind.
 */

import { appendFileSync, readFileSync } from 'node:fs';

import { setHangLimit } from './clock.ts';

/** Set by `test/run.ts`. */
const PATH = process.env['TEST_PROGRESS'];
/** How long a process may stay when no test runs: for imports, hooks and the exit. */
const IDLE_LIMIT_MS = 60_000;

/** For each test file of this process, its registered tests that have not ended. */
const pending = new Map<string, number>();
let running = 0;
let stopWatch = () => {};

function append(...columns: readonly (string | number)[]): void {
  if (PATH) appendFileSync(PATH, `${columns.join(' ')}\n`);
}

/** Changes a file's count of tests that have not ended. A file without a line has not been loaded. */
export function countTests(file: string, change: 0 | 1 | -1): void {
  const before = pending.get(file);
  const count = (before ?? 0) + change;
  pending.set(file, count);
  if (before === undefined || (before === 0) !== (count === 0)) append('tests', count, file);
}

export function countGroup(id: number, change: 1 | -1): void {
  append('group', change, id);
}

/** Runs a test's body. Without a running body, the process ends after `IDLE_LIMIT_MS`. */
export async function whileRunning<T>(body: () => Promise<T>): Promise<T> {
  running += 1;
  stopWatch();
  try {
    return await body();
  } finally {
    running -= 1;
    if (running === 0) watch();
  }
}

function watch(): void {
  stopWatch();
  if (!PATH) return;
  stopWatch = setHangLimit(() => {
    console.error(`no test runs, and this stays: ${process.getActiveResourcesInfo().join(', ')}`);
    process.exit(1);
  }, IDLE_LIMIT_MS);
}

watch();

/** Returns the tests of each loaded file that have not ended, and the process groups that are left. */
export function readProgress(path: string) {
  const counts = new Map<string, number>();
  const groups = new Set<number>();
  for (const line of readFileSync(path, 'utf8').trimEnd().split('\n')) {
    const [, kind, count, name = ''] = /^(\w+) (-?\d+) (.*)$/.exec(line) ?? [];
    if (kind === 'tests') counts.set(name, Number(count));
    else if (count === '1') groups.add(Number(name));
    else groups.delete(Number(name));
  }
  return { counts, groups };
}
