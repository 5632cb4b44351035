/** `sums`: the final /metrics agree with the log lines (docs/metrics.md). */

import { parseMetrics } from '../support/exposition.ts';
import type { Report, TryLine } from './course.ts';
import type { History, Line } from './history.ts';

const TOKENS = {
  input: 'prompt_tokens',
  output: 'completion_tokens',
  cached_input: 'cached_tokens',
  reasoning: 'reasoning_tokens',
};

/** Metrics whose sum must equal the sum of the expected series. */
const WHOLE = ['requests_total', 'tries_total', 'fallbacks_total', 'refusals_total'];
const GAUGES = ['requests_in_flight', 'open_streams', 'buffered_bytes'];

type Labels = Readonly<Record<string, string>>;

export function checkMetrics({ events, metrics }: History, report: Report): void {
  if (metrics === '') return;
  const { sum } = parseMetrics(metrics);
  const expected = new Map<string, { name: string; labels: Labels; due: number }>();
  const add = (name: string, labels: Readonly<Record<string, unknown>>, count = 1) => {
    const pairs = Object.entries(labels).filter(([, text]) => text !== undefined);
    const texts = Object.fromEntries(pairs.map(([key, text]) => [key, String(text)] as const));
    const series = `${name} ${JSON.stringify(texts)}`;
    const { due } = expected.get(series) ?? { due: 0 };
    expected.set(series, { name, labels: texts, due: due + count });
  };
  for (const name of [...WHOLE, ...GAUGES]) add(name, {}, 0);
  for (const event of events) {
    if (event.kind !== 'line') continue;
    const { line } = event;
    const isProbe = line['path'] === '/health' && line['method'] !== 'OPTIONS';
    const isHealth = isProbe && line['outcome'] === 'ok';
    if ((line.message === 'request' && !isHealth) || line.message === 'broken request')
      addLine(line, add);
  }
  for (const [series, { name, labels, due }] of expected) {
    const counted = sum(`gateway_${name}`, labels);
    if (counted !== due) report('sums', `${series} is ${counted}, and not ${due}`);
  }
}

function addLine(
  line: Line,
  add: (name: string, labels: Readonly<Record<string, unknown>>, count?: number) => void,
): void {
  const { client, outcome } = line;
  add('requests_total', {});
  add('requests_total', { outcome });
  if (client !== undefined) add('requests_total', { client, outcome });
  // Without labels, because the line names the check or limit in other words.
  if (outcome === 'refused' || (outcome === 'rate_limited' && line['status'] === 429))
    add('refusals_total', {});
  for (const [type, field] of Object.entries(TOKENS)) {
    const count = Number(line[field] ?? 0);
    if (client !== undefined) add('client_tokens_total', { client, type }, count);
  }
  let before: TryLine | undefined;
  for (const one of (line['tries'] ?? []) as TryLine[]) {
    const { outcome: result, provider, status = 'none' } = one;
    add('tries_total', {});
    add('tries_total', { provider, result, status });
    const isSent = result !== 'circuit_open' && result !== 'limit';
    if (isSent && before && before.provider !== provider) {
      const ends = { from: before.provider, to: provider };
      add('fallbacks_total', {});
      add('fallbacks_total', { ...ends, reason: before.outcome });
    }
    before = one;
  }
}
