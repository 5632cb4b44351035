/** The keys of a provider that has several: used in turn, and a refused one is left out for a while. */

import type { ProviderSettings } from '../config/providers-section.ts';
import { sharedNowWholeMs } from '../lib/shared-memory.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { digestOf } from '../lib/secrets.ts';

/**
 * The statuses of a key that has reached its limit, may not do this, or was revoked. While all keys are in cooldown, they
 * are asked in this order: a limit ends and lets the request fall back, a 403 may have been about another request.
 */
const KEY_STATUSES = [429, 403, 401];
const REJECTED_MS = 60_000;
/** A 429 without `Retry-After`. */
const DEFAULT_LIMITED_SECONDS = 1;
const MAX_LIMITED_SECONDS = 3600;

/** Whether an answer with this status may be different with another key. */
export function isKeyStatus(status: number): boolean {
  return KEY_STATUSES.includes(status);
}

/** The latest one of a key, which may be over. */
export interface Cooldown {
  /** How long it is. */
  readonly ms: number;
  /** On the clock of `sharedNowMs()`. */
  readonly untilMs: number;
  readonly status: number;
}

/** A change that other threads make in the pool with this name. */
export interface KeyEvent {
  readonly type: 'key';
  readonly pool: string;
  readonly key: number;
  /** Absent if it has ended before its time. */
  readonly cooldown: Cooldown | undefined;
}

/** Keys are named by their index in the settings, from 0; in the log by their position, from 1. */
export class KeyPool {
  /** The same in all threads, and another one if the settings of the provider differ. */
  readonly name: string;
  readonly #provider: string;
  readonly #logger: Logger;
  readonly #share: ((event: KeyEvent) => void) | undefined;
  readonly #cooldowns: (Cooldown | undefined)[];
  /** The key at which the next round begins to look. */
  #next = 0;

  /** `share` takes this thread's changes to other threads. */
  constructor(settings: ProviderSettings, logger: Logger, share?: (event: KeyEvent) => void) {
    this.name = `${settings.id} ${digestOf(settings)}`;
    this.#provider = settings.id;
    this.#logger = logger;
    this.#share = share;
    this.#cooldowns = settings.apiKeys.map(() => undefined);
  }

  /** The changes that lead to the present state. */
  get events(): KeyEvent[] {
    return this.#cooldowns.map((cooldown, key) => this.#eventOf(key, cooldown));
  }

  /**
   * Yields the keys to ask with, until one is not refused, each once: those that are not in cooldown, in turn, and then
   * the one whose cooldown for a 429 ends first, and the same for a 403, if this round has no such answer yet. One in
   * cooldown for a 401 is asked only if there is no other.
   */
  *round(): Generator<number, undefined, undefined> {
    const first = this.#next;
    const asked: number[] = [];
    const ask = (key: number) => {
      this.#next = key + 1;
      asked.push(key);
      return key;
    };
    for (let step = 0; step < this.#cooldowns.length; step += 1) {
      const key = (first + step) % this.#cooldowns.length;
      if (isOver(this.restOf(key))) yield ask(key);
    }
    for (const status of KEY_STATUSES) {
      const hasAnswer = asked.some((key) => this.restOf(key)?.status === status);
      const key = hasAnswer ? undefined : this.#firstToEnd(status);
      if (key !== undefined && (status !== 401 || asked.length === 0)) yield ask(key);
    }
  }

  /** Returns the latest cooldown of a key: before it is asked, for `recordSuccess`. */
  restOf(key: number): Cooldown | undefined {
    return this.#cooldowns[key];
  }

  /** A key has worked that had this cooldown when it was asked. If it still has the same one, that ends. */
  recordSuccess(key: number, before: Cooldown | undefined): void {
    if (isOver(before) || this.restOf(key) !== before) return;
    // A 403 was about a request and not about the key; so were those of the keys that were asked next.
    for (const [other, cooldown] of this.#cooldowns.entries()) {
      const isAlike = before?.status === 403 && cooldown?.status === 403;
      if (other === key || isAlike) this.#record(other, undefined);
    }
  }

  /** Returns whether the key was refused, and not the request. If so, its cooldown begins. */
  recordFailure(key: number, { details }: GatewayError): boolean {
    const {
      mayFallBack,
      retryAfterSeconds = DEFAULT_LIMITED_SECONDS,
      upstreamStatus = 0,
    } = details;
    const isPolicy = mayFallBack === false;
    if (!isKeyStatus(upstreamStatus) || isPolicy) return false;
    const limitedMs = Math.min(MAX_LIMITED_SECONDS, retryAfterSeconds) * 1000;
    const ms = upstreamStatus === 429 ? limitedMs : REJECTED_MS;
    this.#record(key, { ms, untilMs: sharedNowWholeMs() + ms, status: upstreamStatus });
    return true;
  }

  /** Makes a change that another thread has made. */
  apply({ key, cooldown }: KeyEvent): void {
    const before = this.restOf(key);
    // A request that was sent before may be answered with a shorter wait.
    if (cooldown && before && !isOver(before) && before.untilMs >= cooldown.untilMs) return;
    this.#cooldowns[key] = cooldown;
    // One line for each cooldown, also if several requests are refused at the same time.
    if (!cooldown || !isOver(before)) return;
    const { ms, status } = cooldown;
    const fields = { provider: this.#provider, key: key + 1, status, rest_ms: ms };
    this.#logger.log('warn', 'key rests', fields);
  }

  #record(key: number, cooldown: Cooldown | undefined): void {
    const event = this.#eventOf(key, cooldown);
    this.apply(event);
    this.#share?.(event);
  }

  #eventOf(key: number, cooldown: Cooldown | undefined): KeyEvent {
    return { type: 'key', pool: this.name, key, cooldown };
  }

  /** Of the keys whose latest cooldown is for this status, the one whose cooldown ends first. */
  #firstToEnd(status: number): number | undefined {
    const keys = [...this.#cooldowns.keys()].filter((key) => this.restOf(key)?.status === status);
    const endOf = (key: number) => this.restOf(key)!.untilMs;
    return keys.toSorted((a, b) => endOf(a) - endOf(b))[0];
  }
}

function isOver(cooldown: Cooldown | undefined): boolean {
  return !cooldown || sharedNowWholeMs() >= cooldown.untilMs;
}
