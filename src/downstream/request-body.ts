/** The body of a client's request: read in full, and bounded. */

import type { IncomingMessage } from 'node:http';

import type { Reservation } from '../lib/byte-budget.ts';
import type { Cancellation } from '../lib/cancellation.ts';
import { invalidRequest } from '../lib/errors.ts';
import { TurnLimit } from '../lib/turn-limit.ts';

interface BodyOptions {
  readonly maxBytes: number;
  /** Grows with the body; with a Content-Length, to all of it at once. */
  readonly reservation: Reservation;
  /** The request's: ends the reading. */
  readonly cancellation: Cancellation;
  /** Called before the first byte is read, if the body is not refused by its length. */
  readonly onAccepted: () => void;
  /** Called with each chunk as it arrives. */
  readonly onChunk: (chunk: Buffer) => void;
}

/**
 * Reads the whole body and returns it in parts. Throws a 413 if it is larger than `maxBytes`, a 429 if it does not fit
 * the reservation's budget, and the cancellation's reason, `ClientGone` if it breaks off. The rest of a refused body is
 * read and discarded.
 */
export function readRequestBody(
  request: IncomingMessage,
  { maxBytes, reservation, cancellation, onAccepted, onChunk }: BodyOptions,
): Promise<readonly Buffer[]> {
  const announcedBytes = Number(request.headers['content-length'] ?? 0);
  const turn = new TurnLimit();
  const reserve = (bytes: number) => {
    if (bytes > maxBytes) {
      throw invalidRequest(`request body exceeds ${maxBytes} bytes`, { status: 413 });
    }
    reservation.resize(bytes);
  };
  reserve(announcedBytes);
  onAccepted();
  const body = reservation.keepBody(maxBytes);
  // Not `for await`: leaving that early would destroy the socket before the answer is written.
  return new Promise((resolve, reject) => {
    const end = () => {
      request.off('data', onData);
      request.off('end', onEnd);
      cancellation.offCancel(onCancel);
    };
    const fail = (error: unknown) => {
      end();
      reservation.resize(0);
      readInTurns(request);
      reject(error);
    };
    const onData = (chunk: Buffer) => {
      try {
        if (body.size + chunk.length > announcedBytes) reserve(body.size + chunk.length);
        body.push(chunk);
        onChunk(chunk);
        if (turn.isReached(chunk.length)) yieldTurn(request);
      } catch (error) {
        fail(error);
      }
    };
    const onEnd = () => {
      end();
      resolve(body.parts);
    };
    const onCancel = () => fail(cancellation.reason);
    request.on('data', onData);
    request.on('end', onEnd);
    cancellation.onCancel(onCancel);
  });
}

/** Reads the body, in turns with everything else, until it ends. What has no other listener is discarded. */
export function readInTurns(request: IncomingMessage): void {
  const turn = new TurnLimit();
  request.on('data', (chunk: Buffer) => {
    if (turn.isReached(chunk.length)) yieldTurn(request);
  });
  request.resume();
}

function yieldTurn(request: IncomingMessage): void {
  request.pause();
  setImmediate(() => request.resume());
}
