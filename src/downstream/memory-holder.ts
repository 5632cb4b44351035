/** Finds the client whose requests and answers take most of the memory. */

import type { Call } from './call.ts';
import { createRemoteAddress } from './trusted-proxies.ts';

const MEBIBYTE = 1_048_576;

/** Clients without a name are together under undefined. */
export function heldBytesByClient(calls: Iterable<Call>): ReadonlyMap<string | undefined, number> {
  const held = new Map<string | undefined, number>();
  for (const { history, reservedBytes } of calls) {
    held.set(history.client, reservedBytes + (held.get(history.client) ?? 0));
  }
  return held;
}

/** Returns the client, or without a name the address, that holds most of the reserved bytes. */
export function findMemoryHolder(
  calls: readonly Call[],
  trustedProxies: readonly string[],
  maxBufferedBytes: number,
): string | undefined {
  const remoteAddressOf = createRemoteAddress(trustedProxies);
  const holders = new Map<string, number>();
  for (const call of calls) {
    const name = call.history.client ?? remoteAddressOf(call) ?? 'a client that has left';
    holders.set(name, call.reservedBytes + (holders.get(name) ?? 0));
  }
  const [most] = [...holders].toSorted(([, a], [, b]) => b - a);
  if (!most || most[1] === 0) return undefined;
  const [name, bytes] = most;
  const [held, all] = [bytes, maxBufferedBytes].map((count) => (count / MEBIBYTE).toFixed(1));
  return `${name} holds ${held} of ${all} MiB`;
}
