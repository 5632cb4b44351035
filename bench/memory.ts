/** Memory per open stream, and whether open streams delay the event loop. */

import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

import { inCell, type Cell } from './cell.ts';
import { CONTENDERS, NODE_RELAYS, RELAYS, type Contender, type ContenderId } from './contenders.ts';
import type { Measure } from './measure.ts';
import { milliseconds } from './options.ts';
import { EVENT_BYTES, requestBody } from './payloads.ts';
import { rssKiB } from './processes.ts';

const NUMBERS = [1000, 5000];
const EVENT_EVERY_MS = 1000;
/** More events than come in the time. */
const EVENTS = 1000;
const SPARE_FILES = 100;
const limits = readFileSync('/proc/self/limits', 'utf8');
const OPEN_FILES = Number(/^Max open files\s+(\d+)/m.exec(limits)![1]);
/** The number of streams. Each takes two files in the contender. */
const MANY = Math.min(10_000, Math.floor((OPEN_FILES - SPARE_FILES) / 2));

function mostStreams(id: ContenderId): number {
  const { eventsPerSecond = Infinity }: Contender = CONTENDERS[id];
  return Math.floor((eventsPerSecond * EVENT_EVERY_MS) / 1000);
}

/** Opens more streams, and holds all. Throws if a stream gets wrong bytes, or none. */
async function hold(cell: Cell, more: number): Promise<number> {
  const body = requestBody(1000, true);
  await cell.load('streams', body, { count: more });
  await cell.delay();
  const holdMs = milliseconds(9) + EVENT_EVERY_MS;
  const { least } = await cell.load('progress', body, {});
  await sleep(holdMs);
  const after = await cell.load('progress', body, {});
  const due = Math.floor(holdMs / EVENT_EVERY_MS) - 1;
  if (after.least < least + due * EVENT_BYTES) throw new Error('a stream stood still');
  return (await cell.delay()).p99;
}

const survivals: string[] = [];

async function survive(cell: Cell, id: ContenderId): Promise<void> {
  const what = `${CONTENDERS[id].label}, ${MANY} streams, all bytes compared:`;
  await hold(cell, MANY - NUMBERS.at(-1)!).then(
    () => survivals.push(`${what} yes`),
    (error: Error) => survivals.push(`${what} no, ${error.message}`),
  );
}

const PROMPT_STREAMS = 20;
const PROMPT_BYTES = 8_388_608;

export const prompts: Measure = {
  title: 'prompts',
  about:
    `Held per open stream whose prompt has ${PROMPT_BYTES / 1_048_576} MiB, on and off the heap ` +
    `after a collection; ${PROMPT_STREAMS} streams.`,
  columns: ['KiB held per stream'],
  contenders: NODE_RELAYS,
  async run(id) {
    const plan = {
      events: EVENTS,
      everyMs: EVENT_EVERY_MS,
      isProbed: true,
      nodeArgs: ['--expose-gc'],
    };
    return inCell(id, plan, async (cell) => {
      const body = requestBody(PROMPT_BYTES, true);
      await cell.load('streams', body, { count: 1 });
      await sleep(EVENT_EVERY_MS);
      const before = (await cell.delay()).heldBytes;
      await cell.load('streams', body, { count: PROMPT_STREAMS });
      await sleep(EVENT_EVERY_MS);
      const after = (await cell.delay()).heldBytes;
      return [(after - before) / PROMPT_STREAMS / 1024];
    });
  },
  ratios: [],
  notes: () => [],
};

export const memory: Measure = {
  title: 'memory',
  about:
    'Resident memory, idle and per open stream with an event each second, all bytes compared; ' +
    "the event loop's p99 delay meanwhile.",
  columns: [
    'idle MiB',
    ...NUMBERS.flatMap((number) => [`KiB per stream of ${number}`, `loop delay ms`]),
  ],
  contenders: RELAYS,
  run: async (id) =>
    inCell(id, { events: EVENTS, everyMs: EVENT_EVERY_MS, isProbed: true }, async (cell) => {
      await sleep(1000);
      const idle = rssKiB(cell.child);
      const values = [idle / 1024];
      let opened = 0;
      for (const number of NUMBERS.map((each) => Math.min(each, mostStreams(id)))) {
        const delay = await hold(cell, number - opened);
        opened = number;
        values.push((rssKiB(cell.child) - idle) / number, delay);
      }
      if (id === 'gateway' || id === 'fetch-transport') await survive(cell, id);
      return values;
    }),
  ratios: NUMBERS.map((number, index) => ({
    text: `gateway, KiB per stream of ${number}`,
    of: (v) => v('gateway', 2 * index + 1),
  })),
  notes: (v) => [
    ...RELAYS.filter((id) => v(id, 0) > 0 && mostStreams(id) < NUMBERS.at(-1)!).map(
      (id) => `${CONTENDERS[id].label} was given only ${mostStreams(id)} streams`,
    ),
    ...new Set(survivals),
    MANY < 10_000 ? `not 10000 streams: only ${OPEN_FILES} files may be open` : '',
  ],
};
