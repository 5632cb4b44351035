/** A gateway as a process, which reports its state over IPC. Run it with --expose-gc. */

import { subscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { loadConfig } from '../../src/config/config.ts';
import { CLIENT_TIME_LIMITS } from '../../src/downstream/call.ts';
import { Service } from '../../src/app.ts';
import { tcpSocketsOf } from './process.ts';
import { TRANSPORT_ENV } from './transport.ts';

/** The reply to any message. */
export interface Vitals {
  readonly heapBytes: number;
  readonly rssBytes: number;
  /** Requests in flight. */
  readonly live: number;
  /** Open connections on both sides. */
  readonly sockets: number;
  readonly internalErrors: number;
}

let internalErrors = 0;

const load = (more = '') =>
  loadConfig({
    toml: process.env['SOAK_TOML']! + more,
    env: TRANSPORT_ENV,
  });
const config = load();
const service = new Service(config, {
  writeLog(text) {
    const errors = text.split('\n').filter((line) => line.includes('"level":"error"'));
    internalErrors += errors.length;
    if (errors.length > 0) process.stderr.write(errors.join('\n'));
  },
  isTerminal: false,
  clientTimeLimits: CLIENT_TIME_LIMITS,
});

const { server } = service;
let reloads = 0;
process.on('message', (message) => {
  if (message !== 'reload') {
    void report();
    return;
  }
  reloads += 1;
  // Every second reload changes the provider, which then gets new connections and circuits.
  service.reload(() => load(reloads % 2 === 0 ? '' : 'retries = 0\n'));
});
process.on('disconnect', () => process.exit());
const { reusePort } = config.server;
if (reusePort) {
  subscribe('net.server.socket', (message) => {
    process.send!({ acceptedFrom: (message as { socket: Socket }).socket.remotePort });
  });
}
const atPort = Number(process.env['SOAK_PORT']);
process.send!({ port: (await server.listen(atPort, '127.0.0.1', reusePort)).port });

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
