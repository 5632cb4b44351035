/** One gateway at an address: with SO_REUSEPORT, which workers listen with, several could share it unknowingly. */

import { once } from 'node:events';
import { createServer } from 'node:net';

import type { Address } from './messages.ts';

/**
 * Keeps other gateways with workers away from the address for as long as the process lives, also those that start at the
 * same moment. Linux forgets an abstract socket with its process. Rejects with Node's error if another socket has the
 * address, or it cannot be had.
 */
export async function holdAddress({ port, host }: Address): Promise<void> {
  const lock = createServer().listen(`\0inference-gateway ${host} ${port}`).unref();
  try {
    await once(lock, 'listening');
  } catch (error) {
    throw Object.assign(error as Error, { port });
  }
  // Another server may listen there, or a gateway that was given this port for 0.
  const probe = createServer().listen({ port, host });
  await once(probe, 'listening');
  await once(probe.close(), 'close');
}
