/** The listener: Node's HTTP server with its limits on clients, its connections and its end. */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { Server as TcpServer, type AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { startTimer } from '../lib/cancellation.ts';
import type { Call, CLIENT_LIMITS } from './call.ts';
import {
  Connection,
  type Handler,
  PROGRESS_CHECKS,
  type RequestCounts,
  type ListenerState,
} from './connection.ts';

const MAX_HEADER_BYTES = 16_384;
/** Load balancers keep idle connections for 60 s; a server that closes first makes them answer 502. */
const KEEP_ALIVE_MS = 75_000;
/**
 * Connections that the kernel may hold for `accept()`. Those beyond it look established to the client, and are
 * reset when the port is closed. A proxy that has lost one replica connects to the other with all its requests.
 */
const BACKLOG_CONNECTIONS = 1024;
/**
 * Time for which an idle connection stays open once the port is closed. A proxy does not know of the drain: it may
 * send a request, whose answer says `Connection: close`.
 */
const IDLE_GRACE_MS = 1000;
const IDLE_CHECK_MS = 100;
/** Time in which clients take the answers to requests that the deadline of a drain has cancelled. */
const CANCELLED_MS = 2000;
/** The same if `endDrain` ends it. */
const FORCED_CANCELLED_MS = 100;

export interface HttpServer {
  /**
   * Starts listening. Rejects with Node's error if the address cannot be had. `isShared`: other processes may listen at the
   * same port (SO_REUSEPORT), and the kernel gives each connection to one of them.
   */
  listen(port: number, host: string, isShared?: boolean): Promise<{ readonly port: number }>;
  /** Serves for `delayMs` more, as draining. Then stops accepting, and waits for the requests in flight. */
  drain(options: DrainOptions): Promise<void>;
  /** The requests that are being worked on. */
  calls(): Call[];
  /** Has all requests that begin from now on answered by this handler. */
  use(handler: Handler): void;
  /** Ends a drain at once: what is left of the requests in flight is cancelled. */
  endDrain(): void;
  readonly isDraining: boolean;
  /** 0 unless it is listening. */
  readonly port: number;
  readonly counts: Readonly<RequestCounts>;
}

export interface DrainOptions {
  /** Time for which the port stays open, so that load balancers notice that `isDraining`. */
  readonly delayMs: number;
  /** Requests that take longer, once the port is closed, are cancelled with `reason`. */
  readonly timeoutMs: number;
  readonly reason: Error;
}

type Connections = Map<Duplex, Connection>;

export function createHttpServer(
  options: Omit<ListenerState, 'isDraining' | 'cancelReason' | 'counts'>,
): HttpServer {
  const { limits } = options;
  const counts = { inFlight: 0, finished: 0, cancelled: 0 };
  const state: ListenerState = { ...options, counts, isDraining: false, cancelReason: undefined };
  const connections: Connections = new Map();
  let checking: NodeJS.Timeout | undefined;
  const forceClose = new AbortController();

  const server = createNodeServer(limits);
  attach(server, state, connections);

  return {
    async listen(port, host, isShared = false) {
      server.listen({ port, host, reusePort: isShared, backlog: BACKLOG_CONNECTIONS });
      await once(server, 'listening');
      // Later errors pass: the server goes on listening.
      server.on('error', () => {});
      const check = () => connections.forEach((connection) => connection.checkProgress());
      checking = setInterval(check, limits.sendTimeoutMs / PROGRESS_CHECKS);
      return server.address() as AddressInfo;
    },
    async drain({ delayMs, timeoutMs, reason }) {
      state.isDraining = true;
      const { signal } = forceClose;
      if (delayMs > 0) await sleep(delayMs, undefined, { signal }).catch(() => {});
      const end = (answerMs: number) => {
        state.cancelReason = reason;
        for (const connection of connections.values()) connection.cancel(reason);
        // `closeAllConnections` does not know sockets that node:http has detached after CONNECT.
        const close = () => connections.forEach(({ socket }) => socket.destroy());
        setTimeout(close, answerMs).unref();
      };
      const deadline = startTimer(() => end(CANCELLED_MS), timeoutMs);
      if (signal.aborted) end(FORCED_CANCELLED_MS);
      else signal.addEventListener('abort', () => end(FORCED_CANCELLED_MS));
      await closeServer(server, connections);
      clearTimeout(deadline);
      clearInterval(checking);
      // All sockets are closed: the requests that were cancelled end, and get their access lines, in the next turns.
      for (let turn = 0; counts.inFlight > 0 && turn < 1000; turn += 1) await nextTurn();
    },
    use: (handler) => void (state.handler = handler),
    calls: () => [...connections.values()].flatMap(({ call }) => call ?? []),
    endDrain: () => forceClose.abort(),
    counts,
    get isDraining() {
      return state.isDraining;
    },
    get port() {
      return (server.address() as AddressInfo | null)?.port ?? 0;
    },
  };
}

/** Hands the server's requests, and its parser's errors, to their connections. */
function attach(server: Server, state: ListenerState, connections: Connections): void {
  server.on('connection', (socket) => {
    connections.set(socket, new Connection(socket, state));
    socket.once('close', () => connections.delete(socket));
  });
  const receive = (request: IncomingMessage, response: ServerResponse, awaitsContinue = false) =>
    connections.get(request.socket)?.receive({ request, response, awaitsContinue });
  server.on('request', receive);
  server.on('checkContinue', (request, response) => receive(request, response, true));
  server.on('checkExpectation', receive);
  server.on('clientError', ({ code }: NodeJS.ErrnoException, socket) =>
    connections.get(socket)?.refuse(code),
  );
  // No tunnels. node:http has detached the socket, and earlier requests may still wait for their answers.
  server.on('connect', (_, socket) => {
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    connections.get(socket)?.refuse(undefined);
  });
}

function createNodeServer(limits: typeof CLIENT_LIMITS): Server {
  const server = createServer({
    maxHeaderSize: MAX_HEADER_BYTES,
    headersTimeout: limits.headersMs,
    requestTimeout: limits.requestMs,
    keepAliveTimeout: KEEP_ALIVE_MS,
    connectionsCheckingInterval: Math.min(2000, limits.headersMs / 4),
    // Node's own refusal has no body; `checkProtocol` asks for the header too.
    requireHostHeader: false,
  });
  // No limit: Node 20 silently drops the headers beyond it. `checkProtocol` counts them.
  server.maxHeadersCount = 0;
  return server;
}

/** Accepts what has connected, closes the port, and closes idle connections. Resolves when all are closed. */
async function closeServer(server: Server, connections: Connections): Promise<void> {
  await acceptBacklog(server);
  // node:http's own `close` would also cut idle connections at once, and requests on their way with them.
  const closed = new Promise<void>((resolve) =>
    TcpServer.prototype.close.call(server, () => resolve()),
  );
  const closedAtMs = performance.now();
  const closeIdle = () => {
    const youngestMs = performance.now() - IDLE_GRACE_MS;
    for (const { isIdle, idleSinceMs, socket } of connections.values()) {
      if (isIdle && Math.max(idleSinceMs, closedAtMs) <= youngestMs) socket.destroy();
    }
  };
  // Poll: answers begun before the drain carried no `Connection: close`. `setImmediate` lets a busy
  // process read the requests that have arrived before it takes a connection for idle.
  const polling = setInterval(() => setImmediate(closeIdle), IDLE_CHECK_MS);
  await closed;
  clearInterval(polling);
}

/**
 * Closing the port resets the connections in its backlog. libuv accepts at least one per turn of the event loop,
 * and those that came before the drain are the first of them: wait until it is empty or was accepted once.
 */
async function acceptBacklog(server: Server): Promise<void> {
  let accepted = 0;
  const count = () => (accepted += 1);
  server.on('connection', count);
  for (let quietTurns = 0; quietTurns < 3;) {
    const before = accepted;
    await nextTurn();
    quietTurns = accepted === before ? quietTurns + 1 : 0;
    if (accepted > BACKLOG_CONNECTIONS) break;
  }
  server.off('connection', count);
}
