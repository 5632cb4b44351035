/** `sums`: what /metrics says at the end is what the lines have said (docs/metrics.md). */

import type { Report, TryLine } from './course.ts';
import type { History, Line } from './history.ts';

const TOKENS = {
  input: 'prompt_tokens',
  output: 'completion_tokens',
  cached_input: 'cached_tokens',
  reasoning: 'reasoning_tokens',
};

export function checkMetrics({ events, metrics }: History, report: Report): void {
  if (metrics === '') return;
  const expected = new Map<string, number>();
  const add = (name: string, labels: Readonly<Record<string, unknown>>, count = 1) => {
    const series = seriesOf(name, labels);
    expected.set(series, (expected.get(series) ?? 0) + count);
  };
  for (const event of events) {
    if (event.kind !== 'line') continue;
    const { line } = event;
    const isHealth = line['path'] === '/health' && line['outcome'] === 'ok';
    if ((line.message === 'request' && !isHealth) || line.message === 'broken request')
      addLine(line, add);
  }
  const got = new Map<string, number>();
  for (const row of metrics.split('\n')) {
    const [, name = '', labels = '', value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(row) ?? [];
    if (!COUNTED.has(name)) continue;
    const pairs = [...labels.matchAll(/(\w+)="([^"]*)"/g)].map(([, key, text]) => [key, text]);
    const key = name === REFUSALS ? { reason: '' } : Object.fromEntries(pairs);
    const series = seriesOf(name, key as Record<string, string>);
    got.set(series, (got.get(series) ?? 0) + Number(value));
  }
  for (const series of new Set([...expected.keys(), ...got.keys()])) {
    const [counted = 0, due = 0] = [got.get(series), expected.get(series)];
    if (counted !== due) report('sums', `${series} is ${counted}, and not ${due}`);
  }
}

const REFUSALS = 'gateway_refusals_total';
const COUNTED = new Set([
  'gateway_requests_total',
  'gateway_client_tokens_total',
  'gateway_tries_total',
  'gateway_fallbacks_total',
  'gateway_requests_in_flight',
  'gateway_open_streams',
  'gateway_buffered_bytes',
  REFUSALS,
]);

function addLine(
  line: Line,
  add: (name: string, labels: Readonly<Record<string, unknown>>, count?: number) => void,
): void {
  const { client, outcome } = line;
  add('gateway_requests_total', { client, outcome });
  // By which check or limit is the line's text, in other words.
  if (outcome === 'refused' || (outcome === 'rate_limited' && line['status'] === 429))
    add(REFUSALS, { reason: '' });
  for (const [type, field] of Object.entries(TOKENS)) {
    const count = Number(line[field] ?? 0);
    if (client !== undefined) add('gateway_client_tokens_total', { client, type }, count);
  }
  let before: TryLine | undefined;
  for (const one of (line['tries'] ?? []) as TryLine[]) {
    const { outcome: result, provider, status = 'none' } = one;
    add('gateway_tries_total', { provider, result, status });
    const isSent = result !== 'circuit_open' && result !== 'limit';
    if (isSent && before && before.provider !== provider)
      add('gateway_fallbacks_total', {
        from: before.provider,
        to: provider,
        reason: before.outcome,
      });
    before = one;
  }
}

function seriesOf(name: string, labels: Readonly<Record<string, unknown>>): string {
  const pairs = Object.entries(labels).filter(([, text]) => text !== undefined);
  return `${name} ${pairs
    .map(([key, text]) => `${key}=${String(text)}`)
    .toSorted()
    .join(' ')}`;
}
