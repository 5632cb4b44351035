/** Counts and first-token times of all requests, of each provider, model and client, for the page. */

import type { TryFacts } from '../request/record.ts';
import type { FirstTokens } from '../policy/incident-rules.ts';
import type { FinishedRequest } from '../request/facts.ts';
import { OTHER, type ModelSet } from './labels.ts';
import { FIRST_TOKEN_BOUNDS, firstTokenMsOf, isFailed, isSent } from './metrics.ts';
import { bucketOf, quantile } from './series.ts';

/** The last 15 minutes in steps. */
const STEPS = 90;
export const STEP_MS = 10_000;
/** A median of fewer says nothing. */
const MIN_FIRST_TOKENS = 10;
const MINUTE_STEPS = 6;
/** Clients that come later are `other`. */
const MAX_CLIENTS = 500;

/** Names and numbers in turn: a map of them takes three times as much memory. */
type Counts = readonly (string | number)[];

/** Numbers by their names; those of first-token times by the index of their bucket. */
class Tally extends Map<string | number, number> {
  count(name: string | number, amount = 1): void {
    this.set(name, (this.get(name) ?? 0) + amount);
  }

  /** Adds the counts, or takes them off if `sign` is -1. */
  add(counts: Counts, sign = 1): this {
    for (let at = 0; at < counts.length; at += 2) {
      this.count(counts[at]!, sign * (counts[at + 1] as number));
    }
    return this;
  }

  toCounts(): Counts {
    // A copy has no room to grow.
    return [...this].flat().slice();
  }

  /** Returns what is not 0, and the percentiles of first tokens in milliseconds, of `minTimes` or more. */
  report(minTimes = 1): Readonly<Record<string, number>> {
    const times = new Float64Array(FIRST_TOKEN_BOUNDS.length + 1);
    const counts: [string, number][] = [];
    for (const [name, count] of this) {
      if (typeof name === 'number') times[name] = count;
      else if (count !== 0) counts.push([name, count]);
    }
    if (times.reduce((sum, count) => sum + count) < minTimes) return Object.fromEntries(counts);
    for (const percent of [50, 95]) {
      const seconds = quantile(percent / 100, FIRST_TOKEN_BOUNDS, times);
      counts.push([`p${percent}`, Math.round(1000 * seconds!)]);
    }
    return Object.fromEntries(counts);
  }
}

/** The counts of one row. */
class Row {
  /** Counts of the current step. */
  readonly #current = new Tally();
  /** Counts of the other steps together. */
  readonly #ended = new Tally();
  /** Counts of each of the other steps in which something was counted. */
  readonly #steps = new Map<number, Counts>();
  lastError: { readonly at: string; readonly text: string } | undefined;

  addRequest(request: FinishedRequest): void {
    this.#addOutcome(request.facts.outcome);
    this.addAnswer(request);
  }

  /** Counts the tokens of a request, and its time to the first one. */
  addAnswer(request: FinishedRequest): void {
    const { prompt_tokens, completion_tokens } = request.facts;
    const firstTokenMs = firstTokenMsOf(request);
    if (prompt_tokens) this.#current.count('inputTokens', prompt_tokens);
    if (completion_tokens) this.#current.count('outputTokens', completion_tokens);
    if (firstTokenMs === undefined) return;
    this.#current.count(bucketOf(firstTokenMs / 1000, FIRST_TOKEN_BOUNDS));
  }

  /** Counts a try at a provider. */
  addTry(one: TryFacts, endedAtMs: number): void {
    this.#addOutcome(one.outcome);
    if (!isFailed(one.outcome)) return;
    this.lastError = { at: new Date(endedAtMs).toISOString(), text: describeTry(one) };
  }

  #addOutcome(outcome: TryFacts['outcome']): void {
    this.#current.count('requests');
    if (isFailed(outcome)) this.#current.count('failed');
    else if (outcome !== 'ok') this.#current.count(outcome);
  }

  /** Ends a step: the current one is `next` from now on. */
  endStep(step: number, next: number): void {
    if (this.#current.size > 0) {
      const counts = this.#current.toCounts();
      this.#ended.add(counts);
      this.#steps.set(step, counts);
      this.#current.clear();
    }
    for (const [before, counts] of this.#steps) {
      if (before > next - STEPS) break;
      this.#ended.add(counts, -1);
      this.#steps.delete(before);
    }
  }

  /** Returns the counts of the last 15 minutes by their steps, of which `current` is the last one. */
  steps(current: number): Map<number, Counts> {
    return new Map(this.#steps).set(current, this.#current.toCounts());
  }

  /** Returns the sums of the last 15 minutes. */
  report() {
    return new Tally(this.#ended).add(this.#current.toCounts()).report();
  }
}

export class Traffic {
  readonly #all = new Row();
  readonly #providers = new Map<string, Row>();
  readonly #models = new Map<string, Row>();
  readonly #clients = new Map<string, Row>();
  readonly #nowMs: () => number;
  readonly #readOpenStreams: () => number;
  /** The highest number of open streams in each step. */
  readonly #openStreams = new Map<number, number>();
  #lastOpenStreams = 0;
  #lastStep = 0;

  /** `nowMs` returns milliseconds since the epoch, and never less than before. */
  constructor(nowMs: () => number, readOpenStreams: () => number) {
    this.#nowMs = nowMs;
    this.#readOpenStreams = readOpenStreams;
  }

  /** Counts a finished request of a model. */
  add(request: FinishedRequest, model: ModelSet | undefined): void {
    this.#advance();
    const { client, provider, status, tries = [] } = request.facts;
    const isRefused = status === 401 && tries.length === 0;
    const name = client ?? (isRefused ? 'no valid key' : 'without a name');
    const isRoom = this.#clients.has(name) || this.#clients.size < MAX_CLIENTS;
    this.#all.addRequest(request);
    rowOf(this.#clients, isRoom ? name : OTHER).addRequest(request);
    if (model) rowOf(this.#models, model.name).addRequest(request);
    if (provider !== undefined) rowOf(this.#providers, provider).addAnswer(request);
    for (const one of tries) {
      // What the gateway itself could not do is on no provider's account.
      const isProviders = isSent(one.outcome) && one.outcome !== 'internal_error';
      if (isProviders) rowOf(this.#providers, one.provider).addTry(one, request.endedAtMs);
    }
  }

  /** Returns a provider's sums and its last failure. */
  provider(id: string) {
    this.#advance();
    const row = this.#providers.get(id) ?? new Row();
    return { ...row.report(), lastError: row.lastError };
  }

  /** Returns a provider's median times to the first token in the last minute, in its steps, and in the time before. */
  firstTokens(id: string): FirstTokens {
    const step = this.#advance();
    const [newest, former] = [new Tally(), new Tally()];
    const steps: FirstTokens['steps'][number][] = [];
    for (const [at, counts] of this.#providers.get(id)?.steps(step) ?? []) {
      const isNewest = at > step - MINUTE_STEPS;
      (isNewest ? newest : former).add(counts);
      const medianMs = isNewest ? new Tally().add(counts).report()['p50'] : undefined;
      if (medianMs === undefined) continue;
      const beganMsAgo = this.#nowMs() - at * STEP_MS;
      steps.push({ beganMsAgo, endedMsAgo: Math.max(0, beganMsAgo - STEP_MS), medianMs });
    }
    const medianOf = (tally: Tally) => tally.report(MIN_FIRST_TOKENS)['p50'];
    return { newestMs: medianOf(newest), formerMs: medianOf(former), steps };
  }

  /** Returns all requests, models by their names and providers, and clients; and the steps of the charts by their numbers. */
  report() {
    const step = this.#advance();
    const counts = this.#all.steps(step);
    const reports = (rows: Map<string, Row>) =>
      Object.fromEntries(Array.from(rows, ([key, row]) => [key, row.report()]));
    return {
      all: this.#all.report(),
      models: reports(this.#models),
      clients: reports(this.#clients),
      steps: Object.fromEntries(
        Array.from(this.#openStreams, ([number, openStreams]) => {
          return [number, { ...new Tally().add(counts.get(number) ?? []).report(), openStreams }];
        }),
      ),
    };
  }

  /** Returns the number of the current step. A stream that ends is recorded: until then, at least as many were open as before. */
  #advance(): number {
    const step = Math.floor(this.#nowMs() / STEP_MS);
    if (step !== this.#lastStep) this.#beginStep(step);
    this.#lastOpenStreams = this.#readOpenStreams();
    if (this.#lastOpenStreams > this.#openStreams.get(step)!) {
      this.#openStreams.set(step, this.#lastOpenStreams);
    }
    return step;
  }

  #beginStep(step: number): void {
    for (const rows of [this.#providers, this.#models, this.#clients]) {
      for (const row of rows.values()) row.endStep(this.#lastStep, step);
    }
    this.#all.endStep(this.#lastStep, step);
    // It begins when it is first asked for.
    const first = this.#lastStep === 0 ? step : Math.max(this.#lastStep + 1, step + 1 - STEPS);
    for (let at = first; at <= step; at += 1) this.#openStreams.set(at, this.#lastOpenStreams);
    for (const old of this.#openStreams.keys()) {
      if (old <= step - STEPS) this.#openStreams.delete(old);
    }
    this.#lastStep = step;
  }
}

function describeTry({ cause, outcome, status }: TryFacts): string {
  // That of a success says nothing here, and the cause of a page begins with it.
  const isToldElsewhere = (status ?? 0) < 300 || cause?.startsWith(`${status},`);
  const parts = isToldElsewhere ? [cause] : [status, cause];
  return parts.filter((part) => part !== undefined).join(' ') || outcome;
}

function rowOf(rows: Map<string, Row>, key: string): Row {
  let row = rows.get(key);
  if (!row) rows.set(key, (row = new Row()));
  return row;
}
