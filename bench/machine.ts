/** Whether the machine is ours alone: what others use of it is in every number. */

import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const LOOK_MS = 1000;
const TOO_MUCH_PERCENT = 3;

/** Time of all cores: all there was, what was used, and what the host gave to others. */
function times() {
  const fields = /^cpu +(.*)/.exec(readFileSync('/proc/stat', 'utf8'))![1]!.split(' ').map(Number);
  const [user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0] =
    fields;
  const used = user + nice + system + irq + softirq;
  return { all: used + idle + wait + steal, used, steal };
}

/** Looks at the machine while nothing of ours runs. The result, called at the end, tells what was wrong. */
export async function watchMachine(): Promise<() => string[]> {
  const before = times();
  await sleep(LOOK_MS);
  const start = times();
  const busy = ((start.used - before.used) / (start.all - before.all)) * 100;
  return () => {
    const end = times();
    const stolen = ((end.steal - start.steal) / (end.all - start.all)) * 100;
    if (Math.max(busy, stolen) < TOO_MUCH_PERCENT) return [];
    return [
      `NOT a quiet machine: others used ${busy.toFixed(0)} % before the start, its host took ${stolen.toFixed(0)} % since`,
    ];
  };
}
