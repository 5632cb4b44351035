/**
 * Turns of the event loop: how much one body may take of each, so that the others and small
 * requests get theirs.
 */

import { collectGarbage } from './garbage-collector.ts';

const BYTES_PER_TURN = 65_536;
/**
 * Cost of a chunk beside its bytes: in chunks of one byte, 64 KiB would take a quarter of a second.
 */
const BYTES_PER_CHUNK = 64;
/** With all of 300 bodies in each turn, a small request would wait for seconds. */
const BODIES_PER_TURN = 4;
/** Collecting the youngest objects takes 0.3 ms. */
const BYTES_PER_COLLECTION = 8_388_608;

/** Read or copied since garbage was collected. */
let passedBytes = 0;

/** Says after each 64 KiB to yield to the event loop. */
export class TurnLimit {
  #bytes = 0;

  /**
   * Adds a chunk. Returns true if the next ones should wait for `onNextTurn`. Collects garbage now
   * and then.
   */
  spend(bytes: number): boolean {
    passedBytes += bytes;
    if (passedBytes >= BYTES_PER_COLLECTION) {
      passedBytes = 0;
      collectGarbage({ type: 'minor' });
    }
    this.#bytes += bytes + BYTES_PER_CHUNK;
    if (this.#bytes < BYTES_PER_TURN) return false;
    this.#bytes = 0;
    return true;
  }
}

const waiting: (() => void)[] = [];

/**
 * Calls `goOn`, which must not throw, in the next turn; later if there are other bodies that wait.
 */
export function onNextTurn(goOn: () => void): void {
  if (waiting.push(goOn) === 1) setImmediate(beginTurn);
}

export function nextTurn(): Promise<void> {
  return new Promise(onNextTurn);
}

function beginTurn(): void {
  const bodies = waiting.slice(0, BODIES_PER_TURN);
  for (const goOn of bodies) goOn();
  // Only now: a body that waits again meanwhile must not begin the turn after this one a second
  // time.
  waiting.splice(0, bodies.length);
  if (waiting.length > 0) setImmediate(beginTurn);
}
