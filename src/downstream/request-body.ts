/** Reads a request's body, in turns with all other work. */

import type { IncomingMessage } from 'node:http';

import type { Cancellation } from '../lib/cancellation.ts';
import { invalidRequest } from '../lib/errors.ts';
import type { HeldBody } from '../lib/memory/held-body.ts';
import { onNextTurn, TurnLimit } from '../lib/memory/turns.ts';

/**
 * Parsing a chunk costs as much as hundreds of bytes, and a single read can have 10,000 chunks of
 * one byte. `TurnLimit` ends a turn after 1009 such chunks, so a body of such chunks is refused in
 * its first turn.
 */
const FREE_CHUNKS = 1000;
const MIN_MEAN_CHUNK_BYTES = 16;

export interface BodyReader<Request> {
  push(chunk: Buffer): void;
  finish(body: HeldBody): Request;
}

/**
 * Reads the whole body into `body` and `reader`. Rejects with the error from `body.push` or
 * `reader.finish`, with a 400 if the chunks are too small, and with the cancellation's reason.
 */
export function readRequestBody<Request>(
  request: IncomingMessage,
  body: HeldBody,
  cancellation: Cancellation,
  reader: BodyReader<Request>,
): Promise<Request> {
  const pace = new UploadPace();
  // Leaving a `for await` loop early would destroy the socket before the answer is written.
  return new Promise((resolve, reject) => {
    const stop = () => {
      request.off('data', onData);
      request.off('end', onEnd);
      cancellation.offCancel(onCancel);
    };
    const fail = (failure: unknown) => {
      stop();
      body.close();
      reject(failure);
    };
    const onData = (chunk: Buffer) => {
      try {
        body.push(chunk);
        reader.push(chunk);
        if (!pace.take(chunk, request))
          throw invalidRequest('the request body comes in too small chunks');
      } catch (error) {
        fail(error);
      }
    };
    const onEnd = () => {
      stop();
      try {
        resolve(reader.finish(body));
      } catch (error) {
        reject(error);
      }
    };
    const onCancel = () => fail(cancellation.reason);
    request.on('data', onData);
    request.on('end', onEnd);
    cancellation.onCancel(onCancel);
  });
}

/**
 * Reads the body to its end, and drops its bytes unless another listener takes them. If its chunks
 * are too small, reading stops, and the caller closes the connection after a while.
 */
export function discardBody(request: IncomingMessage): void {
  const pace = new UploadPace();
  request.on('data', (chunk: Buffer) => pace.take(chunk, request));
  request.resume();
}

class UploadPace {
  readonly #turn = new TurnLimit();
  #chunks = 0;
  #bytes = 0;
  #areTooSmall = false;

  /** Pauses the request when its turn is over. Returns false if the chunks are too small. */
  take({ length }: Buffer, request: IncomingMessage): boolean {
    if (this.#areTooSmall) return false;
    this.#chunks += 1;
    this.#bytes += length;
    if (this.#turn.spend(length)) {
      request.pause();
      const readOn = stopReading(request);
      onNextTurn(() => {
        readOn();
        request.resume();
      });
    }
    const isLong = this.#chunks > FREE_CHUNKS;
    this.#areTooSmall = isLong && this.#bytes < this.#chunks * MIN_MEAN_CHUNK_BYTES;
    if (this.#areTooSmall) stopReading(request);
    return !this.#areTooSmall;
  }
}

/**
 * Stops reading the connection until the returned function is called. Pausing the request is not
 * enough: node:http reads on up to `highWaterMark`, and the buffers of 300 connections live so long
 * that malloc never returns their memory.
 */
function stopReading(request: IncomingMessage): () => void {
  const { socket } = request;
  // A body that has arrived whole needs no pause: the next request on the connection may come.
  const pause = () => {
    if (!request.complete) socket.pause();
    else socket.off('resume', pause);
  };
  // A pending 'resume' would undo a pause in this tick.
  process.nextTick(pause);
  // node:http resumes the socket when a part is taken, and when the answer is sent.
  socket.on('resume', pause);
  return () => {
    socket.off('resume', pause);
    socket.resume();
  };
}
