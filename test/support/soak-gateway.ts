/** A gateway in a process of its own that tells over IPC how it fares. Run with --expose-gc. */

import { setTimeout as sleep } from 'node:timers/promises';

import { loadConfig } from '../../src/config/config.ts';
import { CLIENT_LIMITS } from '../../src/downstream/call.ts';
import { createService } from '../../src/app.ts';
import { tcpSocketsOf } from './process.ts';
import { TRANSPORT_ENV } from './transport.ts';

/** What it answers to any message. */
export interface Vitals {
  readonly heapBytes: number;
  readonly rssBytes: number;
  /** Requests that have begun and are not over. */
  readonly live: number;
  /** Open connections, on both sides. */
  readonly sockets: number;
  readonly internalErrors: number;
}

let internalErrors = 0;

const config = loadConfig({ toml: process.env['SOAK_TOML']!, env: TRANSPORT_ENV });
const { server } = createService(config, {
  writeLog(text) {
    const errors = text.split('\n').filter((line) => line.includes('"level":"error"'));
    internalErrors += errors.length;
    if (errors.length > 0) process.stderr.write(errors.join('\n'));
  },
  isTerminal: false,
  clientLimits: CLIENT_LIMITS,
});

process.on('message', () => void report());
process.on('disconnect', () => process.exit());
process.send!({ port: (await server.listen(0, '127.0.0.1')).port });

async function report(): Promise<void> {
  for (let round = 0; round < 3; round += 1) {
    globalThis.gc!();
    await sleep(20);
  }
  const { heapUsed, rss } = process.memoryUsage();
  process.send!({
    heapBytes: heapUsed,
    rssBytes: rss,
    live: server.counts.inFlight,
    sockets: tcpSocketsOf(process.pid).others,
    internalErrors,
  } satisfies Vitals);
}
