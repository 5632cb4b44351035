/** One gateway at an address: with SO_REUSEPORT, which workers listen with, several could share it unknowingly. */

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import type { Address } from './messages.ts';

/** For another gateway on this port to start. */
const MAX_WAIT_MS = 10_000;
const RETRY_MS = 20;

/**
 * Calls `start`, which listens at the address, if no other socket has it, and returns what it returns. Gateways that start
 * on one port at the same moment do so one after the other: their addresses may overlap (`0.0.0.0` and `127.0.0.1`). A
 * gateway with the same host is kept away for as long as the process lives, also while no worker listens. Rejects with
 * Node's error if another socket has the address, or it cannot be had.
 */
export async function startAt<T>({ port, host }: Address, start: () => Promise<T>): Promise<T> {
  // A name of 108 bytes at most.
  const hostDigest = createHash('sha256').update(host).digest('base64url');
  let starting: Server;
  try {
    await lock(`${hostDigest} ${port}`);
    starting = await waitForLock(`${port}`);
  } catch (error) {
    throw Object.assign(error as Error, { port });
  }
  try {
    // Workers would share the port with any other that sets SO_REUSEPORT; this socket does not set it.
    const probe = createServer().listen({ port, host });
    await once(probe, 'listening');
    await once(probe.close(), 'close');
    return await start();
  } finally {
    starting.close();
  }
}

/** Listens on an abstract socket: Linux forgets it with its process. Rejects with Node's error if another one has the name. */
async function lock(name: string): Promise<Server> {
  const server = createServer().listen(`\0inference-gateway ${name}`).unref();
  await once(server, 'listening');
  return server;
}

async function waitForLock(name: string): Promise<Server> {
  const lastMs = performance.now() + MAX_WAIT_MS;
  for (;;) {
    try {
      return await lock(name);
    } catch (error) {
      const isTaken = (error as NodeJS.ErrnoException).code === 'EADDRINUSE';
      if (!isTaken || performance.now() > lastMs) throw error;
    }
    await sleep(RETRY_MS);
  }
}
