/** The time a contender adds to an answer. */

import { setTimeout as sleep } from 'node:timers/promises';

import { inCell, type Cell } from './cell.ts';
import { CONTENDERS, RELAYS } from './contenders.ts';
import { ratio, type Measure } from './measure.ts';
import { milliseconds } from './options.ts';
import { requestBody } from './payloads.ts';

const PER_SECOND = 50;
const STREAM = { events: 6, everyMs: 10 };

/** Returns p50 and p99 of the first event, of the whole stream, and of a complete answer. */
async function times(cell: Cell): Promise<number[]> {
  const measure = async (isStream: boolean) => {
    const body = requestBody(1000, isStream);
    await cell.load('closed', body, { connections: 100, ms: milliseconds(4) });
    await sleep(500);
    return cell.load('open', body, { everyMs: 1000 / PER_SECOND, ms: milliseconds(10) });
  };
  const { firstMs, totalMs } = await measure(true);
  const { totalMs: completeMs } = await measure(false);
  return [firstMs, totalMs, completeMs].flatMap(({ p50, p99 }) => [p50, p99]);
}

/** The upstream's own times in this round. */
let direct: number[] = [];

export const latency: Measure = {
  title: 'latency',
  about:
    `Milliseconds added at ${PER_SECOND} requests per second, whatever becomes of them; ` +
    `streams of ${STREAM.events} events, the first at once, then one each ${STREAM.everyMs} ms. ` +
    'For the upstream asked directly: its own time.',
  columns: ['first event', 'stream', 'complete answer'].flatMap((what) => [
    `${what} p50`,
    `${what} p99`,
  ]),
  contenders: ['direct', ...RELAYS],
  async run(id) {
    const measured = await inCell(id, STREAM, times);
    if (id === 'direct') return (direct = measured);
    return measured.map((value, index) => value - (direct[index] ?? NaN));
  },
  ratios: [
    ratio(['gateway', 'onwards'], 1, 'first event p99'),
    ratio(['access-log-off', 'onwards'], 1, 'first event p99'),
  ],
  notes: (v) =>
    RELAYS.filter((id) => v(id, 1) <= 0).map(
      (id) =>
        `${CONTENDERS[id].label}: the upstream's own p99 varies by more than is added; ` +
        'its p99 does not compare',
    ),
};
