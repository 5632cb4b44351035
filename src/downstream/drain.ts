/** Graceful shutdown of the listener: accept what has connected, finish what has begun, close the rest. */

import { Server as TcpServer } from 'node:net';

import { startTimer } from '../lib/clock.ts';
import type { Connection } from './connection.ts';

/**
 * Connections that the kernel may hold for `accept()`. Those beyond it look established to the client, and are
 * reset when the port is closed. A proxy that has lost one replica connects to the other with all its requests.
 */
export const BACKLOG_CONNECTIONS = 1024;
/**
 * How long an idle connection stays open once the port is closed. A proxy does not know of the drain: it may
 * send a request, whose answer says `Connection: close`.
 */
const IDLE_GRACE_MS = 1000;
const IDLE_CHECK_MS = 100;
/** How long the answers to cancelled requests may take if the drain ends at once. */
const HURRIED_LINGER_MS = 100;

interface DrainOptions {
  readonly server: TcpServer;
  readonly connections: ReadonlyMap<unknown, Connection>;
  /** After so long the requests in flight are cancelled. */
  readonly timeoutMs: number;
  /** How long the answers to cancelled requests may take. */
  readonly lingerMs: number;
  /** Cancels the requests in flight, and those that begin later. A second call does nothing. */
  readonly cancel: () => void;
  /** Aborted if the drain is to end at once. */
  readonly hurry: AbortSignal;
}

/** Stops accepting and resolves when every connection is closed: at the latest `timeoutMs` + `lingerMs` later. */
export async function drainServer(options: DrainOptions): Promise<void> {
  const { server, connections, timeoutMs, lingerMs, cancel, hurry } = options;
  const end = (afterMs: number) => {
    cancel();
    // `closeAllConnections` does not know sockets that node:http has detached after CONNECT.
    const cut = () => connections.forEach(({ socket }) => socket.destroy());
    setTimeout(cut, afterMs).unref();
  };
  const deadline = startTimer(() => end(lingerMs), timeoutMs);
  const endNow = () => end(HURRIED_LINGER_MS);
  if (hurry.aborted) endNow();
  else hurry.addEventListener('abort', endNow);
  await acceptBacklog(server);
  // node:http's own `close` would also cut idle connections at once, and requests on their way with them.
  const closed = new Promise<void>((resolve) =>
    TcpServer.prototype.close.call(server, () => resolve()),
  );
  const closedAtMs = performance.now();
  // Poll: answers begun before the drain carried no `Connection: close`. `setImmediate` lets a busy
  // process read the requests that have arrived before it takes a connection for idle.
  const check = () => closeIdle(connections, closedAtMs);
  const polling = setInterval(() => setImmediate(check), IDLE_CHECK_MS);
  await closed;
  clearInterval(polling);
  clearTimeout(deadline);
}

/**
 * Closing the port resets the connections in its backlog. libuv accepts at least one per turn of the event loop,
 * and those that came before the drain are the first of them: wait until it is empty or was accepted once.
 */
async function acceptBacklog(server: TcpServer): Promise<void> {
  let accepted = 0;
  const count = () => (accepted += 1);
  server.on('connection', count);
  for (let quietTurns = 0; quietTurns < 3; quietTurns += 1) {
    const before = accepted;
    await new Promise((resolve) => setImmediate(resolve));
    if (accepted !== before) quietTurns = 0;
    if (accepted > BACKLOG_CONNECTIONS) break;
  }
  server.off('connection', count);
}

function closeIdle(connections: ReadonlyMap<unknown, Connection>, closedAtMs: number): void {
  const youngestMs = performance.now() - IDLE_GRACE_MS;
  for (const { isIdle, idleSinceMs, socket } of connections.values()) {
    if (isIdle && Math.max(idleSinceMs, closedAtMs) <= youngestMs) socket.destroy();
  }
}
