/**
 * Bodies in tiny chunks: how long /health waits while uploads or a provider's stream of 1.5 MB pass
 * through the built gateway, and through a bare Node server. Another process asks for /health.
 *
 *   npm run test:chunks   two minutes
 */

import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';

import {
  DELAY_PROBE,
  messageOf,
  probeHealth,
  readMeasured,
  startPeer,
  startProbedGateway,
} from '../support/probed-gateway.ts';
import { buildOnce } from '../support/process.ts';
import { TRANSPORT_ENV } from '../support/transport.ts';

const PEER = 'tiny-chunk-peer';
/** How much longer than bare Node, with the same bytes, the gateway may block the event loop. */
const MAX_STALL_MS = 100;
const GIVE_UP_MS = 20_000;

interface Scenario {
  readonly kind: 'upload' | 'without a key' | 'stream';
  readonly count: number;
  readonly chunkBytes: number;
}

const SCENARIOS: readonly Scenario[] = [
  { kind: 'upload', count: 1, chunkBytes: 1 },
  { kind: 'upload', count: 10, chunkBytes: 1 },
  { kind: 'upload', count: 10, chunkBytes: 17 },
  { kind: 'without a key', count: 1, chunkBytes: 1 },
  { kind: 'without a key', count: 10, chunkBytes: 1 },
  { kind: 'stream', count: 1, chunkBytes: 1 },
  { kind: 'stream', count: 10, chunkBytes: 1 },
];

interface Probed {
  readonly child: ChildProcess;
  readonly port: number;
  readonly end: () => unknown;
}

async function startBare(providerPort: number): Promise<Probed> {
  const child = startPeer(PEER, ['bare', providerPort || ''], ['--import', DELAY_PROBE]);
  return { child, port: await messageOf<number>(child), end: () => child.disconnect() };
}

/** Runs a scenario. Returns the longest waits in milliseconds, and the requests' answers. */
async function run(
  { kind, count, chunkBytes }: Scenario,
  start: (providerPort: number) => Promise<Probed>,
) {
  const provider = kind === 'stream' ? startPeer(PEER, ['provider']) : undefined;
  const server = await start(provider ? await messageOf<number>(provider) : 0);
  // Do not measure the start, or uncompiled code.
  await probeHealth(server.port, sleep(1000));
  const client = startPeer(PEER, ['client', server.port, count, chunkBytes, kind]);
  const done = messageOf<string[]>(client);
  const times = await probeHealth(server.port, Promise.race([done, sleep(GIVE_UP_MS)]));
  const answers = await Promise.race([done, Promise.resolve(['unfinished'])]);
  const statuses = [...new Set(answers)].join(', ');
  const exit = once(server.child, 'exit');
  server.end();
  await exit;
  client.disconnect();
  provider?.disconnect();
  return { healthMs: times.at(-1)!, busyMs: readMeasured().busy.max, statuses };
}

await buildOnce();
console.log(`node ${process.version}, ${TRANSPORT_ENV['GATEWAY_UPSTREAM'] ?? 'auto'}`);
console.log('longest wait of /health, longest stall of the server’s own doing, in ms; answers');
for (const scenario of SCENARIOS) {
  const { kind, count, chunkBytes } = scenario;
  console.log(`${kind}, ${count} at once, chunks of ${chunkBytes} B`);
  let bareMs = 0;
  for (const [name, start] of [
    ['bare Node', startBare],
    ['gateway', startProbedGateway],
  ] as const) {
    const { healthMs, busyMs, statuses } = await run(scenario, start);
    const figures = [healthMs, busyMs].map((ms) => ms.toFixed(0).padStart(7)).join('');
    console.log(`  ${name.padEnd(10)}${figures}  ${statuses}`);
    bareMs ||= busyMs;
    if (busyMs - bareMs < MAX_STALL_MS) continue;
    console.log(`FAILED: the gateway stalled for ${MAX_STALL_MS} ms longer`);
    process.exitCode = 1;
  }
}
