/** Request bodies as both transports send them. */

import { type Reservation, copyIfResizable } from '../lib/byte-budget.ts';
import { joinParts, lengthOf } from '../lib/chunk-buffer.ts';
import { nextTurn, TurnLimit } from '../lib/byte-source.ts';
import type { UpstreamRequest } from './provider.ts';

/** A longer body, and that of a stream, is sent in slices, so that no buffer of it outlives its sending. */
const MAX_WHOLE_BYTES = 4096;
const SLICE_BYTES = 65_536;

/**
 * A request body that releases its bytes as they are sent. undici and fetch keep the body that they
 * are given until the response ends, which for a stream takes minutes.
 */
export class SlicedBody implements AsyncIterableIterator<Buffer> {
  /** In bytes. */
  readonly length: number;
  #parts: Buffer[];
  #held: Reservation | undefined;
  readonly #turn = new TurnLimit();

  /** Takes the reservation under which the bytes are held, if there is one. */
  constructor(parts: readonly Buffer[], held: Reservation | undefined) {
    this.length = lengthOf(parts);
    this.#parts = [...parts];
    this.#held = held;
    held?.retain();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Buffer>> {
    const part = this.#parts.shift();
    if (!part) return { done: true, value: undefined };
    const slice = copyIfResizable(part.subarray(0, SLICE_BYTES));
    if (slice.length < part.length) this.#parts.unshift(part.subarray(SLICE_BYTES));
    if (this.#parts.length === 0) this.release();
    if (this.#turn.spend(slice.length)) await nextTurn();
    return { done: false, value: slice };
  }

  async return(): Promise<IteratorResult<Buffer>> {
    this.release();
    return { done: true, value: undefined };
  }

  /** Drops what has not been sent. */
  release(): void {
    this.#parts = [];
    this.#held?.release();
    this.#held = undefined;
  }
}

/** One buffer if it is short; else a `SlicedBody`, whose `content-length` the caller has to send. */
export function toBody({ body = [], held, isStream }: UpstreamRequest): Buffer | SlicedBody {
  if (!isStream && lengthOf(body) <= MAX_WHOLE_BYTES) return joinParts(body);
  return new SlicedBody(body, held);
}
