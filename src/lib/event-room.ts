/** The memory that a stream takes for an event, and its turn among the streams that wait for it. */

import { type ByteBudget, Reservation } from './byte-budget.ts';

/** The part of the budget that is kept for the stream that has waited longest. */
const KEPT_PART = 1 / 8;
/**
 * A stream waits no longer for bodies that are slow to come, clients that do not read, and
 * providers that do not end an event.
 */
const MAX_WAIT_MS = 2000;

/**
 * The room for one event of a stream, which waits for its turn if the budget is full.
 *
 * The stream calls `tryGrow` for each chunk of an event. If that returns false, the stream passes
 * on what it holds of the event if it `isStuck`; else it calls `wait`, and `endWait` before it
 * tries again. It calls `leaveQueue` once bytes are passed on or given up.
 */
export class EventRoom {
  readonly #reservation: Reservation;
  #waitingBytes = 0;

  constructor(budget: ByteBudget) {
    this.#reservation = new Reservation(budget);
  }

  /** Its part of the bytes of the streams that wait. */
  get waitingBytes(): number {
    return this.#waitingBytes;
  }

  /**
   * Changes it to `bytes` of an event that is not whole yet; returns false if the stream has to
   * wait. An eighth of the budget is kept for the stream that has waited longest, so that no other
   * stream takes all that becomes free. Throws as `tryResize` of a reservation does.
   */
  tryGrow(bytes: number): boolean {
    const reservation = this.#reservation;
    const { limits, queue } = reservation.budget;
    if (reservation.tryResize(bytes, limits.maxBufferedBytes * (1 - KEPT_PART))) return true;
    if (!queue.has(this)) queue.set(this, performance.now());
    return this.#isFirst && reservation.tryResize(bytes);
  }

  /** Changes it to `bytes` that are held anyway, if there is room. */
  tryResize(bytes: number): void {
    this.#reservation.tryResize(bytes);
  }

  /**
   * No stream that waits had to wait earlier. A stream ahead of it that got its room may dawdle.
   */
  get #isFirst(): boolean {
    for (const other of this.#reservation.budget.queue.keys()) {
      if (other === this) return true;
      if (other.waitingBytes > 0) return false;
    }
    return false;
  }

  /** Lets the next stream go first: this stream has passed its held bytes on, or given them up. */
  leaveQueue(): void {
    this.#reservation.budget.queue.delete(this);
  }

  /**
   * This stream has waited longest, and nobody makes room: all other bytes that are reserved belong
   * to streams that wait, or two seconds have passed.
   */
  get isStuck(): boolean {
    const { budget, bytes } = this.#reservation;
    const { queue, reservedBytes, waitingBytes } = budget;
    if (!this.#isFirst) return false;
    if (waitingBytes + bytes >= reservedBytes) return true;
    return performance.now() - queue.get(this)! >= MAX_WAIT_MS;
  }

  /** Begins to wait for room, until `endWait` or `close` is called. */
  wait(): void {
    const { budget, bytes } = this.#reservation;
    this.#waitingBytes = Math.max(1, bytes);
    budget.waitingBytes += this.#waitingBytes;
  }

  endWait(): void {
    this.#reservation.budget.waitingBytes -= this.#waitingBytes;
    this.#waitingBytes = 0;
  }

  /** Frees the room, and gives up its turn. Nothing can be reserved any more. */
  close(): void {
    this.#reservation.close();
    this.endWait();
    this.leaveQueue();
  }
}
