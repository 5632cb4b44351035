/**
 * The gain from a second process at the port. Contender, upstream and generator share all cores.
 */

import { inCell } from './cell.ts';
import { ratio, type Measure } from './measure.ts';
import { milliseconds } from './options.ts';
import { rssKiB, withAllCores } from './processes.ts';

/** Many connections, because the kernel spreads them over processes by their ports. */
const CONNECTIONS = 128;
const WARM_UP_SECONDS = 8;

export const processes: Measure = {
  title: 'processes',
  about:
    `Complete answers of 0.8 KB to requests of 1 KB on ${CONNECTIONS} connections, ` +
    'at saturation; nobody is alone on a core.',
  columns: ['requests per second', 'CPU µs per request', 'resident MiB'],
  contenders: ['one-process', 'two-processes'],
  run: async (id) =>
    withAllCores(async () =>
      inCell(id, {}, async (cell) => {
        await cell.saturate(CONNECTIONS, milliseconds(WARM_UP_SECONDS));
        const before = cell.cpuMs();
        const { requests, perSecond } = await cell.saturate(CONNECTIONS, milliseconds(6));
        const cost = ((cell.cpuMs() - before) * 1000) / requests;
        const residentKiB = cell.children.reduce((sum, child) => sum + rssKiB(child), 0);
        return [perSecond, cost, residentKiB / 1024];
      }),
    ),
  ratios: [ratio(['two-processes', 'one-process'], 0, 'requests per second')],
  notes: (value) => {
    const carried = (2 * value('one-process', 1)) / value('two-processes', 1);
    return [
      `By CPU time, two cores without load and upstream carry ${carried.toFixed(2)} times ` +
        'as much as one.',
    ];
  },
};
