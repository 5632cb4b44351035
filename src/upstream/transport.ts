/** Sends requests to providers: over undici's agent if it works as assumed, else over fetch. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';

import type { Cancellation } from '../lib/cancellation.ts';
import type { SharedMemory } from '../lib/shared-memory.ts';
import type { ConnectionFigures } from '../lib/thread-figures.ts';
import { createConnections } from './connections.ts';
import { sendByFetch } from './fetch-transport.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';
import { checkUndici } from './undici-check.ts';
import { sendByUndici } from './undici-transport.ts';

const FETCH_LIMITATIONS = [
  'fetch ends requests to providers that are silent for 300 s, whatever timeout says',
  'fetch does not tell whether a connection was reused: a request on one that the provider had closed is not repeated',
];

export interface Transport {
  /** What requests are sent with, and the reason if that is fetch; for the operator. */
  readonly description: string;
  /** What it cannot do, one sentence each, for the operator. */
  readonly limitations: readonly string[];
  /** What requests are sent with, as the setting of another transport. */
  readonly setting: 'auto' | 'fetch';
  /** Of all threads. Over fetch they are not known. */
  readonly connectionFigures: ConnectionFigures | undefined;
  /** Tries undici's agent on a server of its own; requests wait for it, and are sent over fetch if it fails. 2 s at most. */
  check(): Promise<void>;
  /**
   * Sends once: no redirects, no retries, no decoding. Rejects, and fails the body, with a
   * `TransportError` or the reason of the cancellation.
   */
  send(request: UpstreamRequest, cancellation: Cancellation): Promise<UpstreamReply>;
  /** Closes all connections of undici's agent; fetch's end with the process. */
  close(): Promise<void>;
}

const CONNECT_ERROR = 'undici:client:connectError';

/**
 * undici 6 and 7 take a proxy that closes on CONNECT for the end of a connection in use, and connect again at once and
 * without end, also over fetch. With the code of undici 8 the requests that wait for it fail.
 */
function failWaiting(message: unknown): void {
  const { error } = message as { error: NodeJS.ErrnoException };
  if (error.code === 'UND_ERR_SOCKET') error.code = 'UND_ERR_PRX_CONN';
}

/** Creates the transport with its own connections, counted in `memory`. `setting` is `server.upstream`. */
export function createTransport(setting: 'auto' | 'fetch', memory?: SharedMemory): Transport {
  subscribe(CONNECT_ERROR, failWaiting);
  let connections = setting === 'fetch' ? undefined : createConnections({ memory });
  /** The check that is under way: requests wait for its result. */
  let checking: Promise<string | undefined> | undefined;
  let reason = setting === 'fetch' ? 'as configured' : "undici's agent was not found";
  return {
    get description() {
      return connections
        ? `undici ${process.versions['undici']} (the agent under fetch)`
        : `fetch (${reason})`;
    },
    get setting() {
      return connections ? 'auto' : 'fetch';
    },
    get limitations() {
      return connections ? [] : FETCH_LIMITATIONS;
    },
    get connectionFigures() {
      return connections?.figures;
    },
    async check() {
      checking = connections && checkUndici();
      const failure = await checking;
      checking = undefined;
      if (failure === undefined) return;
      reason = `undici's agent failed the check: ${failure}`;
      void connections?.close();
      connections = undefined;
    },
    // Not async: each promise on this path costs as much as a header.
    send(request, cancellation) {
      if (checking) return checking.then(async () => this.send(request, cancellation));
      return connections
        ? sendByUndici(request, cancellation, connections)
        : sendByFetch(request, cancellation);
    },
    async close() {
      unsubscribe(CONNECT_ERROR, failWaiting);
      await connections?.close();
    },
  };
}
