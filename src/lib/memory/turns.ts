/**
 * Shares the event loop's turns between bodies, so that a large body does not delay small requests.
 */

import { collectGarbage } from './garbage-collector.ts';

const BYTES_PER_TURN = 65_536;
/** Without this cost, 64 KiB in single-byte chunks would take a quarter second. */
const BYTES_PER_CHUNK = 64;
/** With 300, a small request would wait for seconds. */
const BODIES_PER_TURN = 4;
/** A collection takes 0.3 ms. */
const BYTES_PER_COLLECTION = 8_388_608;

let passedBytes = 0;

export class TurnLimit {
  #bytes = 0;

  /** @returns true if the next chunk should wait for `onNextTurn` */
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

/** Calls `goOn`, which must not throw, in the next turn, or later if other bodies wait. */
export function onNextTurn(goOn: () => void): void {
  if (waiting.push(goOn) === 1) setImmediate(beginTurn);
}

export function nextTurn(): Promise<void> {
  return new Promise(onNextTurn);
}

function beginTurn(): void {
  const bodies = waiting.slice(0, BODIES_PER_TURN);
  for (const goOn of bodies) goOn();
  // Removed only now, because a body that waits again meanwhile would schedule the next turn a
  // second time.
  waiting.splice(0, bodies.length);
  if (waiting.length > 0) setImmediate(beginTurn);
}
