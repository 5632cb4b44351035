/** Drains a listener: every request that has arrived is answered, unless it takes too long. */

import type { Server } from 'node:http';
import { Server as TcpServer } from 'node:net';
import type { Duplex } from 'node:stream';
import { setImmediate as immediate, setTimeout as sleep } from 'node:timers/promises';

import { startTimer } from '../lib/cancellation.ts';
import type { ListenerState } from './listener.ts';
import type { Connection } from './connection.ts';

/** A proxy that has lost a replica connects to another replica with all its requests. */
export const BACKLOG_CONNECTIONS = 1024;
/** A proxy does not know about the drain, and may send a request on an idle connection. */
const IDLE_GRACE_MS = 1000;
const IDLE_CHECK_MS = 100;
/** The time for clients to take the answers of cancelled requests. */
const CANCELLED_MS = 2000;
const FORCED_CANCELLED_MS = 100;

export interface DrainOptions {
  /** How long the port stays open, so that load balancers notice the drain. */
  readonly delayMs: number;
  /** Requests still running this long after the port has closed are cancelled. */
  readonly timeoutMs: number;
  readonly reason: Error;
}

type Connections = ReadonlyMap<Duplex, Connection>;

/** Drains a listener; see `drain` in http-server.ts. `signal` ends the drain at once. */
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
    // `closeAllConnections` does not know sockets detached by node:http after CONNECT.
    setTimeout(() => connections.forEach(({ socket }) => socket.destroy()), answerMs).unref();
  };
  const deadline = startTimer(() => end(CANCELLED_MS), timeoutMs);
  if (signal.aborted) end(FORCED_CANCELLED_MS);
  else signal.addEventListener('abort', () => end(FORCED_CANCELLED_MS));
  await closeServer(server, connections);
  clearTimeout(deadline);
  // Cancelled requests get their access lines in the turns after their sockets have closed.
  for (let turn = 0; state.counts.inFlight > 0 && turn < 1000; turn += 1) await immediate();
}

async function closeServer(server: Server, connections: Connections): Promise<void> {
  await acceptBacklog(server);
  // node:http's own `close` would cut idle connections at once, with requests on their way.
  const closed = new Promise<void>((resolve) =>
    TcpServer.prototype.close.call(server, () => resolve()),
  );
  const closedAtMs = performance.now();
  const closeIdle = () => {
    const latestAtMs = performance.now() - IDLE_GRACE_MS;
    for (const connection of connections.values()) {
      const { isIdle, becameIdleAtMs } = connection;
      if (isIdle && Math.max(becameIdleAtMs, closedAtMs) <= latestAtMs) connection.closeIdle();
    }
  };
  // Answers begun before the drain had no `Connection: close`. `setImmediate` lets a busy process
  // read newly arrived requests before a connection counts as idle.
  const polling = setInterval(() => setImmediate(closeIdle), IDLE_CHECK_MS);
  await closed;
  clearInterval(polling);
}

/**
 * Waits until the backlog is empty, because closing the port resets the connections in it. libuv
 * accepts at least one connection per turn of the event loop, the oldest first.
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
