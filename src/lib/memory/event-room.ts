/** A stream's memory for an event, and its turn among the streams waiting for memory. */

import { type ByteBudget, Reservation, type ReservedMemory } from './byte-budget.ts';

/**
 * The budget's share for the longest waiting stream, because other streams would take all freed
 * room.
 */
const KEPT_PART = 1 / 8;
/**
 * The longest wait for room, because bodies may arrive slowly, clients may stop reading, and
 * providers may leave an event open.
 */
const MAX_WAIT_MS = 2000;

/**
 * The stream calls `tryGrow` for each chunk of an event. If `tryGrow` returns false and `isStuck`
 * is true, the stream passes on its part of the event. If `isStuck` is false, it calls `wait`, and
 * `endWait` before it tries again. It calls `leaveQueue` once its bytes are passed on or given up.
 */
export class EventRoom implements ReservedMemory {
  readonly #reservation: Reservation;
  #waitingBytes = 0;

  constructor(budget: ByteBudget) {
    this.#reservation = new Reservation(budget);
  }

  get reservedBytes(): number {
    return this.#reservation.bytes;
  }

  get isWaiting(): boolean {
    return this.#waitingBytes > 0;
  }

  /**
   * @returns false if the stream has to wait
   * @throws as `Reservation.tryResize`
   */
  tryGrow(bytes: number): boolean {
    const reservation = this.#reservation;
    const { limits, waitingStreams } = reservation.budget;
    if (reservation.tryResize(bytes, limits.maxBufferedBytes * (1 - KEPT_PART))) return true;
    if (!waitingStreams.has(this)) waitingStreams.set(this, performance.now());
    return this.#isFirst && reservation.tryResize(bytes);
  }

  /** The stream holds these bytes even if they do not fit. */
  tryResize(bytes: number): void {
    this.#reservation.tryResize(bytes);
  }

  /** A stream ahead that already has its room does not count, because it may be slow to use it. */
  get #isFirst(): boolean {
    for (const other of this.#reservation.budget.waitingStreams.keys()) {
      if (other === this) return true;
      if (other.isWaiting) return false;
    }
    return false;
  }

  leaveQueue(): void {
    this.#reservation.budget.waitingStreams.delete(this);
  }

  /**
   * True if this stream is first and nobody makes room: all other reserved bytes belong to waiting
   * streams, or `MAX_WAIT_MS` have passed.
   */
  get isStuck(): boolean {
    const { budget, bytes } = this.#reservation;
    const { reservedBytes, waitingBytes, waitingStreams } = budget;
    if (!this.#isFirst) return false;
    if (waitingBytes + bytes >= reservedBytes) return true;
    return performance.now() - waitingStreams.get(this)! >= MAX_WAIT_MS;
  }

  wait(): void {
    const { budget, bytes } = this.#reservation;
    // At least 1, so that a stream without bytes keeps large bodies away too.
    this.#waitingBytes = Math.max(1, bytes);
    budget.waitingBytes += this.#waitingBytes;
  }

  endWait(): void {
    this.#reservation.budget.waitingBytes -= this.#waitingBytes;
    this.#waitingBytes = 0;
  }

  close(): void {
    this.#reservation.close();
    this.endWait();
    this.leaveQueue();
  }
}
