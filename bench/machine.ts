/** Whether the machine has other load, which would be part of every figure. */

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

export const MS_PER_TICK =
  1000 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));
const ALLOWED_CORES = 0.06;
/** How often one measurement is taken at most, because a host's own work comes and goes. */
const MAX_TRIES = 5;

/** A look at the machine, while the bench has nothing running. */
export interface Look {
  readonly atMs: number;
  /** The text in /proc/stat. */
  readonly machine: string;
  /** The text in /proc/self/stat: the bench, and all its ended children. */
  readonly self: string;
}

const look = (): Look => ({
  atMs: performance.now(),
  machine: readFileSync('/proc/stat', 'utf8'),
  self: readFileSync('/proc/self/stat', 'utf8'),
});

/**
 * Returns milliseconds so far: idle cores, interrupts, time taken by the host, and our own time.
 */
function times({ machine, self }: Look) {
  const fields = /^cpu +(.*)/.exec(machine)![1]!.split(' ').map(Number);
  const [, , , idle = 0, wait = 0, irq = 0, softirq = 0, steal = 0] = fields;
  // Without `irq`, the kernel counts interrupts as time of the interrupted process.
  const interrupts = irq > 0 ? irq + softirq : 0;
  const own = self.split(') ').at(-1)!.split(' ').slice(11, 15).map(Number);
  const ticks = { idle: idle + wait, interrupts, steal, own: own.reduce((sum, one) => sum + one) };
  const inMs = Object.entries(ticks).map(([name, value]) => [name, value * MS_PER_TICK]);
  return Object.fromEntries(inMs) as typeof ticks;
}

/** Returns the other load between two looks; undefined if it is too small to matter. */
export function disturbance(before: Look, after: Look): string | undefined {
  const [a, b] = [times(before), times(after)];
  const elapsedMs = after.atMs - before.atMs;
  const cores = before.machine.match(/^cpu\d/gm)!.length;
  const stolen = (b.steal - a.steal) / elapsedMs;
  const free = (b.idle - a.idle + b.interrupts - a.interrupts) / elapsedMs;
  const others = cores - free - stolen - (b.own - a.own) / elapsedMs;
  if (Math.max(others, stolen) < ALLOWED_CORES) return undefined;
  return `others used ${others.toFixed(2)} cores, the host took ${stolen.toFixed(2)}`;
}

export class DisturbedError extends Error {}

/**
 * Measures, and repeats the measurement if there was other load. A disturbed result is dropped, and
 * so is a failure. Rejects with `DisturbedError` if every try was disturbed.
 */
export async function measureAlone<T>(measure: () => Promise<T>, lookNow = look): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    const before = lookNow();
    const [outcome] = await Promise.allSettled([measure()]);
    const reason = disturbance(before, lookNow());
    if (reason === undefined) {
      if (outcome.status === 'rejected') throw outcome.reason;
      return outcome.value;
    }
    if (tries === MAX_TRIES) throw new DisturbedError(reason);
    process.stderr.write(`${reason}; again: `);
  }
}
