/** The last 15 minutes in steps of 10 seconds. No timer: the steps advance when something is recorded or read. */

import { Percentiles } from './percentiles.ts';

const STEPS = 90;
const STEP_SECONDS = 10;

class Step {
  requests = 0;
  failed = 0;
  /** The most that were seen. */
  openStreams: number;
  readonly firstToken = new Percentiles();

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
    if (firstTokenMs !== undefined) step.firstToken.record(firstTokenMs);
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
      firstTokenP50Ms: steps.map(({ firstToken }) => firstToken.valueAt(0.5)),
      firstTokenP95Ms: steps.map(({ firstToken }) => firstToken.valueAt(0.95)),
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
