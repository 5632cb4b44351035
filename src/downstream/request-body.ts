/** The body of a client's request: read in full, and bounded. */

import type { IncomingMessage } from 'node:http';

import type { Reservation } from '../lib/byte-budget.ts';
import type { Cancellation } from '../lib/cancellation.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import { ClientGone, invalidRequest } from '../lib/errors.ts';
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
 * the reservation's budget, and `ClientGone` if it breaks off. The rest of a refused body is read and discarded.
 */
export async function readRequestBody(
  request: IncomingMessage,
  { maxBytes, reservation, cancellation, onAccepted, onChunk }: BodyOptions,
): Promise<Buffer[]> {
  const announcedBytes = Number(request.headers['content-length'] ?? 0);
  const chunks = new ChunkBuffer();
  const reserve = (bytes: number) => {
    if (bytes > maxBytes) {
      throw invalidRequest(`request body exceeds ${maxBytes} bytes`, { status: 413 });
    }
    reservation.resize(bytes);
  };
  reserve(announcedBytes);
  onAccepted();
  await forEachChunk(request, cancellation, (chunk) => {
    chunks.push(chunk);
    if (chunks.size > announcedBytes) reserve(chunks.size);
    onChunk(chunk);
  });
  return chunks.takeParts();
}

/** Rejects with what `onChunk` throws. */
async function forEachChunk(
  request: IncomingMessage,
  cancellation: Cancellation,
  onChunk: (chunk: Buffer) => void,
): Promise<void> {
  // Not `for await`: leaving that early would destroy the socket before the answer is written.
  await new Promise<void>((resolve, reject) => {
    const settle = (error?: unknown) => {
      request.off('data', onData);
      request.off('close', onGone);
      cancellation.offCancel(onCancel);
      if (error) reject(error);
      else resolve();
    };
    const onData = (chunk: Buffer) => {
      try {
        onChunk(chunk);
      } catch (error) {
        settle(error);
      }
    };
    const onGone = () => settle(new ClientGone());
    const onCancel = () => settle(cancellation.reason);
    request.on('data', onData);
    readInTurns(request);
    request.once('end', () => settle());
    request.once('close', onGone);
    cancellation.onCancel(onCancel);
  });
}

/** Reads the body, in turns with everything else, until it ends. What has no other listener is discarded. */
export function readInTurns(request: IncomingMessage): void {
  const turn = new TurnLimit();
  request.on('data', (chunk: Buffer) => {
    if (!turn.isReached(chunk.length)) return;
    request.pause();
    setImmediate(() => request.resume());
  });
  request.resume();
}
