/** Request bodies as both transports send them. */

import { joinParts, lengthOf } from '../lib/chunk-buffer.ts';
import { nextTurn, TurnLimit } from '../lib/turn-limit.ts';

/** A longer body is sent in slices, so that no buffer of it outlives its sending. */
const MAX_WHOLE_BYTES = 65_536;
const SLICE_BYTES = 65_536;

/**
 * A request body that releases its bytes as they are sent. undici and fetch keep the body that they
 * are given until the response ends, which for a stream takes minutes.
 */
export class SlicedBody implements AsyncIterableIterator<Buffer> {
  /** In bytes. */
  readonly length: number;
  #parts: Buffer[];
  readonly #turn = new TurnLimit();

  constructor(parts: readonly Buffer[]) {
    this.length = lengthOf(parts);
    this.#parts = [...parts];
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Buffer>> {
    const part = this.#parts.shift();
    if (!part) return { done: true, value: undefined };
    const slice = part.subarray(0, SLICE_BYTES);
    if (slice.length < part.length) this.#parts.unshift(part.subarray(SLICE_BYTES));
    if (this.#turn.isReached(slice.length)) await nextTurn();
    return { done: false, value: slice };
  }

  async return(): Promise<IteratorResult<Buffer>> {
    this.release();
    return { done: true, value: undefined };
  }

  /** Drops what has not been sent. */
  release(): void {
    this.#parts = [];
  }
}

/** One buffer up to 64 KiB; a `SlicedBody` above, whose `content-length` the caller has to send. */
export function toBody(parts: readonly Buffer[]): Buffer | SlicedBody {
  return lengthOf(parts) > MAX_WHOLE_BYTES ? new SlicedBody(parts) : joinParts(parts);
}
