/** Finds the client whose requests and answers take most of the memory. */

import type { Call } from './call.ts';
import { createRemoteAddress } from './trusted-proxies.ts';

const MEBIBYTE = 1_048_576;

/** Returns the reserved bytes by the name that a call has by `nameOf`. */
function heldBytesBy<Name>(calls: Iterable<Call>, nameOf: (call: Call) => Name) {
  const held = new Map<Name, number>();
  for (const call of calls) {
    const name = nameOf(call);
    held.set(name, call.reservedBytes + (held.get(name) ?? 0));
  }
  return held;
}

/** Clients without a name are together under undefined. */
export function heldBytesByClient(calls: Iterable<Call>): ReadonlyMap<string | undefined, number> {
  return heldBytesBy(calls, ({ history }) => history.client);
}

/** Returns the client, or without a name the address, that holds most of the reserved bytes. */
export function findMemoryHolder(
  calls: readonly Call[],
  trustedProxies: readonly string[],
  maxBufferedBytes: number,
): string | undefined {
  const remoteAddressOf = createRemoteAddress(trustedProxies);
  const holders = heldBytesBy(
    calls,
    (call) => call.history.client ?? remoteAddressOf(call) ?? 'a client that has left',
  );
  const [most] = [...holders].toSorted(([, a], [, b]) => b - a);
  if (!most || most[1] === 0) return undefined;
  const [name, bytes] = most;
  const [held, all] = [bytes, maxBufferedBytes].map((count) => (count / MEBIBYTE).toFixed(1));
  return `${name} holds ${held} of ${all} MiB`;
}
