/** The last requests, and the last failures before those. */

import { redactFacts } from '../lib/log.ts';
import type { FinishedRequest, RequestFacts } from '../request/facts.ts';
import type { Redactor } from '../lib/secrets.ts';
import { isFailed, isOverOwnLimit } from './metrics.ts';

const MAX_REQUESTS = 200;

interface Entry {
  readonly number: number;
  readonly request: FinishedRequest;
  /** Made at the first look, because most requests are gone before. */
  shown?: RequestFacts;
}

/** Keeps the last requests, numbered from 1. */
export class RecentRequests {
  readonly #requests: Entry[] = [];
  /** Failed requests that have left `#requests`. */
  readonly #failures: Entry[] = [];
  readonly #redact: Redactor;
  #total = 0;

  constructor(redact: Redactor) {
    this.#redact = redact;
  }

  add(request: FinishedRequest): void {
    this.#total += 1;
    this.#requests.push({ number: this.#total, request });
    if (this.#requests.length <= MAX_REQUESTS) return;
    const oldest = this.#requests.shift()!;
    const { outcome } = oldest.request.facts;
    if (isFailed(outcome) && !isOverOwnLimit(oldest.request)) this.#failures.push(oldest);
    if (this.#failures.length > MAX_REQUESTS) this.#failures.shift();
  }

  /** Returns redacted requests by their numbers. A request is the same object each time. */
  report(): Readonly<Record<number, RequestFacts>> {
    const entries = [...this.#failures, ...this.#requests];
    for (const entry of entries) entry.shown ??= this.#show(entry);
    return Object.fromEntries(entries.map(({ number, shown }) => [number, shown!]));
  }

  #show({ number, request: { facts, endedAtMs } }: Entry): RequestFacts {
    const time = new Date(endedAtMs).toISOString();
    return redactFacts({ number, time, ...facts }, this.#redact);
  }
}
