/** Totals since the start for the page, summed up from the series of /metrics. */

import { firstTokenMsAt } from './history.ts';
import { OTHER, type LabelSet } from './labels.ts';
import { isFailed, isSent, type RequestMetrics } from './metrics.ts';

/** The feed sends all of them. Clients that come later are `other`. */
const MAX_CLIENTS = 500;

interface Usage {
  requests: number;
  failed: number;
  inputTokens: number;
  outputTokens: number;
  readonly firstToken: Float64Array;
}

/** Returns the totals of completions by the provider that answered. */
export function providerUsage(metrics: RequestMetrics): ReadonlyMap<string, Usage> {
  return sumUp(metrics, ({ labels }) => labels['gen_ai_provider_name']!);
}

/** Returns a row for each model of each provider, the most used first. */
export function describeModels(metrics: RequestMetrics) {
  const rows = sumUp(metrics, ({ labels }) => {
    return `${labels['gen_ai_provider_name']}/${labels['gen_ai_original_model']}`;
  });
  return [...rows]
    .toSorted(([, a], [, b]) => b.requests - a.requests)
    .map(([key, usage]) => {
      // A provider's id has no slash.
      const slash = key.indexOf('/');
      const { requests, failed } = usage;
      const name = key.slice(slash + 1);
      return { name, provider: key.slice(0, slash), requests, failed, ...describeUsage(usage) };
    });
}

/** Returns a row for each named client, in the order of their first requests. */
export function describeClients({ requests, clientTokens }: RequestMetrics) {
  const rows = new Map<string, Omit<Usage, 'firstToken'>>();
  const rowOf = ({ labels: { client } }: LabelSet) => {
    const name = rows.has(client!) || rows.size < MAX_CLIENTS ? client! : OTHER;
    return getOrCreate(rows, name, () => ({
      requests: 0,
      failed: 0,
      inputTokens: 0,
      outputTokens: 0,
    }));
  };
  for (const [set, count] of requests.series) {
    if (set.labels['client'] === undefined) continue;
    const row = rowOf(set);
    row.requests += count;
    if (isFailed(set.labels['outcome'])) row.failed += count;
  }
  for (const [set, count] of clientTokens.series) addTokens(rowOf(set), set.labels['type'], count);
  return [...rows].map(([name, row]) => ({ name, ...row }));
}

/** Returns the tries of each provider that got a request, and its errors by outcome. */
export function countTries({ tries }: RequestMetrics) {
  const rows = new Map<string, { requests: number; errors: Record<string, number> }>();
  for (const [{ labels }, count] of tries.series) {
    const result = labels['result']!;
    if (!isSent(result)) continue;
    const row = getOrCreate(rows, labels['provider']!, () => ({
      requests: 0,
      errors: {} as Record<string, number>,
    }));
    row.requests += count;
    if (result !== 'ok' && result !== 'client_closed') row.errors[result] = count;
  }
  return rows;
}

/** Returns tokens and percentiles for the page; zeros and null without usage. */
export function describeUsage(usage: Usage | undefined) {
  return {
    inputTokens: usage?.inputTokens ?? 0,
    outputTokens: usage?.outputTokens ?? 0,
    firstTokenP50Ms: firstTokenMsAt(0.5, usage?.firstToken),
    firstTokenP95Ms: firstTokenMsAt(0.95, usage?.firstToken),
  };
}

function sumUp(metrics: RequestMetrics, keyOf: (set: LabelSet) => string): Map<string, Usage> {
  const { duration, firstToken, tokens } = metrics;
  const rows = new Map<string, Usage>();
  const rowOf = (set: LabelSet) =>
    getOrCreate(rows, keyOf(set), () => ({
      requests: 0,
      failed: 0,
      inputTokens: 0,
      outputTokens: 0,
      firstToken: new Float64Array(firstToken.bounds.length + 1),
    }));
  for (const [set, { buckets }] of duration.series) {
    const row = rowOf(set);
    const count = buckets.reduce((sum, inBucket) => sum + inBucket, 0);
    row.requests += count;
    if (isFailed(set.labels['error_type'])) row.failed += count;
  }
  for (const [set, { sum }] of tokens.series) {
    addTokens(rowOf(set), set.labels['gen_ai_token_type'], sum);
  }
  for (const [set, { buckets }] of firstToken.series) {
    const row = rowOf(set);
    for (const [index, count] of buckets.entries()) row.firstToken[index]! += count;
  }
  return rows;
}

function addTokens(
  row: Pick<Usage, 'inputTokens' | 'outputTokens'>,
  type: string | undefined,
  count: number,
): void {
  if (type === 'input') row.inputTokens += count;
  if (type === 'output') row.outputTokens += count;
}

/** Returns the row of that key, which is created if there is none. */
function getOrCreate<Row>(rows: Map<string, Row>, key: string, create: () => Row): Row {
  let row = rows.get(key);
  if (!row) rows.set(key, (row = create()));
  return row;
}
