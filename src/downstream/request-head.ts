/** Checks a request's head where Node's parser does not (RFC 9112). */

import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';

import { invalidRequest } from '../lib/errors.ts';

const MAX_HEADERS = 1000;

type Head = Pick<IncomingMessage, 'httpVersion' | 'headers' | 'rawHeaders'>;

/**
 * Returns a header's value if it was sent exactly once, because Node would show only the first of
 * several. `name` is in lower case.
 */
export function soleHeader(head: { readonly rawHeaders: readonly string[] }, name: string) {
  const { rawHeaders } = head;
  let value: string | undefined;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const own = rawHeaders[at]!;
    if (own.length !== name.length || own.toLowerCase() !== name) continue;
    if (value !== undefined) return undefined;
    value = rawHeaders[at + 1]!;
  }
  return value;
}

/**
 * Returns a request target's path; the absolute form is accepted (RFC 9112 3.2.2). Cut out as text,
 * because URL parsers decode and normalise.
 */
export function pathOf(target: string): string {
  if (target.startsWith('/') && !target.includes('?')) return target;
  const path = target.split('?', 1)[0]!.replace(/^https?:\/\/[^/]*/i, '');
  return path === '' ? '/' : path;
}

/**
 * Throws `invalidRequest` for a head that a proxy on the way may read differently. A health check
 * may have an empty `Host` (RFC 9112 3.2), because some load balancers have no name to send.
 */
export function checkProtocol(head: Head, isHealthCheck = false): void {
  const { httpVersion, headers, rawHeaders } = head;
  if (httpVersion !== '1.1' && httpVersion !== '1.0') {
    throw invalidRequest('HTTP version must be 1.0 or 1.1');
  }
  if (rawHeaders.length > 2 * MAX_HEADERS) {
    throw invalidRequest('too many headers', { status: 431 });
  }
  const host = soleHeader(head, 'host');
  const hostIsOptional =
    (httpVersion === '1.0' && headers.host === undefined) || (isHealthCheck && host === '');
  if (!hostIsOptional && (host === undefined || !/^[^\s,/@?#\\]+$/.test(host))) {
    throw invalidRequest('exactly one valid Host header is required');
  }
  const coding = headers['transfer-encoding'];
  if (coding !== undefined && (coding.toLowerCase() !== 'chunked' || httpVersion === '1.0')) {
    throw invalidRequest('Transfer-Encoding must be chunked');
  }
  if (headers.expect !== undefined && headers.expect.toLowerCase() !== '100-continue') {
    throw invalidRequest('Expect must be 100-continue', { status: 417 });
  }
}

/** As some proxies write addresses: `192.0.2.1:80`, `[2001:db8::1]:80`. */
const WITH_PORT = /^(?:\[([0-9a-f:.]+)\]|(\d{1,3}(?:\.\d{1,3}){3}))(?::\d{1,5})?$/i;
/** Room for an IPv6 address with a zone. `isIP` accepts zones of any length. */
const MAX_ADDRESS_CHARACTERS = 64;
/** A client's address if it connects over IPv4 to a socket for both families. */
const MAPPED_IPV4 = /^::ffff:(\d{1,3}(?:\.\d{1,3}){3})$/i;

/** Returns the address without port and brackets, and as IPv4 if it is mapped into IPv6. */
export function toAddress(text: string): string | undefined {
  if (isIP(text) === 4) return text;
  const [, v6, v4] = WITH_PORT.exec(text) ?? [];
  const address = v6 ?? v4 ?? text;
  const plain = MAPPED_IPV4.exec(address)?.[1] ?? address;
  const isAddress = isIP(plain) !== 0 && plain.length <= MAX_ADDRESS_CHARACTERS;
  return isAddress ? plain : undefined;
}
