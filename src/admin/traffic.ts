/** Counts and first-token times of all requests, of each provider, model and client, for the page. */

import type { TryFacts } from '../lib/attempt.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import { OTHER, type LabelSet } from './labels.ts';
import { FIRST_TOKEN_BOUNDS, firstTokenMsOf, isClientError, isFailed, isSent } from './metrics.ts';
import { bucketOf, quantile } from './series.ts';

/** The last 15 minutes in steps. */
const STEPS = 90;
export const STEP_MS = 10_000;
/** Clients that come later are `other`. */
const MAX_CLIENTS = 500;

/** Numbers by their names; those of first-token times by the index of their bucket. */
class Tally extends Map<string | number, number> {
  count(name: string | number, amount = 1): void {
    this.set(name, (this.get(name) ?? 0) + amount);
  }

  add(other: Tally, sign = 1): this {
    for (const [name, amount] of other) this.count(name, sign * amount);
    return this;
  }

  /** Returns what is not 0, and the percentiles of first tokens in milliseconds. */
  report(): Readonly<Record<string, number>> {
    const times = new Float64Array(FIRST_TOKEN_BOUNDS.length + 1);
    const counts: [string, number][] = [];
    for (const [name, count] of this) {
      if (typeof name === 'number') times[name] = count;
      else if (count !== 0) counts.push([name, count]);
    }
    for (const percent of [50, 95]) {
      const seconds = quantile(percent / 100, FIRST_TOKEN_BOUNDS, times);
      if (seconds !== null) counts.push([`p${percent}`, Math.round(1000 * seconds)]);
    }
    return Object.fromEntries(counts);
  }
}

/** The tallies of one row. The current step is added to the others when it is over: a request counts once. */
class Row {
  readonly #steps = new Map<number, Tally>();
  readonly #start = new Tally();
  readonly #recent = new Tally();
  #current = new Tally();
  #number = 0;
  lastError: { readonly at: string; readonly text: string } | undefined;
  /** The first failure since the last success. */
  since: string | undefined;

  /** Returns the tally of this step. Reads and records advance the steps: no timer is needed. */
  at(number: number): Tally {
    if (number === this.#number) return this.#current;
    if (this.#current.size > 0) {
      this.#steps.set(this.#number, this.#current);
      this.#start.add(this.#current);
      this.#recent.add(this.#current);
    }
    for (const [old, tally] of this.#steps) {
      if (old > number - STEPS) break;
      this.#recent.add(tally, -1);
      this.#steps.delete(old);
    }
    this.#number = number;
    return (this.#current = new Tally());
  }

  /** Returns the sums of the last 15 minutes and since the start. */
  report(number: number) {
    const current = this.at(number);
    const [recent, start] = [this.#recent, this.#start].map((tally) =>
      new Tally().add(tally).add(current).report(),
    );
    return { recent: recent!, start: start! };
  }

  /** Returns the sum of the steps from `first` on. */
  sumFrom(first: number): Tally {
    const sum = new Tally().add(this.#current);
    for (const [number, tally] of this.#steps) if (number >= first) sum.add(tally);
    return sum;
  }

  step(number: number): Tally | undefined {
    return number === this.#number ? this.#current : this.#steps.get(number);
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

  /** Counts a finished request; `labels` name its model. */
  add(request: FinishedRequest, labels: LabelSet | undefined): void {
    const { facts, endedAtMs } = request;
    const { client, outcome, provider, prompt_tokens, completion_tokens } = facts;
    const step = this.#advance();
    const firstTokenMs = firstTokenMsOf(request);
    const rows = [this.#all.at(step)];
    if (client !== undefined) {
      const isRoom = this.#clients.has(client) || this.#clients.size < MAX_CLIENTS;
      rows.push(rowOf(this.#clients, isRoom ? client : OTHER).at(step));
    }
    if (labels) {
      const { gen_ai_original_model, gen_ai_provider_name } = labels.labels;
      const key = `${gen_ai_original_model} ${gen_ai_provider_name}`;
      rows.push(rowOf(this.#models, key).at(step));
    }
    for (const row of rows) {
      row.count('requests');
      if (isFailed(outcome)) row.count('failed');
    }
    if (provider !== undefined) rows.push(rowOf(this.#providers, provider).at(step));
    for (const row of rows) {
      if (prompt_tokens) row.count('inputTokens', prompt_tokens);
      if (completion_tokens) row.count('outputTokens', completion_tokens);
      if (firstTokenMs !== undefined) row.count(bucketOf(firstTokenMs / 1000, FIRST_TOKEN_BOUNDS));
    }
    this.#addTries(facts.tries ?? [], endedAtMs, step);
  }

  /** A try that fails by the client's mistake shows that the provider works. */
  #addTries(tries: readonly TryFacts[], endedAtMs: number, step: number): void {
    for (const { provider, outcome, status, cause } of tries) {
      if (!isSent(outcome)) continue;
      const row = rowOf(this.#providers, provider);
      const tally = row.at(step);
      tally.count('requests');
      if (outcome === 'client_closed') continue;
      // What the state is judged by.
      tally.count('judged');
      if (outcome === 'ok') {
        row.since = undefined;
        continue;
      }
      const at = new Date(endedAtMs).toISOString();
      // The cause of a page begins with the status.
      const parts = cause?.startsWith(`${status},`) ? [cause] : [status, cause];
      const text = parts.filter((part) => part !== undefined).join(' ');
      row.lastError = { at, text: text || outcome };
      if (isClientError(status)) tally.count('clientErrors');
      else tally.count(outcome);
      if (!isFailed(outcome) || isClientError(status)) continue;
      row.since ??= at;
      tally.count('failed');
      if (status === 401 || status === 403) tally.count('refused');
      if (status === undefined && outcome === 'upstream_error') tally.count('unreachable');
    }
  }

  /** Returns a provider's sums, its tries of the last `ms` milliseconds, and its last failure. */
  provider(id: string, ms: number) {
    const step = this.#advance();
    const row = this.#providers.get(id) ?? new Row();
    const { lastError, since } = row;
    return {
      sums: row.report(step),
      tries: row.sumFrom(step + 1 - ms / STEP_MS),
      lastError,
      since,
    };
  }

  /** Returns all requests, models by their names and providers, and clients; and the steps of the charts by their numbers. */
  report() {
    const step = this.#advance();
    const reports = (rows: Map<string, Row>) =>
      Object.fromEntries(Array.from(rows, ([key, row]) => [key, row.report(step)]));
    return {
      all: this.#all.report(step),
      models: reports(this.#models),
      clients: reports(this.#clients),
      steps: Object.fromEntries(
        Array.from(this.#openStreams, ([number, openStreams]) => {
          return [number, { ...this.#all.step(number)?.report(), openStreams }];
        }),
      ),
    };
  }

  /** Returns the number of the current step. A stream that ends is recorded: until then, at least as many were open as before. */
  #advance(): number {
    const step = Math.floor(this.#nowMs() / STEP_MS);
    const first = Math.max(this.#lastStep + 1, step + 1 - STEPS);
    for (let at = first; at <= step; at += 1) this.#openStreams.set(at, this.#lastOpenStreams);
    for (const old of this.#openStreams.keys()) {
      if (old > step - STEPS) break;
      this.#openStreams.delete(old);
    }
    this.#lastStep = step;
    this.#lastOpenStreams = this.#readOpenStreams();
    const highest = Math.max(this.#openStreams.get(step)!, this.#lastOpenStreams);
    this.#openStreams.set(step, highest);
    return step;
  }
}

function rowOf(rows: Map<string, Row>, key: string): Row {
  let row = rows.get(key);
  if (!row) rows.set(key, (row = new Row()));
  return row;
}
