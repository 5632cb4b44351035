/** An incident and its faults. */

import { AffectedRequests, MAX_LISTED } from './affected-requests.ts';
import type { IncidentKind } from '../request/incident-kind.ts';
import { MAX_NAME_CHARACTERS } from '../request/history.ts';

/** How many faults an incident keeps. Beyond this number, ended faults are dropped. */
const MAX_FAULTS = 300;
/** Matches the first code in `ECONNREFUSED: connect ECONNREFUSED 10.0.4.21:8000`. */
const CODE_TWICE = /^(\w+): \w+ (?=\1)/;

/** An instant has both times, because the system's clock may be set. */
export interface Moment {
  readonly time: number;
  readonly atMs: number;
}

/** Returns now, or the instant `lateMs` ago. */
export const moment = (lateMs = 0): Moment => {
  return { time: Date.now() - lateMs, atMs: performance.now() - lateMs };
};

export function timeOf(time: number): string;
export function timeOf(time: number | undefined): string | undefined;
/** Returns a time of day in ISO 8601. */
export function timeOf(time: number | undefined) {
  return time === undefined ? time : new Date(time).toISOString();
}

interface Cause {
  readonly text: string;
  /** The key's position, from 1. */
  readonly key?: number | undefined;
  /** When the provider's `Retry-After` ends. */
  readonly untilTime?: number | undefined;
}

/** A model whose streams fail, or whose complete answers fail. */
export interface FaultyModel {
  readonly name: string;
  readonly isStream: boolean;
}

/**
 * The failures of a model's streams or of its complete answers, or a bad state of a provider or the
 * gateway.
 */
export class Fault {
  /** Undefined for a state. */
  readonly model: FaultyModel | undefined;
  readonly since: Moment;
  /** The latest failure. */
  last: Moment;
  /** The first success after the latest failure. */
  goodSince: Moment | undefined;
  ended: Moment | undefined;
  /** True if nothing had succeeded since the gateway's start at the latest failure. */
  isFromStart = false;
  failures = 0;
  readonly #causes = new Map<IncidentKind, Cause & { count: number }>();

  /** `lateMs`: the fault began so long ago. */
  constructor(model?: FaultyModel, lateMs = 0) {
    this.model = model;
    this.since = this.last = moment(lateMs);
  }

  /** Identifies the fault among all faults of its provider or of the gateway. */
  get id(): string {
    const { model } = this;
    return model ? `${model.isStream ? 'stream' : 'complete'} ${model.name}` : this.kind;
  }

  get kind(): IncidentKind {
    return [...this.#causes].toSorted(([, a], [, b]) => b.count - a.count)[0]![0];
  }

  add(kind: IncidentKind, cause: Cause): void {
    this.failures += 1;
    this.last = moment();
    this.#causes.set(kind, { ...cause, count: (this.#causes.get(kind)?.count ?? 0) + 1 });
  }

  toFacts() {
    const { failures, isFromStart, kind } = this;
    const { text, key, untilTime } = this.#causes.get(kind)!;
    const model = this.model?.name.slice(0, MAX_NAME_CHARACTERS);
    const stream = this.model?.isStream;
    const since_start = isFromStart || undefined;
    const cause = text.replace(CODE_TWICE, '');
    return {
      kind,
      model,
      stream,
      since: timeOf(this.since.time),
      since_start,
      ended: timeOf(this.ended?.time),
      cause,
      // Another failure has nothing to do with the key.
      key: kind === 'key_refused' ? key : undefined,
      until: timeOf(untilTime),
      failures,
    };
  }
}

type FaultFacts = ReturnType<Fault['toFacts']>;

/** Returns the facts of the faults, one entry for both faults of a model. */
function factsOf(faults: readonly Fault[]): FaultFacts[] {
  const groups = new Map<unknown, Fault[]>();
  for (const fault of faults) {
    const key = fault.model?.name ?? fault;
    groups.set(key, [...(groups.get(key) ?? []), fault]);
  }
  return Array.from(groups.values(), (group) => {
    const all = group.toSorted((a, b) => b.failures - a.failures).map((fault) => fault.toFacts());
    const [most, other] = all as [FaultFacts, FaultFacts?];
    if (!other) return most;
    const { since, since_start } = most.since < other.since ? most : other;
    const ended = most.ended! > other.ended! ? most.ended : other.ended;
    const failures = most.failures + other.failures;
    return { ...most, stream: undefined, since, since_start, ended, failures };
  });
}

let lastNumber = 0;

export class Incident {
  /** Identifies the incident on the page. */
  readonly id: string;
  readonly provider: string | undefined;
  /** Counts requests that met a fault of this incident, or a fault that may yet be added. */
  readonly requests = new AffectedRequests((fault) => this.#faults.has(fault));
  /** The faults by their ids, including ended faults. */
  readonly #faults = new Map<string, Fault>();
  /** Kinds counted by the metrics. */
  readonly counted = new Set<IncidentKind>();
  /** Kinds with a line in the log. */
  readonly logged = new Set<IncidentKind>();
  /** True if every model asked in the last minute is failing. */
  #hasAllModels = true;
  /** The most models' faults at once, and whether every model had one. */
  #worst = { models: 0, hadAll: true };
  /** The provider's first success after the latest failure of any model. */
  goodSince: Moment | undefined;
  /** The fault that began first. */
  #first: Fault | undefined;

  constructor(provider?: string) {
    this.id = `i${(lastNumber += 1)}`;
    this.provider = provider;
  }

  /** False while there are too few failures for an incident. */
  get isConfirmed(): boolean {
    return this.#faults.size > 0;
  }

  /** When the first fault began. The incident must be confirmed. */
  get since(): Moment {
    return this.#first!.since;
  }

  /** When the last fault ended; undefined while any fault lasts. */
  get ended(): Moment | undefined {
    const { goodSince } = this;
    let last: Moment | undefined;
    for (const { ended, model } of this.#faults.values()) {
      if (!ended) return undefined;
      // A model whose circuit was open is asked again long after an outage of all models.
      const isOutage = model !== undefined && this.#worst.hadAll && goodSince !== undefined;
      const end = isOutage && goodSince.atMs < ended.atMs ? goodSince : ended;
      if (!last || end.atMs > last.atMs) last = end;
    }
    return last;
  }

  has(fault: Fault | undefined): boolean {
    return fault !== undefined && this.#faults.get(fault.id) === fault;
  }

  add(fault: Fault): void {
    if (this.#faults.size >= MAX_FAULTS) {
      for (const [id, { ended }] of this.#faults) if (ended) this.#faults.delete(id);
    }
    this.#faults.set(fault.id, fault);
    if (!this.#first || fault.since.atMs < this.since.atMs) this.#first = fault;
  }

  /** Forgets the requests that met this fault, unless the incident has had such a fault. */
  forgetRequestsOf(fault: Fault): void {
    if (!this.#faults.has(fault.id)) this.requests.forget(fault.id);
  }

  setHasAllModels(hasAll: boolean): void {
    this.#hasAllModels = hasAll;
    const lasting = [...this.#faults.values()].filter(({ ended }) => !ended);
    const models = lasting.filter(({ model }) => model !== undefined).length;
    if (models < this.#worst.models) return;
    const hadAll = hasAll || (models === this.#worst.models && this.#worst.hadAll);
    this.#worst = { models, hadAll };
  }

  /** Returns the fields for the log and the page. */
  toFacts() {
    const all = [...this.#faults.values()];
    const lasting = all.filter(({ ended }) => !ended);
    const isLasting = lasting.length > 0;
    // Failing models come before states, because they make requests fail.
    const rank = ({ failures, model }: FaultFacts) => (model === undefined ? 0 : failures);
    const faults = factsOf(isLasting ? lasting : all).toSorted((a, b) => rank(b) - rank(a));
    const models = faults.filter(({ model }) => model !== undefined);
    const states = faults.slice(1).filter(({ model }) => model === undefined);
    const hasAll = isLasting ? this.#hasAllModels : this.#worst.hadAll;
    return {
      ...faults[0]!,
      model: undefined,
      stream: undefined,
      provider: this.provider,
      since: timeOf(this.since.time),
      since_start: this.#first!.isFromStart || undefined,
      ended: timeOf(this.ended?.time),
      quiet_since: isLasting ? timeOf(this.requests.quietSinceTime) : undefined,
      failures: models.reduce((sum, { failures }) => sum + failures, 0) || faults[0]!.failures,
      all_models: (models.length > 0 && hasAll) || undefined,
      models: models.length > 0 ? models.slice(0, MAX_LISTED) : undefined,
      more_models: Math.max(0, models.length - MAX_LISTED) || undefined,
      states: states.length > 0 ? states : undefined,
      ...this.requests.toFacts(isLasting && this.provider !== undefined),
    };
  }
}
