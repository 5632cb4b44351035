/** Reads hosts and addresses: whether one is loopback or private, and ranges of them. */

import { BlockList, isIP } from 'node:net';

const LOOPBACK_NAME = /^(?:(?:[\w-]+\.)*localhost|127(?:\.\d{1,3}){0,3})$/i;
const LOOPBACK_IPV6 = /^\[?(?:::1|::ffff:127(?:\.\d{1,3}){3}|0:0:0:0:0:0:0:1)\]?$/i;

/**
 * This host (RFC 1122, 3.2.1.3), the link (RFC 3927, RFC 4291), private networks (RFC 1918, RFC
 * 4193) and carrier networks (RFC 6598).
 */
const PRIVATE_NETWORKS = new BlockList();
for (const network of [
  '0.0.0.0',
  '169.254.0.0/16',
  'fe80::/10',
  '10.0.0.0/8',
  '172.16.0.0/12',
  '192.168.0.0/16',
  '100.64.0.0/10',
  'fc00::/7',
]) {
  addNetwork(PRIVATE_NETWORKS, network);
}
/**
 * A name without dots, or with a top-level domain that the public DNS lacks (RFC 6762; ICANN 2024).
 */
const PRIVATE_NAME = /^[^.]+$|\.(?:local|internal)$/i;

/**
 * Adds an address, or a range `<address>/<prefix length>` (RFC 4632, 3.1). Returns false for any
 * other text.
 */
export function addNetwork(networks: BlockList, text: string): boolean {
  const [, address = '', prefix] = /^([^/\0]+)(?:\/(\d{1,3}))?$/.exec(text) ?? [];
  try {
    if (prefix === undefined) networks.addAddress(address, familyOf(address));
    else networks.addSubnet(address, Number(prefix), familyOf(address));
    return true;
  } catch {
    return false;
  }
}

/** Returns the family of an address, as `BlockList` calls it. */
export function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIP(address) === 6 ? 'ipv6' : 'ipv4';
}

/** Returns true if `host` is loopback (RFC 6761, 6.3; RFC 6890). */
export function isLoopback(host: string): boolean {
  return LOOPBACK_NAME.test(host) || LOOPBACK_IPV6.test(host);
}

export function withoutBrackets(host: string): string {
  return /^\[(.*)\]$/.exec(host)?.[1] ?? host;
}

/**
 * Returns the host name for SNI (RFC 6066, 3): empty for an address, and without the last dot of a
 * full name.
 */
export function serverNameOf(host: string): string {
  return isIP(host) ? '' : host.replace(/\.$/, '');
}

export function isPrivate(host: string): boolean {
  if (isLoopback(host)) return true;
  const address = withoutBrackets(host);
  if (isIP(address) === 0) return PRIVATE_NAME.test(host);
  return PRIVATE_NETWORKS.check(address, familyOf(address));
}

/**
 * Returns true if the header `Host` is an address, `localhost`, the configured host, or absent, as
 * in no browser's request. DNS rebinding would make the pages of any other name same-origin.
 */
export function isOwnHost(sent: string | undefined, configured: string): boolean {
  if (!sent) return true;
  const name = sent.replace(/:\d*$/, '').toLowerCase();
  if (name === 'localhost' || name === configured.toLowerCase()) return true;
  return isIP(name) === 4 || (/^\[.*\]$/.test(name) && isIP(name.slice(1, -1)) === 6);
}
