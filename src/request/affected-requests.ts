/** Counts the requests affected by an incident, and their clients. */

import type { Outcome } from '../lib/errors.ts';
import type { RequestHistory, Attempt } from './history.ts';

/** The most models in an incident, and the most clients per model. */
const MAX_COUNTED = 100;
/** The most models, and clients per model, in a list. */
const MAX_LISTED = 10;
/**
 * Requests count as failing for this time after the latest failed request. The page's minute is 50
 * to 60 s long, so the failure is still in its figures.
 */
const FAILING_MS = 50_000;
/** Stands for the model if a request was refused before its body was read. */
const UNREAD = '(body not read)';
const FAILED: ReadonlySet<Outcome> = new Set(['upstream_error', 'timeout', 'rate_limited']);

/** A model's affected requests. */
interface Requests {
  failed: number;
  /** Answered by the failing provider, since the first affected request. */
  good: number;
  /** Answered by another provider. */
  answered: number;
  /** The provider that answered the latest request in `answered`. */
  by: string | undefined;
  readonly clients: Set<string>;
}

/** Counts an incident's affected requests by model. */
export class AffectedRequests {
  /** By the model name in the client's request. */
  readonly #byName = new Map<string, Requests>();
  /** The first affected client with a name. */
  firstClient: string | undefined;
  /** When the latest request failed. */
  #failedMs: number | undefined;
  /** When the latest request failed, on the clock of `performance.now()`. */
  #failedAt = 0;

  /** When the latest request failed, unless it counts as failing now. */
  get quietSinceMs(): number | undefined {
    return performance.now() - this.#failedAt > FAILING_MS ? this.#failedMs : undefined;
  }

  /**
   * Counts a finished request if the incident affects it.
   *
   * @param isAbout - whether an attempt was at a failing model; undefined for a gateway incident,
   * which affects every request
   */
  add(
    { attempt, attempts, client, model: name = UNREAD }: RequestHistory,
    outcome: Outcome,
    isAbout?: (attempt: Attempt) => boolean,
  ): void {
    if (isAbout && !attempts.some(isAbout)) return;
    const isFailed = !isAbout || FAILED.has(outcome);
    if (!isFailed && outcome !== 'ok') return;
    const isGood = !isFailed && isAbout(attempt!);
    let requests = this.#byName.get(name);
    if (!requests) {
      if (isGood || this.#byName.size === MAX_COUNTED) return;
      requests = { failed: 0, good: 0, answered: 0, by: undefined, clients: new Set() };
      this.#byName.set(name, requests);
    }
    if (isGood) {
      requests.good += 1;
      return;
    }
    if (isFailed) {
      requests.failed += 1;
      this.#failedMs = Date.now();
      this.#failedAt = performance.now();
    } else {
      requests.answered += 1;
      requests.by = attempt!.provider;
    }
    this.firstClient ??= client;
    if (client !== undefined && requests.clients.size < MAX_COUNTED) requests.clients.add(client);
  }

  /**
   * Returns the models with the most failures, and how many more models there are.
   *
   * @param hasGood - whether to include `good`; false once the incident has ended, because an
   * incident outlasts its fault, so the count would mislead
   */
  toFacts(hasGood: boolean) {
    const sorted = [...this.#byName].toSorted(
      ([, a], [, b]) => b.failed - a.failed || b.answered - a.answered,
    );
    const listed = sorted.slice(0, MAX_LISTED).map(([name, { clients, good, ...counts }]) => {
      const shown = { good: hasGood ? good : undefined, clients: listOf([...clients]) };
      return { name, ...counts, ...shown };
    });
    return { listed, more: Math.max(0, sorted.length - MAX_LISTED) || undefined };
  }
}

function listOf(names: readonly string[]): string | undefined {
  const suffix = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : '';
  return names.slice(0, MAX_LISTED).join(', ') + suffix || undefined;
}
