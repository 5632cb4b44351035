/** The keys of a provider that has several: used in turn, and a refused one rests while the others serve. */

import type { ProviderSettings } from '../config/providers-section.ts';
import { sharedNowWholeMs } from '../lib/clock.ts';
import type { GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import { digestOf } from '../lib/secrets.ts';
import type { SharedMemory } from '../lib/shared-memory.ts';

/**
 * The statuses of a key that has reached its limit, may not do this, or was revoked. While all keys rest, they are
 * asked in this order: a limit ends and lets the request fall back, a 403 may have been about another request.
 */
const KEY_STATUSES = [429, 403, 401];
const REJECTED_REST_MS = 60_000;
/** A 429 without `Retry-After`. */
const DEFAULT_LIMITED_SECONDS = 1;
const MAX_LIMITED_SECONDS = 3600;

/** Whether an answer with this status may be different with another key. */
export function isKeyStatus(status: number): boolean {
  return KEY_STATUSES.includes(status);
}

/** The latest rest of a key in one number: when it ends, on the clock that threads share, and its status; 0 if there is none. */
type Rest = bigint;

const NO_REST: Rest = 0n;
/** Holds an index of `KEY_STATUSES`. */
const STATUS_BITS = 2n;
const STATUS_MASK = 3n;

function toRest(untilMs: number, status: number): Rest {
  return (BigInt(untilMs) << STATUS_BITS) | BigInt(KEY_STATUSES.indexOf(status));
}

function endOf(rest: Rest): number {
  return Number(rest >> STATUS_BITS);
}

function statusOf(rest: Rest): number | undefined {
  return rest === NO_REST ? undefined : KEY_STATUSES[Number(rest & STATUS_MASK)];
}

function isOver(rest: Rest): boolean {
  return sharedNowWholeMs() >= endOf(rest);
}

/**
 * Keys are named by their index in the settings, from 0; in the log by their position, from 1. The threads of the
 * process share the turn and the rests.
 */
export class KeyPool {
  readonly #provider: string;
  readonly #logger: Logger;
  readonly #size: number;
  /** The rest of each key, by index, and then the index at which the next round begins to look. */
  readonly #cells: BigInt64Array;

  /** Finds the state in `memory` if all settings of the provider are the same; else no key rests. */
  constructor(settings: ProviderSettings, memory: SharedMemory, logger: Logger) {
    const { id, apiKeys } = settings;
    this.#provider = id;
    this.#logger = logger;
    this.#size = apiKeys.length;
    const bytes = (this.#size + 1) * BigInt64Array.BYTES_PER_ELEMENT;
    this.#cells = new BigInt64Array(memory.block(`keys: ${id} ${digestOf(settings)}`, bytes));
  }

  /**
   * Yields the keys to ask with, until one is not refused, each once: those that do not rest, in turn, and then the
   * one whose rest for a 429 ends first, and the same for a 403, if this round has no such answer yet. One that rests
   * for a 401 is asked only if there is no other.
   */
  *round(): Generator<number, undefined, undefined> {
    const first = Number(Atomics.load(this.#cells, this.#size));
    const asked: number[] = [];
    const ask = (key: number) => {
      Atomics.store(this.#cells, this.#size, BigInt(key + 1));
      asked.push(key);
      return key;
    };
    for (let step = 0; step < this.#size; step += 1) {
      const key = (first + step) % this.#size;
      if (isOver(this.restOf(key))) yield ask(key);
    }
    for (const status of KEY_STATUSES) {
      const hasAnswer = asked.some((key) => statusOf(this.restOf(key)) === status);
      const key = hasAnswer ? undefined : this.#firstToEnd(status);
      if (key !== undefined && (status !== 401 || asked.length === 0)) yield ask(key);
    }
  }

  /** Returns the latest rest of a key, which may be over: before it is asked, for `recordSuccess`. */
  restOf(key: number): Rest {
    return Atomics.load(this.#cells, key);
  }

  /** A key has worked that had this rest when it was asked. If it still has the same one, it no longer rests. */
  recordSuccess(key: number, rest: Rest): void {
    if (isOver(rest) || !this.#replace(key, rest, NO_REST) || statusOf(rest) !== 403) return;
    // Its 403 was about a request and not about the key; so were those of the keys that were asked next.
    for (let other = 0; other < this.#size; other += 1) {
      const another = this.restOf(other);
      if (statusOf(another) === 403) this.#replace(other, another, NO_REST);
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
    for (let key = 0; key < this.#size; key += 1) {
      const rest = this.restOf(key);
      if (statusOf(rest) !== status || endOf(rest) >= earliestMs) continue;
      [earliest, earliestMs] = [key, endOf(rest)];
    }
    return earliest;
  }

  #rest(key: number, status: number, restMs: number): void {
    const untilMs = sharedNowWholeMs() + restMs;
    let before: Rest;
    do {
      before = this.restOf(key);
      // A request that was sent before may be answered with a shorter wait.
      if (!isOver(before) && endOf(before) >= untilMs) return;
    } while (!this.#replace(key, before, toRest(untilMs, status)));
    // One line for each rest, also if several threads are refused at the same time.
    if (!isOver(before)) return;
    const facts = { provider: this.#provider, key: key + 1, status, rest_ms: restMs };
    this.#logger.log('warn', 'key rests', facts);
  }

  /** Returns false, and replaces nothing, if another thread was faster. */
  #replace(key: number, before: Rest, after: Rest): boolean {
    return Atomics.compareExchange(this.#cells, key, before, after) === before;
  }
}
