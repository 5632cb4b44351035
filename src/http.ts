/**
 * node:http on one side, `Call` and `Answer` on the other. The only file that writes responses.
 * It bounds what a client can hold: headers, bodies, silence, unread output.
 */

import { randomUUID } from 'node:crypto';
import {
  createServer,
  STATUS_CODES,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http';
import { Server as TcpServer, type AddressInfo, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';

import { ClientGone, GatewayError, invalidRequest } from './errors.ts';
import { checkProtocol, headerValues, pathOf } from './protocol.ts';

const MAX_HEADER_BYTES = 16_384;
/** Load balancers keep idle connections for 60 s; a server that closes first makes them answer 502. */
const KEEP_ALIVE_MS = 75_000;
/** How long a client may take for what. Tests pass shorter ones. */
export const CLIENT_LIMITS = {
  headersMs: 15_000,
  requestMs: 60_000,
  /** An upload that was already refused is read and thrown away for so long, so that the client sees the answer. */
  lingerMs: 2000,
  /** A client that takes nothing of its answer for so long is cut off: Node itself has no limit for writing. */
  stuckReaderMs: 60_000,
};
/** Connections without a request live on for so long in a drain: one may be on its way. */
const DRAIN_GRACE_MS = 500;
/** Answers longer than this are written in parts, so that a stuck reader is noticed. */
const WRITE_PART_BYTES = 262_144;

export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** An iterable is a stream: it ends by itself, and never throws after its first chunk. */
  readonly body: string | Buffer | AsyncIterable<Buffer>;
}

/** What the access line will say. Filled in by the rooms that find out. */
interface AccessRecord {
  provider?: string;
  model?: string;
  stream?: boolean;
  requestBytes?: number;
  /** One entry for each try at a provider, in order: `<provider_id>:<what came of it>`. */
  readonly attempts: string[];
  /** What went wrong, also when it went wrong in the middle of a stream. */
  failure?: GatewayError;
}

interface ServerState {
  isDraining: boolean;
  readonly limits: typeof CLIENT_LIMITS;
}

/** One client request and its response. */
export class Call {
  /** The client's own `x-request-id` if it is usable, else a new one. */
  readonly id: string;
  readonly method: string;
  /** The request target as it was sent, without query, scheme and authority. Never decoded. */
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly record: AccessRecord = { attempts: [] };
  /** Bytes of the response body that were written. */
  sentBytes = 0;
  /** When the response began, on the monotonic clock of `performance.now()`. */
  firstByteAtMs: number | undefined;
  readonly receivedAtMs = performance.now();

  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #abort = new AbortController();
  readonly #closed: Promise<void>;
  readonly #server: ServerState;
  #awaitsContinue: boolean;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    { awaitsContinue, server }: { awaitsContinue: boolean; server: ServerState },
  ) {
    this.#request = request;
    this.#response = response;
    this.#awaitsContinue = awaitsContinue;
    this.#server = server;
    this.method = request.method ?? '';
    this.path = pathOf(request.url ?? '');
    this.headers = request.headers;
    const ownId = request.headers['x-request-id'];
    this.id =
      typeof ownId === 'string' && /^[\x21-\x7e]{1,128}$/.test(ownId) ? ownId : randomUUID();
    // The request's own 'close' comes when its body was read; only the response's means the client.
    this.#closed = new Promise((resolve) => {
      response.once('close', () => {
        if (!response.writableFinished) this.cancel(new ClientGone());
        resolve();
      });
    });
  }

  /** The gateway is shutting down. */
  get isDraining(): boolean {
    return this.#server.isDraining;
  }

  /** Aborts when the client leaves, or with the reason given to `cancel`. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Gives the request up. */
  cancel(reason: Error): void {
    this.#abort.abort(reason);
  }

  /** Every value of a header, as often as it was sent. */
  headerValues(name: string): string[] {
    return headerValues(this.#request, name);
  }

  /** Throws what `protocol.ts` refuses. */
  checkProtocol(): void {
    checkProtocol(this.#request);
  }

  /** The whole request body. Throws a 413 when it is larger, `ClientGone` when it breaks off. */
  async readBody(maxBytes: number): Promise<Buffer> {
    const request = this.#request;
    const tooLarge = () =>
      invalidRequest(`request body exceeds ${maxBytes} bytes`, { status: 413 });
    if (Number(this.headers['content-length'] ?? 0) > maxBytes) throw tooLarge();
    if (this.#awaitsContinue) {
      this.#awaitsContinue = false;
      this.#response.writeContinue();
    }
    const chunks: Buffer[] = [];
    let size = 0;
    try {
      // Not `for await`: leaving that early would destroy the socket before the answer is out.
      await new Promise<void>((resolve, reject) => {
        request.on('data', (chunk: Buffer) => {
          size += chunk.length;
          if (size > maxBytes) reject(tooLarge());
          else chunks.push(chunk);
        });
        request.once('end', resolve);
        request.once('error', () => reject(new ClientGone()));
        request.once('close', () => reject(new ClientGone()));
        this.signal.addEventListener('abort', () => reject(this.signal.reason as Error));
      });
    } finally {
      request.removeAllListeners('data');
      request.resume();
    }
    this.record.requestBytes = size;
    return Buffer.concat(chunks, size);
  }

  /** Sends the answer and waits until the client has it or is gone. */
  async send(answer: Answer): Promise<void> {
    const response = this.#response;
    if (response.headersSent || response.destroyed) return;
    const headers: Record<string, string | number> = { ...answer.headers, 'x-request-id': this.id };
    // A body that was never asked for cannot be told from the next request.
    if (this.isDraining || this.#awaitsContinue) headers['connection'] = 'close';
    const body = typeof answer.body === 'string' ? Buffer.from(answer.body) : answer.body;
    if (Buffer.isBuffer(body) && answer.status !== 204) headers['content-length'] = body.length;
    this.#lingerOverUpload();

    this.firstByteAtMs = performance.now();
    try {
      response.writeHead(answer.status, headers);
      if (Buffer.isBuffer(body) && body.length <= WRITE_PART_BYTES) {
        this.sentBytes = body.length;
        response.end(body);
      } else {
        await this.#write(Buffer.isBuffer(body) ? inParts(body) : body);
        response.end();
      }
    } catch (error) {
      response.destroy();
      throw error;
    }
    await this.#closed;
  }

  async #write(parts: Iterable<Buffer> | AsyncIterable<Buffer>): Promise<void> {
    for await (const part of parts) {
      if (this.#response.destroyed) return;
      this.sentBytes += part.length;
      if (!this.#response.write(part)) await this.#drained();
    }
  }

  /** Waits for the client to take what was written: 'drain', which never comes once it has left. */
  async #drained(): Promise<void> {
    const response = this.#response;
    await new Promise<void>((resolve) => {
      const stuck = setTimeout(() => response.destroy(), this.#server.limits.stuckReaderMs);
      const onEnd = () => {
        clearTimeout(stuck);
        response.off('drain', onEnd);
        response.off('close', onEnd);
        resolve();
      };
      response.once('drain', onEnd);
      response.once('close', onEnd);
    });
  }

  #lingerOverUpload(): void {
    const request = this.#request;
    if (request.complete) return;
    request.resume();
    const cut = setTimeout(() => request.socket.destroy(), this.#server.limits.lingerMs);
    request.once('close', () => clearTimeout(cut));
  }
}

function* inParts(body: Buffer): Generator<Buffer> {
  for (let start = 0; start < body.length; start += WRITE_PART_BYTES) {
    yield body.subarray(start, start + WRITE_PART_BYTES);
  }
}

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

/** Creates the server. Nothing listens yet. */
export function createHttpServer({
  handle,
  onBrokenRequest,
  limits,
}: HttpServerOptions): HttpServer {
  const calls = new Set<Call>();
  /** What each connection is being answered: more than one where the client pipelines. */
  const pending = new WeakMap<Duplex, Set<ServerResponse>>();
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

  async function onRequest(
    request: IncomingMessage,
    response: ServerResponse,
    awaitsContinue = false,
  ): Promise<void> {
    const responses = pending.get(request.socket) ?? new Set();
    pending.set(request.socket, responses.add(response));
    // Without a listener, the error of a connection that breaks would end the process.
    request.on('error', () => {});
    response.on('error', () => {});
    const call = new Call(request, response, { awaitsContinue, server: state });
    calls.add(call);
    try {
      await handle(call);
    } finally {
      calls.delete(call);
      responses.delete(response);
      // The answer may have begun before the drain, and not said that it is the last.
      if (state.isDraining && responses.size === 0) request.socket.end();
    }
  }

  const sockets = new Set<Socket>();
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket));
  });
  server.on('request', (request, response) => void onRequest(request, response));
  server.on('checkContinue', (request, response) => void onRequest(request, response, true));
  server.on('checkExpectation', (request, response) => void onRequest(request, response));
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const refusal = refuseBrokenRequest(error, socket, [...(pending.get(socket) ?? [])]);
    if (refusal) onBrokenRequest(refusal);
  });
  // No tunnels; without a listener Node closes the connection without a word.
  server.on('connect', (_, socket) => void refuseBrokenRequest({ code: '' }, socket, []));

  return {
    listen: (port, host) => listen(server, port, host),
    async drain(timeoutMs, reason) {
      state.isDraining = true;
      // Only the port: http's own close would cut idle connections at once, and requests on their way with them.
      const closed = new Promise<void>((resolve) =>
        TcpServer.prototype.close.call(server, () => resolve()),
      );
      const closeUnused = setTimeout(() => {
        for (const socket of sockets) if (!pending.get(socket)?.size) socket.destroy();
      }, DRAIN_GRACE_MS);
      const deadline = setTimeout(() => {
        for (const call of calls) call.cancel(reason);
        setTimeout(() => server.closeAllConnections(), limits.lingerMs).unref();
      }, timeoutMs);
      await closed;
      clearTimeout(closeUnused);
      clearTimeout(deadline);
    },
  };
}

async function listen(server: Server, port: number, host: string): Promise<AddressInfo> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
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

/**
 * The documented error object where Node would send an empty answer of its own. Whole requests that
 * came before on the same connection get their answers first; a broken one after them gets none.
 */
function refuseBrokenRequest(
  { code = '' }: { readonly code?: string },
  socket: Duplex,
  pending: readonly ServerResponse[],
): GatewayError | undefined {
  const lastOfWhole = pending.findLast(({ req }) => req.complete);
  if (lastOfWhole) {
    lastOfWhole.once('close', () => socket.destroy());
    return undefined;
  }
  if (code === 'ECONNRESET' || !socket.writable || pending.some(({ headersSent }) => headersSent)) {
    socket.destroy();
    return undefined;
  }
  const known = Object.hasOwn(PARSER_ERRORS, code) ? PARSER_ERRORS[code] : undefined;
  const { status, text } = known ?? { status: 400, text: 'request is not valid HTTP' };
  const refusal = invalidRequest(text, { status });
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
