/** Counts the requests affected by an incident, and their clients. */

import type { Outcome } from '../lib/errors.ts';
import type { RequestHistory } from '../request/history.ts';

/** The most models and faults in an incident, and the most clients for each. */
const MAX_COUNTED = 100;
/** The most models of an incident, and clients of a model, in a list. */
export const MAX_LISTED = 10;
/**
 * Requests count as failing for this time after the latest failed request. The page's minute is 50
 * to 60 s long, so the failure is still in its figures.
 */
const FAILING_MS = 50_000;
/** Stands for the model if a request was refused before its body was read. */
export const UNREAD = '(model unknown)';
/** Outcomes for which the gateway or a provider is at fault, but for `internal_error`. */
export const INCIDENT_OUTCOMES: ReadonlySet<Outcome> = new Set([
  'upstream_error',
  'timeout',
  'rate_limited',
]);

/** A fault that a request has met. */
interface MetFault {
  readonly id: string;
  /** Undefined for a state. */
  readonly model?: { readonly isStream: boolean } | undefined;
}

/** The affected requests for a model that met the same fault. */
interface Requests {
  /** The model name in the client's request. */
  readonly name: string;
  /** The fault's id; undefined for an incident of the gateway. */
  readonly fault: string | undefined;
  /** Whether streams alone have met the fault (true), or complete answers alone (false). */
  stream: boolean | undefined;
  failed: number;
  /** Answered by the failing model, since the first affected request; or by a slow provider. */
  good: number;
  /** Answered by another model. */
  answered: number;
  /** The provider that answered the latest request in `answered`. */
  by: string | undefined;
  readonly clients: Set<string>;
  /** The clients with a failed request. */
  readonly losers: Set<string>;
  /** When the first client with a name was affected. */
  firstClientAtMs: number;
  failureTime: number | undefined;
  failedAtMs: number;
}

/**
 * Counts an incident's affected requests. Requests that met a fault are listed once the incident
 * has the fault, because its failures may be too few for an incident.
 */
export class AffectedRequests {
  readonly #rows = new Map<string, Requests>();
  readonly #hasFault: (fault: string) => boolean;

  /** @param hasFault - whether the incident has the fault with this id */
  constructor(hasFault: (fault: string) => boolean) {
    this.#hasFault = hasFault;
  }

  /**
   * The affected clients with names, ten at most, in the order of their models' first clients, and
   * the worst result of their requests.
   */
  get clients(): [client: string, result: 'failed' | 'answered' | 'slow'][] {
    const rows = this.#listed().toSorted((a, b) => a.firstClientAtMs - b.firstClientAtMs);
    const names = [...new Set(rows.flatMap(({ clients }) => [...clients]))].slice(0, MAX_LISTED);
    return names.map((client) => {
      if (rows.some(({ losers }) => losers.has(client))) return [client, 'failed'];
      const isMoved = rows.some((one) => one.clients.has(client) && one.answered > 0);
      return [client, isMoved ? 'answered' : 'slow'];
    });
  }

  /** When the latest request failed, unless it counts as failing now. */
  get quietSinceTime(): number | undefined {
    const [latest] = this.#listed().toSorted((a, b) => b.failedAtMs - a.failedAtMs);
    const isQuiet = latest !== undefined && performance.now() - latest.failedAtMs > FAILING_MS;
    return isQuiet ? latest.failureTime : undefined;
  }

  /**
   * Counts a finished request that the incident affects.
   *
   * @param met - the faults that its attempts have met, those of the incident first, and whether a
   * model with a fault has answered; undefined for an incident of the gateway, because it makes
   * every request fail
   */
  add(
    { attempt, client, model: name = UNREAD }: RequestHistory,
    outcome: Outcome,
    met?: { readonly faults: readonly MetFault[]; readonly isByFaulty: boolean },
  ): void {
    const isFailed = !met || INCIDENT_OUTCOMES.has(outcome);
    if (!isFailed && outcome !== 'ok') return;
    const isGood = !isFailed && met.isByFaulty;
    const faults = met?.faults ?? [undefined];
    if (isGood) {
      const rows = faults.map((fault) => this.#rows.get(keyOf(name, fault?.id)));
      const known = rows.find((row) => row !== undefined);
      if (known) known.good += 1;
      return;
    }
    const requests = this.#rowOf(name, faults[0]);
    if (!requests) return;
    if (isFailed) {
      requests.failed += 1;
      requests.failureTime = Date.now();
      requests.failedAtMs = performance.now();
    } else {
      requests.answered += 1;
      requests.by = attempt!.provider;
    }
    addClient(requests, client);
    if (isFailed && client && requests.clients.has(client)) requests.losers.add(client);
  }

  /** Counts a good request of a slow provider. `state` is the id of the provider's state. */
  addSlow({ client, model = UNREAD }: RequestHistory, state: string): void {
    const requests = this.#rowOf(model, { id: state });
    if (!requests) return;
    requests.good += 1;
    addClient(requests, client);
  }

  /** Returns undefined if the row is new, and there are too many. */
  #rowOf(name: string, fault: MetFault | undefined): Requests | undefined {
    const key = keyOf(name, fault?.id);
    let row = this.#rows.get(key);
    if (!row && this.#rows.size < MAX_COUNTED) {
      row = begin(name, fault?.id, fault?.model?.isStream);
      this.#rows.set(key, row);
    }
    return row;
  }

  forget(fault: string): void {
    for (const [key, requests] of this.#rows) {
      if (requests.fault === fault) this.#rows.delete(key);
    }
  }

  /**
   * Returns the models with the most failures, and how many more models there are.
   *
   * @param hasGood - whether to include `good`; false once the incident has ended, because an
   * incident outlasts its fault, so the count would mislead
   */
  toFacts(hasGood: boolean) {
    const byName = new Map<string, Requests>();
    for (const requests of this.#listed()) {
      const { name, fault, stream } = requests;
      const sum = byName.get(name) ?? begin(name, fault, stream);
      byName.set(name, sum);
      if (sum.stream !== stream) sum.stream = undefined;
      for (const count of ['failed', 'good', 'answered'] as const) sum[count] += requests[count];
      sum.by = requests.by ?? sum.by;
      for (const client of requests.clients) sum.clients.add(client);
    }
    const sorted = [...byName.values()].toSorted(
      (a, b) => b.failed - a.failed || b.answered - a.answered || b.good - a.good,
    );
    const affected = sorted
      .slice(0, MAX_LISTED)
      .map(({ name, stream, failed, good, answered, by, clients }) => {
        const shown = { good: hasGood ? good : undefined, clients: listOf([...clients]) };
        return { name, stream, failed, answered, by, ...shown };
      });
    return { affected, more: Math.max(0, sorted.length - MAX_LISTED) || undefined };
  }

  #listed(): Requests[] {
    const rows = [...this.#rows.values()];
    return rows.filter(({ fault }) => fault === undefined || this.#hasFault(fault));
  }
}

function addClient(requests: Requests, client: string | undefined): void {
  if (client === undefined || requests.clients.size === MAX_COUNTED) return;
  requests.firstClientAtMs = Math.min(requests.firstClientAtMs, performance.now());
  requests.clients.add(client);
}

function keyOf(name: string, fault: string | undefined): string {
  // A name has no line feed.
  return `${name}\n${fault}`;
}

function begin(name: string, fault: string | undefined, stream: boolean | undefined): Requests {
  return {
    name,
    fault,
    stream,
    failed: 0,
    good: 0,
    answered: 0,
    by: undefined,
    clients: new Set(),
    losers: new Set(),
    firstClientAtMs: Infinity,
    failureTime: undefined,
    failedAtMs: 0,
  };
}

function listOf(names: readonly string[]): string | undefined {
  const suffix = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : '';
  return names.slice(0, MAX_LISTED).join(', ') + suffix || undefined;
}
