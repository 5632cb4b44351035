/** Counters and histograms in cells of one flat array, and their text. */

import { NO_LABELS, type LabelSet } from './labels.ts';

/** 1 MiB: enough for every label set that `ModelLabels` gives out. */
const MAX_CELLS = 131_072;
/** At the beginning of the array. Series that find no place are counted here, and not shown. */
const SPARE_CELLS = 64;

/** The values of all series. The array is allocated once, and never grows. */
export class Cells {
  readonly values = new Float64Array(MAX_CELLS);
  #used = SPARE_CELLS;

  /** Returns the index of the first of `count` cells in a row. */
  allocate(count: number): number {
    if (this.#used + count > MAX_CELLS) return 0;
    this.#used += count;
    return this.#used - count;
  }
}

interface Description {
  readonly name: string;
  readonly help: string;
}

interface FamilyOptions extends Description {
  readonly type: 'counter' | 'histogram';
  readonly cellsPerSeries: number;
}

/** A metric with its series, one for each label set that was used. */
abstract class Family {
  protected readonly cells: Cells;
  readonly #options: FamilyOptions;
  readonly #series = new Map<LabelSet, number>();

  constructor(cells: Cells, options: FamilyOptions) {
    this.cells = cells;
    this.#options = options;
  }

  protected get name(): string {
    return this.#options.name;
  }

  /** The index of the series' first cell. */
  protected cellOf(labels: LabelSet): number {
    let cell = this.#series.get(labels);
    if (cell === undefined) {
      cell = this.cells.allocate(this.#options.cellsPerSeries);
      this.#series.set(labels, cell);
    }
    return cell;
  }

  /** In the exposition format, in parts: the head, then each series. */
  *render(): Generator<string> {
    yield header(this.#options);
    for (const [{ text: labels }, cell] of this.#series) {
      if (cell !== 0) yield this.renderSeries(labels, cell);
    }
  }

  protected abstract renderSeries(labels: string, cell: number): string;
}

/** A number for each label set, which only grows. */
export class Counter extends Family {
  constructor(cells: Cells, description: Description) {
    super(cells, { ...description, type: 'counter', cellsPerSeries: 1 });
  }

  /** Adds 1 to the series of these labels. */
  increment(labels: LabelSet): void {
    this.cells.values[this.cellOf(labels)]! += 1;
  }

  protected renderSeries(labels: string, cell: number): string {
    return sample(this.name, labels, this.cells.values[cell]!);
  }
}

interface HistogramOptions extends Description {
  /** The upper bounds of the buckets, in ascending order, without infinity. */
  readonly bounds: readonly number[];
}

/** A series' cells: the sum of its values, then for each bucket the number of values in it alone. */
export class Histogram extends Family {
  readonly #bounds: readonly number[];

  constructor(cells: Cells, { name, help, bounds }: HistogramOptions) {
    super(cells, { name, help, type: 'histogram', cellsPerSeries: bounds.length + 2 });
    this.#bounds = bounds;
  }

  /** Ignores what is not a number from 0: token counts come from providers. */
  observe(value: number, labels = NO_LABELS): void {
    if (!(value >= 0 && value < Infinity)) return;
    const cell = this.cellOf(labels);
    let bucket = 0;
    while (bucket < this.#bounds.length && value > this.#bounds[bucket]!) bucket += 1;
    this.cells.values[cell]! += value;
    this.cells.values[cell + 1 + bucket]! += 1;
  }

  protected renderSeries(labels: string, cell: number): string {
    const { values } = this.cells;
    const prefix = labels === '' ? '' : `${labels},`;
    let text = '';
    let count = 0;
    for (const [index, bound] of [...this.#bounds, '+Inf'].entries()) {
      count += values[cell + 1 + index]!;
      text += sample(`${this.name}_bucket`, `${prefix}le="${bound}"`, count);
    }
    text += sample(`${this.name}_sum`, labels, values[cell]!);
    return text + sample(`${this.name}_count`, labels, count);
  }
}

/** A metric that is read when it is shown. Returns its text; `samples` are label sets with their values. */
export function renderFigure(
  options: Description & { readonly type: 'counter' | 'gauge' },
  samples: readonly (readonly [labels: LabelSet, value: number])[],
): string {
  const lines = samples.map(([labels, value]) => sample(options.name, labels.text, value));
  return header(options) + lines.join('');
}

function header({ name, type, help }: Description & { readonly type: string }): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
}

function sample(name: string, labels: string, value: number): string {
  return `${name}${labels === '' ? '' : `{${labels}}`} ${value}\n`;
}
