/** The listener: Node's HTTP server, its connections, the limits on clients, and its drain. */

import { once } from 'node:events';
import type { IncomingMessage, Server, ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';

import type { ListenerState } from './listener.ts';
import { Connection, PROGRESS_CHECKS } from './connection.ts';
import { BACKLOG_CONNECTIONS, drain, type DrainOptions } from './drain.ts';
import { http } from '../lib/http.ts';

const MAX_HEADER_BYTES = 16_384;

/** Creates a listener that closes connections idle for `keepAliveMs`. */
export function createHttpServer(
  options: Omit<ListenerState, 'isDraining' | 'cancelReason' | 'counts'>,
  keepAliveMs: number,
) {
  const { timeLimits } = options;
  const counts = { inFlight: 0, finished: 0, cancelled: 0, openStreams: 0 };
  const state: ListenerState = { ...options, counts, isDraining: false, cancelReason: undefined };
  const server = createNodeServer(timeLimits, keepAliveMs);
  const connections = acceptConnections(server, state);
  const checking: NodeJS.Timeout[] = [];
  const forceClose = new AbortController();

  return {
    /**
     * Rejects with Node's error if the address is not available. If `isShared`, other processes may
     * listen at the same port (SO_REUSEPORT).
     */
    async listen(port: number, host: string, isShared = false) {
      server.listen({ port, host, reusePort: isShared, backlog: BACKLOG_CONNECTIONS });
      await once(server, 'listening');
      // Otherwise a later error would end the process.
      server.on('error', () => {});
      const check = () => connections.forEach((connection) => connection.checkProgress());
      checking.push(setInterval(check, timeLimits.sendTimeoutMs / PROGRESS_CHECKS));
      const checkUploads = () => connections.forEach((connection) => connection.checkUpload());
      checking.push(setInterval(checkUploads, timeLimits.requestMs / PROGRESS_CHECKS));
      return server.address() as AddressInfo;
    },
    /** Serves for another `delayMs`, then stops accepting and waits for the requests in flight. */
    async drain(how: DrainOptions) {
      await drain(server, connections, state, { ...how, signal: forceClose.signal });
      checking.forEach(clearInterval);
    },
    /** Cancels the requests in flight of a drain, or of one that begins later. */
    cancelRequests: () => forceClose.abort(),
    setHandler(handler: ListenerState['handler']) {
      state.handler = handler;
    },
    /** Sets how long a connection may be idle behind its next answer. */
    setKeepAlive(ms: number) {
      server.keepAliveTimeout = ms;
    },
    calls: () => [...connections.values()].flatMap(({ call }) => call ?? []),
    counts,
    get isDraining() {
      return state.isDraining;
    },
    /** 0 unless the server listens. */
    get port() {
      return (server.address() as AddressInfo | null)?.port ?? 0;
    },
  };
}

function createNodeServer(timeLimits: ListenerState['timeLimits'], keepAliveMs: number): Server {
  const server = http.createServer({
    maxHeaderSize: MAX_HEADER_BYTES,
    headersTimeout: timeLimits.headersMs,
    // `checkUpload` limits bodies, because node:http would count a pipelined request's wait.
    requestTimeout: 0,
    keepAliveTimeout: keepAliveMs,
    connectionsCheckingInterval: Math.min(2000, timeLimits.headersMs / 4),
    // Node's own refusal has no body, so `checkProtocol` requires the header.
    requireHostHeader: false,
  });
  // Node 20 silently drops headers beyond a limit, so `checkProtocol` counts them.
  server.maxHeadersCount = 0;
  // Otherwise node:http would end the connection as soon as its client half-closes, before the
  // answers that wait for their turn. `Connection` ends the connection earlier if the client may
  // have left.
  (server as Server & { httpAllowHalfOpen: boolean }).httpAllowHalfOpen = true;
  return server;
}

function acceptConnections(server: Server, state: ListenerState): ReadonlyMap<Duplex, Connection> {
  const connections = new Map<Duplex, Connection>();
  server.on('connection', (socket) => {
    const connection = new Connection(socket, state);
    connections.set(socket, connection);
    socket.on('close', () => {
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
  // node:http has detached the socket, and earlier requests may still wait for their answers.
  server.on('connect', (_, socket) => {
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    connections.get(socket)?.refuse(undefined);
  });
  return connections;
}
