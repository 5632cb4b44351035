/** Judges whether a provider is slow, by its median first token and its median connect time. */

/** A time is slow from this multiple of its usual median, and stays slow down to half of it. */
const SLOW = 4;

/** Medians in milliseconds; undefined if there are too few times. */
interface Medians {
  /** The median of the last minute. */
  readonly newestMs: number | undefined;
  /** The median of the 14 minutes before. */
  readonly formerMs: number | undefined;
}

const TIMES = [
  { name: 'first_token', words: 'first token', leastUsualMs: 1, assumedMs: Infinity },
  // A slow name server is found at the start too. A few milliseconds more are no fault.
  { name: 'connect', words: 'connect', leastUsualMs: 25, assumedMs: 250 },
] as const;
type Time = (typeof TIMES)[number];

export class Slowness {
  /** The usual medians of times that are slow, taken when they became slow. */
  readonly #usualMs = new Map<string, number>();

  /** Returns why the provider is slow now; undefined if it is not. */
  causeOf(provider: string, mediansOf: (time: Time['name']) => Medians): string | undefined {
    const causes = TIMES.flatMap((time) => {
      return this.#judge(`${provider} ${time.name}`, time, mediansOf(time.name)) ?? [];
    });
    return causes.length > 0 ? causes.join(', ') : undefined;
  }

  #judge(
    key: string,
    { words, leastUsualMs, assumedMs }: Time,
    { newestMs = 0, formerMs }: Medians,
  ): string | undefined {
    const known = this.#usualMs.get(key);
    const usualMs = Math.max(leastUsualMs, known ?? formerMs ?? assumedMs);
    const isSlow = newestMs >= usualMs * (known ? SLOW / 2 : SLOW);
    if (isSlow) this.#usualMs.set(key, usualMs);
    else this.#usualMs.delete(key);
    return isSlow ? `${words} after ${newestMs} ms, ${usualMs} ms is usual` : undefined;
  }
}
