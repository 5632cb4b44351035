/** The cost of large requests, and how long they block everything else. */

import { inCell } from './cell.ts';
import { RELAYS } from './contenders.ts';
import type { Measure } from './measure.ts';
import { milliseconds } from './options.ts';
import { requestBody } from './payloads.ts';
import { ask, startProgram, stop } from './processes.ts';

const CONNECTIONS = 4;
const SIZES = { '1 KB': 1e3, '100 KB': 1e5, '1 MB': 1e6, '10 MB': 1e7 };
const texts = Object.values(SIZES).map((bytes) => requestBody(bytes, false));

/** Parses each text in its own process. */
async function parseAlone(): Promise<number[]> {
  const values: number[] = [];
  for (const body of texts) {
    const child = startProgram('parse', [], true);
    values.push(await ask<number>(child, { body, ms: milliseconds(3) }), NaN);
    await stop(child);
  }
  return values;
}

export const bodies: Measure = {
  title: 'bodies',
  about:
    `CPU milliseconds per MB of request on ${CONNECTIONS} connections, and the longest time ` +
    `the event loop stood still.`,
  columns: Object.keys(SIZES).flatMap((name) => [`${name}: CPU ms per MB`, 'stall ms']),
  contenders: ['parse', ...RELAYS],
  async run(id) {
    if (id === 'parse') return parseAlone();
    return inCell(id, { isProbed: true }, async (cell) => {
      const values: number[] = [];
      for (const body of texts) {
        await cell.load('closed', body, { connections: CONNECTIONS, ms: milliseconds(3) });
        await cell.delay();
        const before = cell.cpuMs();
        const load = { connections: CONNECTIONS, ms: milliseconds(4) };
        const { requests } = await cell.load('closed', body, load);
        const cost = (cell.cpuMs() - before) / ((requests * body.length) / 1e6);
        values.push(cost, (await cell.delay()).max);
      }
      return values;
    });
  },
  ratios: Object.keys(SIZES).map((name, index) => ({
    text: `gateway / (JSON.parse + bare relay), CPU at ${name}`,
    of: (v) => v('gateway', 2 * index) / (v('parse', 2 * index) + v('bare-relay', 2 * index)),
  })),
};
