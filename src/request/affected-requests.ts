/** The requests that an incident affects, and their clients. */

import type { Outcome } from '../lib/errors.ts';
import type { RequestHistory, Attempt } from './history.ts';

/** Maximum number of models in an incident, and of clients for each model. */
const MAX_COUNTED = 100;
/** Maximum number of models, and of clients for each model, in a list. */
const MAX_LISTED = 10;
/** Stands for the model if a request was refused before its body was read. */
const UNREAD = '(body not read)';
const FAILED: ReadonlySet<Outcome> = new Set(['upstream_error', 'timeout', 'rate_limited']);

/** The affected requests for a model. */
interface Requests {
  failed: number;
  /** Requests that the failing provider has answered since the first affected request. */
  good: number;
  /** Requests that another provider has answered. */
  answered: number;
  /** The provider of the latest request in `answered`. */
  by: string | undefined;
  readonly clients: Set<string>;
}

/** Counts for each model the requests that an incident affects. */
export class AffectedRequests {
  /** Keys are model names as clients send them. */
  readonly #byName = new Map<string, Requests>();
  /** The first affected client that has a name. */
  firstClient: string | undefined;

  /**
   * Counts a finished request; requests that the incident does not affect are ignored.
   *
   * @param isAbout - whether an attempt was at a failing model; undefined for an incident of the
   *    gateway, which affects every request
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
   * Returns the models with the most failures, and how many more models there are.
   *
   * @param hasGood - whether to include `good`; false once the incident has ended, because an
   *    incident ends only after its fault is over, so the count would mislead
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
