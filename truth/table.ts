/** The tables of results in the documents, made from `results/` (`npm run generate`). */

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import { GROUPS, readCases, type Case } from './case.ts';
import type { Result } from './play.ts';

export interface ResultFile {
  readonly gateway: string;
  readonly version: string;
  /** The day of the run, as `2026-11-28`. */
  readonly date: string;
  readonly cases: Readonly<Record<string, Result>>;
}

const OWN = 'inference-gateway.json';
const CONTROL = 'bare-relay.json';

/** Reads a folder's results: those of this gateway first, those of the control last. */
export function readResults(folder: string): ResultFile[] {
  const others = readdirSync(folder).filter((name) => name !== OWN && name !== CONTROL);
  return [OWN, ...others.filter((name) => name.endsWith('.json')).toSorted(), CONTROL].map(
    (name) => JSON.parse(readFileSync(join(folder, name), 'utf8')) as ResultFile,
  );
}

const row = (cells: readonly string[]) => `| ${cells.join(' | ')} |`.replace('|  |', '| |');

/** Returns how many of these cases a gateway passes, of how many that it was tried with. */
function sumOf(cases: readonly Case[], { cases: results }: ResultFile): string {
  const tried = cases.filter(({ id }) => isTried(results[id]));
  if (tried.length === 0) return '–';
  const passed = tried.filter(({ id }) => results[id]!.result === 'pass');
  const share = `${passed.length} of ${tried.length}`;
  return passed.length === tried.length ? share : `**${share}**`;
}

const isTried = (result: Result | undefined) =>
  result !== undefined && result.result !== 'not tried';

function headOf(first: string, results: readonly ResultFile[]): string[] {
  const names = results.map(({ gateway, version }) => `${gateway} ${version}`);
  return [row([first, ...names]), `|---|${'--:|'.repeat(names.length)}`];
}

/** Returns the table of groups, made from the cases and the results in this folder. */
export function createSummary(folder: string): string {
  const results = readResults(join(folder, 'results'));
  const cases = readCases(join(folder, 'cases'));
  const rows = GROUPS.map((group) => {
    const members = cases.filter((one) => one.group === group);
    return row([group, ...results.map((result) => sumOf(members, result))]);
  });
  const all = row(['all cases', ...results.map((result) => sumOf(cases, result))]);
  const dates = row(['tried on', ...results.map(({ date }) => date)]);
  return [...headOf('', results), ...rows, all, dates].join('\n');
}

/** Returns a table for each group, with a row for each case. */
export function createDetails(folder: string): string {
  const results = readResults(join(folder, 'results'));
  const cases = readCases(join(folder, 'cases'));
  const mark = (id: string, one: ResultFile) =>
    ({ pass: 'yes', fail: '**no**', 'not tried': '–' })[one.cases[id]?.result ?? 'not tried'];
  const tables = GROUPS.map((group) => {
    const rows = cases
      .filter((one) => one.group === group)
      .map(({ id, name }) => {
        const link = `[${name}](cases/${id}.json)`;
        return row([link, ...results.map((result) => mark(id, result))]);
      });
    return [`### ${group}`, '', ...headOf('', results), ...rows].join('\n');
  });
  return tables.join('\n\n');
}

/** Replaces what stands between the two comments with this name in a document. */
export function insertTable(document: string, name: string, table: string): string {
  const begin = `<!-- ${name} -->`;
  const end = `<!-- end of ${name} -->`;
  const [before = '', rest] = document.split(begin);
  const after = rest?.split(end)[1];
  if (after === undefined) throw new Error(`there is no ${begin}`);
  return `${before}${begin}\n${table}\n${end}${after}`;
}
