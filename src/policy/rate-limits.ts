/** The rate limits: a token bucket for all requests, and one for each client and each provider that has a limit. */

import type { BucketSettings, ClientSettings, Config } from '../config/config.ts';
import { GatewayError } from '../lib/errors.ts';
import type { Limit } from '../lib/request-facts.ts';
import { type SharedMemory, sharedNowMs } from '../lib/shared-memory.ts';

const NS_PER_MS = 1e6;
const NS_PER_SECOND = 1e9;

/** A token bucket that a store keeps for several gateways. */
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

/** An error is `rateLimit`. Only with a store there is something to wait for. */
type Refusal = GatewayError | undefined | Promise<GatewayError | undefined>;

export type Limits = ReturnType<typeof createLimits>;

interface Bucket extends StoredBucket {
  readonly limit: Limit;
  /** In the memory of this process. */
  readonly local: TokenBucket;
}

/**
 * Finds the buckets of the settings in `memory`, where those with the same settings keep their tokens over a reload; or
 * uses those of the store, as long as it answers.
 */
export function createLimits(
  { rateLimit, clients }: Pick<Config, 'rateLimit' | 'clients'>,
  memory: SharedMemory,
  store?: RateLimitStore,
) {
  /** None if there is no limit. `name` is that of its section in the settings. */
  const bucket = (name: string, limit: Limit, settings: BucketSettings): readonly Bucket[] => {
    const { requestsPerSecond, burstCapacity } = settings;
    if (requestsPerSecond === 0) return [];
    const block = memory.block(`bucket: ${name} ${requestsPerSecond}/${burstCapacity}`, 8);
    const local = new TokenBucket(requestsPerSecond, burstCapacity, block);
    return [{ name, limit, requestsPerSecond, burstCapacity, local }];
  };
  const { enabled, global, providers } = rateLimit;
  const ofAnybody = enabled ? bucket('rate_limit', 'global', global) : [];
  // A client's own bucket does not depend on `rate_limit.enabled`.
  const ofClients = new Map(
    clients.map(({ name, limit }) => {
      return [name, [...bucket(`clients.${name}`, 'client', limit), ...ofAnybody]];
    }),
  );
  const ofProviders = new Map(
    [...(enabled ? providers : [])].map(([id, limit]) => {
      return [id, bucket(`rate_limit.providers.${id}`, 'provider', limit)];
    }),
  );
  const ofRequest = (client: ClientSettings | undefined) =>
    (client && ofClients.get(client.name)) ?? ofAnybody;
  const take = (wanted: readonly Bucket[]): Refusal => {
    if (wanted.length === 0) return undefined;
    return store ? takeStored(store, wanted) : takeLocally(wanted);
  };
  const refund = (taken: readonly Bucket[]): void => {
    // If the store went away or came back meanwhile, one token is put back in the wrong place.
    if (!store?.refund(taken)) for (const { local } of taken) local.refund();
  };

  return {
    /** Takes a token of the client's bucket and one of the global bucket, or neither and returns why. */
    takeRequest: (client: ClientSettings | undefined) => take(ofRequest(client)),
    /** Puts them back if another limit refuses the request: all are taken or none. */
    refundRequest: (client: ClientSettings | undefined) => refund(ofRequest(client)),
    /** Takes a token of the provider's bucket, or returns why not. */
    takeProvider: (id: string) => take(ofProviders.get(id) ?? []),
    refundProvider: (id: string) => refund(ofProviders.get(id) ?? []),
  };
}

async function takeStored(
  store: RateLimitStore,
  wanted: readonly Bucket[],
): Promise<GatewayError | undefined> {
  const taken = await store.take(wanted);
  if (taken === undefined) return takeLocally(wanted);
  if (taken === 'taken') return undefined;
  const refusing = wanted.find(({ name }) => name === taken.refusedBy.name)!;
  return refuse(refusing, taken.waitMs);
}

/** Takes a token of each, or of none. */
function takeLocally(wanted: readonly Bucket[]): GatewayError | undefined {
  const nowMs = sharedNowMs();
  for (const [index, bucket] of wanted.entries()) {
    const waitMs = bucket.local.take(nowMs);
    if (waitMs === 0) continue;
    for (const taken of wanted.slice(0, index)) taken.local.refund();
    return refuse(bucket, waitMs);
  }
  return undefined;
}

function refuse(bucket: Bucket, waitMs: number): GatewayError {
  const { name, limit, requestsPerSecond, burstCapacity } = bucket;
  const limitState = `${name}: no token left of ${burstCapacity}, ${requestsPerSecond} come each second`;
  const retryAfterSeconds = Math.max(1, Math.ceil(waitMs / 1000));
  const details = { retryAfterSeconds, limit, limitState };
  return new GatewayError('rateLimit', 'Rate limit exceeded', details);
}

/**
 * A token bucket in one cell of shared memory. Holds the time at which it is full again, as GCRA does with its theoretical arrival time: a token taken moves it
 * forward by the time that one token takes. Threads may take at the same time: each token is taken once. Times are in
 * milliseconds of `sharedNowMs()`.
 */
export class TokenBucket {
  /** In nanoseconds. */
  readonly #perToken: bigint;
  readonly #perBucket: bigint;
  readonly #fullAt: BigInt64Array;

  /** `block` has 8 bytes; filled with zeros it is a full bucket. `tokensPerSecond` and `capacity` are whole and above zero. */
  constructor(tokensPerSecond: number, capacity: number, block: SharedArrayBuffer) {
    // A whole number: sums of them are exact.
    this.#perToken = BigInt(Math.floor(NS_PER_SECOND / tokensPerSecond));
    this.#perBucket = this.#perToken * BigInt(capacity);
    this.#fullAt = new BigInt64Array(block);
  }

  /** Takes a token and returns 0; or takes none and returns the milliseconds until the next one. */
  take(nowMs: number): number {
    const now = BigInt(Math.floor(nowMs * NS_PER_MS));
    let fullAt = Atomics.load(this.#fullAt, 0);
    for (;;) {
      const next = (fullAt > now ? fullAt : now) + this.#perToken;
      const wait = next - now - this.#perBucket;
      if (wait > 0n) return Number(wait) / NS_PER_MS;
      const found = Atomics.compareExchange(this.#fullAt, 0, fullAt, next);
      if (found === fullAt) return 0;
      fullAt = found;
    }
  }

  /** Puts one token back. */
  refund(): void {
    Atomics.sub(this.#fullAt, 0, this.#perToken);
  }
}
