/** Counts per step of time, for the latest steps. */

/** A ring of numbered steps, each with a count for each of `places` places. */
export class StepCounts {
  /** For each step its number, then its counts by place. */
  readonly #counts: Int32Array;
  readonly #steps: number;
  readonly #places: number;
  latest = 0;

  constructor(steps: number, places: number) {
    this.#counts = new Int32Array(steps * (1 + places));
    this.#steps = steps;
    this.#places = places;
  }

  /** A step that the ring no longer holds is ignored. */
  add(step: number, place: number, amount = 1): void {
    const first = (step % this.#steps) * (1 + this.#places);
    if (this.#counts[first]! > step) return;
    if (this.#counts[first]! < step) {
      this.#counts.fill(0, first, first + 1 + this.#places);
      this.#counts[first] = step;
      this.latest = step;
    }
    this.#counts[first + 1 + place]! += amount;
  }

  /** Returns for each place its sum over the `steps` steps up to `last`. */
  sums(last: number, steps = this.#steps): Int32Array {
    const sums = new Int32Array(this.#places);
    for (let step = last - steps + 1; step <= last; step += 1) {
      const first = (step % this.#steps) * (1 + this.#places);
      if (this.#counts[first] !== step) continue;
      for (let place = 0; place < this.#places; place += 1) {
        sums[place]! += this.#counts[first + 1 + place]!;
      }
    }
    return sums;
  }
}
