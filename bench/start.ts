/** The time to a contender's first answer, and its memory before any load. */

import { setTimeout as sleep } from 'node:timers/promises';

import { inCell } from './cell.ts';
import { RELAYS, type ContenderId } from './contenders.ts';
import { ratio, type Measure } from './measure.ts';
import { rssKiB } from './processes.ts';

const isInPageCache = new Set<ContenderId>();

export const start: Measure = {
  title: 'start',
  about: 'From the spawn to the first answer, and resident memory a second later.',
  columns: ['start ms', 'idle MiB'],
  contenders: ['empty', ...RELAYS],
  async run(id) {
    if (!isInPageCache.has(id)) await inCell(id, {}, async () => sleep(0));
    isInPageCache.add(id);
    return inCell(id, {}, async ({ child, startMs }) => {
      await sleep(1000);
      return [startMs, rssKiB(child) / 1024];
    });
  },
  ratios: [
    ratio(['gateway', 'empty'], 0, 'start'),
    ratio(['gateway', 'empty'], 1, 'idle memory'),
    ratio(['portkey', 'gateway'], 0, 'start'),
    ratio(['portkey', 'gateway'], 1, 'idle memory'),
  ],
};
