/** The last 15 minutes in steps of 10 seconds, and the last requests. */

import type { FinishedRequest, RequestFacts } from '../lib/request-facts.ts';
import { FIRST_TOKEN_BOUNDS, firstTokenMsOf, isFailed } from './metrics.ts';
import { bucketOf, quantile } from './series.ts';

const STEPS = 90;
const STEP_SECONDS = 10;

class Step {
  requests = 0;
  failed = 0;
  /** The highest number. */
  openStreams = 0;
  /** In the buckets of the metric. */
  readonly firstToken = new Float64Array(FIRST_TOKEN_BOUNDS.length + 1);
}

/** Requests, failures, open streams and first-token times of each step. No timer: reads and records advance the steps. */
export class History {
  readonly #steps = Array.from({ length: STEPS }, () => new Step());
  readonly #nowMs: () => number;
  readonly #readOpenStreams: () => number;
  /** Steps since the epoch, of the current one. */
  #current = 0;
  #openStreams = 0;

  /** `nowMs` returns milliseconds since the epoch, and never less than before. */
  constructor(nowMs: () => number, readOpenStreams: () => number) {
    this.#nowMs = nowMs;
    this.#readOpenStreams = readOpenStreams;
  }

  add(request: FinishedRequest): void {
    const step = this.#advance();
    step.requests += 1;
    if (isFailed(request.facts.outcome)) step.failed += 1;
    const firstTokenMs = firstTokenMsOf(request);
    if (firstTokenMs === undefined) return;
    step.firstToken[bucketOf(firstTokenMs / 1000, FIRST_TOKEN_BOUNDS)]! += 1;
  }

  /** Returns the steps, oldest first. The last one is the current one: it ends in the future. */
  report() {
    this.#advance();
    const endStep = this.#current + 1;
    const steps = this.#steps.map((_, at) => this.#steps[(endStep + at) % STEPS]!);
    return {
      stepSeconds: STEP_SECONDS,
      endsAt: new Date(endStep * STEP_SECONDS * 1000).toISOString(),
      requests: steps.map(({ requests }) => requests),
      failed: steps.map(({ failed }) => failed),
      openStreams: steps.map(({ openStreams }) => openStreams),
      firstTokenP50Ms: steps.map(({ firstToken }) => firstTokenMsAt(0.5, firstToken)),
      firstTokenP95Ms: steps.map(({ firstToken }) => firstTokenMsAt(0.95, firstToken)),
    };
  }

  /** Returns the current step. A stream that ends is recorded: until then, at least as many were open as before. */
  #advance(): Step {
    const now = Math.floor(this.#nowMs() / 1000 / STEP_SECONDS);
    for (let left = Math.min(STEPS, now - this.#current); left > 0; left -= 1) {
      const step = new Step();
      step.openStreams = this.#openStreams;
      this.#steps[(now - left + 1) % STEPS] = step;
    }
    this.#current = now;
    this.#openStreams = this.#readOpenStreams();
    const step = this.#steps[now % STEPS]!;
    step.openStreams = Math.max(step.openStreams, this.#openStreams);
    return step;
  }
}

/** Returns the first-token time below which the `share` (0 to 1) of these lies, to a tenth of a millisecond. */
export function firstTokenMsAt(share: number, buckets: Float64Array): number | null {
  const seconds = quantile(share, FIRST_TOKEN_BOUNDS, buckets);
  return seconds === null ? null : Math.round(10_000 * seconds) / 10;
}

const MAX_REQUESTS = 200;
/** Retries and many fallbacks make a request's tries long. */
const MAX_TRIES = 20;

type NumberedRequest = RequestFacts & { readonly number: number; readonly time: string };

/** The last requests, and the last failures among all: numbered from 1, without what only the metrics need. */
export class RecentRequests {
  readonly #requests: NumberedRequest[] = [];
  /** Those that have left `#requests`. */
  readonly #failures: NumberedRequest[] = [];
  /** The number of the last one. */
  total = 0;

  add({ facts, endedAtMs }: FinishedRequest): void {
    this.total += 1;
    const time = new Date(endedAtMs).toISOString();
    const tries = facts.tries?.slice(0, MAX_TRIES);
    this.#requests.push({ number: this.total, time, ...facts, tries });
    if (this.#requests.length <= MAX_REQUESTS) return;
    const oldest = this.#requests.shift()!;
    if (isFailed(oldest.outcome)) this.#failures.push(oldest);
    if (this.#failures.length > MAX_REQUESTS) this.#failures.shift();
  }

  /** Returns the requests with a higher number, as far as they are kept, oldest first. */
  since(number: number): readonly RequestFacts[] {
    return [...this.#failures, ...this.#requests].filter((request) => request.number > number);
  }
}
