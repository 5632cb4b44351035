/** The tries of the last minute, counted: what incidents are decided by. */

import type { Incident } from './incident.ts';

const STEP_MS = 5000;
/** The last 60 s. */
const STEPS = 12;
/** Names of models come from clients: those of a provider that are watched. */
const MAX_MODELS = 200;
const MAX_MODEL_CHARACTERS = 256;
/** The places of the counts. */
export const GOOD = 0;
export const FAILED = 1;

export const stepOf = (ms: number) => Math.floor(ms / STEP_MS);

/**
 * Counts of the latest steps of time, in places of which each step has the same. Steps have
 * numbers.
 */
export class StepCounts {
  /** A step has its number, and then its places. */
  readonly #counts: Int32Array;
  readonly #steps: number;
  readonly #places: number;
  /** The latest step with counts. */
  latest = 0;

  constructor(steps: number, places: number) {
    this.#counts = new Int32Array(steps * (1 + places));
    this.#steps = steps;
    this.#places = places;
  }

  /** Ignores a step that is no longer one of the latest. */
  add(step: number, place: number, amount = 1): void {
    const first = (step % this.#steps) * (1 + this.#places);
    if (this.#counts[first]! > step) return;
    if (this.#counts[first]! < step) {
      this.#counts.fill(0, first, first + 1 + this.#places);
      this.#counts[first] = step;
      this.latest = step;
    }
    this.#counts[first + 1 + place]! += amount;
  }

  /** Returns the sums of so many steps up to this one, by their places. */
  sums(last: number, steps = this.#steps): Int32Array {
    const sums = new Int32Array(this.#places);
    for (let step = last - steps + 1; step <= last; step += 1) {
      const first = (step % this.#steps) * (1 + this.#places);
      if (this.#counts[first] !== step) continue;
      for (let place = 0; place < this.#places; place += 1) {
        sums[place]! += this.#counts[first + 1 + place]!;
      }
    }
    return sums;
  }
}

/** The tries of a provider, or of one of its models, in the last 60 s. */
export class Watch extends StepCounts {
  readonly model: string | undefined;
  incident: Incident | undefined;
  /**
   * The latest tries that have failed, without a good one between them. It outlasts an incident
   * that is forgotten.
   */
  inRow = 0;
  /** The same before the latest good try, which may be a stream that breaks. */
  #formerRow = 0;
  /** When the answer of the latest good try began. */
  #goodAtMs: number | undefined;
  /** When the log was last told that one has begun. */
  loggedAtMs = -Infinity;

  constructor(model?: string) {
    super(STEPS, 2);
    this.model = model;
  }

  /** Counts a try whose answer began at `beganMs`. */
  addGood(nowMs: number, beganMs: number | undefined): void {
    this.add(stepOf(nowMs), GOOD);
    this.#formerRow = this.inRow;
    this.#goodAtMs = beganMs;
    this.inRow = 0;
    this.incident?.addGood(nowMs);
  }

  /**
   * Counts a try that has failed. `brokenMs`: it was counted as good, because the answer of its
   * stream began then.
   */
  addFailure(nowMs: number, brokenMs?: number): void {
    this.add(stepOf(nowMs), FAILED);
    if (brokenMs !== undefined) this.add(stepOf(brokenMs), GOOD, -1);
    // If nothing else was good since, the row before the stream goes on.
    const isSole = brokenMs !== undefined && brokenMs === this.#goodAtMs;
    this.inRow += isSole ? 1 + this.#formerRow : 1;
    if (isSole) this.#formerRow = 0;
  }
}

export class ProviderWatch extends Watch {
  readonly models = new Map<string, Watch>();
  /** That of the provider's settings: with others it is another provider. */
  readonly digest: string;

  constructor(digest: string) {
    super();
    this.digest = digest;
  }

  /** Undefined for one too many. */
  watchOf(model: string, step: number): Watch | undefined {
    let watch = this.models.get(model);
    if (watch || model.length > MAX_MODEL_CHARACTERS) return watch;
    if (this.models.size >= MAX_MODELS) {
      for (const [name, { incident, latest }] of this.models) {
        if (!incident && latest <= step - STEPS) this.models.delete(name);
      }
      if (this.models.size >= MAX_MODELS) return undefined;
    }
    this.models.set(model, (watch = new Watch(model)));
    return watch;
  }
}

/** A provider, by its settings. */
export type Watched = { readonly id: string; readonly digest: string };

/** A try at a provider, as far as it is counted. */
interface Tried {
  readonly provider: string;
  readonly digest: string;
  readonly model: string;
  /** When its answer began. */
  readonly endedAtMs: number | undefined;
}

/** The tries of all providers that are watched. A try that is well costs no more than `addGood`. */
export class Watches {
  /** By their ids. */
  readonly providers = new Map<string, ProviderWatch>();
  /** Something fails: what ends may be of an incident. */
  isTroubled = false;
  readonly #clock: Pick<Performance, 'now'>;

  constructor(clock: Pick<Performance, 'now'>) {
    this.#clock = clock;
  }

  /**
   * Returns the watch of a provider; undefined of one that is not watched, or not with these
   * settings any more.
   */
  of({ id, digest }: Watched): ProviderWatch | undefined {
    const watch = this.providers.get(id);
    return watch?.digest === digest ? watch : undefined;
  }

  /** Counts a try that has ended well, or a stream that has begun. */
  addGood({ provider: id, digest, model, endedAtMs }: Tried): void {
    const watch = this.of({ id, digest });
    if (!watch) return;
    const nowMs = this.#clock.now();
    watch.addGood(nowMs, endedAtMs);
    watch.watchOf(model, stepOf(nowMs))?.addGood(nowMs, endedAtMs);
  }
}
