/** Percentiles of durations, from counts in buckets: each value is right to within a fifth. */

const BUCKETS_PER_OCTAVE = 4;
/** The first bucket is up to 1 ms, the last one from 17 minutes. */
const BUCKETS = 2 + 20 * BUCKETS_PER_OCTAVE;

/** The counts of one set of durations. */
export class Percentiles {
  /** Absent while there are no values. */
  #counts: Uint32Array | undefined;
  #total = 0;

  /** Counts a duration. */
  record(ms: number): void {
    this.#counts ??= new Uint32Array(BUCKETS);
    const bucket = ms <= 1 ? 0 : 1 + Math.floor(BUCKETS_PER_OCTAVE * Math.log2(ms));
    this.#counts[Math.min(bucket, BUCKETS - 1)]! += 1;
    this.#total += 1;
  }

  /** Milliseconds, below which the `share` (0 to 1) of all values lies; null if there are none. */
  valueAt(share: number): number | null {
    if (!this.#counts) return null;
    let rest = share * this.#total;
    let bucket = 0;
    while (bucket < BUCKETS - 1 && rest > this.#counts[bucket]!) rest -= this.#counts[bucket++]!;
    const low = bucket === 0 ? 0 : lowerBound(bucket);
    const part = Math.min(1, rest / this.#counts[bucket]!);
    return Math.round(10 * (low + part * (lowerBound(bucket + 1) - low))) / 10;
  }
}

function lowerBound(bucket: number): number {
  return 2 ** ((bucket - 1) / BUCKETS_PER_OCTAVE);
}
