/** Counts and first-token times of all requests, of each provider, model and client, for the page. */

import type { TryFacts } from '../lib/attempt.ts';
import type { FinishedRequest } from '../lib/request-facts.ts';
import { OTHER, type ModelSet } from './labels.ts';
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

  /** Returns what was counted since it was `before`. */
  minus(before: Tally): Tally {
    const difference = new Tally(this);
    for (const [name, amount] of before) difference.count(name, -amount);
    return difference;
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

/** The counts of one row since the start, and as they were at the end of each step in which something was counted. */
class Row {
  readonly #total = new Tally();
  readonly #ends = new Map<number, Tally>();
  #step = 0;
  lastError: { readonly endedAtMs: number; readonly failed: TryFacts } | undefined;
  /** The end of the first failure since the last success. */
  sinceMs: number | undefined;

  /** Returns the tally to count in during this step. */
  at(step: number): Tally {
    if (step !== this.#step) {
      this.#ends.set(this.#step, new Tally(this.#total));
      // The newest of those that are too old is what the others are compared with.
      const old = [...this.#ends.keys()].filter((end) => end <= step - STEPS);
      for (const end of old.slice(0, -1)) this.#ends.delete(end);
      this.#step = step;
    }
    return this.#total;
  }

  /** Returns what was counted in step `first` and later, but before step `end`. */
  between(first: number, end = Infinity): Tally {
    return this.#before(end).minus(this.#before(first));
  }

  #before(step: number): Tally {
    if (this.#step < step) return this.#total;
    let latest: Tally | undefined;
    for (const [end, tally] of this.#ends) if (end < step) latest = tally;
    return latest ?? new Tally();
  }

  /** Returns the sums of the last 15 minutes and since the start. */
  report(step: number) {
    return { recent: this.between(step + 1 - STEPS).report(), start: this.#total.report() };
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
    const { facts, endedAtMs } = request;
    const { client, outcome, provider, prompt_tokens, completion_tokens } = facts;
    const step = this.#advance();
    const firstTokenMs = firstTokenMsOf(request);
    const rows = [this.#all.at(step)];
    if (client !== undefined) {
      const isRoom = this.#clients.has(client) || this.#clients.size < MAX_CLIENTS;
      rows.push(rowOf(this.#clients, isRoom ? client : OTHER).at(step));
    }
    if (model) rows.push(rowOf(this.#models, model.name).at(step));
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
    for (const failed of tries) {
      const { provider, outcome, status } = failed;
      if (!isSent(outcome)) continue;
      const row = rowOf(this.#providers, provider);
      const tally = row.at(step);
      tally.count('requests');
      if (outcome === 'client_closed') continue;
      // What the state is judged by.
      tally.count('judged');
      if (outcome === 'ok') {
        row.sinceMs = undefined;
        continue;
      }
      if (isClientError(status)) {
        tally.count('clientErrors');
        continue;
      }
      row.lastError = { endedAtMs, failed };
      tally.count(outcome);
      if (!isFailed(outcome)) continue;
      row.sinceMs ??= endedAtMs;
      tally.count('failed');
      if (status === 401 || status === 403) tally.count('refused');
      if (status === undefined && outcome === 'upstream_error') tally.count('unreachable');
    }
  }

  /** Returns a provider's sums, its tries of the last `ms` milliseconds, and its last failure. */
  provider(id: string, ms: number) {
    const step = this.#advance();
    const row = this.#providers.get(id) ?? new Row();
    const { lastError, sinceMs } = row;
    return {
      sums: row.report(step),
      tries: row.between(step + 1 - ms / STEP_MS),
      lastError: lastError && {
        at: isoTime(lastError.endedAtMs),
        text: describeTry(lastError.failed),
      },
      since: sinceMs && isoTime(sinceMs),
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
          return [number, { ...this.#all.between(number, number + 1).report(), openStreams }];
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
    const first = Math.max(this.#lastStep + 1, step + 1 - STEPS);
    for (let at = first; at <= step; at += 1) this.#openStreams.set(at, this.#lastOpenStreams);
    for (const old of this.#openStreams.keys()) {
      if (old <= step - STEPS) this.#openStreams.delete(old);
    }
    this.#lastStep = step;
  }
}

const isoTime = (ms: number) => new Date(ms).toISOString();

function describeTry({ cause, outcome, status }: TryFacts): string {
  // The cause of a page begins with the status.
  const parts = cause?.startsWith(`${status},`) ? [cause] : [status, cause];
  return parts.filter((part) => part !== undefined).join(' ') || outcome;
}

function rowOf(rows: Map<string, Row>, key: string): Row {
  let row = rows.get(key);
  if (!row) rows.set(key, (row = new Row()));
  return row;
}
