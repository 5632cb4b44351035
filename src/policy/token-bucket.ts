/** A token bucket without a timer: its level is calculated from the time. */

/**
 * Holds up to `capacity` units, which are requests or a model's tokens, and regains
 * `unitsPerSecond`. Both must be above zero. Full at first.
 */
export class TokenBucket {
  readonly #unitsPerMs: number;
  readonly #capacity: number;
  /** The units at `#takenAtMs`. */
  #units: number;
  #takenAtMs = -Infinity;

  constructor(unitsPerSecond: number, capacity: number) {
    this.#unitsPerMs = unitsPerSecond / 1000;
    this.#capacity = capacity;
    this.#units = capacity;
  }

  level(nowMs: number): number {
    const refilled = this.#units + (nowMs - this.#takenAtMs) * this.#unitsPerMs;
    return Math.min(this.#capacity, refilled);
  }

  waitMs(units: number, nowMs: number): number {
    return Math.max(0, units - this.level(nowMs)) / this.#unitsPerMs;
  }

  resetMs(nowMs: number): number {
    return this.waitMs(this.#capacity, nowMs);
  }

  /**
   * Takes units, whatever the level; a negative number puts units back, up to the capacity.
   * `nowMs` must never go back.
   */
  take(units: number, nowMs: number): void {
    this.#units = this.level(nowMs) - units;
    this.#takenAtMs = nowMs;
  }
}
