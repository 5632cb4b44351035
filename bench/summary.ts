/** Medians from several measures in one table, as in README.md. */

import { CONTENDERS, type ContenderId } from './contenders.ts';
import type { Value } from './measure.ts';
import { markdown, spread } from './table.ts';

/** A measure, its columns, and their title. */
const COLUMNS = [
  ['requests', [0], 'CPU µs per request'],
  ['events', [0], 'µs per event'],
  ['latency', [0, 1], 'first event + p50, p99 ms'],
  ['memory', [3], 'KiB per open stream'],
  ['memory', [0], 'idle MiB'],
  ['allocations', [0], 'KB allocated per request'],
] as const;

/** Summarizes the finished measures. */
export function summarize(ids: readonly ContenderId[], medians: ReadonlyMap<string, Value>) {
  const taken = COLUMNS.filter(([measure]) => medians.has(measure));
  if (taken.length === 0) return '';
  const rows = ids.map((id) => [
    CONTENDERS[id].label,
    ...taken.map(([measure, columns]) =>
      columns.map((column) => spread([medians.get(measure)!(id, column)])).join(', '),
    ),
  ]);
  return `### summary\n\n${markdown([['', ...taken.map(([, , head]) => head)], ...rows])}\n`;
}
