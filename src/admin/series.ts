/**
 * Counters and histograms, with a series for each label set, and their text. `ModelLabels` bounds
 * the number of sets.
 */

import type { LabelSet } from './labels.ts';

/** A counter, or a histogram if it has bounds. */
export class Metric {
  /** Each bucket has its own count, not a cumulative count. The last bucket has no upper bound. */
  readonly #series = new Map<LabelSet, { sum: number; readonly buckets: Float64Array }>();
  readonly #name: string;
  readonly #help: string;
  readonly #bounds: readonly number[];

  /** @param bounds - upper bounds of the buckets, in ascending order, without infinity */
  constructor(name: string, help: string, bounds: readonly number[] = []) {
    this.#name = name;
    this.#help = help;
    this.#bounds = bounds;
  }

  /** Adds a value. Ignores a negative or infinite value, because providers send token counts. */
  add(labels: LabelSet, value = 1): void {
    if (!(value >= 0 && value < Infinity)) return;
    const series = this.#seriesOf(labels);
    series.sum += value;
    series.buckets[bucketOf(value, this.#bounds)]! += 1;
  }

  /** Creates the series of these labels at 0. */
  create(sets: readonly LabelSet[]): void {
    for (const labels of sets) this.#seriesOf(labels);
  }

  /** Forgets the series of removed label sets. */
  forgetRemoved(): void {
    for (const labels of this.#series.keys()) if (labels.isRemoved) this.#series.delete(labels);
  }

  #seriesOf(labels: LabelSet) {
    let series = this.#series.get(labels);
    if (!series) {
      series = { sum: 0, buckets: new Float64Array(this.#bounds.length + 1) };
      this.#series.set(labels, series);
    }
    return series;
  }

  /** Yields the text in the exposition format: the head, then each series. */
  *render(): Generator<string> {
    const name = this.#name;
    const isCounter = this.#bounds.length === 0;
    yield renderHead(name, isCounter ? 'counter' : 'histogram', this.#help);
    for (const [{ text: labels }, { sum, buckets }] of this.#series) {
      yield isCounter ? renderSample(name, labels, sum) : this.#renderBuckets(labels, sum, buckets);
    }
  }

  #renderBuckets(labels: string, sum: number, buckets: Float64Array): string {
    const name = this.#name;
    const prefix = labels === '' ? '' : `${labels},`;
    let text = '';
    let count = 0;
    for (const [index, inBucket] of buckets.entries()) {
      count += inBucket;
      const bound = this.#bounds[index] ?? '+Inf';
      text += renderSample(`${name}_bucket`, `${prefix}le="${bound}"`, count);
    }
    text += renderSample(`${name}_sum`, labels, sum);
    return text + renderSample(`${name}_count`, labels, count);
  }
}

/** Returns the index of a value's bucket. */
export function bucketOf(value: number, bounds: readonly number[]): number {
  let index = 0;
  while (index < bounds.length && value > bounds[index]!) index += 1;
  return index;
}

/**
 * Returns the value that a `share` (0 to 1) of all values is below, as `histogram_quantile` does; 0
 * without values.
 */
export function quantile(share: number, bounds: readonly number[], buckets: Int32Array): number {
  let left = share * buckets.reduce((sum, count) => sum + count, 0);
  if (left === 0) return 0;
  let index = 0;
  while (index < bounds.length && left > buckets[index]!) left -= buckets[index++]!;
  // Values above the last bound count as the last bound, because they are not known.
  const [low, high] = [bounds[index - 1] ?? 0, bounds[index] ?? bounds.at(-1)!];
  return low + (left / buckets[index]!) * (high - low);
}

export function renderHead(name: string, type: string, help: string): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
}

export function renderSample(name: string, labels: string, value: number): string {
  return `${name}${labels === '' ? '' : `{${labels}}`} ${value}\n`;
}

/** The text can take megabytes, so other connections are served after each chunk. */
const CHUNK_CHARACTERS = 65_536;

/** Yields the parts' text in chunks. A chunk is made once its predecessor was taken. */
export async function* inChunks(parts: Iterable<string>): AsyncGenerator<Buffer> {
  let text = '';
  for (const part of parts) {
    text += part;
    if (text.length < CHUNK_CHARACTERS) continue;
    yield Buffer.from(text);
    text = '';
  }
  yield Buffer.from(text);
}
