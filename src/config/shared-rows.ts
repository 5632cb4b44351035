/** Rows of the table of settings, and bounds in them, that several sections have. */

import { integer } from './setting-kinds.ts';

export const MAX_PORT = 65_535;
export const MAX_RETRIES = 10;
export const MAX_WORKERS = 256;

/** A token bucket, wherever there can be one. */
export const BUCKET = {
  requests_per_second: {
    ...integer(0, 1_000_000, 0),
    meaning: 'requests that the bucket is refilled with; 0 is unlimited',
  },
  burst_capacity: {
    ...integer(1, 1_000_000, 100),
    meaning: 'requests that the bucket holds',
  },
};

export const CONCURRENCY = {
  max_concurrent_requests: {
    ...integer(0, 1_000_000, 0),
    meaning: 'requests in flight at the same time, streams until their end; 0 is unlimited',
  },
};
