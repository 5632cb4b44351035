/** When a provider is slow: by its median time to the first token, beside the usual one. */

/** A provider becomes slow at so many times the usual median, and is slow until half as many. */
const SLOW = 4;

/** In milliseconds; undefined if too few streams have begun. */
interface Medians {
  /** Of the last minute. */
  readonly newestMs: number | undefined;
  /** Of the quarter of an hour before. */
  readonly formerMs: number | undefined;
}

export class Slowness {
  /** The former median of each provider that is slow, when it became slow. */
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
