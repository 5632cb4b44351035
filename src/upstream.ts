/**
 * The one door out. Sends an `UpstreamRequest` through global fetch and says in the gateway's terms
 * what went wrong. Nothing above this file looks at the errors of fetch, undici or node:net.
 */

import { subscribe } from 'node:diagnostics_channel';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';

import { GatewayError } from './errors.ts';
import type { UpstreamReply, UpstreamRequest } from './provider.ts';

const CONNECT_TIMEOUT_MS = 10_000;
/** fetch's own 4 s would make a quiet gateway pay a TLS handshake on nearly every request. */
const IDLE_CONNECTION_MS = 90_000;

export interface Upstream {
  /** False where fetch's own limits stay in force: it gives up after 300 s of silence, whatever is configured. */
  readonly canWaitLong: boolean;
  /** Sends once: no redirects, no retries. Rejects with what `upstreamFailure` understands. */
  send(request: UpstreamRequest, signal: AbortSignal): Promise<UpstreamReply>;
  /** Closes idle connections. */
  close(): Promise<void>;
}

/** Creates the upstream side, with its own pool of connections. */
export function createUpstream(): Upstream {
  const dispatcher = createDispatcher();
  return {
    canWaitLong: dispatcher !== undefined,
    async send({ method, url, headers, body }, signal) {
      const queue = queueOf(new URL(url).origin);
      queue.waiting += 1;
      try {
        const response = await fetch(url, {
          method,
          headers,
          signal,
          // A followed redirect would carry the prompt, and custom key headers, to another host.
          redirect: 'manual',
          ...(body === undefined ? {} : { body }),
          ...(dispatcher === undefined ? {} : { dispatcher: dispatcher as never }),
        });
        return { status: response.status, headers: response.headers, body: response.body };
      } finally {
        queue.waiting -= 1;
        if (queue.waiting === 0) for (const socket of queue.connecting) socket.destroy(ABANDONED);
      }
    },
    async close() {
      await dispatcher?.close();
    },
  };
}

interface Dispatcher {
  close(): Promise<void>;
}

/**
 * A pool of our own, of the class that fetch itself uses: fetch has no option for its 300 s limits,
 * its 4 s of keep-alive or HTTP/2, and the class is not exported. Found by the symbol under which
 * undici shares it between copies of itself; the same on Node 20, 22, 24 and 26. Where it is not found, or
 * where the environment's HTTP proxies are in use (`NODE_USE_ENV_PROXY`), fetch works as it is.
 */
function createDispatcher(): Dispatcher | undefined {
  // The slot is filled when fetch's module is first touched.
  void globalThis.Headers;
  const slots = globalThis as unknown as Record<symbol, object | undefined>;
  // Node 26 keeps a wrapper for old versions in slot 1.
  const agent =
    slots[Symbol.for('undici.globalDispatcher.2')] ??
    slots[Symbol.for('undici.globalDispatcher.1')];
  if (agent?.constructor.name !== 'Agent') return undefined;
  const Agent = agent.constructor as new (options: object) => Dispatcher;
  return new Agent({
    headersTimeout: 0,
    bodyTimeout: 0,
    keepAliveTimeout: IDLE_CONNECTION_MS,
    allowH2: false,
    connect: connectSocket,
  });
}

interface ConnectOptions {
  readonly protocol: string;
  /** With the port. */
  readonly host: string;
  readonly hostname: string;
  readonly port: string;
}

/** What is under way to one upstream origin. */
interface Queue {
  /** Requests of ours without an answer: when there is none, nobody waits for a connection being made. */
  waiting: number;
  /** undici's requests that have no connection yet; those given up meanwhile are among them. */
  readonly unsent: Set<object>;
  readonly connecting: Set<Socket>;
}
const queues = new Map<string, Queue>();
const ABANDONED = new Error('nobody waits for this connection');
/** What a connection had read when its latest request was written to it. */
const bytesReadBeforeRequest = new WeakMap<Socket, number>();

function queueOf(origin: string): Queue {
  const queue = queues.get(origin) ?? { waiting: 0, unsent: new Set(), connecting: new Set() };
  queues.set(origin, queue);
  return queue;
}

/** undici's documented diagnostics channels: what fetch does not tell of its connections. */
interface UndiciMessage {
  readonly request: { readonly origin: string | URL };
  readonly socket: Socket;
}
subscribe('undici:request:create', (message) => {
  const { request } = message as UndiciMessage;
  queueOf(String(request.origin)).unsent.add(request);
});
subscribe('undici:client:sendHeaders', (message) => {
  const { request, socket } = message as UndiciMessage;
  queueOf(String(request.origin)).unsent.delete(request);
  bytesReadBeforeRequest.set(socket, socket.bytesRead);
});
subscribe('undici:request:error', (message) => {
  const { request } = message as UndiciMessage;
  queueOf(String(request.origin)).unsent.delete(request);
});

/** Failures to connect: nothing was sent. */
const connectErrors = new WeakSet<Error>([ABANDONED]);
/** How far a connection had come when it broke: what is safe to repeat depends on it. */
const brokenConnections = new WeakMap<Error, { isReused: boolean; hasBegunAnswer: boolean }>();

/** Opens a connection as undici asks for it, and notes whether a later error met it in reuse. */
function connectSocket(
  options: ConnectOptions,
  callback: (error: Error | null, socket?: Socket) => void,
): void {
  const { protocol, hostname, port } = options;
  const { unsent, connecting } = queueOf(`${protocol}//${options.host}`);
  // undici replaces a connection that broke, also when no request waits for it.
  if (unsent.size <= connecting.size) {
    process.nextTick(callback, ABANDONED);
    return;
  }
  const isTls = protocol === 'https:';
  const socket = isTls
    ? connectTls({
        host: hostname,
        port: Number(port || 443),
        // RFC 6066 3: no address literals in SNI.
        servername: isIP(hostname) ? '' : hostname,
        ALPNProtocols: ['http/1.1'],
      })
    : connectTcp({ host: hostname, port: Number(port || 80) });
  socket.setNoDelay(true);
  socket.setKeepAlive(true, IDLE_CONNECTION_MS);
  connecting.add(socket);

  const timer = setTimeout(() => {
    socket.destroy(Object.assign(new Error('connect timed out'), { code: 'ETIMEDOUT' }));
  }, CONNECT_TIMEOUT_MS);
  let isConnected = false;
  socket.once(isTls ? 'secureConnect' : 'connect', () => {
    clearTimeout(timer);
    connecting.delete(socket);
    isConnected = true;
    callback(null, socket);
  });
  socket.on('error', (error) => {
    clearTimeout(timer);
    connecting.delete(socket);
    const before = bytesReadBeforeRequest.get(socket) ?? 0;
    const hasBegunAnswer = socket.bytesRead > before;
    brokenConnections.set(error, { isReused: before > 0, hasBegunAnswer });
    if (isConnected) return;
    connectErrors.add(error);
    callback(error);
  });
}

/**
 * Reads a body chunk by chunk until the signal aborts: then `read` rejects with its reason. fetch sees to
 * that itself, but on Node 20 and 22 a read stays unsettled where the abort meets data not yet read.
 */
export class BodyReader {
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  readonly #signal: AbortSignal;

  constructor(body: ReadableStream<Uint8Array>, signal: AbortSignal) {
    this.#reader = body.getReader();
    this.#signal = signal;
    const cancel = () => void this.#reader.cancel().catch(() => {});
    signal.addEventListener('abort', cancel, { once: true });
  }

  /** The next chunk, or `undefined` at the end. */
  async read(): Promise<Buffer | undefined> {
    const { value } = await this.#reader.read();
    this.#signal.throwIfAborted();
    return value && Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  }
}

/** The whole body, or `undefined` when it is longer than `maxBytes`; the rest is left unread. */
export async function readAll(
  body: ReadableStream<Uint8Array>,
  maxBytes: number,
  signal: AbortSignal,
): Promise<Buffer | undefined> {
  const reader = new BodyReader(body, signal);
  const chunks: Buffer[] = [];
  let size = 0;
  for (;;) {
    const chunk = await reader.read();
    if (chunk === undefined) return Buffer.concat(chunks, size);
    size += chunk.length;
    if (size > maxBytes) return undefined;
    chunks.push(chunk);
  }
}

const CLOSED_BY_UPSTREAM = new Set(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']);
const TIMED_OUT = new Set([
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
]);

/** `Request timed out` (interface, Errors). */
export function timeoutError(provider: string, cause?: unknown): GatewayError {
  return new GatewayError('timeout', 'Request timed out', { provider, cause });
}

/**
 * Translates what `send`, or reading its body, was rejected with. `answered`: the response headers
 * had come, so the provider has worked on the request and it must not be repeated.
 * Hosts, ports and library texts stay in `cause`, for the log.
 */
export function upstreamFailure(
  thrown: unknown,
  { provider, answered }: { readonly provider: string; readonly answered: boolean },
): unknown {
  const cause = thrown instanceof TypeError ? thrown.cause : undefined;
  // The reason of an abort, or a bug of ours: fetch's own failures are TypeErrors with a cause.
  if (!(cause instanceof Error)) return thrown;
  const { code = '' } = cause as NodeJS.ErrnoException;
  if (TIMED_OUT.has(code)) return timeoutError(provider, cause);
  if (CLOSED_BY_UPSTREAM.has(code)) {
    const { isReused, hasBegunAnswer } = brokenConnections.get(cause) ?? {};
    if (answered || hasBegunAnswer) {
      return new GatewayError('provider', 'the answer was cut off', { provider, cause });
    }
    return new GatewayError('provider', 'the connection was closed without an answer', {
      provider,
      cause,
      retryable: true,
      staleConnection: isReused,
    });
  }
  if (!connectErrors.has(cause)) {
    return new GatewayError('provider', 'the answer was not valid HTTP', { provider, cause });
  }
  return new GatewayError('provider', 'the provider is unreachable', {
    provider,
    cause,
    retryable: true,
    // A request may come just when the connection it would get is given up.
    staleConnection: cause === ABANDONED,
  });
}
