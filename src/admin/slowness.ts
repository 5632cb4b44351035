/** Judges whether a provider is slow, by its median time to the first token. */

/**
 * A provider becomes slow at this multiple of its usual median, and stays slow down to half of it.
 */
const SLOW = 4;

/** Medians in milliseconds; undefined if too few streams have begun. */
interface Medians {
  /** The median of the last minute. */
  readonly newestMs: number | undefined;
  /** The median of the 15 minutes before the last minute. */
  readonly formerMs: number | undefined;
}

export class Slowness {
  /** The usual median of each slow provider, taken when it became slow. */
  readonly #usualMs = new Map<string, number>();

  /** Returns why the provider is slow now; undefined if it is not. */
  causeOf(provider: string, { newestMs = 0, formerMs }: Medians): string | undefined {
    const known = this.#usualMs.get(provider);
    const usualMs = Math.max(1, known ?? formerMs ?? Infinity);
    const isSlow = newestMs >= usualMs * (known ? SLOW / 2 : SLOW);
    if (isSlow) this.#usualMs.set(provider, usualMs);
    else this.#usualMs.delete(provider);
    return isSlow ? `first token after ${newestMs} ms, ${usualMs} ms before` : undefined;
  }
}
