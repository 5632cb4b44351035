/** Reads Prometheus' text format, as far as the gateway writes it. */

import assert from 'node:assert/strict';

export interface Metrics {
  /** The type of each metric, by its name. */
  readonly types: ReadonlyMap<string, string>;
  /** The label names of each metric, by its name. */
  readonly labels: ReadonlyMap<string, ReadonlySet<string>>;
  /** The number of series. A histogram's buckets and sum are not counted. */
  readonly series: number;
  /** The sum of this metric's samples with all these labels. */
  readonly sum: (name: string, labels?: Readonly<Record<string, string>>) => number;
}

const SAMPLE = /^([a-z_]\w*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)/g;

export function parseMetrics(text: string): Metrics {
  assert.ok(text.endsWith('\n'));
  const types = new Map<string, string>();
  const labelNames = new Map<string, Set<string>>();
  const samples: { name: string; labels: Map<string, string>; value: number }[] = [];
  for (const line of text.split('\n').slice(0, -1)) {
    const [, typed, type] = /^# TYPE (\w+) (\w+)$/.exec(line) ?? [];
    if (typed) types.set(typed, type!);
    if (line.startsWith('#')) continue;
    const [, name = '', inBraces = '', value = ''] = SAMPLE.exec(line) ?? [];
    assert.notEqual(name, '', line);
    const labels = new Map([...inBraces.matchAll(LABEL)].map(([, key, own]) => [key!, own!]));
    const family = types.has(name) ? name : name.replace(/_(?:bucket|sum|count)$/, '');
    assert.ok(types.has(family), line);
    const names = labelNames.get(family) ?? new Set();
    for (const key of labels.keys()) if (key !== 'le') names.add(key);
    labelNames.set(family, names);
    samples.push({ name, labels, value: Number(value) });
  }
  return {
    types,
    labels: labelNames,
    series: samples.filter(({ name, labels }) => !labels.has('le') && !name.endsWith('_sum'))
      .length,
    sum: (name, wanted = {}) =>
      samples
        .filter((sample) => sample.name === name)
        .filter(({ labels }) =>
          Object.entries(wanted).every(([key, own]) => labels.get(key) === own),
        )
        .reduce((total, { value }) => total + value, 0),
  };
}
