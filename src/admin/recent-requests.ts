/** The last requests, for the page. */

import type { FinishedRequest, RequestFacts } from '../lib/request-facts.ts';

const MAX_REQUESTS = 200;
/** Retries and many fallbacks make a request's tries long. */
const MAX_TRIES = 20;

type ShownRequest = RequestFacts & { readonly time: string };

export class RecentRequests {
  readonly #ring: FinishedRequest[] = [];
  #total = 0;

  /** Requests so far: what `since` takes the next time. */
  get total(): number {
    return this.#total;
  }

  add(request: FinishedRequest): void {
    this.#ring[this.#total % MAX_REQUESTS] = request;
    this.#total += 1;
  }

  /** The requests after the first `total`, as far as they are kept, oldest first. */
  since(total: number): ShownRequest[] {
    const count = Math.min(this.#total - total, this.#ring.length);
    const first = this.#total - count;
    return Array.from({ length: count }, (_, at) => show(this.#ring[(first + at) % MAX_REQUESTS]!));
  }
}

function show({ facts, endedAtMs }: FinishedRequest): ShownRequest {
  const time = new Date(endedAtMs).toISOString();
  const tries = facts.tries?.slice(0, MAX_TRIES);
  return { time, ...facts, tries };
}
