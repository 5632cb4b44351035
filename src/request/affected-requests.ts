/** The requests that an incident affects, and their clients. */

import type { Outcome } from '../lib/errors.ts';
import type { RequestHistory, Attempt } from './history.ts';

/** Names of models and clients that are counted, and how many of them are listed. */
const MAX_COUNTED = 100;
const MAX_LISTED = 10;
/** In the place of the model's name if the request was refused before its body was read. */
const UNREAD = '(body not read)';
const FAILED: ReadonlySet<Outcome> = new Set(['upstream_error', 'timeout', 'rate_limited']);

interface Requests {
  failed: number;
  /** Answered by the provider that fails, since the first that failed. */
  good: number;
  /** Answered by another provider, the latest of which is `by`. */
  answered: number;
  by: string | undefined;
  readonly clients: Set<string>;
}

export class AffectedRequests {
  /** By the name that clients use for the model. */
  readonly #byName = new Map<string, Requests>();
  /** The first client that has a name. */
  firstClient: string | undefined;

  /**
   * Counts a request that has ended. `isAbout`: an attempt was at a model that fails; absent for an
   * incident of the gateway.
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
    if (isFailed) requests.failed += 1;
    else {
      requests.answered += 1;
      requests.by = attempt!.provider;
    }
    this.firstClient ??= client;
    if (client !== undefined && requests.clients.size < MAX_COUNTED) requests.clients.add(client);
  }

  /**
   * Returns those with the most failures, and how many more names there are. An incident that has
   * ended has no `good`: it ended after its fault was over, so the number would mislead.
   */
  toFacts(hasGood: boolean) {
    const all = [...this.#byName].toSorted(
      ([, a], [, b]) => b.failed - a.failed || b.answered - a.answered,
    );
    const listed = all.slice(0, MAX_LISTED).map(([name, { clients, good, ...counts }]) => {
      const shown = { good: hasGood ? good : undefined, clients: listOf([...clients]) };
      return { name, ...counts, ...shown };
    });
    return { listed, more: Math.max(0, all.length - MAX_LISTED) || undefined };
  }
}

function listOf(names: readonly string[]): string | undefined {
  const more = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : '';
  return names.slice(0, MAX_LISTED).join(', ') + more || undefined;
}
