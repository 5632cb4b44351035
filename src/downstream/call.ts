/** A client's request, from its head to its access line. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import { type ByteBudget, Reservation, type ReservedMemory } from '../lib/memory/byte-budget.ts';
import { Cancellation } from '../lib/cancellation.ts';
import { ClientGone, GatewayError, invalidRequest } from '../lib/errors.ts';
import { HeldBody } from '../lib/memory/held-body.ts';
import { createUuid } from '../lib/ids.ts';
import type { RequestTrace } from '../request/facts.ts';
import { RequestHistory } from '../request/history.ts';
import { ClientReply, type ReplyConnection, type ResponseHeaders } from './client-reply.ts';
import { type BodyReader, readRequestBody } from './request-body.ts';
import { pathOf } from './request-head.ts';

/** Adds headers to a response. `call` is undefined if the client's bytes are not HTTP. */
export type OnReplyHead = (status: number, headers: ResponseHeaders, call?: Call) => void;

/** A request as node:http announces it. A waiting request holds no more than this. */
export interface ReceivedRequest {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** True if the client waits for `100 Continue` before it sends the body. */
  readonly awaitsContinue: boolean;
  /** Memory for the body bytes that node:http reads while the request waits. */
  reservation: Reservation | undefined;
  refusal: GatewayError | undefined;
}

export interface CallConnection extends ReplyConnection {
  readonly socket: Socket;
  /** The part of `ListenerState` that a call needs. */
  readonly listener: {
    readonly budget: ByteBudget;
    readonly handler: { readonly onReplyHead?: OnReplyHead };
    readonly isDraining: boolean;
  };
  readonly queuedBytes: number;
  onCallClosed(call: Call): void;
}

export class Call {
  /** The client's own `x-request-id` if it is usable, else a new id. */
  readonly id: string;
  readonly method: string;
  /** The request target without query, scheme and authority. Never decoded. */
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  readonly rawHeaders: readonly string[];
  /** A client or a proxy. Read at the beginning, because a closed socket has no address. */
  readonly peerAddress: string | undefined;
  /** When the request's turn came behind the connection's other requests. */
  readonly receivedAtMs = performance.now();
  readonly history = new RequestHistory();
  /** Only with `[telemetry] traces`. */
  trace: RequestTrace | undefined;
  readonly reply: ClientReply;
  readonly cancellation = new Cancellation();
  readonly requestBody: HeldBody;
  /** The answer's memory until it is delivered. */
  answerMemory: ReservedMemory | undefined;
  readonly connection: CallConnection;
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  awaitsContinue: boolean;
  /** Taken from the handler when the call begins, so that a reload does not change it. */
  onReplyHead: OnReplyHead | undefined;
  #isAsking = false;

  constructor(received: ReceivedRequest, connection: CallConnection) {
    const { request, response, awaitsContinue, reservation } = received;
    this.request = request;
    this.response = response;
    this.connection = connection;
    this.onReplyHead = connection.listener.handler.onReplyHead;
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

  get reservedBytes(): number {
    const answerBytes = this.answerMemory?.reservedBytes ?? 0;
    return this.requestBody.reservedBytes + answerBytes + this.connection.queuedBytes;
  }

  get isDraining(): boolean {
    return this.connection.listener.isDraining;
  }

  /**
   * True if more of the answer is to come. If the client half-closes meanwhile, `Connection` ends
   * the connection, because the client may have left.
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

  addHeaders(status: number, headers: ResponseHeaders): void {
    this.onReplyHead?.(status, headers, this);
  }

  /** To be called when the response has closed before it was fully written. */
  onDisconnect(): void {
    this.cancellation.cancel(new ClientGone());
    const { reason } = this.cancellation;
    // A drain or a broken upload may have cancelled the call before.
    if (reason instanceof GatewayError) this.history.failure ??= reason;
  }

  /**
   * Reads the whole body. Throws a 413 if it is larger than `maxBodyBytes`, a 429 if there is no
   * memory for it, and the cancellation's reason if the call is already cancelled. Rejects as
   * `readRequestBody` does.
   */
  readBody<Request>(maxBodyBytes: number, reader: BodyReader<Request>): Promise<Request> {
    const { cancellation, request, requestBody, response } = this;
    cancellation.throwIfCancelled();
    // If the body can never fit, a 429 would make clients repeat the request.
    const maxBytes = Math.min(maxBodyBytes, this.budget.limits.maxBufferedBytes);
    const announcedBytes = Number(request.headers['content-length'] ?? 0);
    requestBody.begin(announcedBytes, maxBytes, () =>
      invalidRequest(`request body exceeds ${maxBytes} bytes`, { status: 413 }),
    );
    if (this.awaitsContinue) response.writeContinue();
    this.awaitsContinue = false;
    return readRequestBody(request, requestBody, cancellation, reader);
  }

  /** To be called once the response has closed. Lets the connection begin its next request. */
  close(): void {
    this.requestBody.close();
    this.answerMemory?.close();
    this.connection.onCallClosed(this);
  }
}
