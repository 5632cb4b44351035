/** Finds the client's address behind proxies. */

import { BlockList } from 'node:net';

import { addNetwork, familyOf } from '../lib/loopback.ts';
import { toAddress } from './request-head.ts';

/** More proxies than any request passes. */
const MAX_PROXIES = 50;

interface Forwarded {
  /** Names and values in turn. */
  readonly rawHeaders: readonly string[];
  readonly peerAddress: string | undefined;
}

/**
 * Returns a function that finds a call's client address: the connection's other end, or behind a
 * trusted proxy the rightmost `X-Forwarded-For` address that is not a trusted proxy. Entries
 * further left may be forged. The proxies are addresses and ranges in CIDR notation.
 */
export function createRemoteAddress(
  trustedProxies: readonly string[],
): (call: Forwarded) => string | undefined {
  const trusted = new BlockList();
  for (const proxy of trustedProxies) addNetwork(trusted, proxy);

  return (call) => {
    let address = toAddress(call.peerAddress ?? '');
    if (trustedProxies.length === 0 || address === undefined) return address;
    // A proxy may add its own header line instead of an entry.
    const lines = call.rawHeaders.filter(
      (_, at, all) => at % 2 === 1 && all[at - 1]!.toLowerCase() === 'x-forwarded-for',
    );
    const entries = lines.join().split(',').slice(-MAX_PROXIES);
    while (trusted.check(address, familyOf(address))) {
      const next = toAddress(entries.pop()?.trim() ?? '');
      if (next === undefined) break;
      address = next;
    }
    return address;
  };
}
