/** Token buckets that several gateways share. */

/** A bucket that a store keeps. */
export interface StoredBucket {
  /** The same in each thread and each replica for the same limit, such as `clients.alice`. */
  readonly name: string;
  readonly requestsPerSecond: number;
  readonly burstCapacity: number;
}

export type Taken = 'taken' | { readonly refusedBy: StoredBucket; readonly waitMs: number };

/** Never rejects or throws. */
export interface RateLimitStore {
  /** Takes a token of each bucket, or of none. Undefined if the store does not say so in time. */
  take(buckets: readonly StoredBucket[]): Promise<Taken | undefined>;
  /** Puts a token back into each. Returns false, and does nothing, if the store is away. */
  refund(buckets: readonly StoredBucket[]): boolean;
  /** Connects, and again after each failure. Resolves when it is connected or the first attempt has failed. */
  connect(): Promise<void>;
}
