/** Totals since the start for the page, summed up from the series of /metrics. */

import { firstTokenMsAt } from './history.ts';
import { OTHER, type LabelSet } from './labels.ts';
import {
  FIRST_TOKEN_BOUNDS,
  isClientError,
  isFailed,
  isSent,
  type RequestMetrics,
} from './metrics.ts';
import { sumOf, type Metric } from './series.ts';

/** The feed sends all of them. Clients that come later are `other`. */
const MAX_CLIENTS = 500;

/** Returns a row for each of these providers, and for others that were asked. Its requests are attempts. */
export function providerTotals(metrics: RequestMetrics, ids: readonly string[]) {
  const { tries: requests, tokens, firstToken } = metrics;
  const rows = ids.map((id) => ({ id }));
  return sumUp({ requests, tokens, firstToken }, rows, (labels) => ({
    id: (labels['provider'] ?? labels['gen_ai_provider_name'])!,
  }));
}

/** Returns a row for each model of each provider, the most used first. */
export function modelTotals({ duration: requests, tokens, firstToken }: RequestMetrics) {
  const rows = sumUp({ requests, tokens, firstToken }, [], (labels) => ({
    name: labels['gen_ai_original_model']!,
    provider: labels['gen_ai_provider_name']!,
  }));
  return rows.toSorted((a, b) => b.requests - a.requests);
}

/** Returns a row for each named client, in the order of their first requests. */
export function clientTotals({ requests, clientTokens: tokens }: RequestMetrics) {
  const names = new Set<string>();
  return sumUp({ requests, tokens }, [], ({ client }) => {
    if (client === undefined) return undefined;
    if (names.size < MAX_CLIENTS) names.add(client);
    return { name: names.has(client) ? client : OTHER };
  });
}

/** Sums up series by the names that `namesOf` returns for their labels; those without names are left out. */
function sumUp<Names>(
  {
    requests,
    tokens,
    firstToken,
  }: Readonly<Record<'requests' | 'tokens', Metric>> & {
    readonly firstToken?: Metric;
  },
  first: readonly Names[],
  namesOf: (labels: LabelSet['labels']) => Names | undefined,
) {
  const rows = new Map<string, ReturnType<typeof createRow<Names>>>();
  const rowOf = (names: Names | undefined) => {
    const key = JSON.stringify(names);
    if (names && !rows.has(key)) rows.set(key, createRow(names));
    return rows.get(key);
  };
  for (const names of first) rowOf(names);
  for (const [{ labels }, { buckets }] of requests.series) {
    const { error_type = 'ok', outcome = error_type, result = outcome, status } = labels;
    const count = sumOf(buckets);
    // A provider that was only skipped has no row.
    const row = count > 0 && isSent(result) && rowOf(namesOf(labels));
    if (!row) continue;
    row.requests += count;
    if (isClientError(Number(status))) {
      row.clientErrors += count;
      continue;
    }
    if (isFailed(result)) row.failed += count;
    if (result !== 'ok' && result !== 'client_closed')
      row.errors[result] = (row.errors[result] ?? 0) + count;
  }
  for (const [{ labels }, { sum }] of tokens.series) {
    const { type, gen_ai_token_type = type } = labels;
    const row = rowOf(namesOf(labels));
    if (row && gen_ai_token_type === 'input') row.inputTokens += sum;
    if (row && gen_ai_token_type === 'output') row.outputTokens += sum;
  }
  for (const [{ labels }, { buckets }] of firstToken?.series ?? []) {
    const row = rowOf(namesOf(labels));
    for (const [index, count] of buckets.entries()) row!.firstToken[index]! += count;
  }
  return Array.from(rows.values(), ({ firstToken: times, ...row }) => ({
    ...row,
    firstTokenP50Ms: firstTokenMsAt(0.5, times),
    firstTokenP95Ms: firstTokenMsAt(0.95, times),
  }));
}

function createRow<Names>(names: Names) {
  const firstToken = new Float64Array(FIRST_TOKEN_BOUNDS.length + 1);
  const errors: Record<string, number> = {};
  return {
    ...names,
    requests: 0,
    failed: 0,
    clientErrors: 0,
    errors,
    inputTokens: 0,
    outputTokens: 0,
    firstToken,
  };
}
