/** Sends requests to providers over undici's agent if its version is tested, or else over fetch. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import type { Cancellation } from '../lib/cancellation.ts';
import { shareAllLookups } from '../lib/name-lookup.ts';
import { createPool } from './pool.ts';
import { sendByFetch } from './fetch-transport.ts';
import type { ConnectionUse, UpstreamResponse, UpstreamRequest } from './provider.ts';
import { sendByUndici } from './undici-transport.ts';

/**
 * undici's major versions in CI's Node versions, because the gateway relies on undocumented
 * behaviour of the agent.
 */
const TESTED_MAJORS = new Set(['6', '7', '8']);

const FETCH_LIMITATIONS = [
  'fetch gives up a provider after 300 s of silence, even if timeout is longer',
  'fetch does not report whether a connection was reused, ' +
    'so a request on a stale connection is not repeated',
];

/** Sends requests over its own connections. */
export type Transport = ReturnType<typeof createTransport>;

const CONNECT_ERROR = 'undici:client:connectError';

/**
 * Fails the requests waiting for a proxy that closes on CONNECT. undici 6 and 7 mistake this close
 * for the end of a connection in use, and reconnect at once without end, even over fetch. With
 * undici 8's error code they fail the requests instead.
 */
function failWaiting(message: unknown): void {
  const { error } = message as { error: NodeJS.ErrnoException };
  if (error.code === 'UND_ERR_SOCKET') error.code = 'UND_ERR_PRX_CONN';
}

/**
 * Creates the transport with its own connections.
 *
 * @param setting - the setting `server.upstream`
 */
export function createTransport(setting: 'auto' | 'fetch') {
  subscribe(CONNECT_ERROR, failWaiting);
  const version = process.versions['undici'] ?? '';
  const isTested = TESTED_MAJORS.has(version.split('.')[0]!);
  const pool = setting === 'auto' && isTested ? createPool() : undefined;
  if (!pool) shareAllLookups();
  const whyNotFound = isTested ? "undici's agent was not found" : `undici ${version} is not tested`;
  const reason = setting === 'fetch' ? 'as configured' : whyNotFound;
  return {
    /** The HTTP client in use, with the reason if it is fetch, for the operator. */
    description: pool ? `undici ${version} (the agent under fetch)` : `fetch (${reason})`,
    /** The HTTP client's limitations, a sentence each, for the operator. */
    limitations: pool ? [] : FETCH_LIMITATIONS,
    /** Undefined over fetch, because fetch does not report its connections. */
    get connectionFigures() {
      return pool?.figures;
    },
    /**
     * Sends a request once, without redirects, retries or decoding. Rejects, and fails the body,
     * with a `TransportError` or the cancellation's reason. Not async, because each promise on a
     * request's way costs as much as a header.
     *
     * @param use - receives the connection that carries the request
     */
    send: (
      request: UpstreamRequest,
      cancellation: Cancellation,
      use: ConnectionUse = {},
    ): Promise<UpstreamResponse> =>
      pool ? sendByUndici(request, cancellation, pool, use) : sendByFetch(request, cancellation),
    /** Whether a provider can have `TlsSettings`. fetch takes none. */
    takesCertificates: pool !== undefined,
    /** Closes the connections with other `TlsSettings`, once their requests are over. */
    keepOnly: (digests: ReadonlySet<string>) => pool?.keepOnly(digests),
    /** Closes all connections in undici's agents. fetch's connections end with the process. */
    async close() {
      unsubscribe(CONNECT_ERROR, failWaiting);
      await pool?.close();
    },
  };
}
