/**
 * One client request and its response; cancelled when the client disconnects. Every answer to a request that could be
 * parsed is sent here.
 */

import { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http';
import { setImmediate as nextTurn } from 'node:timers/promises';

import { AccessRecord, type Answer, isStream } from '../lib/attempt.ts';
import { Cancellation } from '../lib/cancellation.ts';
import { type ByteBudget, Reservation } from '../lib/byte-budget.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import { createUuid } from '../lib/ids.ts';
import { type ChunkBuffer, joinParts, lengthOf } from '../lib/chunk-buffer.ts';
import { readRequestBody } from './request-body.ts';
import { pathOf } from './request-head.ts';
import { StreamWriter, WRITE_PART_BYTES } from './stream-writer.ts';

/** Time limits for clients. Tests pass shorter ones. */
export const CLIENT_LIMITS = {
  headersMs: 15_000,
  requestMs: 60_000,
  /** Between two checks of a connection that is read on before it is closed; see `LINGER_CHECKS`. */
  lingerCheckMs: 1000,
  /** A client that reads nothing of its response for so long is cut off: node:http has no such limit. */
  sendTimeoutMs: 60_000,
};

/** Up to this length a body is sent as text, in one write with the head. */
const SHORT_BODY_BYTES = 8192;

export interface Exchange {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** The client sends the body after `100 Continue`. */
  readonly awaitsContinue: boolean;
}

interface CallConnection {
  readonly isClosing: boolean;
  closeAfterUpload(answered: Promise<void>, awaitsContinue: boolean): Promise<void>;
  readonly listener: {
    readonly budget: ByteBudget;
    readonly limits: typeof CLIENT_LIMITS;
    readonly isDraining: boolean;
  };
}

export class Call {
  /** The client's own `x-request-id` if it is usable, else a new one. */
  readonly id: string;
  readonly method: string;
  /** The request target as it was sent, without query, scheme and authority. Never decoded. */
  readonly path: string;
  readonly httpVersion: string;
  readonly headers: IncomingMessage['headers'];
  readonly rawHeaders: readonly string[];
  /** The address of the connection's other end: the client, or a proxy. A closed socket no longer knows it. */
  readonly peerAddress: string | undefined;
  readonly record = new AccessRecord();
  /** Bytes of the response body that were written. */
  sentBytes = 0;
  /** When the answer's head was sent, or the first event of a stream that began early; of `performance.now()`. */
  firstByteAtMs: number | undefined;
  readonly receivedAtMs = performance.now();
  /** Cancelled when the client leaves, or by whoever gives the request up. */
  readonly cancellation = new Cancellation();
  readonly bodyReservation: Reservation;
  /** The memory that the answer takes until it is delivered. */
  readonly answerReservation: Reservation;
  /** Passes a provider's comments on, if there is room. Set if the stream has begun before any provider has answered. */
  passComments: ((comments: ChunkBuffer) => void) | undefined;
  /** All that matters of the answer was written, although it has not ended. */
  isDelivered = false;

  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #closed: Promise<void>;
  readonly #frees: (() => void)[] = [];
  readonly #connection: CallConnection;
  #awaitsContinue: boolean;

  constructor({ request, response, awaitsContinue }: Exchange, connection: CallConnection) {
    this.#request = request;
    this.#response = response;
    this.#awaitsContinue = awaitsContinue;
    this.#connection = connection;
    this.bodyReservation = new Reservation(connection.listener.budget);
    this.answerReservation = new Reservation(connection.listener.budget);
    this.method = request.method ?? '';
    this.path = pathOf(request.url ?? '');
    this.httpVersion = request.httpVersion;
    this.headers = request.headers;
    this.rawHeaders = request.rawHeaders;
    this.peerAddress = request.socket.remoteAddress;
    const ownId = request.headers['x-request-id'];
    this.id =
      typeof ownId === 'string' && /^[\x21-\x7e]{1,128}$/.test(ownId) ? ownId : createUuid();
    // IncomingMessage emits 'close' once its body is consumed; only the response's 'close' means a disconnect.
    this.#closed = new Promise((resolve) => {
      response.on('close', () => {
        // On Node 20 writableFinished is also true if the socket died with data still buffered.
        const isWhole = response.writableFinished && !request.socket.destroyed;
        if (!isWhole && !this.isDelivered) {
          this.cancellation.cancel(new ClientGone());
          const { reason } = this.cancellation;
          // A drain has cut off what was being written.
          if (reason instanceof GatewayError) this.record.failure ??= reason;
        }
        resolve();
      });
    });
  }

  get isDraining(): boolean {
    return this.#connection.listener.isDraining;
  }

  /** Reads the whole request body in parts; see `readRequestBody`. */
  readBody(maxBodyBytes: number, onChunk: (chunk: Buffer) => void): Promise<readonly Buffer[]> {
    // One that can never fit is refused with 413, and not with a 429, which clients would repeat.
    const { limits } = this.#connection.listener.budget;
    const maxBytes = Math.min(maxBodyBytes, limits.maxBufferedBytes);
    return readRequestBody(this.#request, this, maxBytes, onChunk);
  }

  /** Has the client send the body, if it waits for that. */
  acceptBody(): void {
    if (this.#awaitsContinue) this.#response.writeContinue();
    this.#awaitsContinue = false;
  }

  /** Has `free` called once the request is over, however it ends. */
  onFinish(free: () => void): void {
    this.#frees.push(free);
  }

  /** Frees what is held for the request. Nothing can be reserved for it any more. */
  finish(): void {
    for (const free of this.#frees) free();
    this.bodyReservation.close();
    this.answerReservation.close();
  }

  /**
   * Sends the answer. Resolves when it is written or the client is gone, and always ends a streamed body, even if it
   * was sent only in part. Rejects if the head cannot be sent: then another answer may be sent. Rejects too with the error
   * of a stream that has failed.
   */
  send(answer: Answer): Promise<void> {
    if (this.#request.complete) return this.#send(answer);
    // A body that came with its head is parsed in this turn.
    return nextTurn().then(() => this.#send(answer));
  }

  #send({ status, headers, body: content }: Answer): Promise<void> {
    const response = this.#response;
    const stream = isStream(content) ? content : undefined;
    try {
      if (response.headersSent || response.destroyed) {
        stream?.cancel();
        return Promise.resolve();
      }
      headers['x-request-id'] = this.id;
      const isEarly = !this.#request.complete;
      if (isEarly || this.#connection.isClosing) headers['connection'] = 'close';
      const body = typeof content === 'string' ? [Buffer.from(content)] : content;
      const length = isStream(body) ? undefined : lengthOf(body);
      if (length !== undefined && status !== 204) headers['content-length'] = String(length);

      this.firstByteAtMs = performance.now();
      response.writeHead(status, headers);
      if (isEarly) void this.#connection.closeAfterUpload(this.#closed, this.#awaitsContinue);
      if (!isStream(body) && length! <= WRITE_PART_BYTES) {
        this.sentBytes = this.method === 'HEAD' ? 0 : length!;
        if (endings.length === 0) setImmediate(endAll);
        endings.push({ response, body: joinParts(body) });
        return this.#closed;
      }
      const writer = new StreamWriter(response, stream);
      if (isStream(body)) body.start(writer);
      else {
        for (const part of body) writer.write(part);
        writer.end();
      }
      return this.#closed.then(() => {
        stream?.cancel();
        this.sentBytes = writer.writtenBytes;
        if (writer.error) throw writer.error;
      });
    } catch (error) {
      stream?.cancel();
      if (response.headersSent) response.destroy();
      return Promise.reject(error);
    }
  }
}

/** The complete answers of this turn of the event loop. */
const endings: { readonly response: ServerResponse; readonly body: Buffer }[] = [];

/**
 * Writes them one after the other, before 'finish' is emitted for any: a client's process is woken once and not for
 * each answer, which saves a tenth of the CPU of a request (`npm run bench`, 32 connections).
 */
function endAll(): void {
  for (const { response, body } of endings.splice(0)) {
    // One write with the head saves a tenth too.
    if (body.length > SHORT_BODY_BYTES) response.end(body);
    else response.end(body.toString('latin1'), 'latin1');
  }
}

export type TextAnswer = Answer & { readonly body: string };

/** Returns the response to what never became a request, as it is written to the socket. */
export function serialize({ status, headers, body }: TextAnswer, requestId: string): string {
  const lines = Object.entries({
    ...headers,
    'x-request-id': requestId,
    date: new Date().toUTCString(),
    'content-length': Buffer.byteLength(body),
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`;
}
