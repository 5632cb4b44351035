/**
 * Sums the requests that a limit refuses, because a client that goes on would push everything else
 * out of the latest lines of the log.
 */

import { type CountingLogger, isPushedAway, type Place } from '../incidents/incident-log.ts';
import type { Limit } from '../lib/limits.ts';

const SUMMED_MS = 60_000;

/** A request that a limit of the gateway has refused before any provider was asked. */
interface RefusedRequest {
  /** Undefined for a key without a client. */
  readonly client: string | undefined;
  readonly limit: Limit;
  /** The limit's name in the settings, and how full it is; undefined for `memory`. */
  readonly limitState: string | undefined;
  /** The first provider for the request; undefined if it was refused before that was known. */
  readonly provider: string | undefined;
}

/** The requests of a client that a limit refuses, with less than a minute between. */
interface Refused {
  latest: RefusedRequest;
  /** When the latest request was refused, on the clock of `performance.now()`. */
  latestAtMs: number;
  /** When the first request was refused, in ISO 8601. */
  readonly since: string;
  count: number;
  /** Whether no line in the log has the latest request. */
  isUntold: boolean;
  /** Where the latest line about these requests is. */
  place: Place;
  timer: NodeJS.Timeout;
}

export class RefusalLog {
  /** By client, limit and provider, so the settings bound it. A quiet minute removes an entry. */
  readonly #all = new Map<string, Refused>();
  readonly #logger: CountingLogger;

  constructor(logger: CountingLogger) {
    this.#logger = logger;
  }

  /**
   * Counts a refused request. Returns true for the first, whose access line is written at its own
   * level. The following have a line `requests refused` at the end of each minute, and whenever
   * other lines have pushed the latest away.
   */
  add(request: RefusedRequest): boolean {
    const key = [request.client, request.limit, request.provider].join('\n');
    const latestAtMs = performance.now();
    const known = this.#all.get(key);
    if (known && latestAtMs - known.latestAtMs < SUMMED_MS) {
      known.latest = request;
      known.latestAtMs = latestAtMs;
      known.count += 1;
      known.isUntold = true;
      if (isPushedAway(known.place, this.#logger.lines)) this.#write(known);
      return false;
    }
    // The log has a line with the latest request, because a minute has passed since.
    clearTimeout(known?.timer);
    const since = new Date(Date.now()).toISOString();
    const timer = setTimeout(() => this.#endMinute(key), SUMMED_MS).unref();
    const place = { atMs: latestAtMs, lines: this.#logger.lines };
    const first = { latest: request, latestAtMs, since, count: 1, isUntold: false, place, timer };
    this.#all.set(key, first);
    return true;
  }

  /** Writes the sums of the minutes under way. To be called when the process ends. */
  close(): void {
    for (const refused of this.#all.values()) {
      clearTimeout(refused.timer);
      this.#write(refused);
    }
    this.#all.clear();
  }

  #endMinute(key: string): void {
    const refused = this.#all.get(key)!;
    const isQuiet = performance.now() - refused.latestAtMs >= SUMMED_MS;
    if (isQuiet && !refused.isUntold) return void this.#all.delete(key);
    this.#write(refused);
    refused.timer.refresh();
  }

  #write(refused: Refused): void {
    const { count, isUntold, latest, since } = refused;
    if (!isUntold) return;
    refused.isUntold = false;
    const { client, limit: reason, limitState: limit } = latest;
    this.#logger.log('warn', 'requests refused', { client, reason, limit, refused: count, since });
    refused.place = { atMs: performance.now(), lines: this.#logger.lines };
  }
}
