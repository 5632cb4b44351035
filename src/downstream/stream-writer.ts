/** Writes a stream, or a long answer: no faster than the client reads, and in turns with everything else. */

import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';

import type { ByteSink, ByteSource } from '../lib/byte-source.ts';
import { onNextTurn, TurnLimit } from '../lib/turns.ts';
import { copyIfResizable } from '../lib/byte-budget.ts';

/**
 * A longer body is written in parts, each when the kernel has taken the one before. One part within
 * `sendTimeoutMs` is the slowest that a client may read. Not above 64 KiB: a longer body may be freed while it is sent
 * (`copyIfResizable`).
 */
export const WRITE_PART_BYTES = 65_536;
const CRLF = '\r\n';

/** Ends the response after the stream. */
export class StreamWriter implements ByteSink {
  readonly #response: ServerResponse;
  readonly #socket: Socket;
  readonly #stream: ByteSource | undefined;
  readonly #turn = new TurnLimit();
  /** The head of a chunked body was sent. */
  #hasBegun = false;
  /** No part is written until `#goOn` is called. */
  #isBlocked = false;
  /** The parts that wait for it. */
  readonly #waiting: Buffer[] = [];
  #hasEnded = false;
  writtenBytes = 0;
  /** The failure of the stream. */
  error: Error | undefined;

  /** Takes a response whose head is not sent yet, and the stream that goes on when there is room. */
  constructor(response: ServerResponse, stream: ByteSource | undefined) {
    this.#response = response;
    this.#socket = response.socket!;
    this.#stream = stream;
  }

  write(chunk: Buffer): boolean {
    if (!this.#isBlocked && chunk.length <= WRITE_PART_BYTES) return this.#writePart(chunk);
    for (let start = 0; start < chunk.length; start += WRITE_PART_BYTES) {
      this.#waiting.push(chunk.subarray(start, start + WRITE_PART_BYTES));
    }
    return !this.#isBlocked && this.#writeWaiting();
  }

  end(error?: unknown): void {
    this.#hasEnded = true;
    this.error = error as Error | undefined;
    // A truncated body must not look complete.
    if (error) this.#response.destroy();
    else if (this.#waiting.length === 0 && !this.#response.destroyed) this.#response.end();
  }

  /** Returns false if the rest waits. */
  #writeWaiting(): boolean {
    for (let part = this.#waiting.shift(); part; part = this.#waiting.shift()) {
      if (!this.#writePart(part)) return false;
    }
    return true;
  }

  #writePart(part: Buffer): boolean {
    const socket = this.#socket;
    if (!socket.writable) return false;
    this.writtenBytes += part.length;
    const hasRoom = this.#response.chunkedEncoding
      ? this.#writeFrame(part)
      : this.#response.write(copyIfResizable(part));
    const isTurnOver = this.#turn.spend(part.length);
    if (hasRoom && !isTurnOver) return true;
    this.#isBlocked = true;
    const goOn = () => (isTurnOver ? onNextTurn(() => this.#goOn()) : this.#goOn());
    // There is no 'drain' after a disconnect: then the call is cancelled.
    if (hasRoom) goOn();
    else socket.once('drain', goOn);
    return false;
  }

  /** In one write, chunked by ourselves: `response.write` makes four of it, and may write later. */
  #writeFrame(part: Buffer): boolean {
    const socket = this.#socket;
    if (this.#hasBegun) return socket.write(toFrame(part));
    this.#hasBegun = true;
    // The head goes with the first part.
    socket.cork();
    this.#response.flushHeaders();
    const hasRoom = socket.write(toFrame(part));
    socket.uncork();
    return hasRoom;
  }

  #goOn(): void {
    this.#isBlocked = false;
    const hasRoom = this.#writeWaiting();
    // At once after the last part: a client that has all of the answer may leave.
    if (this.#hasEnded) this.end(this.error);
    else if (hasRoom) this.#stream?.resume();
  }
}

/** A chunk of `Transfer-Encoding: chunked` (RFC 9112 7.1). */
function toFrame(part: Buffer): Buffer {
  const head = part.length.toString(16) + CRLF;
  const frame = Buffer.allocUnsafe(head.length + part.length + CRLF.length);
  frame.write(head, 'latin1');
  part.copy(frame, head.length);
  frame.write(CRLF, head.length + part.length, 'latin1');
  return frame;
}
