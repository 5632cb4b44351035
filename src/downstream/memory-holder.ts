/** Finds the client whose requests and answers take most of the memory. */

import type { Call } from './call.ts';
import { createRemoteAddress } from './trusted-proxies.ts';

const MEBIBYTE = 1_048_576;

export interface MemoryHolder {
  /** Undefined without a key of `[clients]`. */
  readonly client: string | undefined;
  readonly text: string;
}

/** Returns the client, or without a name the address, that holds most of the reserved bytes. */
export function findMemoryHolder(
  calls: readonly Call[],
  trustedProxies: readonly string[],
  maxBufferedBytes: number,
): MemoryHolder | undefined {
  const remoteAddressOf = createRemoteAddress(trustedProxies);
  const holders = new Map<string, { client: string | undefined; bytes: number }>();
  for (const call of calls) {
    const { client } = call.history;
    const name = client ?? remoteAddressOf(call) ?? 'a client that has left';
    const bytes = call.reservedBytes + (holders.get(name)?.bytes ?? 0);
    holders.set(name, { client, bytes });
  }
  const [most] = [...holders].toSorted(([, a], [, b]) => b.bytes - a.bytes);
  if (!most || most[1].bytes === 0) return undefined;
  const [name, { client, bytes }] = most;
  const [held, all] = [bytes, maxBufferedBytes].map((count) => (count / MEBIBYTE).toFixed(1));
  return { client, text: `${name} holds ${held} of ${all} MiB` };
}
