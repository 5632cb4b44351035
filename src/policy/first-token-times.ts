/** How fast a target of `balance = "fastest"` begins its streams. */

import type { Attempt } from '../request/history.ts';
import { providerKindOf } from '../request/incident-kind.ts';

const WINDOW_MS = 300_000;
/** Bounds the memory of a target, and the work to sort its times. */
const MAX_TIMES = 64;
/** So many times show a target's speed, because one may be a cold start or a long prompt. */
const NEWEST_TIMES = 3;
const BUSY_FACTOR = 10;
/**
 * A shorter usual time counts as this, because a pause of this process of 10 ms would make a target
 * of 1 ms busy.
 */
const LEAST_USUAL_MS = 10;

type StreamAttempt = Pick<
  Attempt,
  'beganAtMs' | 'sentAtMs' | 'decidedAtMs' | 'hasAnswer' | 'failure'
>;

interface Entry {
  /** When the stream began or failed, or its client left. */
  readonly atMs: number;
  /** Infinity for a failure; undefined if the client left too early to tell. */
  readonly tookMs: number | undefined;
}

/**
 * A target's times from a sent request to the first token of its stream. The time to connect is
 * left out, because most requests reuse a connection. A failure counts as slower than every time:
 * otherwise a target that fails at once would keep its short times, or would have none.
 */
export class FirstTokenTimes {
  #entries: readonly Entry[] = [];

  add({ beganAtMs, sentAtMs = beganAtMs, decidedAtMs }: StreamAttempt): void {
    this.#push({ atMs: decidedAtMs!, tookMs: decidedAtMs! - sentAtMs });
  }

  /** Counts a failure of the target, which replaces the time of a stream whose answer had begun. */
  recordEnd({ decidedAtMs, failure, hasAnswer }: StreamAttempt): void {
    if (!failure || !providerKindOf(failure, hasAnswer)) return;
    const at = hasAnswer ? this.#entries.findIndex(({ atMs }) => atMs === decidedAtMs) : -1;
    this.#entries = this.#entries.filter((_, index) => index !== at);
    this.#push({ atMs: performance.now(), tookMs: Infinity });
  }

  /**
   * Adds the wait of a stream whose client left, because a target that hangs would otherwise keep
   * its median. A wait shorter than usual only counts as one of the first three, which a target
   * that hangs would otherwise never have.
   */
  addSilence({ beganAtMs, sentAtMs = beganAtMs }: StreamAttempt): void {
    const { isKnown, usualMs } = this.state;
    const atMs = performance.now();
    const waitedMs = atMs - sentAtMs;
    if (waitedMs > usualMs) this.#push({ atMs, tookMs: waitedMs });
    else if (!isKnown) this.#push({ atMs, tookMs: undefined });
  }

  /**
   * Returns the median of the last five minutes, in milliseconds; Infinity without a stream.
   * `isKnown`: there were three streams. `isBusy`: the median of the three newest times is ten
   * times as long.
   */
  get state(): { readonly usualMs: number; readonly isKnown: boolean; readonly isBusy: boolean } {
    const oldestAtMs = performance.now() - WINDOW_MS;
    const entries = this.#entries.filter(({ atMs }) => atMs >= oldestAtMs);
    const times = entries.flatMap(({ tookMs }) => tookMs ?? []);
    const usualMs = medianOf(times);
    const busyMs = Math.max(usualMs, LEAST_USUAL_MS) * BUSY_FACTOR;
    const isSlow = medianOf(times.slice(-NEWEST_TIMES)) >= busyMs;
    const isKnown = entries.length >= NEWEST_TIMES;
    return { usualMs, isKnown, isBusy: isSlow && times.length >= NEWEST_TIMES };
  }

  #push(entry: Entry): void {
    this.#entries = [...this.#entries, entry].slice(-MAX_TIMES);
  }
}

function medianOf(values: readonly number[]): number {
  // Two times of Infinity have no difference.
  const sorted = values.toSorted((a, b) => (a === b ? 0 : a - b));
  return sorted[(values.length - 1) >> 1] ?? Infinity;
}
