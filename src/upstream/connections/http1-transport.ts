/** Sends requests to providers over the gateway's own connections, and keeps the idle ones. */

import type { Socket } from 'node:net';

import type { ByteSink, ByteSource } from '../../lib/memory/byte-source.ts';
import type { Cancellation } from '../../lib/cancellation.ts';
import { ChunkBuffer } from '../../lib/chunk-buffer.ts';
import { GatewayError } from '../../lib/errors.ts';
import { onNextTurn, TurnLimit } from '../../lib/memory/turns.ts';
import { createConnector } from './connector.ts';
import { Http1Connection, type ResponseReader } from './http1-connection.ts';
import { type ConnectionFailure, TransportError, unconnectedFailure } from './network-error.ts';
import {
  type ConnectionUse,
  SlicedBody,
  toBody,
  type UpstreamRequest,
  type UpstreamResponse,
} from './upstream-request.ts';

/** For the name lookup, TCP and the TLS handshake together. */
const CONNECT_TIMEOUT_MS = 10_000;
/** An idle connection is kept this long, so that a quiet gateway rarely repeats a TLS handshake. */
const IDLE_CONNECTION_MS = 90_000;
const SWEEP_MS = 1000;
/**
 * About a round trip. If the provider closes the connection later, it may have worked on the
 * request.
 */
const STALE_WITHIN_MS = 1000;
/**
 * The kernel may take so much of a body before it learns that the provider has closed the
 * connection. A provider that resets a connection during an upload looks the same.
 */
const MAX_STALE_BYTES = 1_048_576;
/** The connection pauses at this many unread bytes. */
const MAX_UNREAD_BYTES = 65_536;

type Connector = ReturnType<typeof createConnector>;

/**
 * Called at the first byte on each connection. Not before, because a provider that takes TLS 1.3
 * refuses the gateway's certificate after the handshake.
 */
export type OnReached = (target: Http1Connection['target']) => void;

export class ConnectionPool {
  readonly #connectTimeoutMs: number;
  readonly #onReached: OnReached;
  readonly figures = { open: 0, made: 0, reused: 0 };
  /** Idle connections by target, the latest last. */
  readonly #idle = new Map<string, Http1Connection[]>();
  /** Connections whose response ended in this turn. They are idle from the next turn on. */
  #justFreed: Http1Connection[] = [];
  readonly #sockets = new Set<Socket>();
  /** By digest of `TlsSettings`. A connector keeps the TLS sessions to resume. */
  readonly #connectors = new Map<string | undefined, Connector>();
  /** The digests of the current settings; undefined before the first reload. */
  #digests: ReadonlySet<string> | undefined;
  #sweeping: NodeJS.Timeout | undefined;

  constructor(connectTimeoutMs = CONNECT_TIMEOUT_MS, onReached: OnReached = () => {}) {
    this.#connectTimeoutMs = connectTimeoutMs;
    this.#onReached = onReached;
  }

  /** Returns the idle connection that was used last, because the oldest may end from disuse. */
  takeIdle({ origin, tls }: UpstreamRequest): Http1Connection | undefined {
    const idle = this.#idle.get(keyOf({ origin, digest: tls?.digest }));
    const nowMs = performance.now();
    for (let last = idle?.pop(); last; last = idle!.pop()) {
      if (isKept(last, nowMs)) {
        this.figures.reused += 1;
        return last;
      }
      last.destroy();
    }
    return undefined;
  }

  /** @param done - called once, with the connection or the error */
  connect(
    { origin, tls }: UpstreamRequest,
    done: (made: Http1Connection | Error, lookupMs?: number) => void,
  ): void {
    const digest = tls?.digest;
    let connector = this.#connectors.get(digest);
    if (!connector) {
      connector = createConnector(this.#connectTimeoutMs, tls?.context);
      this.#connectors.set(digest, connector);
    }
    const socket = connector(origin, (error, lookupMs) => {
      if (error) {
        this.#sockets.delete(socket);
        return done(error);
      }
      this.figures.made += 1;
      this.figures.open += 1;
      const target = { origin, digest };
      const made = new Http1Connection(socket, target, this);
      socket.once('data', () => this.#onReached(target));
      done(made, lookupMs);
    });
    this.#sockets.add(socket);
  }

  /**
   * Keeps a connection from the next turn on, because the end of a provider that closes behind its
   * answer has arrived by then.
   */
  onFree(connection: Http1Connection): void {
    if (this.#justFreed.push(connection) > 1) return;
    setImmediate(() => {
      const justFreed = this.#justFreed;
      this.#justFreed = [];
      // This callback still runs before the sockets are read again.
      setImmediate(() => this.#keep(justFreed));
    });
  }

  onClosed({ socket }: Http1Connection): void {
    this.figures.open -= 1;
    this.#sockets.delete(socket);
  }

  /** Closes the connections with other `TlsSettings`, once their requests are over. */
  keepOnly(digests: ReadonlySet<string>): void {
    this.#digests = digests;
    for (const digest of this.#connectors.keys()) {
      if (!this.#mayKeep(digest)) this.#connectors.delete(digest);
    }
  }

  #mayKeep(digest: string | undefined): boolean {
    return digest === undefined || !this.#digests || this.#digests.has(digest);
  }

  close(): void {
    clearInterval(this.#sweeping);
    // With an error, because a socket that is connecting then ends its time limit.
    const reason = new GatewayError('internal', 'The gateway is shutting down');
    for (const socket of this.#sockets) socket.destroy(reason);
  }

  #keep(connections: readonly Http1Connection[]): void {
    const nowMs = performance.now();
    for (const connection of connections) {
      if (!connection.isFree) continue;
      connection.becameFreeAtMs = nowMs;
      connection.wasKept = true;
      const key = keyOf(connection.target);
      const idle = this.#idle.get(key);
      if (idle) idle.push(connection);
      else this.#idle.set(key, [connection]);
    }
    if (this.#idle.size > 0) this.#sweeping ??= setInterval(() => this.#sweep(), SWEEP_MS).unref();
  }

  #sweep(): void {
    const nowMs = performance.now();
    for (const [key, idle] of this.#idle) {
      const kept = idle.filter((connection) => {
        const isWanted = isKept(connection, nowMs) && this.#mayKeep(connection.target.digest);
        if (!isWanted) connection.destroy();
        return isWanted;
      });
      if (kept.length > 0) this.#idle.set(key, kept);
      else this.#idle.delete(key);
    }
    if (this.#idle.size > 0) return;
    clearInterval(this.#sweeping);
    this.#sweeping = undefined;
  }
}

/** The digest precedes the origin, because a connection shows its certificate only once. */
function keyOf({ origin, digest }: Http1Connection['target']): string {
  return digest === undefined ? origin : `${digest} ${origin}`;
}

function isKept(connection: Http1Connection, nowMs: number): boolean {
  const limitMs = Math.min(IDLE_CONNECTION_MS, connection.keepAliveMs);
  return connection.isFree && nowMs - connection.becameFreeAtMs < limitMs;
}

/**
 * Sends a request once. Rejects, and fails the body, with a `TransportError`, the cancellation's
 * reason, or the `GatewayError` for a fault of the gateway.
 */
export function sendByHttp1(
  request: UpstreamRequest,
  cancellation: Cancellation,
  pool: ConnectionPool,
  use: ConnectionUse,
): Promise<UpstreamResponse> {
  return new Promise((resolve, reject) => {
    // Checked before the exchange holds the body, because only the exchange releases it.
    cancellation.throwIfCancelled();
    const exchange = new Http1Exchange(request, cancellation, use, { resolve, reject });
    const idle = request.reconnect ? undefined : pool.takeIdle(request);
    if (idle) return exchange.begin(idle);
    pool.connect(request, (made, lookupMs) => {
      if (made instanceof Error) exchange.onEnd(made);
      else if (exchange.isOver) pool.onFree(made);
      else exchange.begin(made, lookupMs);
    });
  });
}

interface Settle {
  readonly resolve: (response: UpstreamResponse) => void;
  readonly reject: (error: unknown) => void;
}

/** A request, and the source of its response's body. */
class Http1Exchange implements ByteSource, ResponseReader {
  readonly #cancellation: Cancellation;
  readonly #use: ConnectionUse;
  /** Undefined once it is written, because an open stream keeps nothing of its request. */
  #request: UpstreamRequest | undefined;
  #body: Buffer | SlicedBody | undefined;
  #writtenBytes = 0;
  /** Undefined once settled, because a settled promise would be kept until the stream's end. */
  #settle: Settle | undefined;
  #connection: Http1Connection | undefined;
  readonly #unread = new ChunkBuffer();
  readonly #turn = new TurnLimit();
  /** True while reading waits for the next turn, even if the sink wants more now. */
  #isTurnOver = false;
  isOver = false;
  #error: unknown;
  /** Reads the body; undefined before `start` and after the body's end. */
  #sink: ByteSink | undefined;
  /** True before `start`, and after the sink's `write` has returned false. */
  #isSinkPaused = true;

  readonly #onCancel = () => this.#giveUp(this.#cancellation.reason);

  constructor(
    request: UpstreamRequest,
    cancellation: Cancellation,
    use: ConnectionUse,
    settle: Settle,
  ) {
    this.#request = request;
    this.#cancellation = cancellation;
    this.#use = use;
    this.#settle = settle;
    this.#body = toBody(request);
    cancellation.onCancel(this.#onCancel);
  }

  begin(connection: Http1Connection, lookupMs?: number): void {
    const body = this.#body;
    const head = headOf(this.#request!, body?.length);
    this.#request = undefined;
    this.#connection = connection;
    const use = this.#use;
    use.connection = connection.wasKept ? 'reused' : 'new';
    use.lookupMs = lookupMs;
    use.sentAtMs = performance.now();
    connection.begin(this);
    const { socket } = connection;
    if (!(body instanceof SlicedBody)) {
      this.#body = undefined;
      socket.write(body ? head + body.toString('latin1') : head, 'latin1');
      return;
    }
    // The head leaves together with the first slice.
    socket.cork();
    socket.write(head, 'latin1');
    this.#writeSlices();
    socket.uncork();
  }

  readonly #writeSlices = (): void => {
    const { socket } = this.#connection!;
    for (let slice = this.#sliced?.next(); slice; slice = this.#sliced?.next()) {
      this.#writtenBytes += slice.length;
      if (!socket.write(slice)) return void socket.once('drain', this.#onDrain);
      if (this.#turn.spend(slice.length)) return onNextTurn(this.#writeSlices);
    }
    this.#body = undefined;
  };

  /** The next turn may begin before the sockets are read again, and would miss an early answer. */
  readonly #onDrain = (): void => void setImmediate(() => onNextTurn(this.#writeSlices));

  start(sink: ByteSink): void {
    this.#sink = sink;
    this.resume();
  }

  resume(): void {
    this.#isSinkPaused = false;
    if (this.#unread.size > 0) this.#pass(this.#unread.take());
    if (this.#isSinkPaused) return;
    if (this.isOver) this.#endSink();
    else if (!this.#isTurnOver) this.#connection!.resume();
  }

  onHead(status: number, headers: ReadonlyMap<string, string>): void {
    this.#settle?.resolve({ status, headers, body: this });
    this.#settle = undefined;
  }

  onData(chunk: Buffer): boolean {
    if (this.#isSinkPaused) this.#unread.push(chunk);
    else this.#pass(chunk);
    if (this.#unread.size >= MAX_UNREAD_BYTES) return false;
    if (!this.#turn.spend(chunk.length)) return true;
    this.#isTurnOver = true;
    onNextTurn(() => {
      this.#isTurnOver = false;
      // Reads on even if the sink has paused, because up to MAX_UNREAD_BYTES are held.
      if (!this.isOver) this.#connection!.resume();
    });
    return false;
  }

  #pass(chunk: Buffer): void {
    try {
      this.#isSinkPaused = !this.#sink?.write(chunk);
    } catch (thrown) {
      // A fault of the gateway: it fails this request, and not the process.
      this.#giveUp(GatewayError.from(thrown));
    }
  }

  onEnd(error?: Error): void {
    // The provider does not read the rest of the body, so no further request can follow it.
    if (!error && this.#body) this.#connection!.destroy();
    const isOwnFault = !error || error instanceof GatewayError;
    this.#end(isOwnFault ? error : new TransportError(error, this.#connectionFailure));
  }

  /**
   * Undefined if the request was written, nothing of an answer has arrived, and the connection was
   * not stale: the provider may have worked on the request then.
   */
  get #connectionFailure(): ConnectionFailure | undefined {
    if (!this.#connection) return 'unconnected';
    if (!this.#settle) return 'inBody';
    if (this.#connection.hasFirstByte) return 'inHead';
    const { connection, sentAtMs } = this.#use;
    const isSoon = performance.now() - sentAtMs! < STALE_WITHIN_MS;
    const isUnread = this.#writtenBytes <= MAX_STALE_BYTES;
    return connection === 'reused' && isSoon && isUnread ? 'stale' : undefined;
  }

  /**
   * Ends the request before its response has ended. The sink ends at once, because a paused sink
   * may never resume.
   */
  #giveUp(reason: unknown): void {
    this.#unread.take();
    this.#isSinkPaused = false;
    if (this.isOver) {
      this.#error ??= reason;
      return this.#endSink();
    }
    this.#connection?.destroy();
    this.#end(this.#request ? unconnectedFailure(reason, this.#request.origin) : reason);
  }

  #end(error: unknown): void {
    if (this.isOver) return;
    this.isOver = true;
    this.#error = error;
    this.#request = undefined;
    this.#sliced?.release();
    this.#body = undefined;
    this.#settle?.reject(error);
    this.#settle = undefined;
    if (!this.#isSinkPaused) this.#endSink();
  }

  #endSink(): void {
    const sink = this.#sink;
    if (!sink) return;
    this.#sink = undefined;
    this.#cancellation.offCancel(this.#onCancel);
    sink.end(this.#error);
  }

  get #sliced(): SlicedBody | undefined {
    return this.#body instanceof SlicedBody ? this.#body : undefined;
  }
}

function headOf(
  { method, path, fixed, headers }: UpstreamRequest,
  bodyBytes: number | undefined,
): string {
  let head = `${method} ${path} HTTP/1.1\r\n${fixed.text}`;
  for (let at = 0; at < headers.length; at += 2) head += `${headers[at]}: ${headers[at + 1]}\r\n`;
  if (bodyBytes !== undefined) head += `content-length: ${bodyBytes}\r\n`;
  return `${head}\r\n`;
}
