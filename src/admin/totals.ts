/** Totals since the start for the page, summed up from the series of /metrics. */

import { firstTokenMsAt } from './history.ts';
import { OTHER, type LabelSet } from './labels.ts';
import { FIRST_TOKEN_BOUNDS, isFailed, isSent, type RequestMetrics } from './metrics.ts';
import { sumOf, type Metric } from './series.ts';

/** The feed sends all of them. Clients that come later are `other`. */
const MAX_CLIENTS = 500;

interface Sources {
  readonly requests: Metric;
  readonly tokens: Metric;
  readonly firstToken?: Metric;
}

/** Returns a function that returns the row of a provider. Its requests are attempts. */
export function providerTotals({ tries, tokens, firstToken }: RequestMetrics) {
  const rows = sumUp({ requests: tries, tokens, firstToken }, (labels) => ({
    id: (labels['provider'] ?? labels['gen_ai_provider_name'])!,
  }));
  const rowOf = new Map(rows.map((row) => [row.id, row]));
  return (id: string) => describeRow(rowOf.get(id) ?? createRow({ id }));
}

/** Returns a row for each model of each provider, the most used first. */
export function modelTotals({ duration, tokens, firstToken }: RequestMetrics) {
  const rows = sumUp({ requests: duration, tokens, firstToken }, (labels) => ({
    name: labels['gen_ai_original_model']!,
    provider: labels['gen_ai_provider_name']!,
  }));
  return rows.toSorted((a, b) => b.requests - a.requests).map(describeRow);
}

/** Returns a row for each named client, in the order of their first requests. */
export function clientTotals({ requests, clientTokens }: RequestMetrics) {
  const names = new Set<string>();
  const rows = sumUp({ requests, tokens: clientTokens }, ({ client }) => {
    if (client === undefined) return undefined;
    if (names.size < MAX_CLIENTS) names.add(client);
    return { name: names.has(client) ? client : OTHER };
  });
  return rows.map(({ name, requests: count, failed, inputTokens, outputTokens }) => {
    return { name, requests: count, failed, inputTokens, outputTokens };
  });
}

/** Sums up the series by the names that `namesOf` returns for their labels; those without names are left out. */
function sumUp<Names>(
  { requests, tokens, firstToken }: Sources,
  namesOf: (labels: LabelSet['labels']) => Names | undefined,
) {
  const rows = new Map<string, ReturnType<typeof createRow<Names>>>();
  const rowOf = ({ labels }: LabelSet) => {
    const names = namesOf(labels);
    if (!names) return undefined;
    const key = JSON.stringify(names);
    const row = rows.get(key) ?? createRow(names);
    rows.set(key, row);
    return row;
  };
  for (const [set, { buckets }] of requests.series) {
    const { error_type = 'ok', outcome = error_type, result = outcome } = set.labels;
    const count = sumOf(buckets);
    // A provider that was only skipped has no row.
    const row = count > 0 && isSent(result) && rowOf(set);
    if (!row) continue;
    row.requests += count;
    if (isFailed(result)) row.failed += count;
    if (result !== 'ok' && result !== 'client_closed')
      row.errors[result] = (row.errors[result] ?? 0) + count;
  }
  for (const [set, { sum }] of tokens.series) {
    const { type, gen_ai_token_type = type } = set.labels;
    const row = rowOf(set);
    if (row && gen_ai_token_type === 'input') row.inputTokens += sum;
    if (row && gen_ai_token_type === 'output') row.outputTokens += sum;
  }
  for (const [set, { buckets }] of firstToken?.series ?? []) {
    const row = rowOf(set);
    for (const [index, count] of buckets.entries()) row!.firstToken[index]! += count;
  }
  return [...rows.values()];
}

function createRow<Names>(names: Names) {
  const firstToken = new Float64Array(FIRST_TOKEN_BOUNDS.length + 1);
  const errors: Record<string, number> = {};
  return { ...names, requests: 0, failed: 0, errors, inputTokens: 0, outputTokens: 0, firstToken };
}

function describeRow<Row extends { firstToken: Float64Array }>({ firstToken, ...row }: Row) {
  const firstTokenP50Ms = firstTokenMsAt(0.5, firstToken);
  return { ...row, firstTokenP50Ms, firstTokenP95Ms: firstTokenMsAt(0.95, firstToken) };
}
