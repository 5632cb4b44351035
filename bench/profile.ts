/** A contender's time by function, from V8's sampling. */

import { mkdtempSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { inCell, type Cell } from './cell.ts';
import { CONTENDERS, type ContenderId } from './contenders.ts';
import { milliseconds } from './options.ts';
import { requestBody } from './payloads.ts';
import { folder, stop } from './processes.ts';
import { markdown } from './table.ts';

const TOP = 10;

interface CpuProfile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: { functionName: string; url: string; lineNumber: number };
  }[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

/** Returns each function's own microseconds, by name and place. */
function selfTimes({ nodes, samples, timeDeltas }: CpuProfile): Map<string, number> {
  const names = new Map(
    nodes.map(({ id, callFrame: { functionName, url, lineNumber } }) => {
      const place = url && `${url.split('/').slice(-2).join('/')}:${lineNumber + 1}`;
      return [id, `${functionName || '(anonymous)'} ${place}`];
    }),
  );
  const times = new Map<string, number>();
  for (const [index, id] of samples.entries()) {
    const name = names.get(id)!;
    times.set(name, (times.get(name) ?? 0) + timeDeltas[index]!);
  }
  return times;
}

function describe(title: string, times: ReadonlyMap<string, number>): string {
  const total = [...times.values()].reduce((sum, time) => sum + time, 0);
  const idle = times.get('(idle) ') ?? 0;
  const rows = [...times]
    .filter(([name]) => name !== '(idle) ')
    .toSorted(([, a], [, b]) => b - a)
    .map(([name, time]) => [name, ((time / (total - idle)) * 100).toFixed(1)]);
  const isEngine = ([name = '']: readonly string[]) =>
    /^\((program|garbage collector)\)/.test(name);
  const shown = [...rows.filter(isEngine), ...rows.filter((row) => !isEngine(row)).slice(0, TOP)];
  const share = ((idle / total) * 100).toFixed(1);
  const table = markdown([['function', '% of busy time'], ...shown]);
  return `### ${title}\n\n${table}\n\nidle ${share} % of the time\n`;
}

/** Profiles a contender under the load from the measures `requests` and `events`. */
export async function profile(id: ContenderId): Promise<string> {
  const loadMs = milliseconds(12);
  const loads = {
    requests: async (cell: Cell) => cell.saturate(32, loadMs),
    events: async (cell: Cell) => {
      await cell.load('streams', requestBody(1000, true), { count: 200 });
      await sleep(loadMs);
    },
  };
  let text = '';
  for (const [name, load] of Object.entries(loads)) {
    const path = mkdtempSync(join(folder, 'profile-'));
    const nodeArgs = ['--cpu-prof', `--cpu-prof-dir=${path}`];
    // Short streams, because the process waits at its end for open streams.
    await inCell(id, { events: loadMs / 10, nodeArgs }, async (cell) => {
      await load(cell);
      await sleep(1000);
      await stop(cell.child, 'SIGTERM');
    });
    const [file = ''] = readdirSync(path);
    const measured = JSON.parse(readFileSync(join(path, file), 'utf8')) as CpuProfile;
    const title = `profile of ${CONTENDERS[id].label} under ${name}`;
    text += `${describe(title, selfTimes(measured))}\n`;
  }
  return text;
}
