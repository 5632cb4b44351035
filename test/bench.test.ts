/** `npm run bench` reports figures only from a machine without other load. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { disturbance, DisturbedError, measureAlone, MS_PER_TICK } from '../bench/machine.ts';
import { ROOT, runProgram, startProgram } from './support/process.ts';
import { LEFT_TO_SWEEPS } from './support/sweep.ts';

/** Ticks per second. */
const TICKS = 1000 / MS_PER_TICK;

/** The use of two cores over this time, each in a single core's seconds. */
interface Usage {
  readonly seconds?: number;
  readonly own?: number;
  readonly others?: number;
  readonly irq?: number;
  readonly softirq?: number;
  readonly stolen?: number;
}

function lookAfter(usage: Usage) {
  const { seconds = 0, own = 0, others = 0, irq = 0, softirq = 0, stolen = 0 } = usage;
  // Without `irq`, the kernel counts interrupts as the processes' time.
  const apart = irq > 0 ? irq + softirq : 0;
  const idle = 1000 + 2 * seconds - own - others - stolen - apart;
  const fields = [own + others, 0, 0, idle * 0.75, idle * 0.25, irq, softirq, stolen, 0, 0];
  const cpu = fields.map((one) => Math.round(one * TICKS)).join(' ');
  const ownTicks = [0.1, 0.2, 0.3, 0.4].map((share) => Math.round(own * share * TICKS)).join(' ');
  return {
    atMs: 5000 + seconds * 1000,
    machine: `cpu  ${cpu}\ncpu0 1 2\ncpu1 1 2\nintr 5\ncpus 1\n`,
    self: `12 (a) node) S 1 12 12 0 -1 4194304 98 7 0 0 ${ownTicks} 20 0 11 0 31251 3133440\n`,
  };
}

const start = lookAfter({});
const quiet = lookAfter({ seconds: 10, own: 14, others: 0.3 });
const busy = lookAfter({ seconds: 10, own: 14, others: 3 });

test('the time of the bench and its children is not other load', () => {
  assert.equal(disturbance(start, quiet), undefined);
  assert.equal(disturbance(start, busy), 'others used 0.30 cores, the host took 0.00');
});

test('time that the host takes from the cores is other load', () => {
  const stolen = lookAfter({ seconds: 10, own: 14, stolen: 1 });
  assert.equal(disturbance(start, stolen), 'others used 0.00 cores, the host took 0.10');
});

test('interrupts are no other load, however the kernel counts them', () => {
  const apart = lookAfter({ seconds: 10, own: 14, irq: 0.5, softirq: 2 });
  assert.equal(disturbance(lookAfter({ irq: 0.01 }), apart), undefined);
  const within = lookAfter({ seconds: 10, own: 14, others: 3, softirq: 2 });
  assert.match(disturbance(start, within) ?? '', /^others used 0\.30 cores/);
});

test('a disturbed measurement is repeated, and its numbers are dropped', async () => {
  const looks = [start, busy, start, quiet];
  const numbers = [71, 48];
  const measured = await measureAlone(
    async () => numbers.shift(),
    () => looks.shift()!,
  );
  assert.equal(measured, 48);
});

test('a measurement that is disturbed five times has no numbers and no failure', async () => {
  const looks = Array.from({ length: 5 }, () => [start, busy]).flat();
  let count = 0;
  const measured = measureAlone(
    async () => {
      count += 1;
      throw new Error('a stream stood still');
    },
    () => looks.shift()!,
  );
  await assert.rejects(measured, DisturbedError);
  assert.equal(count, 5);
});

test('a measurement that fails on a quiet machine has failed', async () => {
  const looks = [start, quiet];
  const measured = measureAlone(
    async () => {
      throw new Error('a stream stood still');
    },
    () => looks.shift()!,
  );
  await assert.rejects(measured, /^Error: a stream stood still$/);
});

const skip = process.platform === 'linux' ? LEFT_TO_SWEEPS : 'the bench reads /proc';

test(
  'beside another busy process, `npm run bench` fails and prints no figure',
  { skip },
  async (t) => {
    // A third of a core, to spare simultaneous tests.
    const spin =
      'setInterval(() => { for (const end = Date.now() + 30; Date.now() < end; ); }, 90)';
    startProgram(t, [spin], { script: '-e' });
    const args = 'tsx bench/main.ts --quick --only start --contenders lean-relay'.split(' ');
    const { code, stdout, stderr } = await runProgram(t, args, { script: '--import', cwd: ROOT });
    assert.equal(code, 1, stderr);
    assert.equal(stdout, '');
    const used = String.raw`others used \d\.\d\d cores, the host took \d\.\d\d`;
    assert.match(
      stderr,
      new RegExp(
        `^start, round 1 of 1, empty: (?:${used}; again: ){4}failed: ${used}\nNOT a quiet machine: .*\n$`,
      ),
    );
  },
);
