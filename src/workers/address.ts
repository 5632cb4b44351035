/** One gateway at an address: with SO_REUSEPORT, which workers listen with, several could share it unknowingly. */

import { once } from 'node:events';
import { createServer } from 'node:net';

import type { Address } from './messages.ts';

/**
 * Keeps other gateways with workers away from the address for as long as the process lives, also those that start at the
 * same moment. Rejects with `EADDRINUSE`. Linux forgets an abstract socket with its process.
 */
export async function holdAddress({ port, host }: Address): Promise<void> {
  const lock = createServer().listen(`\0inference-gateway ${host} ${port}`);
  lock.unref();
  try {
    await once(lock, 'listening');
  } catch (error) {
    throw Object.assign(error as Error, { port });
  }
}

/** Rejects with Node's error if another socket has the address. */
export async function checkIsFree(address: Address): Promise<void> {
  const server = createServer().listen(address);
  await once(server, 'listening');
  await once(server.close(), 'close');
}
