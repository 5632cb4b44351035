/**
 * One client request and its response: what comes in is bounded, what goes out waits for the client,
 * and whoever works on it learns at once when the client is gone. Every answer to a request that could
 * be read is written here.
 */

import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';

import { Cancellation } from '../lib/cancellation.ts';
import { ClientGone, type GatewayError, invalidRequest } from '../lib/errors.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import type { Answer } from '../lib/messages.ts';
import { checkProtocol, headerValues, pathOf } from './request-head.ts';

/** How long a client may take for what. Tests pass shorter ones. */
export const CLIENT_LIMITS = {
  headersMs: 15_000,
  requestMs: 60_000,
  /** An upload that was already refused is read and thrown away for so long, so that the client sees the answer. */
  lingerMs: 2000,
  /** A client that takes nothing of its answer for so long is cut off: Node itself has no limit for writing. */
  stuckReaderMs: 60_000,
};
/** Answers longer than this are written in parts, each when the client has taken the one before. */
const WRITE_PART_BYTES = 262_144;

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

export interface ServerState {
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
  /** Cancelled when the client leaves, or by whoever gives the request up. */
  readonly cancellation = new Cancellation();

  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #closed: Promise<void>;
  readonly #server: ServerState;
  #awaitsContinue: boolean;
  #isReading = false;

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
        // Node finishes what was half written when the connection broke.
        const isDelivered = response.writableFinished && !request.socket.destroyed;
        if (!isDelivered) this.cancellation.cancel(new ClientGone());
        resolve();
      });
    });
  }

  /** The gateway is shutting down. */
  get isDraining(): boolean {
    return this.#server.isDraining;
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
    const body = new ChunkBuffer();
    this.#isReading = true;
    // Not `for await`: leaving that early would destroy the socket before the answer is out.
    await new Promise<void>((resolve, reject) => {
      const settle = (error?: Error) => {
        request.off('data', onData);
        request.off('close', onGone);
        this.cancellation.offCancel(onCancel);
        request.resume();
        this.#isReading = false;
        if (error) reject(error);
        else resolve();
      };
      const onData = (chunk: Buffer) => {
        body.push(chunk);
        if (body.size > maxBytes) settle(tooLarge());
      };
      const onGone = () => settle(new ClientGone());
      const onCancel = () => settle(this.cancellation.reason);
      request.on('data', onData);
      request.once('end', () => settle());
      request.once('close', onGone);
      this.cancellation.onCancel(onCancel);
    });
    this.record.requestBytes = body.size;
    return body.take();
  }

  /** Gives the request up where its body is being read; else returns false. */
  refuseBody(reason: GatewayError): boolean {
    const isReading = this.#isReading;
    if (isReading) this.cancellation.cancel(reason);
    return isReading;
  }

  /** Sends the answer and waits until the client has it or is gone. */
  async send({ status, headers, body: content }: Answer): Promise<void> {
    const response = this.#response;
    if (response.headersSent || response.destroyed) return;
    headers['x-request-id'] = this.id;
    // A body that was never asked for cannot be told from the next request. One that is still coming is
    // lingered over: told to close, Node would do so at once.
    const isLast = this.isDraining && this.#request.complete;
    if (isLast || this.#awaitsContinue) headers['connection'] = 'close';
    const body = typeof content === 'string' ? Buffer.from(content) : content;
    if (Buffer.isBuffer(body) && status !== 204) headers['content-length'] = String(body.length);
    this.#lingerOverUpload();

    this.firstByteAtMs = performance.now();
    try {
      response.writeHead(status, headers);
      if (Buffer.isBuffer(body) && body.length <= WRITE_PART_BYTES) {
        this.sentBytes = this.method === 'HEAD' ? 0 : body.length;
        response.end(body);
      } else {
        await this.#write(Buffer.isBuffer(body) ? [body] : body);
        // What was given up must not look complete.
        if (!response.destroyed) response.end();
      }
    } catch (error) {
      // Before the head is out another answer may still be sent.
      if (response.headersSent) response.destroy();
      throw error;
    }
    await this.#closed;
  }

  /** Writes what comes, in parts, no faster than the client takes them. */
  async #write(body: Iterable<Buffer> | AsyncIterable<Buffer>): Promise<void> {
    for await (const chunk of body) {
      for (let start = 0; start < chunk.length; start += WRITE_PART_BYTES) {
        if (this.#response.destroyed) return;
        const part = chunk.subarray(start, start + WRITE_PART_BYTES);
        this.sentBytes += part.length;
        if (!this.#response.write(part)) await this.#drained();
      }
    }
  }

  /** Waits for the client to take what was written: 'drain', which never comes once it has left. */
  async #drained(): Promise<void> {
    const response = this.#response;
    await new Promise<void>((resolve) => {
      const onEnd = () => {
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
    const response = this.#response;
    if (request.complete) return;
    const { socket } = request;
    const isLast = !response.shouldKeepAlive || this.isDraining;
    // Else Node would close after the answer, and with bytes unread that resets the connection.
    if (!this.#awaitsContinue) response.shouldKeepAlive = true;
    request.resume();
    const linger = () => {
      if (request.closed) return;
      const cut = setTimeout(() => socket.destroy(), this.#server.limits.lingerMs);
      request.once('close', () => clearTimeout(cut));
    };
    // A pipelined answer has no socket before its turn: others are still being sent.
    if (response.socket) linger();
    else response.once('socket', linger);
    request.once('close', () => void this.#closed.then(() => isLast && socket.end()));
  }
}
