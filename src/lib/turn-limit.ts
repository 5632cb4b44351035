/** Work on long bodies is done in pieces, so that everything else gets its turn of the event loop. */

export { setImmediate as nextTurn } from 'node:timers/promises';

const BYTES_PER_TURN = 65_536;

/** Counts what was done for one body: without it, one turn may read or write what the kernel has room for, megabytes. */
export class TurnLimit {
  #bytes = 0;

  /** Adds `bytes`. Returns true if the rest should wait for the next turn. */
  isReached(bytes: number): boolean {
    this.#bytes += bytes;
    if (this.#bytes < BYTES_PER_TURN) return false;
    this.#bytes = 0;
    return true;
  }
}
