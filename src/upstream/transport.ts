/**
 * Sends requests to providers: over undici's agent if it is a version that is tested, else over
 * fetch.
 */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import type { Cancellation } from '../lib/cancellation.ts';
import { shareAllLookups } from '../lib/name-lookup.ts';
import { createPool } from './pool.ts';
import { sendByFetch } from './fetch-transport.ts';
import type { ConnectionUse, UpstreamResponse, UpstreamRequest } from './provider.ts';
import { sendByUndici } from './undici-transport.ts';

/**
 * undici's majors in the versions of Node that CI runs: the gateway relies on more of its agent
 * than is documented.
 */
const TESTED_MAJORS = new Set(['6', '7', '8']);

const FETCH_LIMITATIONS = [
  'fetch ends requests to providers that are silent for 300 s, whatever timeout says',
  'fetch does not tell whether a connection was reused: ' +
    'a request on one that the provider had closed is not repeated',
];

export type Transport = ReturnType<typeof createTransport>;

const CONNECT_ERROR = 'undici:client:connectError';

/**
 * undici 6 and 7 take a proxy that closes on CONNECT for the end of a connection in use, and
 * connect again at once and without end, also over fetch. With the code of undici 8 the requests
 * that wait for it fail.
 */
function failWaiting(message: unknown): void {
  const { error } = message as { error: NodeJS.ErrnoException };
  if (error.code === 'UND_ERR_SOCKET') error.code = 'UND_ERR_PRX_CONN';
}

/** Creates the transport with its own connections. `setting` is `server.upstream`. */
export function createTransport(setting: 'auto' | 'fetch') {
  subscribe(CONNECT_ERROR, failWaiting);
  const version = process.versions['undici'] ?? '';
  const isTested = TESTED_MAJORS.has(version.split('.')[0]!);
  const pool = setting === 'auto' && isTested ? createPool() : undefined;
  if (!pool) shareAllLookups();
  const whyNotFound = isTested ? "undici's agent was not found" : `undici ${version} is not tested`;
  const reason = setting === 'fetch' ? 'as configured' : whyNotFound;
  return {
    /** The client in use, and the reason if that is fetch; for the operator. */
    description: pool ? `undici ${version} (the agent under fetch)` : `fetch (${reason})`,
    /** One sentence for each, for the operator. */
    limitations: pool ? [] : FETCH_LIMITATIONS,
    /** Over fetch they are not known. */
    get connectionFigures() {
      return pool?.figures;
    },
    /**
     * Sends once: no redirects, no retries, no decoding. Rejects, and fails the body, with a
     * `TransportError` or the reason of the cancellation. `use` receives which connection it had.
     * Not async: each promise on this path costs as much as a header.
     */
    send: (
      request: UpstreamRequest,
      cancellation: Cancellation,
      use: ConnectionUse = {},
    ): Promise<UpstreamResponse> =>
      pool ? sendByUndici(request, cancellation, pool, use) : sendByFetch(request, cancellation),
    /** Closes all connections of undici's agent; fetch's end with the process. */
    async close() {
      unsubscribe(CONNECT_ERROR, failWaiting);
      await pool?.close();
    },
  };
}
