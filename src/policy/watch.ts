/** The tries of the last minute, counted: what incidents are decided by. */

import type { Incident } from './incident.ts';

const STEP_MS = 5000;
/** The last 60 s. */
const STEPS = 12;
/** Names of models come from clients: those of a provider that are watched. */
const MAX_MODELS = 200;
const MAX_MODEL_CHARACTERS = 256;

export const stepOf = (ms: number) => Math.floor(ms / STEP_MS);

/** What may have an incident. */
export class Subject {
  incident: Incident | undefined;
  /** When the log was last told that one has begun. */
  loggedAtMs = -Infinity;
}

/** The tries of a provider, or of one of its models, in the last 60 s. */
export class Watch extends Subject {
  readonly model: string | undefined;
  readonly #good = new Int32Array(STEPS);
  readonly #failed = new Int32Array(STEPS);
  #step = 0;

  constructor(model?: string) {
    super();
    this.model = model;
  }

  isIdle(step: number): boolean {
    return this.#step <= step - STEPS && !this.incident;
  }

  addGood(step: number, nowMs: number): void {
    this.#moveTo(step);
    this.#good[step % STEPS]! += 1;
    this.incident?.addGood(nowMs);
  }

  /** A stream counts as good once it has begun: `begunStep` is that of one that breaks. */
  addFailure(step: number, begunStep?: number): void {
    this.#moveTo(step);
    this.#failed[step % STEPS]! += 1;
    if (begunStep !== undefined && begunStep > step - STEPS) this.#good[begunStep % STEPS]! -= 1;
  }

  /** Returns the tries of the latest steps. */
  sums(step: number, steps = STEPS): { readonly tries: number; readonly failed: number } {
    this.#moveTo(step);
    let [good, failed] = [0, 0];
    // Not before the start of the clock, which is that of the process.
    for (let at = step; at > step - steps && at >= 0; at -= 1) {
      good += this.#good[at % STEPS]!;
      failed += this.#failed[at % STEPS]!;
    }
    return { tries: good + failed, failed };
  }

  #moveTo(step: number): void {
    if (step === this.#step) return;
    for (let at = Math.max(this.#step, step - STEPS) + 1; at <= step; at += 1) {
      this.#good[at % STEPS] = this.#failed[at % STEPS] = 0;
    }
    this.#step = step;
  }
}

export class ProviderWatch extends Watch {
  readonly models = new Map<string, Watch>();

  /** Undefined for one too many. */
  watchOf(model: string, step: number): Watch | undefined {
    let watch = this.models.get(model);
    if (watch || model.length > MAX_MODEL_CHARACTERS) return watch;
    if (this.models.size >= MAX_MODELS) {
      for (const [name, one] of this.models) if (one.isIdle(step)) this.models.delete(name);
      if (this.models.size >= MAX_MODELS) return undefined;
    }
    this.models.set(model, (watch = new Watch(model)));
    return watch;
  }
}

/** The tries of all providers that are watched. A try that is well costs no more than `addGood`. */
export class Watches {
  readonly providers = new Map<string, ProviderWatch>();
  /** Something fails: what ends may be of an incident. */
  isTroubled = false;
  readonly #clock: Pick<Performance, 'now'>;

  constructor(clock: Pick<Performance, 'now'>) {
    this.#clock = clock;
  }

  /** Counts a try that has ended well, or a stream that has begun. */
  addGood({ provider, model }: { readonly provider: string; readonly model: string }): void {
    const watch = this.providers.get(provider);
    if (!watch) return;
    const nowMs = this.#clock.now();
    const step = stepOf(nowMs);
    watch.addGood(step, nowMs);
    watch.watchOf(model, step)?.addGood(step, nowMs);
  }
}
