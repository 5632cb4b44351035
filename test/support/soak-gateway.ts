/** A gateway in a process of its own that tells over IPC how it fares. Run with --expose-gc. */

import { subscribe } from 'node:diagnostics_channel';
import { setTimeout as sleep } from 'node:timers/promises';

import { assemble } from '../../src/assembly.ts';
import { loadConfig } from '../../src/config/config.ts';
import { SERVER } from './process.ts';
import { TRANSPORT_ENV } from './transport.ts';

/** What it answers to any message. */
export interface Vitals {
  readonly heapBytes: number;
  readonly rssBytes: number;
  /** Requests that have begun and have no access line yet. */
  readonly live: number;
  /** Open connections, on both sides. */
  readonly sockets: number;
  readonly internalErrors: number;
}

let live = 0;
let internalErrors = 0;
subscribe('http.server.request.start', () => {
  live += 1;
});

const config = loadConfig({ toml: process.env['SOAK_TOML']!, env: TRANSPORT_ENV });
const { server } = assemble(config, {
  writeLog(line) {
    if (line.includes('"message":"request"')) live -= 1;
    if (!line.includes('"level":"error"')) return;
    internalErrors += 1;
    process.stderr.write(line);
  },
  workerFile: SERVER,
  isTerminal: false,
  colour: false,
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
  const open = process.getActiveResourcesInfo().filter((name) => /^(?:TCP|TLS)/.test(name));
  process.send!({
    heapBytes: heapUsed,
    rssBytes: rss,
    live,
    sockets: open.length - 1,
    internalErrors,
  } satisfies Vitals);
}
