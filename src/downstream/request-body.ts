/** The body of a client's request: read in full, and in turns with everything else. */

import type { IncomingMessage } from 'node:http';

import type { Cancellation } from '../lib/cancellation.ts';
import { invalidRequest } from '../lib/errors.ts';
import type { HeldBody } from '../lib/held-body.ts';
import { onNextTurn, TurnLimit } from '../lib/turns.ts';

/**
 * Parsing a chunk costs as much as hundreds of bytes, and one read of a socket has some 10,000 of
 * one byte: a longer body must come in chunks of a useful size. Fewer than `TurnLimit` takes, so
 * that a body is refused in the turn in which it arrives.
 */
const FREE_CHUNKS = 1000;
const MIN_MEAN_CHUNK_BYTES = 16;

/** Takes each chunk of a body as it arrives. */
export interface BodyReader {
  push(chunk: Buffer): void;
}

/**
 * Reads all of the body into `body`, and returns that; `reader` takes each chunk too. Rejects with
 * what `body.push` throws, with a 400 if it comes in too small chunks, and with the cancellation's
 * reason. The answer to a refused body discards what follows.
 */
export function readRequestBody(
  request: IncomingMessage,
  body: HeldBody,
  cancellation: Cancellation,
  reader: BodyReader,
): Promise<HeldBody> {
  const pace = new UploadPace();
  // Not `for await`: leaving that early would destroy the socket before the answer is written.
  return new Promise((resolve, reject) => {
    const end = (failure?: unknown) => {
      request.off('data', onData);
      request.off('end', end);
      cancellation.offCancel(onCancel);
      if (failure === undefined) return resolve(body);
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
        end(error);
      }
    };
    const onCancel = () => end(cancellation.reason);
    request.on('data', onData);
    request.on('end', end);
    cancellation.onCancel(onCancel);
  });
}

/**
 * Reads the body, in turns with everything else, until it ends. What has no other listener is
 * discarded. One in too small chunks is not read to its end: whoever calls this closes the
 * connection after a while.
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

  /**
   * Takes each chunk. Pauses the request if it has had its turn. Returns false if its chunks are
   * too small: no more of the connection is read then.
   */
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
 * Stops reading the connection until the returned function is called. To pause the request is not
 * enough: node:http reads on up to `highWaterMark`, and what 300 connections hold grows old: malloc
 * keeps its room.
 */
function stopReading(request: IncomingMessage): () => void {
  const { socket } = request;
  // One that was whole in the first read is answered, and its connection kept.
  const pause = () => {
    if (!request.complete) socket.pause();
    else socket.off('resume', pause);
  };
  // Behind a 'resume' that is under way already, which would undo it.
  process.nextTick(pause);
  // node:http resumes the socket when a part of the body is taken, and when the answer is sent.
  socket.on('resume', pause);
  return () => {
    socket.off('resume', pause);
    socket.resume();
  };
}
