/** The cost per request and per event, and whether it depends on connections or on time. */

import { setTimeout as sleep } from 'node:timers/promises';

import { inCell, type Cell } from './cell.ts';
import { CONTENDERS, NODE_RELAYS, RELAYS, type Contender, type ContenderId } from './contenders.ts';
import { ratio, type Measure, type Value } from './measure.ts';
import { milliseconds, options } from './options.ts';
import { EVENT_BYTES, requestBody } from './payloads.ts';
import { figure } from './table.ts';

const CONNECTIONS = 32;
/** V8 has compiled everything after some 20,000 requests. */
const WARM_UP_SECONDS = 8;
const STREAMS = 200;
const EVENT_EVERY_MS = 10;
const STREAM_RATE = 1000 / EVENT_EVERY_MS;
const streamsOf = (id: ContenderId) => {
  const { eventsPerSecond = Infinity }: Contender = CONTENDERS[id];
  return Math.min(STREAMS, Math.floor(eventsPerSecond / STREAM_RATE));
};
const END_WITHIN_MS = 30_000;
/** How much faster generator and upstream must be than the contender. */
const ENOUGH = 1.5;

const comparisons = (what: string) => [
  ratio(['gateway', 'onwards'], 0, what),
  ratio(['access-log-off', 'onwards'], 0, what),
  ratio(['gateway', 'lean-relay'], 0, what),
  ratio(['access-log-off', 'lean-relay'], 0, what),
  ratio(['admin', 'gateway'], 0, what),
  ratio(['gateway', 'bare-relay'], 0, what),
  ratio(['fetch-transport', 'gateway'], 0, what),
  ratio(['gateway', 'bare-fetch'], 0, what),
  ratio(['portkey', 'gateway'], 0, what),
  ratio(['gateway', 'nginx'], 0, what),
];

const tooFast = (v: Value) =>
  RELAYS.filter((id) => v('direct', 1) < ENOUGH * v(id, 1)).map(
    (id) =>
      `${CONTENDERS[id].label}: generator and upstream alone reach only ` +
      `${figure(v('direct', 1) / v(id, 1))} times its rate and limit it; ` +
      'its CPU time counts, its rate does not',
  );

/** Returns the CPU microseconds per request, and the requests per second. */
async function costOfRequests(cell: Cell, connections: number, seconds: number) {
  const before = cell.cpuMs();
  const { requests, perSecond } = await cell.saturate(connections, milliseconds(seconds));
  return [((cell.cpuMs() - before) * 1000) / requests, perSecond] as const;
}

export const requests: Measure = {
  title: 'requests',
  about: `1 KB requests with 0.8 KB complete answers, ${CONNECTIONS} connections, at saturation.`,
  columns: ['CPU µs per request', 'requests per second'],
  contenders: ['direct', ...RELAYS],
  run: async (id) =>
    inCell(id, {}, async (cell) => {
      await costOfRequests(cell, CONNECTIONS, WARM_UP_SECONDS);
      return [...(await costOfRequests(cell, CONNECTIONS, 6))];
    }),
  ratios: comparisons('CPU per request'),
  notes: tooFast,
};

export const allocations: Measure = {
  title: 'allocations',
  about:
    `KB allocated on the heap per request of 1 KB on ${CONNECTIONS} connections, at saturation: ` +
    'all that is to be collected.',
  columns: ['KB per request'],
  contenders: NODE_RELAYS,
  run: async (id) =>
    inCell(id, { isProbed: true }, async (cell) => {
      await cell.saturate(CONNECTIONS, milliseconds(WARM_UP_SECONDS));
      await cell.delay();
      const { requests: count } = await cell.saturate(CONNECTIONS, milliseconds(4));
      return [(await cell.delay()).allocatedBytes / count / 1000];
    }),
  ratios: ['gateway' as const, 'access-log-off' as const].map((id) => ({
    text: `${CONTENDERS[id].label}, KB allocated per request`,
    of: (v) => v(id, 0),
  })),
};

/** Returns the state so far. */
async function look(cell: Cell) {
  const { bytes, running } = await cell.load('progress', Buffer.alloc(0), {});
  const [cpuMs, benchCpuMs] = [cell.cpuMs(), cell.benchCpuMs()];
  return { running, events: bytes / EVENT_BYTES, cpuMs, benchCpuMs, at: performance.now() };
}

async function untilStreamsEnd(cell: Cell): Promise<void> {
  const giveUpAt = performance.now() + END_WITHIN_MS;
  while ((await look(cell)).running > 0) {
    if (performance.now() > giveUpAt) throw new Error('streams did not end');
    await sleep(50);
  }
}

export const events: Measure = {
  title: 'events',
  about:
    `${STREAMS} streams with an event of ${EVENT_BYTES} bytes each ${EVENT_EVERY_MS} ms, ` +
    'all bytes compared. The rate of the upstream asked directly is what it and the generator ' +
    'could reach, reckoned from their CPU time.',
  columns: ['CPU µs per event', 'events per second'],
  contenders: ['direct', ...RELAYS],
  async run(id) {
    const [settleMs, windowMs] = [milliseconds(4), milliseconds(6)];
    const count = Math.ceil((settleMs + windowMs + milliseconds(3)) / EVENT_EVERY_MS);
    return inCell(id, { events: count, everyMs: EVENT_EVERY_MS }, async (cell) => {
      await cell.load('streams', requestBody(1000, true), { count: streamsOf(id) });
      await sleep(settleMs);
      const before = await look(cell);
      await sleep(windowMs);
      const after = await look(cell);
      await untilStreamsEnd(cell);
      const [passed, elapsedMs] = [after.events - before.events, after.at - before.at];
      const share = id === 'direct' ? (after.benchCpuMs - before.benchCpuMs) / elapsedMs : 1;
      const cost = ((after.cpuMs - before.cpuMs) * 1000) / passed;
      return [cost, (passed * 1000) / elapsedMs / share];
    });
  },
  ratios: comparisons('CPU per event'),
  notes: (v) => [
    ...tooFast(v),
    ...RELAYS.filter((id) => v(id, 1) > 0 && streamsOf(id) < STREAMS).map(
      (id) =>
        `${CONTENDERS[id].label} was given only ${streamsOf(id)} streams; ` +
        'its events were counted, not compared',
    ),
    ...RELAYS.filter((id) => Math.abs(v(id, 1) / (streamsOf(id) * STREAM_RATE) - 1) > 0.02).map(
      (id) =>
        `${CONTENDERS[id].label} did not keep up with ${streamsOf(id) * STREAM_RATE} events ` +
        'per second; events that come several at once cost less, so its CPU time does not compare',
    ),
  ],
};

const NUMBERS = [1, 10, 100, 1000];

export const connections: Measure = {
  title: 'connections',
  about:
    'CPU µs per request at saturation, by the number of connections; ' +
    'each has a request in flight at the provider.',
  columns: NUMBERS.map(String),
  contenders: ['gateway', 'fetch-transport'],
  run: async (id) =>
    inCell(id, {}, async (cell) => {
      await costOfRequests(cell, CONNECTIONS, WARM_UP_SECONDS);
      const costs: number[] = [];
      for (const number of NUMBERS) costs.push((await costOfRequests(cell, number, 6))[0]);
      return costs;
    }),
  ratios: [1, 2].map((column) => ({
    text: `gateway, 1000 connections / ${NUMBERS[column]}`,
    of: (v) => v('gateway', 3) / v('gateway', column),
  })),
};

export const minutes: Measure = {
  title: 'minutes',
  about: `CPU µs per request at saturation on ${CONNECTIONS} connections, minute by minute.`,
  columns: Array.from({ length: options.minutes }, (_, index) => `${index + 1}`),
  contenders: ['gateway', 'fetch-transport'],
  run: async (id) =>
    inCell(id, {}, async (cell) => {
      const costs: number[] = [];
      for (const _ of minutes.columns) costs.push((await costOfRequests(cell, CONNECTIONS, 60))[0]);
      return costs;
    }),
  ratios: [
    {
      text: 'gateway, last minute / second',
      of: (v) => v('gateway', options.minutes - 1) / v('gateway', 1),
    },
  ],
};
