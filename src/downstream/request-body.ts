/** The body of a client's request: read in full, and bounded. */

import type { IncomingMessage } from 'node:http';

import type { Reservation } from '../lib/byte-budget.ts';
import type { Cancellation } from '../lib/cancellation.ts';
import { ChunkBuffer } from '../lib/chunk-buffer.ts';
import { ClientGone, invalidRequest } from '../lib/errors.ts';

/** What is read of one body in one turn of the event loop: libuv would read 2 MiB, and do so for each of many uploads. */
const MAX_TURN_BYTES = 65_536;

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
  try {
    await forEachChunk(request, cancellation, (chunk) => {
      chunks.push(chunk);
      if (chunks.size > announcedBytes) reserve(chunks.size);
      onChunk(chunk);
    });
  } catch (error) {
    reservation.resize(0);
    throw error;
  }
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
      request.resume();
      if (error) reject(error);
      else resolve();
    };
    let bytesThisTurn = 0;
    const onNextTurn = () => {
      bytesThisTurn = 0;
      request.resume();
    };
    const onData = (chunk: Buffer) => {
      bytesThisTurn += chunk.length;
      if (bytesThisTurn >= MAX_TURN_BYTES && !request.isPaused()) {
        request.pause();
        setImmediate(onNextTurn);
      }
      try {
        onChunk(chunk);
      } catch (error) {
        settle(error);
      }
    };
    const onGone = () => settle(new ClientGone());
    const onCancel = () => settle(cancellation.reason);
    request.on('data', onData);
    request.once('end', () => settle());
    request.once('close', onGone);
    cancellation.onCancel(onCancel);
  });
}
