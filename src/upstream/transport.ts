/** Sends requests to providers over the gateway's own connections, or over fetch. */

import type { Cancellation } from '../lib/cancellation.ts';
import { shareAllLookups } from '../lib/name-lookup.ts';
import { sendByFetch } from './fetch-transport.ts';
import { Connections, type OnReached, sendByHttp1 } from './http1-transport.ts';
import type { ConnectionUse, UpstreamResponse, UpstreamRequest } from './provider.ts';

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
  const connections = setting === 'auto' ? new Connections(undefined, onReached) : undefined;
  if (!connections) shareAllLookups();
  return {
    description: connections ? 'own connections' : `fetch (${setBy})`,
    limitations: connections ? [] : FETCH_LIMITATIONS,
    /** Undefined over fetch, because fetch does not report its connections. */
    connectionFigures: connections?.figures,
    /**
     * Sends a request once, without redirects, retries or decoding. Rejects, and fails the body,
     * with a `TransportError` or the cancellation's reason. Not async, because each promise on a
     * request's way costs as much as a header.
     */
    send: (
      request: UpstreamRequest,
      cancellation: Cancellation,
      use: ConnectionUse = {},
    ): Promise<UpstreamResponse> =>
      connections
        ? sendByHttp1(request, cancellation, connections, use)
        : sendByFetch(request, cancellation),
    /** Whether a provider can have `TlsSettings`. fetch takes none. */
    takesCertificates: connections !== undefined,
    /** Closes the connections with other `TlsSettings`, once their requests are over. */
    keepOnly: (digests: ReadonlySet<string>) => connections?.keepOnly(digests),
    /** fetch's connections end with the process. */
    close: () => connections?.close(),
  };
}
