/** Yielding to the event loop while a long body, or one in many chunks, is processed. */

import { countPassing } from './garbage.ts';

export { setImmediate as nextTurn } from 'node:timers/promises';

const BYTES_PER_TURN = 65_536;
/** What a chunk costs beside its bytes: in chunks of one byte, 64 KiB would take a quarter of a second. */
const BYTES_PER_CHUNK = 64;

/** Says when to yield: one turn could otherwise process megabytes. */
export class TurnLimit {
  #bytes = 0;

  /** Adds a chunk of so many bytes. Returns true if the rest should wait for the next turn. */
  isReached(bytes: number): boolean {
    countPassing(bytes);
    this.#bytes += bytes + BYTES_PER_CHUNK;
    if (this.#bytes < BYTES_PER_TURN) return false;
    this.#bytes = 0;
    return true;
  }
}
