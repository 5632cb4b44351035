/** Checks of a request's head beyond those of Node's parser: refuses what Node's parser lets through (RFC 9112). */

import type { IncomingMessage } from 'node:http';

import { invalidRequest } from '../lib/errors.ts';

const MAX_HEADERS = 1000;

/** Every value of a header, as often as it was sent: Node keeps only the first of some. `name` in lower case. */
export function headerValues({ rawHeaders }: IncomingMessage, name: string): string[] {
  let values: string[] = [];
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const own = rawHeaders[at]!;
    if (own.length !== name.length || own.toLowerCase() !== name) continue;
    values = [...values, rawHeaders[at + 1]!];
  }
  return values;
}

/** RFC 9112 3.2.2: absolute-form is accepted. Compared as text: URL parsers decode and normalise. */
export function pathOf(target: string): string {
  if (target.startsWith('/') && !target.includes('?')) return target;
  const path = target.split('?', 1)[0]!.replace(/^https?:\/\/[^/]*/i, '');
  return path === '' ? '/' : path;
}

/** Throws `invalidRequest` for a head that intermediaries may read differently than we do. */
export function checkProtocol(request: IncomingMessage): void {
  const { httpVersion, headers, rawHeaders } = request;
  if (httpVersion !== '1.1' && httpVersion !== '1.0') {
    throw invalidRequest('HTTP version must be 1.0 or 1.1');
  }
  if (rawHeaders.length > 2 * MAX_HEADERS) {
    throw invalidRequest('too many headers', { status: 431 });
  }
  const hosts = headerValues(request, 'host');
  const hostIsOptional = httpVersion === '1.0' && hosts.length === 0;
  if (!hostIsOptional && (hosts.length !== 1 || !/^[^\s,/@?#\\]+$/.test(hosts[0]!))) {
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
