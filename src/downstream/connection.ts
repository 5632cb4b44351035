/** One client connection: works on its requests in order, refuses what is none, and cuts off a client that stops reading. */

import { randomUUID } from 'node:crypto';
import { STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';

import type { ByteBudget } from '../lib/byte-budget.ts';
import { invalidRequest, type GatewayError } from '../lib/errors.ts';
import type { Answer } from '../lib/attempt.ts';
import type { SharedCounter } from '../lib/shared-memory.ts';
import { Call, type CLIENT_LIMITS, type Exchange } from './call.ts';
import { toAddress } from './request-head.ts';

/** Pipelined requests that may wait for their turn behind the first; while so many wait, the socket is not read. */
const MAX_WAITING_REQUESTS = 8;
/** A client is cut off if it takes nothing of its response between so many checks in a row. */
export const PROGRESS_CHECKS = 4;

/** Status and text by the code of the parser's error; any other is a plain 400. */
const PARSER_ERRORS = new Map([
  ['HPE_HEADER_OVERFLOW', { status: 431, text: 'request headers are too large' }],
  ['HPE_CHUNK_EXTENSIONS_OVERFLOW', { status: 413, text: 'chunk extensions are too large' }],
  ['ERR_HTTP_REQUEST_TIMEOUT', { status: 408, text: 'request was not received in time' }],
]);
const OTHER_ERROR = { status: 400, text: 'request is not valid HTTP' };
/** The client closed its sending side inside a request: it counts as gone. */
const ENDED_EARLY = 'HPE_INVALID_EOF_STATE';

type TextAnswer = Answer & { readonly body: string };
/** Returns the answer to a request that never became a call. `remote` is the address of the connection's other end. */
export type AnswerBroken = (
  refusal: GatewayError,
  requestId: string,
  remote: string | undefined,
) => TextAnswer;

/** The state that all connections of a server share. */
export interface ServerState {
  readonly limits: typeof CLIENT_LIMITS;
  readonly budget: ByteBudget;
  /** Answers one call; never rejects. */
  readonly handle: (call: Call) => Promise<void>;
  readonly answerBroken: AnswerBroken;
  isDraining: boolean;
  readonly inFlight: SharedCounter;
  readonly finished: SharedCounter;
  /** Those that were cancelled with `cancelReason`. */
  readonly cancelled: SharedCounter;
  /** Set at the deadline of a drain: requests that begin later are cancelled with it too. */
  cancelReason: Error | undefined;
}

const ignore = () => {};

export class Connection {
  readonly socket: Socket;
  readonly server: ServerState;
  /** When the connection was accepted or its last response ended, on the clock of `performance.now()`. */
  idleSinceMs = performance.now();

  /** The request that is being worked on. */
  call: Call | undefined;
  /** In order of arrival. The first is being worked on; only the last may be incomplete. */
  readonly #queue: Exchange[] = [];
  /** The exchange that arrived last, which may be over. */
  #latest: Exchange | undefined;
  #closesAfterQueue = false;
  /** Bytes that the kernel had taken at the last check, and how many checks have found no more. */
  #takenBytes = -1;
  #checksWithoutProgress = 0;

  constructor(socket: Socket, server: ServerState) {
    this.socket = socket;
    this.server = server;
    // node:http resumes the socket after each message, also if it was paused here.
    socket.on('resume', () => this.#limitQueue());
  }

  /** The response being written is the last one: `Connection: close` belongs on it. */
  get isClosing(): boolean {
    return (this.server.isDraining || this.#closesAfterQueue) && this.#queue.length <= 1;
  }

  /** No request is waiting, worked on or being uploaded. */
  get isIdle(): boolean {
    return this.#queue.length === 0 && this.#latest?.request.complete !== false;
  }

  /** Takes a request in: it begins at once, or after the responses to those before it. */
  receive(exchange: Exchange): void {
    // Without a listener, the error of a connection that breaks would end the process.
    exchange.request.on('error', ignore);
    exchange.response.on('error', ignore);
    this.#latest = exchange;
    if (this.#queue.push(exchange) === 1) void this.#work();
    this.#limitQueue();
  }

  /** Cancels the current request at the deadline of a drain. */
  cancel(reason: Error): void {
    this.call?.cancellation.cancel(reason);
  }

  /**
   * Ends the connection: the parser failed with the error `code`, which node:http reports for each later packet too. Complete
   * requests that have arrived are answered first.
   */
  refuse(code: string | undefined): void {
    const isBusy = this.#queue.length > 0;
    if (code === 'ECONNRESET' || (code === ENDED_EARLY && isBusy)) {
      this.socket.destroy();
      return;
    }
    const { status, text } = PARSER_ERRORS.get(code ?? '') ?? OTHER_ERROR;
    const refusal = invalidRequest(text, { status, headers: { connection: 'close' } });
    if (isBusy) this.#refuseLatest(refusal);
    else this.#answerBroken(refusal);
  }

  /** If the latest request has begun, its call answers with the refusal; else it is dropped. */
  #refuseLatest(refusal: GatewayError): void {
    const queue = this.#queue;
    this.#closesAfterQueue = true;
    if (queue.at(-1)!.request.complete) return;
    if (queue.length === 1) this.call?.cancellation.cancel(refusal);
    else queue.pop();
  }

  /** Answers what never became a request, or closes if a request was answered before its body broke. */
  #answerBroken(refusal: GatewayError): void {
    const { socket } = this;
    const latest = this.#latest;
    const isAnswered = latest?.response.headersSent === true && !latest.request.complete;
    // The parser fails again with each packet.
    if (!socket.writable) return;
    if (isAnswered) return this.#linger();
    const requestId = randomUUID();
    const remote = toAddress(socket.remoteAddress ?? '');
    const answer = this.server.answerBroken(refusal, requestId, remote);
    socket.write(serialize(answer, requestId));
    this.#linger();
  }

  /** Closes the connection, but reads on for a while: with unread bytes it would be reset, and the answer perhaps never read. */
  #linger(): void {
    const { socket } = this;
    socket.end();
    socket.resume();
    const limit = setTimeout(() => socket.destroy(), this.server.limits.lingerMs);
    socket.once('close', () => clearTimeout(limit));
  }

  /**
   * Called at regular intervals. Counts calls and not milliseconds: after a stall of the event loop the
   * socket gets its turn before the next check. Only completed writes count, never what the client sends.
   */
  checkProgress(): void {
    const { bytesWritten, writableLength } = this.socket;
    const takenBytes = bytesWritten - writableLength;
    const isStuck = writableLength > 0 && takenBytes === this.#takenBytes;
    this.#takenBytes = takenBytes;
    this.#checksWithoutProgress = isStuck ? this.#checksWithoutProgress + 1 : 0;
    if (this.#checksWithoutProgress === PROGRESS_CHECKS) this.socket.destroy();
  }

  /** One after the other: a request begins when the response before it is written. */
  async #work(): Promise<void> {
    for (let next = this.#queue[0]; next && !this.socket.destroyed; next = this.#queue[0]) {
      const call = new Call(next, this);
      const { server } = this;
      this.call = call;
      server.inFlight.add(1);
      if (server.cancelReason) this.cancel(server.cancelReason);
      await server.handle(call);
      call.finish();
      this.call = undefined;
      server.inFlight.add(-1);
      const { reason } = call.cancellation;
      (reason && reason === server.cancelReason ? server.cancelled : server.finished).add(1);
      this.idleSinceMs = performance.now();
      // The next response would wait for this one for ever.
      if (!next.response.writableFinished) this.socket.destroy();
      this.#queue.shift();
      if (this.#queue.length === MAX_WAITING_REQUESTS) this.socket.resume();
    }
    if (this.#closesAfterQueue && !this.socket.destroyed) this.#linger();
  }

  #limitQueue(): void {
    if (this.#queue.length > MAX_WAITING_REQUESTS) this.socket.pause();
  }
}

function serialize({ status, headers, body }: TextAnswer, requestId: string): string {
  const lines = Object.entries({
    ...headers,
    'x-request-id': requestId,
    date: new Date().toUTCString(),
    'content-length': Buffer.byteLength(body),
  }).map(([name, value]) => `${name}: ${value}\r\n`);
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`;
}
