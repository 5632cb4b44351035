/**
 * Sends requests to providers through undici's Agent directly, because the fetch layer on top costs
 * more than the rest of the request.
 */

import type { Socket } from 'node:net';

import type { ByteSink, ByteSource } from '../lib/byte-source.ts';
import { onNextTurn, TurnLimit } from '../lib/turns.ts';
import type { Cancellation } from '../lib/cancellation.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import type { CountedAgent, Pool } from './pool.ts';
import { type ConnectionFailure, TransportError, unconnectedFailure } from './network-error.ts';
import {
  type ConnectionUse,
  SlicedBody,
  toBody,
  type UpstreamResponse,
  type UpstreamRequest,
} from './provider.ts';

/**
 * About a round trip. If the provider closes the connection later, it may have worked on the
 * request.
 */
const STALE_WITHIN_MS = 1000;
/**
 * Destroys the socket of a cancelled request. A single error for all requests, because the socket
 * reads the error's `stack`, which takes memory for each error.
 */
const CANCELLED = new Error('the request was cancelled');
/**
 * The connection pauses at this many unread bytes. Bytes that undici has already read from the
 * socket still arrive.
 */
const MAX_UNREAD_BYTES = 65_536;
/**
 * undici 7 takes the handlers of undici 6 and of 8, but wraps the latter and decodes all headers
 * for them.
 */
const IS_UNDICI_8 = Number.parseInt(process.versions['undici'] ?? '') >= 8;

/**
 * Sends a request once. Rejects, and fails the body, with a `TransportError` or the cancellation's
 * reason.
 *
 * @param use - receives the request's connection
 */
export function sendByUndici(
  request: UpstreamRequest,
  cancellation: Cancellation,
  pool: Pool,
  use: ConnectionUse,
): Promise<UpstreamResponse> {
  const { method, origin, path, reconnect = false } = request;
  return new Promise((resolve, reject) => {
    // Checked before the exchange holds the body, because only the exchange releases it.
    cancellation.throwIfCancelled();
    const body = toBody(request);
    const sliced = body instanceof SlicedBody ? body : undefined;
    const headers = sliced
      ? [...request.headers, 'content-length', `${sliced.length}`]
      : request.headers;
    const Handler = IS_UNDICI_8 ? Undici8Exchange : UndiciExchange;
    const agent = pool.agentFor(request);
    const options = { cancellation, pool, agent, origin, use, body: sliced };
    const exchange = new Handler(options, { resolve, reject });
    agent.dispatcher.dispatch(
      {
        method,
        origin,
        path,
        headers,
        body,
        reset: reconnect,
        // The time limits are set here, because Node 26 loses the Agent's options if a proxy
        // forwards the request.
        headersTimeout: 0,
        bodyTimeout: 0,
      },
      exchange,
    );
  });
}

const ignore = () => {};

interface UndiciExchangeOptions {
  readonly cancellation: Cancellation;
  readonly pool: Pool;
  readonly agent: CountedAgent;
  readonly origin: string;
  readonly use: ConnectionUse;
  readonly body: SlicedBody | undefined;
}

/** Settles the promise of `sendByUndici`. */
interface Settle {
  readonly resolve: (response: UpstreamResponse) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * A request, and the source of its response's body. undici 6 and 7 call the methods from
 * `onConnect` to `onError`.
 */
class UndiciExchange implements ByteSource {
  readonly #options: UndiciExchangeOptions;
  /** Undefined once settled, because a settled promise would be kept until the stream's end. */
  #settle: Settle | undefined;
  readonly #unread = new ChunkBuffer();
  readonly #turn = new TurnLimit();
  /** True while reading waits for the next turn, even if the sink wants more now. */
  #isTurnOver = false;
  #socket: Socket | undefined;
  #bytesReadBefore = 0;
  #isOver = false;
  /** Why the request failed; undefined if it has ended well. */
  #error: unknown;
  /** Reads the body; undefined before `start` and after the body's end. */
  #sink: ByteSink | undefined;
  #isPaused = true;
  /** undici's function to read on, set with the response's head. */
  #resumeUndici = ignore;

  readonly #onCancel = () => this.#giveUp(this.#options.cancellation.reason);

  constructor(options: UndiciExchangeOptions, settle: Settle) {
    this.#options = options;
    this.#settle = settle;
    options.agent.running += 1;
    options.cancellation.onCancel(this.#onCancel);
  }

  /** Hands the body to `sink` from now on. */
  start(sink: ByteSink): void {
    this.#sink = sink;
    this.resume();
  }

  /** Hands the unread bytes to the sink, and reads on if the sink has room. */
  resume(): void {
    this.#isPaused = false;
    if (this.#unread.size > 0) this.#isPaused = !this.#sink?.write(this.#unread.take());
    if (this.#isPaused) return;
    if (this.#isOver) this.#endSink();
    else if (!this.#isTurnOver) this.#resumeUndici();
  }

  onConnect(abort: (reason: Error) => void): void {
    // The request was cancelled while it waited for a connection. undici had no way to abort it
    // then.
    if (this.#isOver) return abort(this.#options.cancellation.reason!);
    this.#options.pool.onNextUse((socket, connection, lookupMs) => {
      const { use } = this.#options;
      this.#socket = socket;
      this.#bytesReadBefore = socket.bytesRead;
      use.connection = connection;
      use.lookupMs = lookupMs;
      use.sentAtMs = performance.now();
    });
  }

  /**
   * Takes the response's head, names and values in turn. As in `Headers`, names become lower case,
   * values are trimmed and repeated headers are joined.
   */
  onHeaders(status: number, raw: readonly Buffer[], resume: () => void): boolean {
    // A 1xx is not the final response.
    if (status < 200) return true;
    const headers = new Map<string, string>();
    for (let at = 0; at < raw.length; at += 2) {
      const name = raw[at]!.toString('latin1').toLowerCase();
      const value = raw[at + 1]!.toString('latin1').trim();
      const before = headers.get(name);
      headers.set(name, before === undefined ? value : `${before}, ${value}`);
    }
    this.#resumeUndici = resume;
    this.#settle?.resolve({ status, headers, body: this });
    this.#settle = undefined;
    return true;
  }

  /**
   * Takes a body chunk. Returns false if no more may come before `resume` is called, so that undici
   * stops parsing the bytes it has read.
   */
  onData(chunk: Buffer): boolean {
    // undici 6 reports an empty chunk when it resumes, so a pause at an empty chunk would never
    // end.
    if (chunk.length === 0) return true;
    if (this.#isPaused) this.#unread.push(chunk);
    else this.#isPaused = !this.#sink?.write(chunk);
    if (this.#unread.size >= MAX_UNREAD_BYTES) return false;
    if (!this.#turn.spend(chunk.length)) return true;
    this.#isTurnOver = true;
    onNextTurn(() => {
      this.#isTurnOver = false;
      // undici resumes even if the sink has paused, because up to MAX_UNREAD_BYTES are held.
      this.#resumeUndici();
    });
    return false;
  }

  onComplete(): void {
    this.#end(undefined);
  }

  onError(error: Error): void {
    this.#end(new TransportError(error, this.#connectionFailure));
  }

  /**
   * The phase in which the connection breaks now. Undefined if the request was written, nothing of
   * an answer has arrived, and the connection was not stale: the provider may have worked on the
   * request then.
   */
  get #connectionFailure(): ConnectionFailure | undefined {
    if (!this.#socket) return 'unconnected';
    if (!this.#settle) return 'inBody';
    if (this.#socket.bytesRead > this.#bytesReadBefore) return 'inHead';
    const { connection, sentAtMs } = this.#options.use;
    const isSoon = performance.now() - sentAtMs! < STALE_WITHIN_MS;
    return connection === 'reused' && isSoon ? 'stale' : undefined;
  }

  /** Ends a cancelled request. The sink ends at once, because a paused sink may never resume. */
  #giveUp(reason: unknown): void {
    this.#unread.take();
    this.#isPaused = false;
    if (this.#isOver) {
      this.#error ??= reason;
      return this.#endSink();
    }
    this.#end(this.#socket ? reason : unconnectedFailure(reason, this.#options.origin));
    // Destroys the socket, because undici's abort would open another connection without a waiting
    // request.
    this.#socket?.destroy(CANCELLED);
  }

  #end(error: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#error = error;
    this.#options.agent.running -= 1;
    this.#options.body?.release();
    this.#resumeUndici = ignore;
    this.#settle?.reject(error);
    this.#settle = undefined;
    if (!this.#isPaused) this.#endSink();
  }

  #endSink(): void {
    const sink = this.#sink;
    if (!sink) return;
    this.#sink = undefined;
    this.#options.cancellation.offCancel(this.#onCancel);
    sink.end(this.#error);
  }
}

type Controller = {
  rawHeaders: Buffer[];
  abort(reason: Error): void;
  pause(): void;
  resume(): void;
};

/** The same exchange with undici 8's methods. */
class Undici8Exchange extends UndiciExchange {
  onRequestStart(controller: Controller): void {
    this.onConnect((reason) => controller.abort(reason));
  }

  onResponseStart(controller: Controller, status: number): void {
    this.onHeaders(status, controller.rawHeaders, () => controller.resume());
  }

  onResponseData(controller: Controller, chunk: Buffer): void {
    if (!this.onData(chunk)) controller.pause();
  }

  onResponseEnd(): void {
    this.onComplete();
  }

  onResponseError(_: Controller, error: Error): void {
    this.onError(error);
  }
}
