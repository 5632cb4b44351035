/** A calendar window without a timer: the sum of a day or a month in UTC, read from the clock. */

import { COST_DECIMALS, type WindowPeriod } from '../lib/limits.ts';

/** Windows with different limits may share a sum. */
interface WindowSum {
  used: number;
  startTime: number;
  endTime: number;
}

/**
 * Lets `limit` be used in each day or month. The sum may exceed the limit, because usage is only
 * known when an answer has ended.
 */
export class CalendarWindow {
  readonly sum: WindowSum;
  readonly #period: WindowPeriod;
  readonly #limit: number;

  constructor(period: WindowPeriod, limit: number, sum?: WindowSum) {
    this.#period = period;
    this.#limit = limit;
    this.sum = sum ?? { used: 0, startTime: -Infinity, endTime: -Infinity };
  }

  /** `2026-11-29`, or `2026-11` for a month. */
  get name(): string {
    const { startTime } = this.current();
    return new Date(startTime).toISOString().slice(0, this.#period === 'day' ? 10 : 7);
  }

  level(): number {
    return rounded(this.#limit - this.current().used);
  }

  waitMs(): number {
    return this.level() > 0 ? 0 : this.resetMs();
  }

  resetMs(): number {
    return this.current().endTime - Date.now();
  }

  take(amount: number): void {
    const sum = this.current();
    sum.used = rounded(sum.used + amount);
  }

  /** Sets the sum to a store's as of `askedTime`, unless a later window has begun since. */
  set(used: number, askedTime: number): void {
    const sum = this.current();
    if (askedTime >= sum.startTime) sum.used = used;
  }

  /**
   * If the clock was set back to an earlier window, the earlier window keeps the sum, because
   * nothing was given back.
   */
  current(): WindowSum {
    const { sum } = this;
    const now = Date.now();
    if (now >= sum.startTime && now < sum.endTime) return sum;
    const [startTime, endTime] = windowAt(this.#period, now);
    if (startTime > sum.startTime) sum.used = 0;
    return Object.assign(sum, { startTime, endTime });
  }
}

function rounded(cost: number): number {
  return Number(cost.toFixed(COST_DECIMALS));
}

function windowAt(period: WindowPeriod, time: number): readonly [start: number, end: number] {
  const date = new Date(time);
  const [year, month, day] = [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate()];
  return period === 'day'
    ? [Date.UTC(year, month, day), Date.UTC(year, month, day + 1)]
    : [Date.UTC(year, month), Date.UTC(year, month + 1)];
}
