/** The keys of a provider that has several: used in turn, and a refused one rests while the others serve. */

import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';

/**
 * The statuses of a key that has reached its limit, may not do this, or was revoked. While all keys rest, they are
 * asked in this order: a limit ends and lets the request fall back, a 403 may have been about another request.
 */
const KEY_STATUSES = new Set([429, 403, 401]);
const REJECTED_REST_MS = 60_000;
/** A 429 without `Retry-After`. */
const DEFAULT_LIMITED_SECONDS = 1;
const MAX_LIMITED_SECONDS = 3600;

/** Whether an answer with this status may be different with another key. */
export function isKeyStatus(status: number): boolean {
  return KEY_STATUSES.has(status);
}

/** Times are in milliseconds on the clock of `performance.now()`. */
interface Rest {
  readonly status: number;
  readonly sinceMs: number;
  readonly untilMs: number;
}

/** Keys are named by their index in the settings, from 0; in the log by their position, from 1. */
export class KeyPool {
  readonly #provider: string;
  readonly #logger: Logger;
  /** The latest rest of each key, by index. */
  readonly #rests: (Rest | undefined)[];
  /** The index at which the next round begins to look. */
  #turn = 0;

  /** `provider` is its id, for the log; `size` the number of its keys. */
  constructor(provider: string, size: number, logger: Logger) {
    this.#provider = provider;
    this.#rests = Array<Rest | undefined>(size).fill(undefined);
    this.#logger = logger;
  }

  /**
   * Yields the keys to ask with, until one is not refused, each once: those that do not rest, in turn, and then the
   * one whose rest for a 429 ends first, and the same for a 403, if this round has no such answer yet. One that rests
   * for a 401 is asked only if there is no other.
   */
  *round(): Generator<number, undefined, undefined> {
    const first = this.#turn;
    const asked: number[] = [];
    const ask = (key: number) => {
      this.#turn = key + 1;
      asked.push(key);
      return key;
    };
    for (let step = 0; step < this.#rests.length; step += 1) {
      const key = (first + step) % this.#rests.length;
      if (!this.#restOf(key)) yield ask(key);
    }
    for (const status of KEY_STATUSES) {
      const hasAnswer = asked.some((key) => this.#rests[key]?.status === status);
      const key = hasAnswer ? undefined : this.#firstToEnd(status);
      if (key !== undefined && (status !== 401 || asked.length === 0)) yield ask(key);
    }
  }

  /** A key that was asked at `askedAtMs` has worked. If it rested at that time, it no longer does. */
  recordSuccess(key: number, askedAtMs: number): void {
    const rest = this.#restOf(key);
    if (rest === undefined || rest.sinceMs > askedAtMs) return;
    this.#rests[key] = undefined;
    if (rest.status !== 403) return;
    // Its 403 was about a request and not about the key; so were those of the keys that were asked next.
    for (const [other, another] of this.#rests.entries()) {
      if (another?.status === 403) this.#rests[other] = undefined;
    }
  }

  /** Returns whether the key was refused, and not the request. If so, it rests. */
  recordFailure(key: number, { facts }: GatewayError): boolean {
    const { mayFallBack, retryAfterSeconds = DEFAULT_LIMITED_SECONDS, upstreamStatus = 0 } = facts;
    const isPolicy = mayFallBack === false;
    if (!isKeyStatus(upstreamStatus) || isPolicy) return false;
    const limitedMs = Math.min(MAX_LIMITED_SECONDS, retryAfterSeconds) * 1000;
    this.#rest(key, upstreamStatus, upstreamStatus === 429 ? limitedMs : REJECTED_REST_MS);
    return true;
  }

  /** Of the keys whose latest rest is for this status, the one whose rest ends first. */
  #firstToEnd(status: number): number | undefined {
    let earliest: number | undefined;
    let earliestMs = Infinity;
    for (const [key, rest] of this.#rests.entries()) {
      if (rest?.status !== status || rest.untilMs >= earliestMs) continue;
      [earliest, earliestMs] = [key, rest.untilMs];
    }
    return earliest;
  }

  #restOf(key: number): Rest | undefined {
    const rest = this.#rests[key];
    return rest && performance.now() < rest.untilMs ? rest : undefined;
  }

  #rest(key: number, status: number, restMs: number): void {
    const sinceMs = performance.now();
    const before = this.#restOf(key);
    const untilMs = sinceMs + restMs;
    // A request that was sent before may be answered with a shorter wait.
    if (before && before.untilMs >= untilMs) return;
    this.#rests[key] = { status, sinceMs, untilMs };
    if (before) return;
    const facts = { provider: this.#provider, key: key + 1, status, rest_ms: restMs };
    this.#logger.log('warn', 'key rests', facts);
  }
}
