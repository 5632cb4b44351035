/**
 * The server: its limits on clients, its port, its end. Requests become `Call`s; what is not even HTTP is
 * refused here.
 */

import { randomUUID } from 'node:crypto';
import {
  createServer,
  STATUS_CODES,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { Server as TcpServer, type AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';

import { Call, type CLIENT_LIMITS, type ServerState } from './call.ts';
import { invalidRequest, type GatewayError } from '../lib/errors.ts';

const MAX_HEADER_BYTES = 16_384;
/** Load balancers keep idle connections for 60 s; a server that closes first makes them answer 502. */
const KEEP_ALIVE_MS = 75_000;
/** Connections that the kernel takes for us ahead of time. */
const BACKLOG_CONNECTIONS = 511;
/** Connections without a request live on for so long in a drain: one may be on its way. */
const DRAIN_GRACE_MS = 1000;
const DRAIN_CHECK_MS = 100;
const nextTurn = async () => new Promise((resolve) => setImmediate(resolve));

export interface HttpServer {
  /** Starts listening. Rejects with node's error when the address cannot be had. */
  listen(port: number, host: string): Promise<AddressInfo>;
  /**
   * Stops accepting and waits for the requests in flight; those that take longer than `timeoutMs`
   * are given up with `reason`.
   */
  drain(timeoutMs: number, reason: Error): Promise<void>;
}

interface HttpServerOptions {
  /** Answers each call through `call.send`; never rejects. */
  readonly handle: (call: Call) => Promise<void>;
  /** Told of what was refused before it became a call. */
  readonly onBrokenRequest: (refusal: GatewayError) => void;
  readonly limits: typeof CLIENT_LIMITS;
}

interface Connection {
  /** What it is being answered: more than one where the client pipelines. */
  readonly calls: Map<ServerResponse, Call>;
  /** When it was accepted or its last call ended. */
  unusedSinceMs: number;
  /** The answer to the request that came last: the only one that may be incomplete. */
  latest?: ServerResponse;
  /** What came last is not HTTP, and nothing more is taken from it. */
  isBroken?: true;
}

/** Creates the server. Nothing listens yet. */
export function createHttpServer({
  handle,
  onBrokenRequest,
  limits,
}: HttpServerOptions): HttpServer {
  const connections = new Map<Duplex, Connection>();
  let accepted = 0;
  /** Set at the deadline of a drain: also what comes after it is not begun. */
  let givenUp: Error | undefined;
  const state: ServerState = { isDraining: false, limits };

  const server = createServer({
    maxHeaderSize: MAX_HEADER_BYTES,
    headersTimeout: limits.headersMs,
    requestTimeout: limits.requestMs,
    keepAliveTimeout: KEEP_ALIVE_MS,
    connectionsCheckingInterval: Math.min(2000, limits.headersMs / 4),
    // Node's own refusal has no body; `checkProtocol` asks for the header too.
    requireHostHeader: false,
  });
  // 0 is no limit of Node's own: Node 20 would silently drop what is beyond it. `checkProtocol` counts.
  server.maxHeadersCount = 0;
  // The socket's own clock: it starts anew also when the kernel has taken only a part of what was written.
  server.timeout = limits.stuckReaderMs;

  function closeUnused(): void {
    const youngest = performance.now() - DRAIN_GRACE_MS;
    for (const [socket, { calls, unusedSinceMs }] of connections) {
      if (calls.size === 0 && unusedSinceMs <= youngest) socket.destroy();
    }
  }

  async function onRequest(
    request: IncomingMessage,
    response: ServerResponse,
    awaitsContinue = false,
  ): Promise<void> {
    // Without a listener, the error of a connection that breaks would end the process.
    request.on('error', () => {});
    response.on('error', () => {});
    const call = new Call(request, response, { awaitsContinue, server: state });
    const connection = connections.get(request.socket);
    connection?.calls.set(response, call);
    if (connection) connection.latest = response;
    if (givenUp) call.cancellation.cancel(givenUp);
    try {
      await handle(call);
    } finally {
      connection?.calls.delete(response);
      if (connection) connection.unusedSinceMs = performance.now();
    }
  }

  server.on('connection', (socket) => {
    accepted += 1;
    const calls = new Map<ServerResponse, Call>();
    connections.set(socket, { calls, unusedSinceMs: performance.now() });
    socket.once('close', () => {
      connections.delete(socket);
      // node:http closes only the response whose turn it is.
      for (const response of calls.keys()) response.destroy().emit('close');
    });
  });
  server.on('request', (request, response) => void onRequest(request, response));
  server.on('checkContinue', (request, response) => void onRequest(request, response, true));
  server.on('checkExpectation', (request, response) => void onRequest(request, response));
  const refuse = (error: { readonly code?: string }, socket: Duplex) => {
    const connection = connections.get(socket);
    // Node tells again of each packet that comes after one it could not parse.
    if (!connection || connection.isBroken) return;
    connection.isBroken = true;
    const refusal = refuseBrokenRequest(error, socket, connection);
    if (refusal) onBrokenRequest(refusal);
  };
  server.on('clientError', refuse);
  server.on('timeout', (socket) => {
    const isWaiting = connections.get(socket)?.calls.size !== 0 && socket.writableLength === 0;
    // Else nothing is taken of what was written, or it was kept alive for long enough.
    if (!isWaiting) socket.destroy();
  });
  // No tunnels; without a listener Node closes the connection without a word.
  server.on('connect', (_, socket) => {
    // Node has let go of the socket; answers before this one may still be under way.
    socket.on('error', () => {});
    socket.on('timeout', () => server.emit('timeout', socket));
    socket.on('end', () => socket.destroy());
    socket.on('drain', () => {
      for (const response of connections.get(socket)?.calls.keys() ?? []) response.emit('drain');
    });
    refuse({}, socket);
  });

  return {
    listen: (port, host) => listen(server, port, host),
    async drain(timeoutMs, reason) {
      state.isDraining = true;
      const deadline = setTimeout(() => {
        givenUp = reason;
        for (const { calls } of connections.values()) {
          for (const call of calls.values()) call.cancellation.cancel(reason);
        }
        // Not closeAllConnections, which forgets those that Node has let go of.
        const cut = () => connections.forEach((_, socket) => socket.destroy());
        setTimeout(cut, limits.lingerMs).unref();
      }, timeoutMs);
      // Closing the port resets what waits in its backlog, of which libuv takes one connection a turn.
      // Who connected before the drain is among the first of them, whoever keeps connecting.
      let waiting = BACKLOG_CONNECTIONS + 1;
      for (let quietTurns = 0; quietTurns < 3 && waiting > 0; quietTurns += 1) {
        const before = accepted;
        await nextTurn();
        waiting -= accepted - before;
        if (accepted !== before) quietTurns = 0;
      }
      // Only the port: http's own close would cut idle connections at once, and requests on their way with them.
      const closed = new Promise<void>((resolve) =>
        TcpServer.prototype.close.call(server, () => resolve()),
      );
      // Again and again: answers that began before the drain have not said that they are the last.
      // A turn later: a busy process comes to its timers before it reads what has been waiting.
      const closing = setInterval(() => setImmediate(closeUnused), DRAIN_CHECK_MS);
      await closed;
      clearInterval(closing);
      clearTimeout(deadline);
    },
  };
}

async function listen(server: Server, port: number, host: string): Promise<AddressInfo> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ port, host, backlog: BACKLOG_CONNECTIONS }, () => {
      server.off('error', reject);
      // Later ones (EMFILE on accept) pass: the server goes on listening.
      server.on('error', () => {});
      resolve();
    });
  });
  return server.address() as AddressInfo;
}

/** Status and reason for what Node's parser gives up on; anything else is a plain 400. */
const PARSER_ERRORS: Readonly<Record<string, { status: number; text: string }>> = {
  HPE_HEADER_OVERFLOW: { status: 431, text: 'request headers are too large' },
  HPE_CHUNK_EXTENSIONS_OVERFLOW: { status: 413, text: 'chunk extensions are too large' },
  ERR_HTTP_REQUEST_TIMEOUT: { status: 408, text: 'request was not received in time' },
};

/** The client has sent all it wanted to, and that is not a whole request: it counts as gone. */
const ENDED_EARLY = 'HPE_INVALID_EOF_STATE';

/**
 * The documented error object where Node would send an empty answer of its own. Whole requests that
 * came before on the same connection get their answers first; a broken one after them gets none, and
 * neither does one that was answered before all of it had come. One whose body is being read answers itself.
 */
function refuseBrokenRequest(
  { code = '' }: { readonly code?: string },
  socket: Duplex,
  { calls, latest }: Connection,
): GatewayError | undefined {
  const lastOfWhole = [...calls.keys()].findLast(({ req }) => req.complete);
  if (lastOfWhole) {
    if (code === ENDED_EARLY) socket.destroy();
    else lastOfWhole.once('close', () => socket.destroy());
    return undefined;
  }
  const isAnswered = latest?.headersSent && !latest.req.complete;
  if (code === 'ECONNRESET' || !socket.writable || isAnswered) {
    socket.destroy();
    return undefined;
  }
  const known = Object.hasOwn(PARSER_ERRORS, code) ? PARSER_ERRORS[code] : undefined;
  const { status, text } = known ?? { status: 400, text: 'request is not valid HTTP' };
  const refusal = invalidRequest(text, { status, headers: { connection: 'close' } });
  const call = latest && calls.get(latest);
  if (code !== ENDED_EARLY && call?.refuseBody(refusal)) return undefined;
  const body = refusal.toBody();
  const head = [
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}`,
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    'x-content-type-options: nosniff',
    `x-request-id: ${randomUUID()}`,
    'connection: close',
  ];
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`, () => socket.destroy());
  return refusal;
}
