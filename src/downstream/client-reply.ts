/**
 * The response to a request. Only this file decides whether a failure becomes an HTTP error, or an
 * error event because the head was sent.
 */

import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { setImmediate as immediate } from 'node:timers/promises';

import { joinParts, lengthOf } from '../lib/chunk-buffer.ts';
import type { GatewayError } from '../lib/errors.ts';
import { copyIfResizable } from '../lib/memory/held-body.ts';
import { encodeEvent, EVENT_STREAM_HEADERS } from '../lib/sse.ts';
import { onNextTurn, TurnLimit } from '../lib/memory/turns.ts';
import type { RequestHistory } from '../request/history.ts';

/** An answer up to this length is sent as text, in a single write with its head. */
const SHORT_BODY_BYTES = 8192;
/** Bytes written at once: the slowest client takes them within `sendTimeoutMs`. */
const WRITE_PART_BYTES = 65_536;
/** Proxies close silent connections after a minute or so. */
const KEEP_ALIVE = Buffer.from(': keep-alive\n\n');

export type ResponseHeaders = Record<string, string>;

export interface ReplyConnection {
  readonly isClosing: boolean;
  countStream(): void;
  closeAfterUpload(reply: ClientReply): void;
}

interface RepliedCall {
  readonly id: string;
  readonly history: RequestHistory;
  readonly connection: ReplyConnection;
  addHeaders(status: number, headers: ResponseHeaders): void;
  onDisconnect(): void;
}

const ignore = () => {};
const NO_LISTENERS: readonly (() => void)[] = [];

/**
 * The complete answers from this turn of the event loop. `writeEndings` writes them all before any
 * 'finish' is emitted, so that a client's process is woken once. This saves a tenth of a request's
 * CPU time (`npm run bench`, 32 connections).
 */
const endings: { readonly response: ServerResponse; readonly body: Buffer }[] = [];

function writeEndings(): void {
  for (const { response, body } of endings.splice(0)) {
    // Head and body in a single write save another tenth of the CPU.
    if (body.length > SHORT_BODY_BYTES) response.end(body);
    else response.end(body.toString('latin1'), 'latin1');
  }
}

export class ClientReply {
  status: number | undefined;
  /** When the head was sent, or when a stream's answer began behind a comment. */
  firstByteAtMs: number | undefined;
  sentBytes = 0;
  isStream = false;
  /** False while the client has not taken the written bytes, or is gone. */
  hasRoom = true;
  /** True once only the answer's end is missing. A client that leaves then is no disconnect. */
  mayClientLeave = false;
  /** True if the stream has failed. The response then stays without its last chunk. */
  isCut = false;
  /** True once the whole answer was passed to `send`, `end` or `fail`. */
  isAnswered = false;
  onRoom: () => void = ignore;

  readonly #call: RepliedCall;
  readonly #response: ServerResponse;
  #turn: TurnLimit | undefined;
  readonly #waiting: Buffer[] = [];
  #hasEnded = false;
  #isClosed = false;
  #closedListeners = NO_LISTENERS;
  #keepAlive: NodeJS.Timeout | undefined;

  constructor(response: ServerResponse, call: RepliedCall) {
    this.#response = response;
    this.#call = call;
    // Not the request's 'close', which is emitted once its body is consumed. The listener is
    // removed, because V8 considers a response old after a wait, and would keep its listener's
    // objects until the next full collection. `once` would take 400 bytes more.
    const onClose = () => {
      response.off('close', onClose);
      clearInterval(this.#keepAlive);
      // On Node 20, writableFinished is also true if the socket died with data still buffered.
      const isWhole = response.writableFinished && !response.req.socket.destroyed;
      const mayLeave = this.mayClientLeave && this.#waiting.length === 0;
      if (!isWhole && !mayLeave) call.onDisconnect();
      this.notifyClosed();
    };
    response.on('close', onClose);
  }

  /**
   * Calls `listener` once the whole response is written or the client is gone. A promise would cost
   * each request as much as a header.
   */
  onClosed(listener: () => void): void {
    if (this.#isClosed) listener();
    else this.#closedListeners = [...this.#closedListeners, listener];
  }

  notifyClosed(): void {
    this.#isClosed = true;
    const listeners = this.#closedListeners;
    this.#closedListeners = NO_LISTENERS;
    for (const listener of listeners) listener();
  }

  get headersSent(): boolean {
    return this.#response.headersSent;
  }

  /**
   * Sends a complete answer. Throws or rejects if node:http refuses its head. Another answer may be
   * sent then.
   */
  send(
    status: number,
    headers: ResponseHeaders,
    body: string | readonly Buffer[],
  ): Promise<void> | undefined {
    const parts = typeof body === 'string' ? [Buffer.from(body)] : body;
    this.isAnswered = true;
    // An answer during the upload closes the connection. A body that arrived together with its head
    // is whole by the next turn.
    if (!this.#response.req.complete) {
      return immediate().then(() => this.#send(status, headers, parts));
    }
    this.#send(status, headers, parts);
    return undefined;
  }

  #send(status: number, headers: ResponseHeaders, body: readonly Buffer[]): void {
    clearInterval(this.#keepAlive);
    const response = this.#response;
    const length = lengthOf(body);
    if (status !== 204) headers['content-length'] = String(length);
    if (!this.#writeHead(status, headers)) return;
    this.firstByteAtMs = performance.now();
    if (length > WRITE_PART_BYTES) {
      for (const part of body) this.write(part);
      return this.end();
    }
    this.sentBytes = response.req.method === 'HEAD' ? 0 : length;
    if (endings.length === 0) setImmediate(writeEndings);
    endings.push({ response, body: copyIfResizable(joinParts(body)) });
  }

  /** Begins a stream, or its answer if a comment has begun it. */
  beginStream(status: number, headers: ResponseHeaders): void {
    if (!this.isStream) this.#openStream(status, headers);
    if (this.isStream) this.firstByteAtMs = performance.now();
  }

  #openStream(status: number, headers: ResponseHeaders): void {
    if (!this.#writeHead(status, headers)) return;
    this.isStream = true;
    this.#call.connection.countStream();
  }

  /**
   * Writes a part of a stream. Returns false if no more should come until `onRoom` is called.
   * Throws behind the end, because such bytes would land in the connection's next response.
   */
  write(chunk: Buffer): boolean {
    if (this.#hasEnded) throw new Error('bytes behind the end of a response');
    // An empty frame would end the response.
    if (chunk.length === 0) return this.hasRoom;
    this.#keepAlive?.refresh();
    if (this.hasRoom && chunk.length <= WRITE_PART_BYTES) this.#writePart(chunk);
    else {
      for (let start = 0; start < chunk.length; start += WRITE_PART_BYTES) {
        this.#waiting.push(chunk.subarray(start, start + WRITE_PART_BYTES));
      }
      this.#writeWaiting();
    }
    return this.hasRoom;
  }

  end(): void {
    clearInterval(this.#keepAlive);
    this.#hasEnded = true;
    this.isAnswered = true;
    if (this.#waiting.length > 0 || this.#response.destroyed) return;
    if (this.isCut) this.#leaveOpen();
    else this.#response.end();
  }

  /** A response without its last chunk emits 'close' only with its connection. */
  #leaveOpen(): void {
    this.#response.socket!.write('', (error) => {
      // An error means that the client is gone, and 'close' follows.
      if (!error) this.notifyClosed();
    });
  }

  /** Answers with the documented error, as an HTTP error or as a stream's last event. */
  fail(failure: GatewayError, headers: ResponseHeaders = {}): Promise<void> | undefined {
    const { id, history } = this.#call;
    const { encodeError, ownProtocol } = history.endpoint;
    if (!this.headersSent) {
      const all = { ...failure.toHeaders(), ...headers };
      const body = ownProtocol?.encodeErrorBody(failure, id) ?? failure.toBody();
      return this.send(failure.status, all, body);
    }
    // A truncated answer must not look complete.
    if (!this.isStream) this.#response.destroy();
    else if (!this.#hasEnded) {
      // HTTP/1.0 has no chunks, so closing the connection ends every answer.
      this.isCut = this.#response.chunkedEncoding;
      this.write(encodeError?.(failure, id) ?? encodeEvent(failure.toBody()));
      this.end();
    }
    return undefined;
  }

  /**
   * Sends a comment after each `silenceMs` without a write. The first comment begins the stream.
   */
  keepAlive(silenceMs: number): void {
    // If the client is already gone, nothing would end the timer.
    if (this.#response.destroyed) return;
    this.#keepAlive = setInterval(() => {
      // A client that does not read is cut off as usual.
      if (!this.hasRoom) return;
      if (!this.isStream) this.#openStream(200, { ...EVENT_STREAM_HEADERS });
      this.write(KEEP_ALIVE);
    }, silenceMs);
  }

  #writeHead(status: number, headers: ResponseHeaders): boolean {
    const response = this.#response;
    const { connection, id } = this.#call;
    if (response.destroyed) return false;
    if (response.headersSent) throw new Error('a second head of one response');
    this.#call.addHeaders(status, headers);
    headers['x-request-id'] = id;
    const isUploading = !response.req.complete;
    if (isUploading || connection.isClosing) headers['connection'] ??= 'close';
    response.writeHead(status, headers);
    this.status = status;
    if (isUploading) connection.closeAfterUpload(this);
    return true;
  }

  #writePart(part: Buffer): void {
    const response = this.#response;
    const { socket } = response;
    this.hasRoom = false;
    // There is no 'drain' after a disconnect. The call is cancelled instead.
    if (!socket?.writable) return;
    const isTaken = response.chunkedEncoding
      ? this.#writeFrame(part, socket)
      : response.write(copyIfResizable(part));
    this.sentBytes += part.length;
    this.#turn ??= new TurnLimit();
    const isTurnOver = this.#turn.spend(part.length);
    this.hasRoom = isTaken && !isTurnOver;
    if (this.hasRoom) return;
    const writeOn = () => this.#writeOn();
    const onTaken = isTurnOver ? () => onNextTurn(writeOn) : writeOn;
    if (isTaken) onTaken();
    else socket.once('drain', onTaken);
  }

  /**
   * Writes a chunk with its frame (RFC 9112 7.1) at once. `response.write` would make four writes.
   */
  #writeFrame(part: Buffer, socket: Socket): boolean {
    const head = `${part.length.toString(16)}\r\n`;
    const frame = Buffer.allocUnsafe(head.length + part.length + 2);
    frame.write(head, 'latin1');
    part.copy(frame, head.length);
    frame.write('\r\n', head.length + part.length, 'latin1');
    if (this.sentBytes > 0) return socket.write(frame);
    socket.cork();
    this.#response.flushHeaders();
    const isTaken = socket.write(frame);
    socket.uncork();
    return isTaken;
  }

  #writeWaiting(): void {
    while (this.hasRoom && this.#waiting.length > 0) this.#writePart(this.#waiting.shift()!);
  }

  #writeOn(): void {
    if (this.#response.destroyed) return;
    this.hasRoom = true;
    this.#writeWaiting();
    // A client may leave once it has the whole answer, so the end follows at once.
    if (this.#hasEnded) this.end();
    else if (this.hasRoom) this.onRoom();
  }
}
