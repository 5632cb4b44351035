/** Counts the attempts of the last minute, and decides whether a model is failing. */

import { StepCounts } from '../lib/step-counts.ts';
import { type Fault, type FaultyModel, moment } from './incident.ts';

const STEP_MS = 5000;
/** The last 60 s. */
const STEPS = 12;
/** The newest 15 s, and the current step. */
const NEWEST_STEPS = 4;
const MIN_TRIES = 5;
/** Enough failures in a row if the last minute had no success, for a gateway with few requests. */
const MIN_ROW_WITHOUT_GOOD = 3;
/** Places in a step. */
const GOOD_PLACE = 0;
const FAILED_PLACE = 1;

const stepOf = (ms: number) => Math.floor(ms / STEP_MS);

/** The tries of a provider, of its streams or its complete answers, or of those of a model. */
export class Tries {
  /** Undefined for the tries of a provider. */
  readonly model: FaultyModel | undefined;
  readonly #counts = new StepCounts(STEPS, 2);
  /** A model's failures since it last recovered. */
  fault: Fault | undefined;
  /** Failures in a row. */
  #row = 0;
  /** `#row` before the latest success, needed if that success is a stream and breaks. */
  #formerRow = 0;
  /** When the latest success's answer began. */
  #goodAtMs: number | undefined;
  /** Successes since the first try, without the streams that broke. */
  goods = 0;

  constructor(model?: FaultyModel) {
    this.model = model;
  }

  /** Counts a success when its answer begins. */
  addGood(nowMs: number): void {
    this.#counts.add(stepOf(nowMs), GOOD_PLACE);
    this.#formerRow = this.#row;
    this.#goodAtMs = nowMs;
    this.goods += 1;
    this.#row = 0;
    if (this.fault) this.fault.goodSince ??= moment();
  }

  /**
   * Counts a failure.
   *
   * @param goodAtMs - when the answer began, if it was a stream that was counted as a success then;
   * else undefined
   */
  addFailure(nowMs: number, goodAtMs: number | undefined): void {
    this.#counts.add(stepOf(nowMs), FAILED_PLACE);
    if (goodAtMs !== undefined) {
      this.#counts.add(stepOf(goodAtMs), GOOD_PLACE, -1);
      this.goods -= 1;
    }
    // The row before the stream goes on, unless another try has succeeded since.
    const isLatest = goodAtMs !== undefined && goodAtMs === this.#goodAtMs;
    this.#row += isLatest ? 1 + this.#formerRow : 1;
    if (isLatest) this.#formerRow = 0;
  }

  /** Returns whether there was a try in the last minute. */
  isAsked(nowMs: number): boolean {
    return this.#counts.latest > stepOf(nowMs) - STEPS;
  }

  /** Returns whether the latest five tries have failed, or three without a success in a minute. */
  hasRow(nowMs: number): boolean {
    const [good] = this.#counts.sums(stepOf(nowMs));
    return this.#row >= (good === 0 ? MIN_ROW_WITHOUT_GOOD : MIN_TRIES);
  }

  /**
   * Returns whether a model is failing: by its own attempts, or because its latest attempt and the
   * latest attempts of any of `others` have failed.
   */
  isFailing(others: readonly Tries[], nowMs: number): boolean {
    const isProviderFailing =
      this.#row > 0 && this.isAsked(nowMs) && others.some((tries) => tries.hasRow(nowMs));
    if (isProviderFailing || this.hasRow(nowMs)) return true;
    const [good = 0, failed = 0] = this.#counts.sums(stepOf(nowMs));
    const isHalf = good + failed >= MIN_TRIES && failed >= good;
    return isHalf && !this.#isWorking(nowMs);
  }

  /** Returns whether the latest try succeeded, and under a tenth of the newest 15 s failed. */
  isRecovered(nowMs: number): boolean {
    return this.#row === 0 && this.#isWorking(nowMs);
  }

  #isWorking(nowMs: number): boolean {
    const [good = 0, failed = 0] = this.#counts.sums(stepOf(nowMs), NEWEST_STEPS);
    return failed * 9 < good;
  }
}
