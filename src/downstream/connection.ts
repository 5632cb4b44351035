/**
 * A client's connection: answers its requests in order, refuses bytes that are not HTTP, and cuts
 * off a client that stops reading.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import { Reservation } from '../lib/memory/byte-budget.ts';
import { GatewayError, invalidRequest } from '../lib/errors.ts';
import { createUuid } from '../lib/ids.ts';
import { brokenRequestError, serialize, TIMED_OUT } from './broken-request.ts';
import type { ClientReply } from './client-reply.ts';
import { Call, type CallConnection, type ReceivedRequest } from './call.ts';
import type { ListenerState } from './listener.ts';
import { limitLingering } from './lingering.ts';
import { discardBody } from './request-body.ts';
import { toAddress } from './request-head.ts';

/** How many pipelined requests may wait. At this number the socket is not read. */
const MAX_WAITING_REQUESTS = 8;
/** A single read can bring more requests. Above this number the connection is closed. */
const MAX_RECEIVED_REQUESTS = 100;
/** node:http reads an unclaimed body up to its high-water mark of 64 KiB, and one read beyond. */
const MAX_UNREAD_BYTES = 131_072;
/** Checks in a row without progress after which a client is cut off. */
export const PROGRESS_CHECKS = 4;
/** The lowest average speed for an upload after `requestMs`. */
const MIN_BYTES_PER_SECOND = 1024;
/** The parser's code if a client has closed its sending side inside a request. */
const ENDED_EARLY = 'HPE_INVALID_EOF_STATE';

const ignore = () => {};

export class Connection implements CallConnection {
  readonly socket: Socket;
  readonly listener: ListenerState;
  becameIdleAtMs = performance.now();

  call: Call | undefined;
  /** The requests behind `call`, in order of arrival. Only the last may be incomplete. */
  #waiting: ReceivedRequest[] = [];
  /** The answer to the bytes at which the parser has failed. */
  #refusal: GatewayError | undefined;
  /** No request follows an answer during its upload. */
  #closesAfterUpload = false;
  /** Runs from a failed stream's error event to the end of the connection. */
  #cutTimer: NodeJS.Timeout | undefined;
  #takenBytes = -1;
  #checksWithoutProgress = 0;
  readonly #upload = { call: undefined as Call | undefined, bytes: 0, checks: 0, quietChecks: 0 };
  /** Repeats a head's time limit if it passed while other requests kept the socket unread. */
  #lateHead: NodeJS.Timeout | undefined;

  constructor(socket: Socket, listener: ListenerState) {
    this.socket = socket;
    this.listener = listener;
    // node:http resumes the socket after each message, even if it was paused here.
    socket.on('resume', () => this.#limitQueue());
    // The client may have half-closed or left: both look the same.
    socket.on('end', () => {
      const mayHaveLeft = this.call?.needsClient === true;
      // The end would wait for a client that does not read, and so would its provider.
      if (mayHaveLeft && socket.writableLength > 0) socket.destroy();
      else if (mayHaveLeft || this.#cutTimer) socket.end();
    });
  }

  /**
   * Closes an idle connection during a drain. Behind a failed stream, the client has another second
   * to read the error event.
   */
  closeIdle(): void {
    if (!this.#cutTimer || !this.socket.writable) this.socket.destroy();
    else {
      clearTimeout(this.#cutTimer);
      this.becameIdleAtMs = performance.now();
      this.#linger();
    }
  }

  /** True if `Connection: close` belongs on the current response. */
  get isClosing(): boolean {
    // node:http's parser drops the bytes behind a request for another protocol, and reads on at the
    // next packet: a dropped head would leave its body to be answered as a request.
    if (this.call?.headers.upgrade !== undefined) return true;
    return this.listener.isDraining && this.#waiting.length === 0 && !this.#refusal;
  }

  get isIdle(): boolean {
    const isUploading = this.#closesAfterUpload && this.socket.writable;
    const isWaiting = this.#waiting.length > 0 && !this.#cutTimer;
    return !this.call && !isWaiting && !isUploading;
  }

  get queuedBytes(): number {
    return this.#waiting.reduce((sum, { reservation }) => sum + (reservation?.bytes ?? 0), 0);
  }

  receive(request: IncomingMessage, response: ServerResponse, awaitsContinue: boolean): void {
    // Without these listeners, a broken connection would end the process.
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
    // A request without a body is complete by the next tick, and a short body by the next turn.
    process.nextTick(() => {
      if (!request.complete) setImmediate(() => this.#reserveBody(received));
    });
  }

  /** Reserves memory for a waiting request's body, as far as node:http reads it. */
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

  dropWaiting(): void {
    for (const { reservation } of this.#waiting) reservation?.close();
    this.#waiting = [];
  }

  /**
   * Refuses the bytes at which the parser failed with `code`, and ends the connection. Complete
   * requests before these bytes are answered first.
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
    // The socket is not read while requests wait, so the rest of the head may have arrived unread.
    const wasBusy = call !== undefined || performance.now() - this.becameIdleAtMs < headersMs;
    if (code === TIMED_OUT && wasBusy) {
      this.#lateHead = setTimeout(() => this.refuse(code), headersMs).unref();
      return;
    }
    const refusal = brokenRequestError(code);
    if (!latest) return this.#answerBroken(refusal);
    this.#refusal ??= refusal;
    if (latest.complete) return;
    // The parser has failed inside the latest request's body. With `ENDED_EARLY`, the client has
    // left, and there is nobody to answer.
    if (latest !== call?.request) this.#waiting.pop()!.reservation?.close();
    else if (code !== ENDED_EARLY) call.cancellation.cancel(refusal);
    else if (!call.reply.isAnswered) socket.destroy();
  }

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
    handler.onReplyHead?.(answer.status, answer.headers);
    socket.write(serialize(answer, requestId));
    this.#linger();
  }

  /** To be called when a request is answered during its upload. Discards the rest of the upload. */
  closeAfterUpload(reply: ClientReply): void {
    const { request, awaitsContinue } = this.call!;
    this.#closesAfterUpload = true;
    // node:http calls `destroySoon` as soon as the answer is written, although the upload goes on.
    this.socket.destroySoon = ignore;
    discardBody(request);
    reply.onClosed(() => {
      limitLingering(this.socket, this.listener.timeLimits.lingerCheckMs);
      // A client that waits for `100 Continue` sends nothing more.
      if (awaitsContinue || request.closed) this.#close();
      else request.once('close', () => this.#close());
    });
  }

  #linger(): void {
    this.#close();
    limitLingering(this.socket, this.listener.timeLimits.lingerCheckMs);
  }

  /**
   * Half-closes the connection and reads on, because unread bytes would reset it and could lose the
   * answer.
   */
  #close(): void {
    this.socket.end();
    this.socket.resume();
  }

  /**
   * Cuts off a client that took nothing of its response in `PROGRESS_CHECKS` calls. Counts calls,
   * not milliseconds, so that after an event loop stall the socket gets its turn before the next
   * check.
   */
  checkProgress(): void {
    const { bytesWritten, writableLength } = this.socket;
    const takenBytes = bytesWritten - writableLength;
    const isStuck = writableLength > 0 && takenBytes === this.#takenBytes;
    this.#takenBytes = takenBytes;
    this.#checksWithoutProgress = isStuck ? this.#checksWithoutProgress + 1 : 0;
    if (this.#checksWithoutProgress === PROGRESS_CHECKS) this.socket.destroy();
  }

  /** Refuses an upload that has stopped or is too slow. */
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
      call.cancellation.cancel(brokenRequestError(TIMED_OUT));
    }
  }

  #begin(next: ReceivedRequest | undefined): void {
    const { listener } = this;
    // Without a socket there is no 'close', and the request would never end. node:http gives none
    // to a response behind `Connection: close`.
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
    // node:http announces a request before it knows whether the request is complete.
    process.nextTick(() => void handler.handle(call));
  }

  countStream(): void {
    this.listener.counts.openStreams += 1;
  }

  onCallClosed(call: Call): void {
    const { counts } = this.listener;
    counts.inFlight -= 1;
    if (call.reply.isStream) counts.openStreams -= 1;
    // `cancellation.reason` is also set on requests that came after the deadline and were answered
    // without a provider.
    const { failure } = call.history;
    const isCancelled = failure !== undefined && failure === this.listener.cancelReason;
    counts[isCancelled ? 'cancelled' : 'finished'] += 1;
    this.becameIdleAtMs = performance.now();
    // Behind an incomplete response, the next response would wait for ever.
    if (!call.response.writableFinished && !call.reply.isCut) this.socket.destroy();
    this.call = undefined;
    if (call.reply.isCut) return this.#closeCut();
    this.#begin(this.#waiting.shift());
    if (this.#waiting.length === MAX_WAITING_REQUESTS - 1) this.socket.resume();
  }

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
   * Closes the connection behind a failed stream without the last chunk, so that clients without
   * support for error events find the stream incomplete. The end waits, because some clients drop
   * unread events when the connection ends.
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
    // A 'resume' pending before the pause makes node:http read on. Only the event 'pause' stops it.
    if (socket.isPaused()) socket.emit('pause');
    else socket.pause();
  }
}

function unreadBytesOf(request: IncomingMessage): number {
  if (request.complete) return request.readableLength;
  return Math.min(Number(request.headers['content-length'] ?? Infinity), MAX_UNREAD_BYTES);
}

/**
 * Drops the rest of the read. node:http's parser would create two objects for each request in it,
 * and keep them until the end of the turn. No documented call stops the parser, but it takes a
 * return value of 2 for an upgrade, and nothing behind an upgrade is HTTP.
 */
function stopParsing(socket: Socket & { parser?: { onIncoming: () => number } | null }): void {
  if (socket.parser) socket.parser.onIncoming = () => 2;
}
