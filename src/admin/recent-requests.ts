/** The last requests, for the page. */

import type { FinishedRequest, RequestFacts } from '../lib/request-facts.ts';

const MAX_REQUESTS = 200;
/** Retries and many fallbacks make a request's tries long. */
const MAX_TRIES = 20;

/** A ring of requests, without what only the metrics need. */
export class RecentRequests {
  readonly #ring: Pick<FinishedRequest, 'facts' | 'endedAtMs'>[] = [];
  #total = 0;

  /** Requests so far: what `since` takes the next time. */
  get total(): number {
    return this.#total;
  }

  add({ facts, endedAtMs }: FinishedRequest): void {
    const hasMoreTries = facts.tries !== undefined && facts.tries.length > MAX_TRIES;
    const kept = hasMoreTries ? { ...facts, tries: facts.tries.slice(0, MAX_TRIES) } : facts;
    this.#ring[this.#total % MAX_REQUESTS] = { facts: kept, endedAtMs };
    this.#total += 1;
  }

  /** The requests after the first `total`, as far as they are kept, oldest first. */
  since(total: number): (RequestFacts & { readonly time: string })[] {
    const count = Math.min(this.#total - total, this.#ring.length);
    const first = this.#total - count;
    return Array.from({ length: count }, (_, at) => {
      const { facts, endedAtMs } = this.#ring[(first + at) % MAX_REQUESTS]!;
      return { time: new Date(endedAtMs).toISOString(), ...facts };
    });
  }
}
