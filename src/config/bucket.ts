/** The two settings of a token bucket, wherever one can be set. */

import type { SectionReader } from './section-reader.ts';

export interface BucketSettings {
  /** 0 is unlimited. */
  readonly requestsPerSecond: number;
  readonly burstCapacity: number;
}

/** Reads both. `rps` and `burst` are the names of the environment variables, if there are any. */
export function readBucket(section: SectionReader, rps?: string, burst?: string): BucketSettings {
  const max = 1_000_000;
  return {
    requestsPerSecond: section.integer('requests_per_second', {
      min: 0,
      max,
      default: 0,
      env: rps,
    }),
    burstCapacity: section.integer('burst_capacity', { min: 1, max, default: 100, env: burst }),
  };
}
