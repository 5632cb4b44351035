/**
 * One client connection: works on its requests in order, refuses what is none, and cuts off a
 * client that stops reading.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import { type ByteBudget, Reservation } from '../lib/byte-budget.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { createUuid } from '../lib/ids.ts';
import { type AnswerBroken, refusalOf, serialize, TIMED_OUT } from './broken-request.ts';
import { Call, type CLIENT_TIME_LIMITS, type OnHead } from './call.ts';
import { limitLingering } from './lingering.ts';
import { discardBody } from './request-body.ts';
import { toAddress } from './request-head.ts';

/**
 * Pipelined requests that may wait for their turn behind the first; while so many wait, the socket
 * is not read.
 */
const MAX_WAITING_REQUESTS = 8;
/**
 * Pipelined requests that may wait in all, because a single read can bring more than
 * `MAX_WAITING_REQUESTS`. A connection that brings more is closed.
 */
const MAX_RECEIVED_REQUESTS = 100;
/**
 * node:http reads a body that nobody takes up to its high-water mark of 64 KiB, and one read of 64
 * KiB beyond.
 */
const MAX_UNREAD_BYTES = 131_072;
/** A client is cut off if it takes nothing of its response between so many checks in a row. */
export const PROGRESS_CHECKS = 4;
/** An upload must be as fast on average, once it has lasted for `requestMs`. */
const MIN_BYTES_PER_SECOND = 1024;
/** The client closed its sending side inside a request. */
const ENDED_EARLY = 'HPE_INVALID_EOF_STATE';

/**
 * Requests of one listener: those that have begun and are not over, and what became of the others
 * since the start.
 */
interface RequestCounts {
  inFlight: number;
  finished: number;
  /** Requests that were cancelled at the deadline of a drain. */
  cancelled: number;
  /** Of those in flight, the ones whose answer is a stream that has begun. */
  openStreams: number;
}

/** The state that all connections of a listener share. */
export interface ListenerState {
  readonly timeLimits: typeof CLIENT_TIME_LIMITS;
  readonly budget: ByteBudget;
  handler: {
    /** Answers one call. Resolves once its response has closed; never rejects. */
    readonly handle: (call: Call) => Promise<void>;
    readonly answerBroken: AnswerBroken;
    readonly onHead?: OnHead;
  };
  isDraining: boolean;
  readonly counts: RequestCounts;
  /** Set at the deadline of a drain: requests that begin later are cancelled with it too. */
  cancelReason: Error | undefined;
}

/** A request as node:http announces it. While it waits behind others it holds no more than this. */
export interface ReceivedRequest {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  /** The client waits for `100 Continue` before it sends the body. */
  readonly awaitsContinue: boolean;
  /** The bytes of the body that node:http reads while the request waits. */
  reservation: Reservation | undefined;
  /** There is no room for that part, and the body is discarded: the answer to the request. */
  refusal: GatewayError | undefined;
}

const ignore = () => {};

export class Connection {
  readonly socket: Socket;
  readonly listener: ListenerState;
  /**
   * When the connection was accepted or its last response ended, on the clock of
   * `performance.now()`.
   */
  idleSinceMs = performance.now();

  /** The request that is being worked on. */
  call: Call | undefined;
  /** Those behind it, in order of arrival: only the last may be incomplete. */
  #waiting: ReceivedRequest[] = [];
  /**
   * The parser has failed, and no other request can come: the answer to the bytes behind the last
   * complete request.
   */
  #refusal: GatewayError | undefined;
  /** The latest answer said `Connection: close` during its upload: no other request begins. */
  #closesAfterUpload = false;
  /**
   * Runs from the error event of a failed stream to the end of the connection: no other request
   * begins.
   */
  #cutTimer: NodeJS.Timeout | undefined;
  /** Bytes that the kernel had taken at the last check, and how many checks have found no more. */
  #takenBytes = -1;
  #checksWithoutProgress = 0;
  /**
   * The upload of the last check, its bytes then, how many checks it has had, and how many have
   * found no more bytes.
   */
  readonly #upload = { call: undefined as Call | undefined, bytes: 0, checks: 0, quietChecks: 0 };
  /** Half of a head was late behind other requests. */
  #lateHead: NodeJS.Timeout | undefined;

  constructor(socket: Socket, listener: ListenerState) {
    this.socket = socket;
    this.listener = listener;
    // node:http resumes the socket after each message, also if it was paused here.
    socket.on('resume', () => this.#limitQueue());
    socket.on('end', () => {
      if (this.#cutTimer || this.call?.needsClient) socket.end();
    });
  }

  /**
   * Closes an idle connection. Behind a failed stream the connection is half-closed first, and its
   * idle time begins anew.
   */
  closeIdle(): void {
    if (!this.#cutTimer || !this.socket.writable) this.socket.destroy();
    else {
      clearTimeout(this.#cutTimer);
      this.idleSinceMs = performance.now();
      this.#linger();
    }
  }

  /** The response being written is the last one: `Connection: close` belongs on it. */
  get isClosing(): boolean {
    return this.listener.isDraining && this.#waiting.length === 0 && !this.#refusal;
  }

  /** No request is waiting for an answer, worked on or being uploaded. */
  get isIdle(): boolean {
    const isUploading = this.#closesAfterUpload && this.socket.writable;
    const isWaiting = this.#waiting.length > 0 && !this.#cutTimer;
    return !this.call && !isWaiting && !isUploading;
  }

  /** Takes a request in: it begins at once, or after the responses to those before it. */
  receive(request: IncomingMessage, response: ServerResponse, awaitsContinue: boolean): void {
    // Without a listener, the error of a connection that breaks would end the process.
    request.on('error', ignore);
    response.on('error', ignore);
    clearTimeout(this.#lateHead);
    const received = {
      request,
      response,
      awaitsContinue,
      reservation: undefined,
      refusal: undefined,
    };
    if (!this.call && !this.#closesAfterUpload && !this.#cutTimer) return this.#begin(received);
    this.#waiting.push(received);
    if (this.#waiting.length > MAX_RECEIVED_REQUESTS) return this.#closeFlooded();
    if (this.#cutTimer) return discardBody(request);
    this.#limitQueue();
    // node:http announces a request before it has parsed its body. A request without a body is
    // complete by the next tick, and a short body by the next turn.
    process.nextTick(() => {
      if (!request.complete) setImmediate(() => this.#reserveBody(received));
    });
  }

  /**
   * Counts what node:http reads of the body of a request that waits. Without room for that the body
   * is discarded.
   */
  #reserveBody(received: ReceivedRequest): void {
    const { request } = received;
    const bytes = unreadBytesOf(request);
    if (bytes === 0 || !this.#waiting.includes(received)) return;
    received.reservation = new Reservation(this.listener.budget);
    try {
      received.reservation.resize(bytes);
    } catch (refusal) {
      received.refusal = GatewayError.from(refusal);
      discardBody(request);
    }
  }

  /** Gives up the requests that wait. */
  dropWaiting(): void {
    for (const { reservation } of this.#waiting) reservation?.close();
    this.#waiting = [];
  }

  /**
   * Refuses the bytes at which the parser has failed with the error `code`, once the complete
   * requests before them are answered, and ends the connection.
   */
  refuse(code: string | undefined): void {
    const { call, socket } = this;
    const latest = (this.#waiting.at(-1) ?? call)?.request;
    if (code === 'ECONNRESET') {
      socket.destroy();
      return;
    }
    if (this.#cutTimer) return;
    const { headersMs } = this.listener.timeLimits;
    const isFree = !call && performance.now() - this.idleSinceMs >= headersMs;
    if (code === TIMED_OUT && !isFree) {
      // The rest of the head may be there, and was not read while other requests waited.
      this.#lateHead = setTimeout(() => this.refuse(code), headersMs).unref();
      return;
    }
    const refusal = refusalOf(code);
    if (!latest) return this.#answerBroken(refusal);
    this.#refusal ??= refusal;
    if (latest.complete) return;
    // The parser has failed in its body.
    if (latest !== call?.request) this.#waiting.pop()!.reservation?.close();
    else if (code !== ENDED_EARLY) call.cancellation.cancel(refusal);
    // Its client has left in its upload, unless that was answered already.
    else if (!call.reply.isAnswered) socket.destroy();
  }

  /** Answers and logs what never became a request, and ends the connection. */
  #answerBroken(refusal: GatewayError): void {
    const { listener, socket } = this;
    // The parser fails again with each packet.
    if (!socket.writable) return;
    // The upload was answered already.
    if (this.#closesAfterUpload) return this.#close();
    const requestId = createUuid();
    const remote = toAddress(socket.remoteAddress ?? '');
    const { handler } = listener;
    const answer = handler.answerBroken(refusal, requestId, remote);
    handler.onHead?.(answer.status, answer.headers);
    socket.write(serialize(answer, requestId));
    this.#linger();
  }

  /**
   * Called when the request is answered during its upload. Discards the rest; closes once upload
   * and answer are over.
   */
  async closeAfterUpload(answered: Promise<void>): Promise<void> {
    const { request, awaitsContinue } = this.call!;
    this.#closesAfterUpload = true;
    // node:http closes with it, as soon as the answer is written.
    this.socket.destroySoon = ignore;
    const uploaded = new Promise((resolve) => request.once('close', resolve));
    discardBody(request);
    await answered;
    limitLingering(this.socket, this.listener.timeLimits.lingerCheckMs);
    // A client that waits for `100 Continue` sends nothing more.
    if (!awaitsContinue) await uploaded;
    this.#close();
  }

  /** Closes the connection, but reads on for a while. */
  #linger(): void {
    this.#close();
    limitLingering(this.socket, this.listener.timeLimits.lingerCheckMs);
  }

  /**
   * Closes, and reads on within the running limit: unread bytes would reset the connection, and
   * perhaps lose the answer.
   */
  #close(): void {
    this.socket.end();
    this.socket.resume();
  }

  /**
   * Counts its calls and not milliseconds: after a stall of the event loop the socket gets its turn
   * before the next check. Only completed writes count, never what the client sends.
   */
  checkProgress(): void {
    const { bytesWritten, writableLength } = this.socket;
    const takenBytes = bytesWritten - writableLength;
    const isStuck = writableLength > 0 && takenBytes === this.#takenBytes;
    this.#takenBytes = takenBytes;
    this.#checksWithoutProgress = isStuck ? this.#checksWithoutProgress + 1 : 0;
    if (this.#checksWithoutProgress === PROGRESS_CHECKS) this.socket.destroy();
  }

  /**
   * Refuses an upload that has stopped, or is too slow. Counts its calls, as `checkProgress` does.
   */
  checkUpload(): void {
    const { call } = this;
    const upload = this.#upload;
    if (!call || call.request.complete || call.reply.isAnswered) {
      upload.call = undefined;
      return;
    }
    const bytes = call.requestBody.size;
    const isNew = call !== upload.call;
    upload.checks = isNew ? 0 : upload.checks + 1;
    upload.quietChecks = isNew || bytes > upload.bytes ? 0 : upload.quietChecks + 1;
    upload.call = call;
    upload.bytes = bytes;
    const seconds = (upload.checks * this.listener.timeLimits.requestMs) / PROGRESS_CHECKS / 1000;
    const isSlow = upload.checks >= PROGRESS_CHECKS && bytes < seconds * MIN_BYTES_PER_SECOND;
    if (isSlow || upload.quietChecks === PROGRESS_CHECKS) {
      call.cancellation.cancel(refusalOf(TIMED_OUT));
    }
  }

  /** Begins the next request, once the response before it is written. */
  #begin(next: ReceivedRequest | undefined): void {
    const { listener } = this;
    // Behind `Connection: close` node:http gives a response no socket, and so no 'close': its
    // request would never end.
    if (!next || !this.socket.writable || this.#closesAfterUpload) {
      next?.reservation?.close();
      if (this.#refusal) this.#answerBroken(this.#refusal);
      return;
    }
    const { handler } = listener;
    const call = new Call(next, this);
    this.call = call;
    listener.counts.inFlight += 1;
    const reason = listener.cancelReason ?? next.refusal;
    if (reason) call.cancellation.cancel(reason);
    // node:http announces a request before it knows that it is complete.
    process.nextTick(() => handler.handle(call).then(() => this.#finish(call)));
  }

  #finish(call: Call): void {
    const { counts } = this.listener;
    counts.inFlight -= 1;
    if (call.reply.isStream) counts.openStreams -= 1;
    // Not `cancellation.reason`: requests that begin after the deadline are cancelled too, and some
    // need no provider.
    const { failure } = call.history;
    const isCancelled = failure !== undefined && failure === this.listener.cancelReason;
    counts[isCancelled ? 'cancelled' : 'finished'] += 1;
    this.idleSinceMs = performance.now();
    // The next response would wait for this one for ever.
    if (!call.response.writableFinished && !call.reply.isCut) this.socket.destroy();
    this.call = undefined;
    if (call.reply.isCut) return this.#closeCut();
    this.#begin(this.#waiting.shift());
    if (this.#waiting.length === MAX_WAITING_REQUESTS - 1) this.socket.resume();
  }

  /** Cuts the connection off: the requests on it get no answer, and the log says why. */
  #closeFlooded(): void {
    const { listener, socket } = this;
    this.dropWaiting();
    stopParsing(socket);
    const refusal = invalidRequest(`more than ${MAX_RECEIVED_REQUESTS} pipelined requests wait`);
    listener.handler.answerBroken(refusal, createUuid(), toAddress(socket.remoteAddress ?? ''));
    this.call?.cancellation.cancel(refusal);
    socket.destroy();
  }

  /**
   * Closes the connection behind a failed stream without the last chunk, so that a client that
   * ignores error events finds the stream incomplete. Not at once, because some clients drop the
   * events that they have not read when the connection ends.
   */
  #closeCut(): void {
    const { listener, socket } = this;
    for (const { request } of this.#waiting) discardBody(request);
    this.dropWaiting();
    if (!socket.writable) return;
    this.#cutTimer = setTimeout(() => this.#linger(), listener.timeLimits.failedStreamMs);
    socket.once('close', () => clearTimeout(this.#cutTimer));
    socket.resume();
  }

  #limitQueue(): void {
    const { socket } = this;
    if (this.#cutTimer || this.#waiting.length < MAX_WAITING_REQUESTS) return;
    // A 'resume' that was under way before the pause makes node:http read on, and only 'pause'
    // stops it.
    if (socket.isPaused()) socket.emit('pause');
    else socket.pause();
  }
}

/**
 * Returns how many bytes of the body node:http holds, or may come to hold, while nobody reads it.
 */
function unreadBytesOf(request: IncomingMessage): number {
  if (request.complete) return request.readableLength;
  return Math.min(Number(request.headers['content-length'] ?? Infinity), MAX_UNREAD_BYTES);
}

/**
 * Drops the rest of the read. Of each request in it node:http's parser would make two objects
 * although the socket is destroyed, and keep them until the end of the turn, in which many
 * connections may be read. The parser takes a return value of 2 for an upgrade, behind which
 * nothing is HTTP; no documented call stops it.
 */
function stopParsing(socket: Socket & { parser?: { onIncoming: () => number } | null }): void {
  if (socket.parser) socket.parser.onIncoming = () => 2;
}
