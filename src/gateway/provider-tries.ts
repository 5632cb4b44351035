/** The tries at one provider: with which key, how often, and after which wait. */

import type { Attempt } from '../request/record.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Caller } from '../policy/affinity.ts';
import type { KeyPool } from '../policy/key-pool.ts';

/** A longer `Retry-After` is left to the client. */
const MAX_AWAITED_SECONDS = 30;
const FIRST_BACKOFF_MS = 500;
const MAX_BACKOFF_MS = 8000;

/** Says after each try whether there is another one, and how that differs. */
export class ProviderTries {
  /** The index of the key to send; undefined if the provider has only one. */
  key: number | undefined;
  /** The next try wants a new connection. */
  reconnect = false;
  /** The gateway has repeated the request: if the client repeated it too, it would be sent for both. */
  hasRetried = false;
  /** The try that has the answer, or that says best why there is none. */
  chosen: Attempt | undefined;
  readonly #keyPool: KeyPool | undefined;
  readonly #caller: Caller;
  #keys: Iterator<number, undefined> | undefined;
  /** The cooldown of the key before it was tried. */
  #cooldown: ReturnType<KeyPool['cooldownOf']>;
  readonly #maxRetries: number;
  #retries = 0;

  /** `keyPool` is absent if the provider has one key. */
  constructor(maxRetries: number, keyPool: KeyPool | undefined, caller: Caller) {
    this.#maxRetries = maxRetries;
    this.#keyPool = keyPool;
    this.#caller = caller;
    this.#beginKeys();
  }

  /** Takes a try that has ended. Returns the milliseconds to wait before the next one; undefined if there is none. */
  next(attempt: Attempt): number | undefined {
    const { failure } = attempt;
    if (!failure || attempt.hasAnswer) {
      if (this.key !== undefined) this.#keyPool?.recordSuccess(this.key, this.#cooldown);
      this.chosen = attempt;
      return undefined;
    }
    const isKeyRefused =
      this.key !== undefined && this.#keyPool?.recordFailure(this.key, failure) === true;
    // A 429 stays: unlike a 401 or 403 it ends, and another provider may be asked instead.
    const isWorse = failure.status !== 429 && this.chosen?.failure?.status === 429;
    if (!isKeyRefused || !isWorse) this.chosen = attempt;
    if (isKeyRefused && this.#takeKey()) {
      this.hasRetried = true;
      return 0;
    }
    return this.#retry(this.chosen!.failure!);
  }

  #retry({ details }: GatewayError): number | undefined {
    const { repeatAtOnce, retryable, retryAfterSeconds = 0 } = details;
    // Not a retry: a stale connection says nothing about the provider.
    if (repeatAtOnce && !this.reconnect) {
      this.reconnect = true;
      this.#beginKeys();
      return 0;
    }
    const isLast = this.#retries === this.#maxRetries;
    if (!retryable || isLast || retryAfterSeconds > MAX_AWAITED_SECONDS) return undefined;
    // Exponential with equal jitter: half of the step and a random part of the other half.
    const stepMs = Math.min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** this.#retries);
    const backoffMs = (stepMs / 2) * (1 + Math.random());
    this.#retries += 1;
    this.hasRetried = true;
    this.#beginKeys();
    return Math.max(backoffMs, retryAfterSeconds * 1000);
  }

  #beginKeys(): void {
    this.chosen = undefined;
    if (!this.#keyPool) return;
    this.#keys = this.#keyPool.keysToTry(this.#caller);
    this.#takeKey();
  }

  /** Returns false if all have been tried. */
  #takeKey(): boolean {
    const { done, value } = this.#keys!.next();
    if (done) return false;
    this.key = value;
    this.#cooldown = this.#keyPool!.cooldownOf(value);
    return true;
  }
}
