/**
 * Counts and times of the last 15 minutes, for all requests and for each provider, model and
 * client.
 */

import type { FinishedRequest } from '../request/facts.ts';
import { hasAsked, type TryFacts } from '../request/history.ts';
import { type Moment, moment } from '../incidents/incident.ts';
import type { Refusals } from '../incidents/notice.ts';
import { StepCounts } from '../lib/step-counts.ts';
import { OTHER, UNKNOWN, type ModelSet } from './labels.ts';
import { FIRST_TOKEN_BOUNDS, firstTokenMsOf, isFailed, isOverOwnLimit } from './metrics.ts';
import type { AllNames, Names } from './names.ts';
import { bucketOf, quantile } from './series.ts';

const STEP_MS = 10_000;
export const STEPS = 90;
const MINUTE_STEPS = 6;
/** A provider's typical time has this share of all times below it, if there are `least` times. */
const TYPICAL = {
  first_token: { share: 0.5, least: 10 },
  connect: { share: 0.75, least: 4 },
};
/** Refusals are shown for as long as an ended incident. */
const REFUSALS_SHOWN_MS = 3_600_000;
/** The rows of requests without a valid key, and of clients without a name. */
const NO_KEY = 'no valid key';
const NO_NAME = 'without a name';
const SHARED_ROWS: ReadonlySet<string> = new Set([NO_KEY, NO_NAME, OTHER, UNKNOWN]);
/** Clients that come later are `other`. */
const MAX_CLIENTS = 500;
/** A row's counts, in its first places. Each time's buckets follow. */
const COUNTS = ['requests', 'failed', 'rejected', 'limited', 'client_closed', 'tokens'] as const;
type Count = (typeof COUNTS)[number];
/** First token, new connection, its name lookup, and the gateway's part of a request. */
const TIMES = ['first_token', 'connect', 'lookup', 'gateway'] as const;
type Time = (typeof TIMES)[number];
/** A provider's row has the first two times; that of a model or a client only the first. */
const PROVIDER_TIMES = 2;
const BUCKETS = FIRST_TOKEN_BOUNDS.length + 1;

/** Returns an outcome's count besides `requests`; undefined for a good answer. */
function countOf(outcome: TryFacts['outcome']): Count | undefined {
  if (isFailed(outcome)) return 'failed';
  if (outcome === 'client_closed') return outcome;
  return outcome === 'ok' ? undefined : 'rejected';
}

class Row extends StepCounts {
  readonly #times: number;

  /** @param times - how many times the row has, from the first in `TIMES` */
  constructor(times: number) {
    super(STEPS, COUNTS.length + times * BUCKETS);
    this.#times = times;
  }

  addEnd(step: number, count: Count | undefined): void {
    this.add(step, COUNTS.indexOf('requests'));
    if (count !== undefined) this.add(step, COUNTS.indexOf(count));
  }

  /** Adds a time that the row has. */
  addTime(step: number, time: Time, ms: number | undefined): void {
    if (ms === undefined) return;
    const first = COUNTS.length + TIMES.indexOf(time) * BUCKETS;
    this.add(step, first + bucketOf(ms / 1000, FIRST_TOKEN_BOUNDS));
  }

  /**
   * Returns sums above 0 and times in milliseconds: two percentiles of first tokens, and medians of
   * the other times.
   */
  report(step: number, steps?: number) {
    const sums = this.sums(step, steps);
    const report: Partial<Record<Count | 'p50' | 'p95' | Time, number>> = {};
    for (const [place, name] of COUNTS.entries()) report[name] = sums[place] || undefined;
    for (const name of TIMES.slice(0, this.#times)) {
      const times = timesIn(sums, name);
      if (times.every((count) => count === 0)) continue;
      if (name === 'first_token') report.p95 = msOf(0.95, times);
      report[name === 'first_token' ? 'p50' : name] = msOf(0.5, times);
    }
    return report;
  }

  /** Returns the typical time in milliseconds; undefined if there are too few times. */
  typicalMs(name: keyof typeof TYPICAL, step: number, steps: number): number | undefined {
    const { share, least } = TYPICAL[name];
    const times = timesIn(this.sums(step, steps), name);
    return times.reduce((sum, count) => sum + count) < least ? undefined : msOf(share, times);
  }

  /**
   * Returns a letter for each of the last 15 minutes: `g` if under a hundredth of the requests
   * failed, `w` if under a half, `b` for more, and `.` without requests. Minutes begin at multiples
   * of six steps, so that the letters stay.
   */
  letters(step: number): string {
    const last = step - (step % MINUTE_STEPS) + MINUTE_STEPS - 1;
    const letters = Array.from({ length: STEPS / MINUTE_STEPS }, (_, ago) => {
      const [requests = 0, failed = 0] = this.sums(last - ago * MINUTE_STEPS, MINUTE_STEPS);
      if (requests === 0) return '.';
      return failed < 0.01 * requests ? 'g' : failed < 0.5 * requests ? 'w' : 'b';
    });
    return letters.toReversed().join('');
  }
}

/** Returns a time's buckets in a row's sums. */
function timesIn(sums: Int32Array, name: Time): Int32Array {
  const first = COUNTS.length + TIMES.indexOf(name) * BUCKETS;
  return sums.subarray(first, first + BUCKETS);
}

const msOf = (share: number, times: Int32Array) =>
  Math.round(1000 * quantile(share, FIRST_TOKEN_BOUNDS, times));

export class Traffic {
  readonly #all = new Row(TIMES.length);
  /** When each step began, by the system's clock at its first request, in a ring of `STEPS`. */
  readonly #beganTimes = new Float64Array(STEPS);
  readonly #providers = new Map<string, Row>();
  readonly #models = new Map<string, Row>();
  readonly #clients = new Map<string, Row>();
  /** Each client's latest refusals by its own limits, with less than a minute between. */
  readonly #refusals = new Map<string, Omit<Refusals, 'limited' | 'requests'>>();
  /** The providers that do not know a model of the settings, by the model's name for clients. */
  readonly #unknownTo = new Map<string, string>();
  #lastEnd: Moment | undefined;
  readonly #nowTime: () => number;

  /** @param nowTime - returns milliseconds since the epoch, and never less than before */
  constructor(nowTime: () => number) {
    this.#nowTime = nowTime;
  }

  /** Counts a finished request. `model` is undefined if no provider was asked. */
  add(request: FinishedRequest, model: ModelSet | undefined): void {
    const step = this.#step();
    this.#lastEnd = moment();
    if (this.#all.latest !== step) this.#beganTimes[step % STEPS] = this.#wallClock(step);
    const { outcome, provider, status, tries = [] } = request.facts;
    const isRefused = status === 401 && tries.length === 0;
    const named = request.facts.client ?? (isRefused ? NO_KEY : NO_NAME);
    const isRoom = this.#clients.has(named) || this.#clients.size < MAX_CLIENTS;
    const name = isRoom ? named : OTHER;
    const firstTokenMs = firstTokenMsOf(request);
    const client = rowOf(this.#clients, name);
    const isLimited = isOverOwnLimit(request);
    if (isLimited) {
      const refused = client.sums(step, MINUTE_STEPS)[COUNTS.indexOf('limited')];
      this.#addRefusal(name, refused, request.facts.limit!);
    }
    const count = isLimited ? 'limited' : countOf(outcome);
    for (const row of [this.#all, client, model && rowOf(this.#models, model.name)]) {
      row?.addEnd(step, count);
      row?.addTime(step, 'first_token', firstTokenMs);
    }
    this.#all.addTime(step, 'gateway', request.gatewayMs);
    const { prompt_tokens: prompt = 0, completion_tokens: completion = 0 } = request.facts;
    this.#all.add(step, COUNTS.indexOf('tokens'), prompt + completion);
    if (model) this.#noteUnknown(model.name, tries);
    if (provider !== undefined && firstTokenMs !== undefined) {
      // The time since the last try's name was resolved, because neither earlier tries nor the name
      // server are this provider's fault.
      const { duration_ms: triedMs = firstTokenMs, lookup_ms: lookedUpMs = 0 } = tries.at(-1) ?? {};
      this.#providerRow(provider).addTime(step, 'first_token', triedMs - lookedUpMs);
    }
    for (const one of tries) {
      // The gateway's own failure is not the provider's.
      if (!hasAsked(one.outcome) || one.outcome === 'internal_error') continue;
      const row = this.#providerRow(one.provider);
      row.addEnd(step, countOf(one.outcome));
      const { connect_ms: madeMs, lookup_ms: resolvedMs = 0 } = one;
      for (const each of [row, this.#all]) {
        each.addTime(step, 'connect', madeMs && madeMs - resolvedMs);
      }
      this.#all.addTime(step, 'lookup', one.lookup_ms);
    }
  }

  /** Forgets the rows of clients, providers and models that are known no longer. */
  forgetUnknown({ clients, models, providers }: AllNames): void {
    forgetRows(this.#clients, clients);
    forgetRows(this.#refusals, clients);
    forgetRows(this.#providers, providers);
    forgetRows(this.#models, models);
    forgetRows(this.#unknownTo, models);
  }

  #providerRow(id: string): Row {
    return rowOf(this.#providers, id, PROVIDER_TIMES);
  }

  /** Notes the provider that does not know a model of the settings, or that the model answers. */
  #noteUnknown(model: string, tries: readonly TryFacts[]): void {
    const of404 = tries.find((one) => one.status === 404 && one.outcome === 'upstream_error');
    if (of404) this.#unknownTo.set(model, of404.provider);
    else if (tries.at(-1)?.outcome === 'ok') this.#unknownTo.delete(model);
  }

  /** Returns when a step began by the system's present clock, in whole seconds. */
  #wallClock(step: number): number {
    return 1000 * Math.round((Date.now() - this.#nowTime() + step * STEP_MS) / 1000);
  }

  /** Counts a refusal. Without refusals in the last minute (`inMinute`) the count begins anew. */
  #addRefusal(client: string, inMinute: number | undefined, limit: string): void {
    const known = inMinute ? this.#refusals.get(client) : undefined;
    const last = moment();
    const refused = (known?.refused ?? 0) + 1;
    this.#refusals.set(client, { client, limit, since: known?.since ?? last, refused, last });
  }

  /** Returns the refusals of the last hour by clients' own limits. */
  refusals(): Refusals[] {
    const fromAtMs = performance.now() - REFUSALS_SHOWN_MS;
    const step = this.#step();
    const shown = [...this.#refusals.values()].filter(({ last }) => last.atMs > fromAtMs);
    return shown.map((one) => {
      const { limited = 0, requests = 0 } = this.#clients
        .get(one.client)!
        .report(step, MINUTE_STEPS);
      return { ...one, limited, requests };
    });
  }

  /** Returns the step of a time of `performance.now()`, with the part of it that has passed. */
  stepAt(atMs: number): number {
    return (this.#nowTime() + atMs - performance.now()) / STEP_MS;
  }

  /** Returns a provider's typical times in the last minute and in the 14 minutes before. */
  typicalTimes(id: string, time: keyof typeof TYPICAL) {
    const step = this.#step();
    const row = this.#providers.get(id);
    return {
      newestMs: row?.typicalMs(time, step, MINUTE_STEPS),
      formerMs: row?.typicalMs(time, step - MINUTE_STEPS, STEPS - MINUTE_STEPS),
    };
  }

  /**
   * Returns each row's sums, the last minute's sums, and the sums and the begin of each step by its
   * number. A provider's row also has its last minute's sums and its latest step's begin.
   */
  report() {
    const step = this.#step();
    const rowsOf = (rows: ReadonlyMap<string, Row>) =>
      Object.fromEntries(Array.from(rows, ([name, row]) => [name, row.report(step)]));
    let time = this.#wallClock(step + 1);
    const steps = Array.from({ length: STEPS }, (_, ago) => {
      const own = this.#all.report(step - ago, 1);
      // A step with requests keeps the time noted with its first request, if the clock is set.
      time = own.requests ? this.#beganTimes[(step - ago) % STEPS]! : time - STEP_MS;
      return { ...own, time };
    });
    const providers = Array.from(this.#providers, ([id, row]) => {
      const latest = steps[step - row.latest]?.time;
      const minute = row.report(step, MINUTE_STEPS);
      const more = { minute, minutes: row.letters(step), latest };
      return [id, { ...row.report(step), ...more }] as const;
    });
    return {
      all: this.#all.report(step),
      minute: this.#all.report(step, MINUTE_STEPS),
      providers: Object.fromEntries(providers),
      models: rowsOf(this.#models),
      clients: rowsOf(this.#clients),
      step,
      steps: Object.fromEntries(steps.map((one, ago) => [step - ago, one])),
      unknownTo: this.#unknownTo as ReadonlyMap<string, string>,
      last: this.#lastEnd && new Date(this.#lastEnd.time).toISOString(),
    };
  }

  #step(): number {
    return Math.floor(this.#nowTime() / STEP_MS);
  }
}

/** Forgets the rows of unknown names, but not those that stand for several. */
function forgetRows(rows: Map<string, unknown>, known: Names): void {
  for (const name of rows.keys()) {
    if (!known.has(name) && !SHARED_ROWS.has(name)) rows.delete(name);
  }
}

function rowOf(rows: Map<string, Row>, key: string, times = 1): Row {
  let row = rows.get(key);
  if (!row) rows.set(key, (row = new Row(times)));
  return row;
}
