/** One incident and its faults. Times are of `Date.now()`, noted when something happens. */

import { AffectedRequests } from '../request/affected-requests.ts';
import type { IncidentKind } from '../request/incident-kind.ts';
import { MAX_NAME_CHARACTERS } from '../request/history.ts';

const MAX_LISTED_MODELS = 10;
/** Faults of a lasting incident; those that have ended make room for others. */
const MAX_FAULTS = 300;
/** `ECONNREFUSED: connect ECONNREFUSED 10.0.4.21:8000`, which says the code twice. */
const CODE_TWICE = /^(\w+): \w+ (?=\1)/;

const timeOf = (ms: number | undefined) => (ms === undefined ? ms : new Date(ms).toISOString());

interface Cause {
  readonly text: string;
  /** The position of the provider's key, from 1. */
  readonly key?: number | undefined;
  /** The end of the provider's `Retry-After`. */
  readonly untilMs?: number | undefined;
}

/** What is wrong with a model, or a state of a provider or of the gateway. */
export class Fault {
  /** Undefined for a state. */
  readonly model: string | undefined;
  readonly sinceMs: number;
  /** The latest failure. */
  lastMs = 0;
  /** The first and the latest failure on the clock of `performance.now()`. */
  readonly beganAt = performance.now();
  lastAt = 0;
  /** The first success after the failures. */
  goodSinceMs: number | undefined;
  endedMs: number | undefined;
  failures = 0;
  readonly #causes = new Map<IncidentKind, Cause & { count: number }>();

  /** `lateMs`: the fault began so long ago. */
  constructor(model?: string, lateMs = 0) {
    this.model = model;
    this.sinceMs = Date.now() - lateMs;
  }

  /** The kind of most failures. */
  get kind(): IncidentKind {
    return [...this.#causes].toSorted(([, a], [, b]) => b.count - a.count)[0]![0];
  }

  add(kind: IncidentKind, cause: Cause): void {
    this.failures += 1;
    this.lastMs = Date.now();
    this.lastAt = performance.now();
    this.#causes.set(kind, { ...cause, count: (this.#causes.get(kind)?.count ?? 0) + 1 });
  }

  /** `lateMs`: the fault ended so long ago. */
  end(lateMs = 0): void {
    this.endedMs = Date.now() - lateMs;
  }

  toFacts() {
    const { failures, kind } = this;
    const { text, key, untilMs } = this.#causes.get(kind)!;
    const model = this.model?.slice(0, MAX_NAME_CHARACTERS);
    const times = { since: timeOf(this.sinceMs)!, ended: timeOf(this.endedMs) };
    const cause = text.replace(CODE_TWICE, '');
    return { kind, model, ...times, cause, key, until: timeOf(untilMs), failures };
  }
}

type FaultFacts = ReturnType<Fault['toFacts']>;

export class Incident {
  readonly provider: string | undefined;
  readonly requests = new AffectedRequests();
  /** By the model or kind, also those that have ended. */
  readonly #faults = new Map<string, Fault>();
  /** The kinds that were counted, and those that the log has a line of. */
  readonly counted = new Set<IncidentKind>();
  readonly logged = new Set<IncidentKind>();
  /** Each model that was asked in the last minute is failing. */
  hasAllModels = true;
  #sinceMs = Infinity;

  constructor(provider?: string) {
    this.provider = provider;
  }

  /** False while failures are counted that are too few. */
  get isConfirmed(): boolean {
    return this.#faults.size > 0;
  }

  /** When the last fault ended; undefined while one lasts. */
  get endedMs(): number | undefined {
    const ends = [...this.#faults.values()].map(({ endedMs = Infinity }) => endedMs);
    const lastMs = Math.max(...ends);
    return lastMs === Infinity ? undefined : lastMs;
  }

  has(fault: Fault | undefined): boolean {
    return fault !== undefined && this.#faults.get(fault.model ?? fault.kind) === fault;
  }

  add(fault: Fault): void {
    if (this.#faults.size >= MAX_FAULTS) {
      for (const [name, { endedMs }] of this.#faults) {
        if (endedMs !== undefined) this.#faults.delete(name);
      }
    }
    this.#faults.set(fault.model ?? fault.kind, fault);
    this.#sinceMs = Math.min(this.#sinceMs, fault.sinceMs);
  }

  /** Returns the fields of the log, which the page shows too. */
  toFacts() {
    const all = [...this.#faults.values()].map((fault) => fault.toFacts());
    const lasting = all.filter(({ ended }) => ended === undefined);
    const isLasting = lasting.length > 0;
    // Models come before states, because requests fail.
    const rank = ({ failures, model }: FaultFacts) => (model === undefined ? 0 : failures);
    const faults = (isLasting ? lasting : all).toSorted((a, b) => rank(b) - rank(a));
    const models = faults.filter(({ model }) => model !== undefined);
    const states = faults.slice(1).filter(({ model }) => model === undefined);
    const { listed, more } = this.requests.toFacts(isLasting && this.provider !== undefined);
    return {
      ...faults[0]!,
      model: undefined,
      provider: this.provider,
      since: timeOf(this.#sinceMs)!,
      ended: timeOf(this.endedMs),
      failures: models.reduce((sum, { failures }) => sum + failures, 0) || faults[0]!.failures,
      all_models: (models.length > 0 && this.hasAllModels) || undefined,
      models: models.length > 0 ? models.slice(0, MAX_LISTED_MODELS) : undefined,
      more_models: Math.max(0, models.length - MAX_LISTED_MODELS) || undefined,
      states: states.length > 0 ? states : undefined,
      hit: listed,
      more,
    };
  }
}
