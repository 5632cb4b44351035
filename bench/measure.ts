/** A measure, and the way to take it: round by round, contender by contender. */

import { CONTENDERS, RELAYS, type ContenderId } from './contenders.ts';
import { DisturbedError, measureAlone } from './machine.ts';
import { markdown, median, spread } from './table.ts';

/** Returns a contender's number. */
export type Value = (id: ContenderId, column: number) => number;

export interface Ratio {
  readonly text: string;
  readonly of: (value: Value) => number;
}

export interface Measure {
  readonly title: string;
  /** The meaning of the numbers. */
  readonly about: string;
  readonly columns: readonly string[];
  /** The contenders, in their order in each round. */
  readonly contenders: readonly ContenderId[];
  /** Returns a number for each column; NaN if there is none. */
  run(id: ContenderId): Promise<number[]>;
  /** Ratios between medians in the table. The spread is over the rounds. */
  readonly ratios: readonly Ratio[];
  /** Notes for a reader of the numbers, made from the medians. */
  readonly notes?: (value: Value) => string[];
}

interface Taken {
  readonly rounds: number[][];
  failure?: string;
}

/** How many times the other contender's value. NaN if noise has made a difference negative. */
export const ratio = (
  [a, b]: readonly [ContenderId, ContenderId],
  column: number,
  what: string,
): Ratio => ({
  text: `${CONTENDERS[a].label} / ${CONTENDERS[b].label}, ${what}`,
  of: (value) =>
    Math.min(value(a, column), value(b, column)) > 0 ? value(a, column) / value(b, column) : NaN,
});

export interface Report {
  /** The report in Markdown. */
  readonly text: string;
  /** Returns the medians. */
  readonly value: Value;
}

/** Takes a measure of these contenders. Rejects with DisturbedError if there was other load. */
export async function take(
  measure: Measure,
  wanted: readonly string[],
  rounds: number,
): Promise<Report> {
  const ids = measure.contenders.filter((id) => wanted.includes(id) || !RELAYS.includes(id));
  const taken = new Map<ContenderId, Taken>(ids.map((id) => [id, { rounds: [] }]));
  for (let round = 1; round <= rounds; round += 1) {
    for (const [id, result] of taken) {
      if (result.failure !== undefined) continue;
      process.stderr.write(`${measure.title}, round ${round} of ${rounds}, ${id}: `);
      try {
        result.rounds.push(await measureAlone(async () => measure.run(id)));
        process.stderr.write('done\n');
      } catch (error) {
        result.failure = (error as Error).message;
        process.stderr.write(`failed: ${result.failure}\n`);
        if (error instanceof DisturbedError) throw error;
      }
    }
  }
  return describe(measure, taken);
}

function describe(measure: Measure, taken: ReadonlyMap<ContenderId, Taken>): Report {
  const { title, about, columns, ratios, notes = () => [] } = measure;
  const valuesOf = (id: ContenderId, column: number) => {
    const { failure, rounds: measured = [] } = taken.get(id) ?? {};
    return measured.map((values) => (failure === undefined ? values[column]! : NaN));
  };
  const medianOf = (id: ContenderId, column: number) => median(valuesOf(id, column));
  const rows = [...taken].map(([id, { failure }]) => [
    CONTENDERS[id].label,
    ...columns.map((_, column) =>
      failure === undefined ? spread(valuesOf(id, column)) : 'failed',
    ),
  ]);
  const failures = [...taken]
    .filter(([, { failure }]) => failure !== undefined)
    .map(([id, { failure }]) => `${CONTENDERS[id].label} failed: ${failure}`);
  const count = Math.max(...[...taken.values()].map(({ rounds }) => rounds.length));
  const compared = ratios.map(({ text, of }) => {
    const values = Array.from({ length: count }, (_, round) =>
      of((id, column) => valuesOf(id, column)[round] ?? NaN),
    );
    const quotient = of(medianOf);
    return Number.isNaN(quotient) ? '' : `${text}: ${spread(values, quotient)}`;
  });
  const remarks = notes(medianOf);
  const lines = [...failures, ...compared, ...remarks].filter((line) => line !== '');
  const table = markdown([['', ...columns], ...rows]);
  const list = lines.map((line) => `- ${line}\n`).join('');
  const text = `### ${title}\n\n${about}\n\n${table}\n\n${list}`;
  return { text, value: medianOf };
}
