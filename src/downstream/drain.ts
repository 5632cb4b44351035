/** The end of a listener: no request that has arrived is lost, unless it takes too long. */

import type { Server } from 'node:http';
import { Server as TcpServer } from 'node:net';
import type { Duplex } from 'node:stream';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';

import { startTimer } from '../lib/cancellation.ts';
import type { Connection, ListenerState } from './connection.ts';

/**
 * Connections that the kernel may hold for `accept()`: a proxy that has lost one replica connects
 * to the other with all its requests.
 */
export const BACKLOG_CONNECTIONS = 1024;
/**
 * An idle connection stays open so long once the port is closed: a proxy does not know of the
 * drain, and may send a request.
 */
const IDLE_GRACE_MS = 1000;
const IDLE_CHECK_MS = 100;
/**
 * Time in which clients take the answers to requests that the deadline of a drain has cancelled.
 */
const CANCELLED_MS = 2000;
/** The same if `endDrain` ends it. */
const FORCED_CANCELLED_MS = 100;

export interface DrainOptions {
  /** Time for which the port stays open, so that load balancers notice that `isDraining`. */
  readonly delayMs: number;
  /** Requests that take longer, once the port is closed, are cancelled with `reason`. */
  readonly timeoutMs: number;
  readonly reason: Error;
}

type Connections = ReadonlyMap<Duplex, Connection>;

/** See `drain` of the listener. `signal` ends it at once. */
export async function drain(
  server: Server,
  connections: Connections,
  state: ListenerState,
  { delayMs, timeoutMs, reason, signal }: DrainOptions & { readonly signal: AbortSignal },
): Promise<void> {
  state.isDraining = true;
  if (delayMs > 0) await sleep(delayMs, undefined, { signal }).catch(() => {});
  const end = (answerMs: number) => {
    state.cancelReason = reason;
    for (const { call } of connections.values()) call?.cancellation.cancel(reason);
    // `closeAllConnections` does not know sockets that node:http has detached after CONNECT.
    setTimeout(() => connections.forEach(({ socket }) => socket.destroy()), answerMs).unref();
  };
  const deadline = startTimer(() => end(CANCELLED_MS), timeoutMs);
  if (signal.aborted) end(FORCED_CANCELLED_MS);
  else signal.addEventListener('abort', () => end(FORCED_CANCELLED_MS));
  await closeServer(server, connections);
  clearTimeout(deadline);
  // All sockets are closed: the requests that were cancelled end, and get their access lines, in
  // the next turns.
  for (let turn = 0; state.counts.inFlight > 0 && turn < 1000; turn += 1) await immediate();
}

/**
 * Accepts what has connected, closes the port, and closes idle connections. Resolves when all are
 * closed.
 */
async function closeServer(server: Server, connections: Connections): Promise<void> {
  await acceptBacklog(server);
  // node:http's own `close` would also cut idle connections at once, and requests on their way with
  // them.
  const closed = new Promise<void>((resolve) =>
    TcpServer.prototype.close.call(server, () => resolve()),
  );
  const closedAtMs = performance.now();
  const closeIdle = () => {
    const youngestMs = performance.now() - IDLE_GRACE_MS;
    for (const connection of connections.values()) {
      const { isIdle, idleSinceMs } = connection;
      if (isIdle && Math.max(idleSinceMs, closedAtMs) <= youngestMs) connection.closeIdle();
    }
  };
  // Answers begun before the drain carried no `Connection: close`. `setImmediate` lets a busy
  // process read the requests that have arrived before it takes a connection for idle.
  const polling = setInterval(() => setImmediate(closeIdle), IDLE_CHECK_MS);
  await closed;
  clearInterval(polling);
}

/**
 * Closing the port resets the connections in its backlog. libuv accepts at least one per turn of
 * the event loop, and those that came before the drain first: this waits until it is empty, or was
 * accepted once.
 */
async function acceptBacklog(server: Server): Promise<void> {
  let accepted = 0;
  const count = () => (accepted += 1);
  server.on('connection', count);
  for (let quietTurns = 0; quietTurns < 3;) {
    const before = accepted;
    await immediate();
    quietTurns = accepted === before ? quietTurns + 1 : 0;
    if (accepted > BACKLOG_CONNECTIONS) break;
  }
  server.off('connection', count);
}
