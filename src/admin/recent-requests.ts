/** The last requests, and the last failures before them. */

import type { FinishedRequest, RequestFacts } from '../lib/request-facts.ts';
import { isFailed } from './metrics.ts';

const MAX_REQUESTS = 200;
/** Retries and many fallbacks make a request's tries long. */
const MAX_TRIES = 20;

type NumberedRequest = RequestFacts & { readonly number: number; readonly time: string };

/** Numbered from 1, without what only the metrics need. */
export class RecentRequests {
  readonly #requests: NumberedRequest[] = [];
  /** Those that have left `#requests`. */
  readonly #failures: NumberedRequest[] = [];
  #total = 0;

  add({ facts, endedAtMs }: FinishedRequest): void {
    this.#total += 1;
    const time = new Date(endedAtMs).toISOString();
    const tries = facts.tries?.slice(0, MAX_TRIES);
    this.#requests.push({ number: this.#total, time, ...facts, tries });
    if (this.#requests.length <= MAX_REQUESTS) return;
    const oldest = this.#requests.shift()!;
    if (isFailed(oldest.outcome)) this.#failures.push(oldest);
    if (this.#failures.length > MAX_REQUESTS) this.#failures.shift();
  }

  /** Returns them by their numbers. */
  report(): Readonly<Record<number, RequestFacts>> {
    return Object.fromEntries(
      [...this.#failures, ...this.#requests].map((request) => [request.number, request]),
    );
  }
}
