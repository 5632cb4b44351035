/** The last 15 minutes in steps of 10 seconds. No timer: the steps advance when something is recorded or read. */

import { FIRST_TOKEN_BOUNDS } from './metrics.ts';
import { bucketOf, quantile } from './series.ts';

const STEPS = 90;
const STEP_SECONDS = 10;

class Step {
  requests = 0;
  failed = 0;
  /** The most that were seen. */
  openStreams: number;
  /** In the buckets of the metric. Absent while there are no values. */
  firstToken: Float64Array | undefined;

  constructor(openStreams: number) {
    this.openStreams = openStreams;
  }
}

/** Requests, failures, open streams and first-token times of each step. */
export class History {
  readonly #steps = Array.from({ length: STEPS }, () => new Step(0));
  readonly #now: () => number;
  /** Steps since the epoch, of the current one. */
  #current: number;
  /** The streams that were open when it was last asked. */
  #openStreams = 0;

  /** `now` returns milliseconds since the epoch, and never less than before. */
  constructor(now: () => number) {
    this.#now = now;
    this.#current = stepAt(now());
  }

  /** Records a finished request. `firstTokenMs` is undefined if it was not streamed. */
  record(isFailed: boolean, firstTokenMs: number | undefined, openStreams: number): void {
    const step = this.#advance(openStreams);
    step.requests += 1;
    if (isFailed) step.failed += 1;
    if (firstTokenMs === undefined) return;
    step.firstToken ??= new Float64Array(FIRST_TOKEN_BOUNDS.length + 1);
    step.firstToken[bucketOf(firstTokenMs / 1000, FIRST_TOKEN_BOUNDS)]! += 1;
  }

  /** The steps, oldest first. The last one is the current one: it ends in the future. */
  report(openStreams: number) {
    this.#advance(openStreams);
    const steps = this.#steps.map((_, at) => this.#stepOf(this.#current + 1 + at));
    return {
      stepSeconds: STEP_SECONDS,
      endsAt: new Date((this.#current + 1) * STEP_SECONDS * 1000).toISOString(),
      requests: steps.map(({ requests }) => requests),
      failed: steps.map(({ failed }) => failed),
      openStreams: steps.map((step) => step.openStreams),
      firstTokenP50Ms: steps.map(({ firstToken }) => firstTokenMsAt(0.5, firstToken)),
      firstTokenP95Ms: steps.map(({ firstToken }) => firstTokenMsAt(0.95, firstToken)),
    };
  }

  /** Returns the current step. A stream that ends is recorded: while nothing was, at least as many were open as before. */
  #advance(openStreams: number): Step {
    const now = stepAt(this.#now());
    for (let left = Math.min(STEPS, now - this.#current); left > 0; left -= 1) {
      this.#steps[(now - left + 1) % STEPS] = new Step(this.#openStreams);
    }
    this.#current = now;
    this.#openStreams = openStreams;
    const step = this.#stepOf(this.#current);
    step.openStreams = Math.max(step.openStreams, openStreams);
    return step;
  }

  #stepOf(number: number): Step {
    return this.#steps[number % STEPS]!;
  }
}

function stepAt(ms: number): number {
  return Math.floor(ms / 1000 / STEP_SECONDS);
}

/** Returns the first-token time below which the `share` (0 to 1) of these lies, to a tenth of a millisecond. */
export function firstTokenMsAt(share: number, buckets: Float64Array | undefined): number | null {
  const seconds = buckets ? quantile(share, FIRST_TOKEN_BOUNDS, buckets) : null;
  return seconds === null ? null : Math.round(10_000 * seconds) / 10;
}
