/** The listener: Node's HTTP server with its limits on clients, its connections and its end. */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';

import { refuseBrokenRequest, type AnswerBroken } from './broken-request.ts';
import type { CLIENT_LIMITS } from './call.ts';
import { Connection, PROGRESS_CHECKS, type ServerState } from './connection.ts';
import { BACKLOG_CONNECTIONS, drainServer } from './drain.ts';

const MAX_HEADER_BYTES = 16_384;
/** Load balancers keep idle connections for 60 s; a server that closes first makes them answer 502. */
const KEEP_ALIVE_MS = 75_000;

export interface HttpServer {
  /**
   * Starts listening. Rejects with Node's error if the address cannot be had. `isShared`: other threads listen at the
   * same port (SO_REUSEPORT), and the kernel gives each connection to one of them.
   */
  listen(port: number, host: string, isShared?: boolean): Promise<{ readonly port: number }>;
  /** Serves for `delayMs` more, as draining. Then stops accepting, and waits for the requests in flight. */
  drain(options: DrainOptions): Promise<DrainResult>;
  /** Ends a drain at once: what is left of the requests in flight is cancelled. */
  cut(): void;
  /** Requests that have begun and are not over. */
  readonly inFlight: number;
  readonly isDraining: boolean;
  /** 0 unless it is listening. */
  readonly port: number;
}

export interface DrainOptions {
  /** How long the port stays open, so that load balancers notice that `isDraining`. */
  readonly delayMs: number;
  /** Requests that take longer, once the port is closed, are cancelled with `reason`. */
  readonly timeoutMs: number;
  readonly reason: Error;
}

/** What became of the requests that were in flight at the start of a drain, or began in it. */
export interface DrainResult {
  readonly finished: number;
  /** Cancelled at the time limit. */
  readonly cut: number;
}

interface HttpServerOptions extends Pick<ServerState, 'handle' | 'limits' | 'budget' | 'inFlight'> {
  readonly answerBroken: AnswerBroken;
}

/** Creates the server. Nothing listens yet. */
export function createHttpServer(options: HttpServerOptions): HttpServer {
  const { answerBroken, limits, inFlight } = options;
  const initial = { isDraining: false, begun: 0, cut: 0, cancelReason: undefined };
  const state: ServerState = { ...options, ...initial };
  const connections = new Map<Duplex, Connection>();
  let checking: NodeJS.Timeout | undefined;
  const hurry = new AbortController();

  const server = createNodeServer(limits);
  attach(server, state, connections, answerBroken);

  return {
    async listen(port, host, isShared = false) {
      server.listen({ port, host, reusePort: isShared, backlog: BACKLOG_CONNECTIONS });
      await once(server, 'listening');
      // Later errors pass: the server goes on listening.
      server.on('error', () => {});
      const check = () => connections.forEach((connection) => connection.checkProgress());
      checking = setInterval(check, limits.stuckReaderMs / PROGRESS_CHECKS);
      return server.address() as AddressInfo;
    },
    async drain({ delayMs, timeoutMs, reason }) {
      state.isDraining = true;
      const overBefore = state.begun - inFlight.own;
      const cancel = () => {
        if (state.cancelReason) return;
        state.cancelReason = reason;
        for (const connection of connections.values()) connection.cut(reason);
      };
      const { signal } = hurry;
      if (delayMs > 0) await sleep(delayMs, undefined, { signal }).catch(() => {});
      const { lingerMs } = limits;
      await drainServer({ server, connections, timeoutMs, lingerMs, cancel, hurry: signal });
      clearInterval(checking);
      // All sockets are closed: the requests that were cut end, and get their access lines, in the next turns.
      for (let turn = 0; inFlight.own > 0 && turn < 1000; turn += 1) await nextTurn();
      return { finished: state.begun - overBefore - state.cut, cut: state.cut };
    },
    cut: () => hurry.abort(),
    get inFlight() {
      return inFlight.value;
    },
    get isDraining() {
      return state.isDraining;
    },
    get port() {
      return (server.address() as AddressInfo | null)?.port ?? 0;
    },
  };
}

/** Hands the server's requests, and its parser's errors, to their connections. `connections` has the open ones. */
function attach(
  server: Server,
  state: ServerState,
  connections: Map<Duplex, Connection>,
  answerBroken: AnswerBroken,
): void {
  server.on('connection', (socket) => {
    connections.set(socket, new Connection(socket, state));
    socket.once('close', () => connections.delete(socket));
  });
  const receive = (request: IncomingMessage, response: ServerResponse, awaitsContinue = false) =>
    connections.get(request.socket)?.receive({ request, response, awaitsContinue });
  server.on('request', (request, response) => receive(request, response));
  server.on('checkContinue', (request, response) => receive(request, response, true));
  server.on('checkExpectation', (request, response) => receive(request, response));
  const refuse = (socket: Duplex, code?: string) => {
    const connection = connections.get(socket);
    if (connection) refuseBrokenRequest(code, connection, answerBroken);
  };
  server.on('clientError', ({ code }: NodeJS.ErrnoException, socket) => refuse(socket, code));
  // No tunnels. node:http has detached the socket, and earlier requests may still wait for their answers.
  server.on('connect', (_, socket) => {
    socket.on('error', () => {});
    socket.on('end', () => socket.destroy());
    refuse(socket);
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
