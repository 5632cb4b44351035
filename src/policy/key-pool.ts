/**
 * The keys of a provider that has several: used in turn, and a refused one is left out for a while.
 */

import { digestOf, type Secret } from '../lib/secret.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { type Caller, rankedFor, sessionOf } from './affinity.ts';

/**
 * The statuses of a key that has reached its limit, may not do this, or was revoked. While all keys
 * are in cooldown, they are asked in this order: a limit ends and lets the request fall back, a 403
 * may have been about another request.
 */
const KEY_STATUSES = [429, 403, 401];
const REJECTED_MS = 60_000;
/** A 429 without `Retry-After`. */
const DEFAULT_LIMITED_SECONDS = 1;
const MAX_LIMITED_SECONDS = 3600;

/** Returns true if an answer with this status may be different with another key. */
export const isKeyStatus = (status: number) => KEY_STATUSES.includes(status);

/** The latest one of a key, `ms` long, which may be over. */
interface Cooldown {
  readonly ms: number;
  /** On the clock of `performance.now()`. */
  readonly untilMs: number;
  readonly status: number;
}

interface Keys {
  readonly id: string;
  readonly apiKeys: readonly Secret[];
  readonly keyAffinity: boolean;
}

/** Keys are named by their index in the settings, from 0; in the log by their position, from 1. */
export class KeyPool {
  /** By the index of the key: its latest cooldown, unless that has ended before its time. */
  readonly #cooldowns: (Cooldown | undefined)[];
  /** By the index of each key that was refused and has not worked since: the status. */
  readonly #refused = new Map<number, number>();
  readonly #onRefused: (keys: string | undefined) => void;
  readonly #provider: string;
  /** Digests of the keys, if a session has its own; else keys are used in turn. */
  readonly #digests: readonly string[] | undefined;
  readonly #logger: Logger;
  /** The key to try first next time, if it is not in cooldown. */
  #next = 0;

  /**
   * `onRefused` is called with the keys that are refused, in words, when they change; without any
   * when all work again.
   */
  constructor(
    { id, apiKeys, keyAffinity }: Keys,
    logger: Logger,
    onRefused: (keys: string | undefined) => void = () => {},
  ) {
    this.#cooldowns = apiKeys.map(() => undefined);
    this.#provider = id;
    this.#digests = keyAffinity ? apiKeys.map((apiKey) => digestOf([apiKey])) : undefined;
    this.#logger = logger;
    this.#onRefused = onRefused;
  }

  /** How many keys are not used for a while. */
  get inCooldown(): number {
    return this.#cooldowns.filter((cooldown) => !isOver(cooldown)).length;
  }

  /** How many keys were not refused since they last worked. A 429 is no refusal. */
  get accepted(): number {
    return this.#cooldowns.length - this.#refused.size;
  }

  /**
   * Yields the keys to try, each once, until one is not refused: the available keys in turn, or for
   * a session in an order of its own; then the key whose cooldown for a 429 ends first, and the one
   * for a 403, unless this request has had that status already. A key in cooldown for a 401 is
   * yielded only if there is no other.
   */
  *keysToTry(caller?: Caller): Generator<number, undefined, undefined> {
    const count = this.#cooldowns.length;
    const session = this.#digests && caller && sessionOf(caller);
    const inTurn = Array.from({ length: count }, (_, step) => (this.#next + step) % count);
    const keys = session === undefined ? inTurn : rankedFor(session, this.#digests!);
    const tried: number[] = [];
    const take = (key: number) => {
      this.#next = key + 1;
      tried.push(key);
      return key;
    };
    // A cooldown may end while another key is tried.
    const available = () =>
      keys.find((key) => !tried.includes(key) && isOver(this.cooldownOf(key)));
    for (let key = available(); key !== undefined; key = available()) yield take(key);
    for (const status of KEY_STATUSES) {
      const alike = keys.filter((key) => this.cooldownOf(key)?.status === status);
      const wasTried = alike.some((key) => tried.includes(key));
      const untilMs = (key: number) => this.cooldownOf(key)!.untilMs;
      const [first] = alike.toSorted((one, other) => untilMs(one) - untilMs(other));
      if (first === undefined || wasTried || (status === 401 && tried.length > 0)) continue;
      yield take(first);
    }
  }

  /** Returns the latest cooldown of a key: before it is tried, for `recordSuccess`. */
  cooldownOf(key: number): Cooldown | undefined {
    return this.#cooldowns[key];
  }

  /**
   * A key has worked that had this cooldown when it was tried. If it still has the same one, that
   * ends.
   */
  recordSuccess(key: number, before: Cooldown | undefined): void {
    this.#accept(key);
    if (isOver(before) || this.cooldownOf(key) !== before) return;
    // A success after a 403 shows that the request was refused and not the key: the cooldowns of
    // all keys for 403 end.
    for (const [other, cooldown] of this.#cooldowns.entries()) {
      const isAlike = before?.status === 403 && cooldown?.status === 403;
      if (other === key || isAlike) this.#cooldowns[other] = undefined;
    }
  }

  /** Returns whether the key was refused, and not the request. If so, its cooldown begins. */
  recordFailure(key: number, { details }: GatewayError): boolean {
    const { retryAfterSeconds = DEFAULT_LIMITED_SECONDS, upstreamStatus: status = 0 } = details;
    if (!isKeyStatus(status) || details.problem === 'policy') return false;
    const limitedMs = Math.min(MAX_LIMITED_SECONDS, retryAfterSeconds) * 1000;
    const ms = status === 429 ? limitedMs : REJECTED_MS;
    if (status !== 429) {
      this.#refused.set(key, status);
      this.#tellRefused();
    }
    this.#begin(key, { ms, untilMs: performance.now() + ms, status });
    return true;
  }

  /**
   * The key has worked: it is refused no more, nor is another one that was answered 403 as this one
   * was.
   */
  #accept(key: number): void {
    const status = this.#refused.get(key);
    if (status === undefined) return;
    for (const [other, one] of this.#refused) {
      if (other === key || (status === 403 && one === 403)) this.#refused.delete(other);
    }
    this.#tellRefused();
  }

  #tellRefused(): void {
    const keys = [...this.#refused].toSorted(([a], [b]) => a - b);
    const text = keys.map(([key, status]) => `key ${key + 1}: ${status}`).join(', ');
    this.#onRefused(text || undefined);
  }

  #begin(key: number, cooldown: Cooldown): void {
    const before = this.cooldownOf(key);
    // A request that was sent before may be answered with a shorter wait.
    if (before && !isOver(before) && before.untilMs >= cooldown.untilMs) return;
    this.#cooldowns[key] = cooldown;
    // One line for each cooldown, also if several requests are refused at the same time.
    if (!isOver(before)) return;
    const { ms: cooldown_ms, status } = cooldown;
    const fields = { provider: this.#provider, key: key + 1, status, cooldown_ms };
    this.#logger.log('warn', 'key in cooldown', fields);
  }
}

/** A key that was taken for one attempt. */
export class TakenKey {
  readonly index: number;
  readonly #pool: KeyPool;
  /** The cooldown of the key before it was sent. */
  readonly #cooldown: Cooldown | undefined;

  constructor(pool: KeyPool, index: number) {
    this.index = index;
    this.#pool = pool;
    this.#cooldown = pool.cooldownOf(index);
  }

  /** The provider has answered a request with this key. */
  recordSuccess(): void {
    this.#pool.recordSuccess(this.index, this.#cooldown);
  }
}

function isOver(cooldown: Cooldown | undefined): boolean {
  return !cooldown || performance.now() >= cooldown.untilMs;
}
