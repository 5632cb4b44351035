/** Sends requests to providers over the gateway's own connections, or over fetch. */

import type { Cancellation } from '../../lib/cancellation.ts';
import { shareAllLookups } from '../../lib/name-lookup.ts';
import { sendByFetch } from './fetch-transport.ts';
import { ConnectionPool, type OnReached, sendByHttp1 } from './http1-transport.ts';
import type { ConnectionUse, UpstreamResponse, UpstreamRequest } from './upstream-request.ts';

const FETCH_LIMITATIONS = [
  'fetch gives up a provider after 300 s of silence, even if timeout is longer',
  'fetch does not report whether a connection was reused, ' +
    'so a request on a stale connection is not repeated',
];

export type Transport = ReturnType<typeof createTransport>;

/**
 * @param setting - the setting `server.upstream`
 * @param setBy - what has set it, if it is not the file
 * @param onReached - never called over fetch, because fetch does not report its connections
 */
export function createTransport(
  setting: 'auto' | 'fetch',
  setBy = 'as configured',
  onReached?: OnReached,
) {
  const pool = setting === 'auto' ? new ConnectionPool(undefined, onReached) : undefined;
  if (!pool) shareAllLookups();
  return {
    description: pool ? 'own connections' : `fetch (${setBy})`,
    limitations: pool ? [] : FETCH_LIMITATIONS,
    /** Undefined over fetch, because fetch does not report its connections. */
    connectionFigures: pool?.figures,
    /**
     * Sends a request once, without redirects, retries or decoding. Rejects, and fails the body,
     * with a `TransportError` or the cancellation's reason.
     */
    send: (
      request: UpstreamRequest,
      cancellation: Cancellation,
      use: ConnectionUse = {},
    ): Promise<UpstreamResponse> =>
      pool ? sendByHttp1(request, cancellation, pool, use) : sendByFetch(request, cancellation),
    /** Whether a provider can have `TlsSettings`. fetch takes none. */
    takesCertificates: pool !== undefined,
    /** Closes the connections with other `TlsSettings`, once their requests are over. */
    keepOnly: (digests: ReadonlySet<string>) => pool?.keepOnly(digests),
    /** fetch's connections end with the process. */
    close: () => pool?.close(),
  };
}
