/** A client's request, from its head to its access line. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import { type ByteBudget, Reservation, type ReservedMemory } from '../lib/byte-budget.ts';
import { Cancellation } from '../lib/cancellation.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import { HeldBody } from '../lib/held-body.ts';
import { createUuid } from '../lib/ids.ts';
import { RequestHistory } from '../request/history.ts';
import type { AnswerBroken } from './broken-request.ts';
import { ClientReply, type ReplyConnection, type ResponseHeaders } from './client-reply.ts';
import { type BodyReader, readRequestBody } from './request-body.ts';
import { pathOf } from './request-head.ts';

/** Time limits for clients. Tests pass shorter limits. */
export const CLIENT_TIME_LIMITS = {
  headersMs: 15_000,
  /**
   * An upload is refused after this long without a byte, or if its average speed after this long is
   * too low.
   */
  requestMs: 60_000,
  /** Between two checks while a connection is read on before it is closed. See `LINGER_CHECKS`. */
  lingerCheckMs: 1000,
  /**
   * Between a failed stream's error event and the end of its connection, so that lagging clients
   * can read the event.
   */
  failedStreamMs: 2000,
  /**
   * A client is cut off when it has read nothing of its response for this long. node:http has no
   * such limit.
   */
  sendTimeoutMs: 60_000,
};

/**
 * Adds headers to an answer before its head is sent. `call` is undefined if the bytes are not HTTP.
 */
export type OnHead = (status: number, headers: ResponseHeaders, call?: Call) => void;

/** Counts a listener's requests: in flight now, and ended since the start. */
interface RequestCounts {
  inFlight: number;
  finished: number;
  /** Requests cancelled at a drain's deadline. */
  cancelled: number;
  /** Requests in flight with an open stream. */
  openStreams: number;
}

/** The state shared by a listener's connections. */
export interface ListenerState {
  readonly timeLimits: typeof CLIENT_TIME_LIMITS;
  readonly budget: ByteBudget;
  handler: {
    /**
     * Answers a call, and calls `call.end()` once its response has closed, or its client is gone:
     * then `finish` destroys the socket. Never rejects.
     */
    readonly handle: (call: Call) => Promise<void>;
    readonly answerBroken: AnswerBroken;
    readonly onHead?: OnHead;
  };
  isDraining: boolean;
  readonly counts: RequestCounts;
  /** Set at a drain's deadline. Later requests are cancelled with it too. */
  cancelReason: Error | undefined;
}

/** A request as node:http announces it. A waiting request holds no more than this. */
export interface ReceivedRequest {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** True if the client waits for `100 Continue` before it sends the body. */
  readonly awaitsContinue: boolean;
  /** Memory for the body bytes that node:http reads while the request waits. */
  reservation: Reservation | undefined;
  /** The answer if no memory was left for these bytes. The body is discarded then. */
  refusal: GatewayError | undefined;
}

/** The parts of `Connection` that its calls use. */
export interface CallConnection extends ReplyConnection {
  readonly socket: Socket;
  readonly listener: ListenerState;
  readonly waitingBytes: number;
  finish(call: Call): void;
}

export class Call {
  /** The client's own `x-request-id` if it is usable, else a new id. */
  readonly id: string;
  readonly method: string;
  /** The request target as sent, without query, scheme and authority. Never decoded. */
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly rawHeaders: readonly string[];
  /**
   * The address at the connection's other end, a client or a proxy. Read at the beginning, because
   * a closed socket has no address.
   */
  readonly peerAddress: string | undefined;
  /**
   * When the request arrived, or when its turn came behind the connection's other requests, on the
   * clock of `performance.now()`.
   */
  readonly receivedAtMs = performance.now();
  readonly history = new RequestHistory();
  readonly reply: ClientReply;
  /** Cancelled when the client leaves or the gateway gives the request up. */
  readonly cancellation = new Cancellation();
  readonly requestBody: HeldBody;
  /** The answer's memory until it is delivered. Set by the attempt that reads the answer. */
  answerMemory: ReservedMemory | undefined;
  readonly connection: CallConnection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** True while the client waits for `100 Continue` before it sends the body. */
  awaitsContinue: boolean;
  /** Taken from the handler when the call begins, so that a reload does not change it. */
  onHead: OnHead | undefined;
  /** True from when a provider is asked. */
  #isAsking = false;

  constructor(received: ReceivedRequest, connection: CallConnection) {
    const { request, response, awaitsContinue, reservation } = received;
    this.request = request;
    this.response = response;
    this.connection = connection;
    this.onHead = connection.listener.handler.onHead;
    this.awaitsContinue = awaitsContinue;
    this.requestBody = new HeldBody(reservation ?? new Reservation(this.budget));
    this.method = request.method ?? '';
    this.path = pathOf(request.url ?? '');
    this.headers = request.headers;
    this.rawHeaders = request.rawHeaders;
    this.peerAddress = request.socket.remoteAddress;
    const ownId = request.headers['x-request-id'];
    this.id =
      typeof ownId === 'string' && /^[\x21-\x7e]{1,128}$/.test(ownId) ? ownId : createUuid();
    this.reply = new ClientReply(response, this);
  }

  get budget(): ByteBudget {
    return this.connection.listener.budget;
  }

  /** The memory of the request, its answer, and the requests that wait behind it. */
  get reservedBytes(): number {
    const answerBytes = this.answerMemory?.reservedBytes ?? 0;
    return this.requestBody.reservedBytes + answerBytes + this.connection.waitingBytes;
  }

  get isDraining(): boolean {
    return this.connection.listener.isDraining;
  }

  /**
   * True if more of the answer is to come, from a provider or on a stream. If the client
   * half-closes meanwhile, `Connection` ends the connection, because the client may have left.
   */
  get needsClient(): boolean {
    return (this.#isAsking || this.reply.isStream) && !this.reply.isAnswered;
  }

  /**
   * To be called before a provider is asked. Throws `ClientGone` if the client has closed its
   * sending side.
   */
  beginAsking(): void {
    if (this.connection.socket.readableEnded) throw new ClientGone();
    this.#isAsking = true;
  }

  /** Adds the handler's headers to the answer before its head is sent. */
  addHeaders(status: number, headers: ResponseHeaders): void {
    this.onHead?.(status, headers, this);
  }

  /** To be called when the response has closed before it was fully written. */
  onDisconnect(): void {
    this.cancellation.cancel(new ClientGone());
    const { reason } = this.cancellation;
    // If a drain or a broken upload has cancelled the call before, it is the reason for the
    // disconnect.
    if (reason instanceof GatewayError) this.history.failure ??= reason;
  }

  /**
   * Reads the whole body, after `100 Continue` if the client waits for it. `reader` takes each
   * chunk as it arrives, and makes the result at the end. Throws a 413 if the body is larger than
   * `maxBodyBytes`, a 429 if there is no memory for it, and the cancellation's reason if the call
   * is already cancelled. Rejects as `readRequestBody` does.
   */
  readBody<Request>(maxBodyBytes: number, reader: BodyReader<Request>): Promise<Request> {
    const { cancellation, request, requestBody, response } = this;
    cancellation.throwIfCancelled();
    // A body that can never fit is refused with 413, because clients would repeat the request after
    // a 429.
    const maxBytes = Math.min(maxBodyBytes, this.budget.limits.maxBufferedBytes);
    const announcedBytes = Number(request.headers['content-length'] ?? 0);
    requestBody.begin(announcedBytes, maxBytes, () =>
      invalidRequest(`request body exceeds ${maxBytes} bytes`, { status: 413 }),
    );
    if (this.awaitsContinue) response.writeContinue();
    this.awaitsContinue = false;
    return readRequestBody(request, requestBody, cancellation, reader);
  }

  /**
   * To be called once the response has closed. Frees the memory for the request and its answer, and
   * lets the connection begin its next request. The call can reserve nothing afterwards.
   */
  end(): void {
    this.requestBody.close();
    this.answerMemory?.close();
    this.connection.finish(this);
  }
}
