/**
 * The connections to upstreams: a pool of the class that fetch itself uses, and what is known of a
 * connection when it breaks. Nothing else opens one.
 */

import { subscribe } from 'node:diagnostics_channel';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';

const CONNECT_TIMEOUT_MS = 10_000;
/** fetch's own 4 s would make a quiet gateway pay a TLS handshake on nearly every request. */
const IDLE_CONNECTION_MS = 90_000;
/** Well before an idle connection is closed, so that one whose other end is gone is noticed. */
const KEEP_ALIVE_PROBE_MS = 30_000;
/** What TLS may not have called written yet, although it is. */
const MAX_UNSENT_BYTES = 65_536;
/** A round trip: an upstream that closes later may have worked on the request. */
const STALE_WITHIN_MS = 1000;

/** undici's `Dispatcher`, as far as it is used. */
export interface Agent {
  /** Calls `handler` back as one of undici 6 to 8 does, also with what goes wrong. */
  dispatch(options: object, handler: object): boolean;
  /** Closes all connections, without waiting: a proxy may never answer. */
  destroy(): Promise<void>;
}

/**
 * A pool of our own, of the class that fetch itself uses: fetch has no option for its 300 s limits,
 * its 4 s of keep-alive or HTTP/2, and the class is not exported. Found by the symbol under which
 * undici shares it between copies of itself; the same on Node 20, 22, 24 and 26. Where the environment's
 * HTTP proxies are in use (`NODE_USE_ENV_PROXY`), it is the class that asks them. `undefined` where it is not found.
 * `isDirect` ignores the proxies.
 */
export function createAgent({ isDirect = false } = {}): Agent | undefined {
  // The slot is filled when fetch's module is first touched.
  void globalThis.Headers;
  const slots = globalThis as unknown as Record<symbol, object | undefined>;
  // Node 26 keeps a wrapper for old versions in slot 1.
  const shared =
    slots[Symbol.for('undici.globalDispatcher.2')] ??
    slots[Symbol.for('undici.globalDispatcher.1')];
  if (!/^(?:EnvHttpProxy)?Agent$/.test(shared?.constructor.name ?? '')) return undefined;
  const Agent = shared!.constructor as new (options: object) => Agent;
  const agent = new Agent({
    keepAliveTimeout: IDLE_CONNECTION_MS,
    allowH2: false,
    connect: connectSocket,
    ...(isDirect ? { noProxy: '*' } : {}),
  });
  // As options of the class they would be lost on Node 26 where a proxy forwards requests.
  const noTimeouts = { headersTimeout: 0, bodyTimeout: 0 };
  return {
    dispatch: (options, handler) => agent.dispatch({ ...options, ...noTimeouts }, handler),
    destroy: () => agent.destroy(),
  };
}

/** What is under way to one upstream origin. */
interface Queue {
  /** Requests of ours without an answer: when there is none, nobody waits for a connection being made. */
  waiting: number;
  /** undici's requests that have no connection yet; those given up meanwhile are among them. */
  readonly unsent: Set<object>;
  readonly connecting: Set<Socket>;
  /** The latest of the origin's TLS sessions: resumed, a handshake costs both ends a fraction. */
  session: Buffer | undefined;
}
const queues = new Map<string, Queue>();
const ABANDONED = new Error('nobody waits for this connection');

function queueOf(origin: string): Queue {
  let queue = queues.get(origin);
  if (queue === undefined) {
    queue = { waiting: 0, unsent: new Set(), connecting: new Set(), session: undefined };
    queues.set(origin, queue);
  }
  return queue;
}

/** A request to this origin begins to wait for its answer. */
export function beginWaiting(origin: string): void {
  queueOf(origin).waiting += 1;
}

/** It has its answer, or is given up. */
export function endWaiting(origin: string): void {
  const queue = queueOf(origin);
  queue.waiting -= 1;
  if (queue.waiting === 0) for (const socket of queue.connecting) socket.destroy(ABANDONED);
}

/** How far a connection had come when it broke: what is safe to repeat depends on it. */
export type ConnectionFailure =
  /** Given up as useless before it was made, just when a request came that would have used it. */
  | 'abandoned'
  /** Never made: nothing was sent. */
  | 'unconnected'
  /** It had been idle, and broke as soon as the request was written: the upstream had closed it before. */
  | 'stale'
  /** The upstream may have worked on the request. */
  | 'unanswered'
  /** Part of the answer had come. */
  | 'midAnswer';
const connectionFailures = new WeakMap<Error, ConnectionFailure>();
/** Where a large request was written to. */
const sockets = new WeakMap<object, Socket>();
/** What had been read from a connection when the latest request was written to it, and when that was. */
const latestRequests = new WeakMap<Socket, { bytesRead: number; atMs: number }>();

/** What is known of the connection that broke with this error; `undefined` where no connection broke. */
export function connectionFailureOf(error: Error): ConnectionFailure | undefined {
  return connectionFailures.get(error);
}

/** undici's documented diagnostics channels: what it tells nobody else of its connections. */
interface UndiciMessage {
  readonly request: { readonly origin: string | URL; readonly body: { length?: number } | null };
  readonly socket: Socket;
  readonly error: Error;
}
function onUndici(event: string, listener: (message: UndiciMessage) => void): void {
  subscribe(`undici:${event}`, (message) => listener(message as UndiciMessage));
}

onUndici('request:create', ({ request }) => {
  queueOf(String(request.origin)).unsent.add(request);
});
onUndici('client:sendHeaders', ({ request, socket }) => {
  queueOf(String(request.origin)).unsent.delete(request);
  const latest = latestRequests.get(socket);
  if (latest) {
    latest.bytesRead = socket.bytesRead;
    latest.atMs = performance.now();
  }
  // fetch's body has no length.
  const { body } = request;
  if (body && (body.length ?? Infinity) > MAX_UNSENT_BYTES) sockets.set(request, socket);
});
onUndici('request:trailers', ({ request }) => {
  const socket = sockets.get(request);
  // Answered before it was read: the next one would wait behind the rest of it.
  if (socket && socket.writableLength > MAX_UNSENT_BYTES) socket.destroy();
});
onUndici('request:error', ({ request }) => {
  queueOf(String(request.origin)).unsent.delete(request);
});
onUndici('client:connectError', ({ error }) => {
  connectionFailures.set(error, error === ABANDONED ? 'abandoned' : 'unconnected');
});
onUndici('client:connected', ({ socket }) => {
  // More than none where it is a tunnel: what the proxy said.
  const atStart = socket.bytesRead;
  const latest = { bytesRead: atStart, atMs: 0 };
  latestRequests.set(socket, latest);
  socket.on('error', (error) => {
    const isReused = latest.bytesRead > atStart;
    const isSoon = performance.now() - latest.atMs < STALE_WITHIN_MS;
    if (socket.bytesRead > latest.bytesRead) connectionFailures.set(error, 'midAnswer');
    else if (isReused && isSoon) connectionFailures.set(error, 'stale');
    else connectionFailures.set(error, 'unanswered');
  });
});

interface ConnectOptions {
  readonly protocol: string;
  /** With the port. */
  readonly host: string;
  readonly hostname: string;
  readonly port: string;
}

/** Opens a connection as undici asks for it. */
function connectSocket(
  { protocol, host, hostname, port }: ConnectOptions,
  callback: (error: Error | null, socket?: Socket) => void,
): void {
  const queue = queueOf(`${protocol}//${host}`);
  const { unsent, connecting } = queue;
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
        session: queue.session,
      })
    : connectTcp({ host: hostname, port: Number(port || 80) });
  socket.setNoDelay(true);
  socket.setKeepAlive(true, KEEP_ALIVE_PROBE_MS);
  connecting.add(socket);

  const timer = setTimeout(() => {
    socket.destroy(Object.assign(new Error('connect timed out'), { code: 'ETIMEDOUT' }));
  }, CONNECT_TIMEOUT_MS);
  // Comes only after the certificate was found good; the next handshake relies on that.
  socket.on('session', (session: Buffer) => (queue.session = session));
  const settle = (error: Error | null) => {
    clearTimeout(timer);
    if (!connecting.delete(socket)) return;
    // It may be the session that the upstream stumbles over.
    if (error) queue.session = undefined;
    callback(error, socket);
  };
  // Stays on: an error without a listener would end the process.
  socket.on('error', settle);
  socket.once(isTls ? 'secureConnect' : 'connect', () => settle(null));
}
