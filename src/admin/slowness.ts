/** Judges whether a provider is slow, by its first tokens and its connect times. */

import type { AllNames } from './names.ts';

/** A time is slow from this multiple of the usual time, and stays slow down to half of it. */
const SLOW = 4;

/** Typical times in milliseconds; undefined if there are too few times. */
interface TypicalTimes {
  /** The typical time of the last minute. */
  readonly newestMs: number | undefined;
  /** The typical time of the 14 minutes before. */
  readonly formerMs: number | undefined;
}

const TIMES = [
  { name: 'first_token', words: 'first token after', leastUsualMs: 1, assumedMs: Infinity },
  // A slow name server is found at the start too. A few milliseconds more are no fault.
  {
    name: 'connect',
    words: 'every fourth connect takes at least',
    leastUsualMs: 25,
    assumedMs: 250,
  },
] as const;
type Time = (typeof TIMES)[number];

export class Slowness {
  /** The usual times of slow providers, taken when they became slow. */
  readonly #usualMs = new Map<string, number>();

  /** Forgets providers that are known no longer. */
  forgetUnknown({ providers }: AllNames): void {
    for (const key of this.#usualMs.keys()) {
      if (!providers.has(key.slice(0, key.lastIndexOf(' ')))) this.#usualMs.delete(key);
    }
  }

  /** Returns why the provider is slow now; undefined if it is not. */
  causeOf(provider: string, timesOf: (time: Time['name']) => TypicalTimes): string | undefined {
    const causes = TIMES.flatMap((time) => {
      return this.#judge(`${provider} ${time.name}`, time, timesOf(time.name)) ?? [];
    });
    return causes.length > 0 ? causes.join(', ') : undefined;
  }

  #judge(
    key: string,
    { words, leastUsualMs, assumedMs }: Time,
    { newestMs = 0, formerMs }: TypicalTimes,
  ): string | undefined {
    const known = this.#usualMs.get(key);
    const usualMs = Math.max(leastUsualMs, known ?? formerMs ?? assumedMs);
    const isSlow = newestMs >= usualMs * (known ? SLOW / 2 : SLOW);
    if (isSlow) this.#usualMs.set(key, usualMs);
    else this.#usualMs.delete(key);
    return isSlow ? `${words} ${newestMs} ms, ${usualMs} ms is usual` : undefined;
  }
}
