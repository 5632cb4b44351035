/** Counters and histograms, one series for each label set that was used, and their text. `ModelLabels` bounds the sets. */

import { NO_LABELS, type LabelSet } from './labels.ts';

/** A number for each label set, which only grows. */
export class Counter {
  readonly series = new Map<LabelSet, number>();
  readonly #name: string;
  readonly #help: string;

  constructor(name: string, help: string) {
    this.#name = name;
    this.#help = help;
  }

  /** Ignores what is not a number from 0: token counts come from providers. */
  add(labels: LabelSet, count = 1): void {
    if (!isCountable(count)) return;
    this.series.set(labels, (this.series.get(labels) ?? 0) + count);
  }

  /** Yields the text in the exposition format. */
  *render(): Generator<string> {
    yield renderFigure([this.#name, 'counter', this.#help], [...this.series]);
  }
}

/** One series of a histogram. */
interface Distribution {
  sum: number;
  /** Number of values in each bucket alone; the last one has no upper bound. */
  readonly buckets: Float64Array;
}

/** The distribution of values for each label set. */
export class Histogram {
  /** Upper bounds of the buckets, in ascending order, without infinity. */
  readonly bounds: readonly number[];
  readonly series = new Map<LabelSet, Distribution>();
  readonly #name: string;
  readonly #help: string;

  constructor(name: string, bounds: readonly number[], help: string) {
    this.#name = name;
    this.#help = help;
    this.bounds = bounds;
  }

  /** Ignores what is not a number from 0, as `Counter` does. */
  observe(value: number, labels = NO_LABELS): void {
    if (!isCountable(value)) return;
    let series = this.series.get(labels);
    if (!series) {
      series = { sum: 0, buckets: new Float64Array(this.bounds.length + 1) };
      this.series.set(labels, series);
    }
    series.sum += value;
    series.buckets[bucketOf(value, this.bounds)]! += 1;
  }

  /** Yields the text in the exposition format, in parts: the head, then each series. */
  *render(): Generator<string> {
    const name = this.#name;
    yield header([name, 'histogram', this.#help]);
    for (const [{ text: labels }, { sum, buckets }] of this.series) {
      const prefix = labels === '' ? '' : `${labels},`;
      let text = '';
      let count = 0;
      for (const [index, inBucket] of buckets.entries()) {
        count += inBucket;
        text += sample(`${name}_bucket`, `${prefix}le="${this.bounds[index] ?? '+Inf'}"`, count);
      }
      yield text + sample(`${name}_sum`, labels, sum) + sample(`${name}_count`, labels, count);
    }
  }
}

function isCountable(value: number): boolean {
  return value >= 0 && value < Infinity;
}

/** Returns the index of the bucket of a value. */
export function bucketOf(value: number, bounds: readonly number[]): number {
  let index = 0;
  while (index < bounds.length && value > bounds[index]!) index += 1;
  return index;
}

/** Returns the value below which the `share` (0 to 1) of all values lies, as `histogram_quantile` does; null without values. */
export function quantile(
  share: number,
  bounds: readonly number[],
  buckets: Float64Array,
): number | null {
  let left = share * buckets.reduce((sum, count) => sum + count, 0);
  if (left === 0) return null;
  let index = 0;
  while (index < bounds.length && left > buckets[index]!) left -= buckets[index++]!;
  // The last bucket has no width: nothing is known of values above the last bound.
  const [low, high] = [bounds[index - 1] ?? 0, bounds[index] ?? bounds.at(-1)!];
  return low + (left / buckets[index]!) * (high - low);
}

/** Returns the text of a metric that is read when it is shown. `samples` are label sets with their values. */
export function renderFigure(
  head: readonly [name: string, type: 'counter' | 'gauge', help: string],
  samples: readonly (readonly [labels: LabelSet, value: number])[],
): string {
  const lines = samples.map(([labels, value]) => sample(head[0], labels.text, value));
  return header(head) + lines.join('');
}

function header([name, type, help]: readonly string[]): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
}

function sample(name: string, labels: string, value: number): string {
  return `${name}${labels === '' ? '' : `{${labels}}`} ${value}\n`;
}
