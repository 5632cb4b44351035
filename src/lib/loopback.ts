/** Decides from a host's name or address alone whether it is loopback or private. */

import { BlockList, isIP } from 'node:net';

const LOOPBACK_NAME = /^(?:(?:[\w-]+\.)*localhost|127(?:\.\d{1,3}){0,3})$/i;
const LOOPBACK_IPV6 = /^\[?(?:::1|::ffff:127(?:\.\d{1,3}){3}|0:0:0:0:0:0:0:1)\]?$/i;

/**
 * This host (RFC 1122, 3.2.1.3), the link (RFC 3927, RFC 4291), private networks (RFC 1918, RFC
 * 4193) and carrier networks (RFC 6598).
 */
const PRIVATE_NETWORKS = new BlockList();
PRIVATE_NETWORKS.addAddress('0.0.0.0');
PRIVATE_NETWORKS.addSubnet('169.254.0.0', 16);
PRIVATE_NETWORKS.addSubnet('fe80::', 10, 'ipv6');
PRIVATE_NETWORKS.addSubnet('10.0.0.0', 8);
PRIVATE_NETWORKS.addSubnet('172.16.0.0', 12);
PRIVATE_NETWORKS.addSubnet('192.168.0.0', 16);
PRIVATE_NETWORKS.addSubnet('100.64.0.0', 10);
PRIVATE_NETWORKS.addSubnet('fc00::', 7, 'ipv6');
/**
 * A name without dots, or with a top-level domain that the public DNS lacks (RFC 6762; ICANN 2024).
 */
const PRIVATE_NAME = /^[^.]+$|\.(?:local|internal)$/i;

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
  const family = isIP(address);
  if (family === 0) return PRIVATE_NAME.test(host);
  return PRIVATE_NETWORKS.check(address, family === 4 ? 'ipv4' : 'ipv6');
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
