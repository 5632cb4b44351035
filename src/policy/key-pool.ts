/** A provider's keys, if it has several. */

import { digestOf, type Secret } from '../lib/secret.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { type SessionSource, choosingSession, rankedFor } from './affinity.ts';

/**
 * A provider may have refused the request and not the key: a credit may be too small for one
 * request, and pay for a shorter one.
 */
const FORBIDDEN: readonly (number | undefined)[] = [402, 403];
/**
 * While all keys are in cooldown, they are tried in this order. A key after a 429 comes first,
 * because its limit ends soon, and because another 429 lets the request fall back.
 */
const COOLDOWN_ORDER = [[429], FORBIDDEN, [401]];
/** The cooldown of a refused key. */
const REFUSED_MS = 60_000;
/** The cooldown after a 429 for a limit without `Retry-After`. */
const DEFAULT_LIMITED_SECONDS = 1;
/** A provider may send any `Retry-After`. */
const MAX_LIMITED_SECONDS = 3600;

interface Cooldown {
  readonly ms: number;
  readonly endsAtMs: number;
  readonly status: number;
}

interface Keys {
  readonly id: string;
  readonly apiKeys: readonly Secret[];
  readonly keyAffinity: boolean;
}

/** The code names a key by its index in the settings, from 0, the log by its position, from 1. */
export class KeyPool {
  /** By the key's index; undefined if a success has ended the cooldown early. */
  readonly #cooldowns: (Cooldown | undefined)[];
  /** The statuses of refused keys that have not worked since, by index. */
  readonly #refused = new Map<number, number>();
  readonly #onRefused: (keys: string | undefined) => void;
  readonly #provider: string;
  readonly #digests: readonly string[];
  readonly #hasAffinity: boolean;
  readonly #logger: Logger;
  #next = 0;

  /** `onRefused` gets the list of refused keys as text, or undefined when all keys work again. */
  constructor(
    { id, apiKeys, keyAffinity }: Keys,
    logger: Logger,
    onRefused: (keys: string | undefined) => void = () => {},
  ) {
    this.#cooldowns = apiKeys.map(() => undefined);
    this.#provider = id;
    this.#digests = apiKeys.map((apiKey) => digestOf([apiKey]));
    this.#hasAffinity = keyAffinity;
    this.#logger = logger;
    this.#onRefused = onRefused;
  }

  get inCooldown(): number {
    return this.#cooldowns.filter((cooldown) => !isOver(cooldown)).length;
  }

  /** The number of keys that are not refused. A 429 refuses no key. */
  get accepted(): number {
    return this.#cooldowns.length - this.#refused.size;
  }

  /**
   * Yields the keys to try, each once, anew for each retry. Available keys come first, in turn or
   * as ranked for the request's session. Then comes the key whose cooldown after a 429 ends first,
   * unless this request has already got a 429. The same holds for a 402 or 403. A key in cooldown
   * for a 401 is yielded only if no other key was.
   */
  *keysToTry(source?: SessionSource): Generator<number, undefined, undefined> {
    const count = this.#cooldowns.length;
    const session = source && choosingSession(source, this.#hasAffinity);
    const inTurn = Array.from({ length: count }, (_, step) => (this.#next + step) % count);
    const keys = session === undefined ? inTurn : rankedFor(session, this.#digests);
    if (source?.history.affinity === 'organisation') {
      yield keys[0]!;
      return;
    }
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
    for (const statuses of COOLDOWN_ORDER) {
      const alike = keys.filter((key) => statuses.includes(this.cooldownOf(key)?.status));
      const wasTried = alike.some((key) => tried.includes(key));
      const endsAtMs = (key: number) => this.cooldownOf(key)!.endsAtMs;
      const [first] = alike.toSorted((a, b) => endsAtMs(a) - endsAtMs(b));
      const isLast = statuses.includes(401);
      if (first === undefined || wasTried || (isLast && tried.length > 0)) continue;
      yield take(first);
    }
  }

  cooldownOf(key: number): Cooldown | undefined {
    return this.#cooldowns[key];
  }

  /**
   * `before` is the key's cooldown when the attempt started. If a later cooldown has replaced it,
   * the key was refused meanwhile, and the success changes nothing.
   */
  recordSuccess(key: number, before: Cooldown | undefined): void {
    if (this.cooldownOf(key) !== before) return;
    this.#accept(key);
    if (isOver(before)) return;
    // The provider refused the request and not the key, so all cooldowns after a 402 or 403 end.
    for (const [other, cooldown] of this.#cooldowns.entries()) {
      const isAlike = FORBIDDEN.includes(before?.status) && FORBIDDEN.includes(cooldown?.status);
      if (other === key || isAlike) this.#cooldowns[other] = undefined;
    }
  }

  /** Returns true, and begins a cooldown, if the provider refused the key and not the request. */
  recordFailure(key: number, { details, scope, status }: GatewayError): boolean {
    const { limit, retryAfterSeconds = DEFAULT_LIMITED_SECONDS } = details;
    if (scope !== 'key' && limit !== 'upstream') return false;
    const limitedMs = Math.min(MAX_LIMITED_SECONDS, retryAfterSeconds) * 1000;
    // The status of a refused key may be 429 too, for an account without money.
    const ms = scope === 'key' ? REFUSED_MS : limitedMs;
    if (scope === 'key') {
      this.#refused.set(key, status);
      this.#reportRefused();
    }
    this.#begin(key, { ms, endsAtMs: performance.now() + ms, status });
    return true;
  }

  #accept(key: number): void {
    const status = this.#refused.get(key);
    if (status === undefined) return;
    for (const [other, otherStatus] of this.#refused) {
      const isAlike = FORBIDDEN.includes(status) && FORBIDDEN.includes(otherStatus);
      if (other === key || isAlike) this.#refused.delete(other);
    }
    this.#reportRefused();
  }

  #reportRefused(): void {
    const keys = [...this.#refused].toSorted(([a], [b]) => a - b);
    const text = keys.map(([key, status]) => `key ${key + 1}: ${status}`).join(', ');
    const others = this.accepted > 0 ? 'the others are used' : 'none is left';
    const count = `${keys.length} of ${this.#cooldowns.length} keys, ${others}`;
    this.#onRefused(keys.length > 0 ? `${count}: ${text}` : undefined);
  }

  #begin(key: number, cooldown: Cooldown): void {
    const before = this.cooldownOf(key);
    // Answers arrive out of order, so a shorter cooldown must not replace a longer cooldown.
    if (before && !isOver(before) && before.endsAtMs >= cooldown.endsAtMs) return;
    this.#cooldowns[key] = cooldown;
    // Several requests may be refused at the same time, and a cooldown has a single line.
    if (!isOver(before)) return;
    const { ms: cooldown_ms, status } = cooldown;
    const fields = { provider: this.#provider, key: key + 1, status, cooldown_ms };
    this.#logger.log('warn', 'key in cooldown', fields);
  }
}

export class TakenKey {
  readonly index: number;
  readonly #pool: KeyPool;
  readonly #cooldown: Cooldown | undefined;

  constructor(pool: KeyPool, index: number) {
    this.index = index;
    this.#pool = pool;
    this.#cooldown = pool.cooldownOf(index);
  }

  /** The key has worked, unless `failure`, such as an error event in the stream, refuses it. */
  recordEnd(failure: GatewayError | undefined): void {
    if (failure && this.#pool.recordFailure(this.index, failure)) return;
    this.#pool.recordSuccess(this.index, this.#cooldown);
  }
}

function isOver(cooldown: Cooldown | undefined): boolean {
  return !cooldown || performance.now() >= cooldown.endsAtMs;
}
