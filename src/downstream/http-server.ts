/** The listener: Node's HTTP server with its limits on clients, its connections and its end. */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';

import { Connection, type ListenerState, PROGRESS_CHECKS } from './connection.ts';
import { BACKLOG_CONNECTIONS, drain, type DrainOptions } from './drain.ts';

const MAX_HEADER_BYTES = 16_384;
/**
 * Load balancers keep idle connections for 60 s; a server that closes first makes them answer 502.
 */
const KEEP_ALIVE_MS = 75_000;

/** Creates the listener. Nothing listens yet. */
export function createHttpServer(
  options: Omit<ListenerState, 'isDraining' | 'cancelReason' | 'counts'>,
) {
  const { timeLimits } = options;
  const counts = { inFlight: 0, finished: 0, cancelled: 0, openStreams: 0 };
  const state: ListenerState = { ...options, counts, isDraining: false, cancelReason: undefined };
  const server = createNodeServer(timeLimits);
  const connections = connectionsOf(server, state);
  const checking: NodeJS.Timeout[] = [];
  const forceClose = new AbortController();

  return {
    /**
     * Starts listening. Rejects with Node's error if the address cannot be had. `isShared`: other
     * processes may listen at the same port (SO_REUSEPORT), and the kernel gives each connection to
     * one of them.
     */
    async listen(port: number, host: string, isShared = false) {
      server.listen({ port, host, reusePort: isShared, backlog: BACKLOG_CONNECTIONS });
      await once(server, 'listening');
      // Later errors pass: the server goes on listening.
      server.on('error', () => {});
      const check = () => connections.forEach((connection) => connection.checkProgress());
      checking.push(setInterval(check, timeLimits.sendTimeoutMs / PROGRESS_CHECKS));
      const checkUploads = () => connections.forEach((connection) => connection.checkUpload());
      checking.push(setInterval(checkUploads, timeLimits.requestMs / PROGRESS_CHECKS));
      return server.address() as AddressInfo;
    },
    /**
     * Serves for `delayMs` more, as draining. Then stops accepting, and waits for the requests in
     * flight.
     */
    async drain(how: DrainOptions) {
      await drain(server, connections, state, { ...how, signal: forceClose.signal });
      checking.forEach(clearInterval);
    },
    /** Ends a drain at once: what is left of the requests in flight is cancelled. */
    endDrain: () => forceClose.abort(),
    /** Has all requests that begin from now on answered by this handler. */
    setHandler(handler: ListenerState['handler']) {
      state.handler = handler;
    },
    /** The requests that are being worked on. */
    calls: () => [...connections.values()].flatMap(({ call }) => call ?? []),
    counts,
    get isDraining() {
      return state.isDraining;
    },
    /** 0 unless it is listening. */
    get port() {
      return (server.address() as AddressInfo | null)?.port ?? 0;
    },
  };
}

/** Creates Node's server, with the limits on heads. `Connection` limits bodies and answers. */
function createNodeServer(timeLimits: ListenerState['timeLimits']): Server {
  const server = createServer({
    maxHeaderSize: MAX_HEADER_BYTES,
    headersTimeout: timeLimits.headersMs,
    // `checkUpload` limits bodies: node:http would count the time in which a pipelined request
    // waits.
    requestTimeout: 0,
    keepAliveTimeout: KEEP_ALIVE_MS,
    connectionsCheckingInterval: Math.min(2000, timeLimits.headersMs / 4),
    // Node's own refusal has no body; `checkProtocol` asks for the header too.
    requireHostHeader: false,
  });
  // No limit: Node 20 silently drops the headers beyond it. `checkProtocol` counts them.
  server.maxHeadersCount = 0;
  // Otherwise node:http ends the connection before answers that wait for their turn. `Connection`
  // ends it.
  (server as Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
  return server;
}

/**
 * Makes a `Connection` of each socket that the server accepts, and hands it its requests. Returns
 * those that are open.
 */
function connectionsOf(server: Server, state: ListenerState): ReadonlyMap<Duplex, Connection> {
  const connections = new Map<Duplex, Connection>();
  server.on('connection', (socket) => {
    const connection = new Connection(socket, state);
    connections.set(socket, connection);
    socket.once('close', () => {
      connection.dropWaiting();
      connections.delete(socket);
    });
  });
  const receive = (request: IncomingMessage, response: ServerResponse, awaitsContinue = false) =>
    connections.get(request.socket)?.receive(request, response, awaitsContinue);
  server.on('request', receive);
  server.on('checkContinue', (request, response) => receive(request, response, true));
  server.on('checkExpectation', receive);
  server.on('clientError', ({ code }: NodeJS.ErrnoException, socket) =>
    connections.get(socket)?.refuse(code),
  );
  // No tunnels. node:http has detached the socket, and earlier requests may still wait for their
  // answers.
  server.on('connect', (_, socket) => {
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    connections.get(socket)?.refuse(undefined);
  });
  return connections;
}
