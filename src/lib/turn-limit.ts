/** Yielding to the event loop while a long body is processed. */

import { countPassing } from './garbage.ts';

export { setImmediate as nextTurn } from 'node:timers/promises';

const BYTES_PER_TURN = 65_536;

/** Says when to yield: one turn could otherwise process megabytes. */
export class TurnLimit {
  #bytes = 0;

  /** Adds `bytes`. Returns true if the rest should wait for the next turn. */
  isReached(bytes: number): boolean {
    countPassing(bytes);
    this.#bytes += bytes;
    if (this.#bytes < BYTES_PER_TURN) return false;
    this.#bytes = 0;
    return true;
  }
}
