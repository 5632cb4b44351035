/** The limits behind a 429: one table for errors, limiters, metrics and the page. */

/** The periods of token buckets in seconds. */
export const PERIODS = {
  1: { name: 'second', short: 's' },
  60: { name: 'minute', short: 'min' },
} as const;

/** The periods of calendar windows, in UTC. */
export type WindowPeriod = 'day' | 'month';

/** More decimals would show the errors of floating-point numbers: 0.30000000000000004. */
export const COST_DECIMALS = 10;

/** The least cost that is not rounded to 0. */
export const LEAST_COST = Number(`1e-${COST_DECIMALS}`);

/** Returns the number without an exponent, which JavaScript writes below 0.000001. */
export function formatCost(cost: number): string {
  const text = String(cost);
  return text.includes('e-') ? cost.toFixed(COST_DECIMALS).replace(/0+$/, '') : text;
}

interface LimitRow {
  /** `provider`: the client, if any, is not at fault. */
  readonly of: 'all' | 'client' | 'provider';
  /**
   * The name in `Config` of the setting that alone describes a client's limit. The limit's name is
   * `client_` and the setting's.
   */
  readonly property?: string;
  readonly counts?: 'requests' | 'tokens' | 'cost';
  /** When a token bucket is full again. */
  readonly periodSeconds?: keyof typeof PERIODS;
  /** When a calendar window begins anew. */
  readonly period?: WindowPeriod;
}

/**
 * `upstream` is the limit of a provider that has answered 429. `global`, `client` and `provider`
 * are the limits per second of `[rate_limit]`, `[clients]` and `[rate_limit.providers]`.
 */
export const LIMITS = {
  global: { of: 'all' },
  client: { of: 'client' },
  client_requests_per_minute: {
    of: 'client',
    property: 'requestsPerMinute',
    counts: 'requests',
    periodSeconds: 60,
  },
  client_tokens_per_minute: {
    of: 'client',
    property: 'tokensPerMinute',
    counts: 'tokens',
    periodSeconds: 60,
  },
  client_tokens_per_day: {
    of: 'client',
    property: 'tokensPerDay',
    counts: 'tokens',
    period: 'day',
  },
  client_tokens_per_month: {
    of: 'client',
    property: 'tokensPerMonth',
    counts: 'tokens',
    period: 'month',
  },
  client_cost_per_day: { of: 'client', property: 'costPerDay', counts: 'cost', period: 'day' },
  client_cost_per_month: {
    of: 'client',
    property: 'costPerMonth',
    counts: 'cost',
    period: 'month',
  },
  provider: { of: 'provider' },
  provider_requests_per_minute: { of: 'provider' },
  server_concurrency: { of: 'all' },
  client_concurrency: { of: 'client' },
  provider_concurrency: { of: 'provider' },
  memory: { of: 'all' },
  upstream: { of: 'provider' },
} as const satisfies Readonly<Record<string, LimitRow>>;

export type Limit = keyof typeof LIMITS;

const ROWS = (Object.keys(LIMITS) as Limit[]).map((limit) => {
  return { limit, setting: limit.replace('client_', ''), ...LIMITS[limit] };
});

export function limitsOf(kind: LimitRow['of']): Limit[] {
  return ROWS.filter((row) => row.of === kind).map(({ limit }) => limit);
}

/** The token buckets of a client that one `setting` each describes. */
export const CLIENT_BUCKETS = ROWS.filter((row) => 'periodSeconds' in row);

/** As `CLIENT_BUCKETS`, the calendar windows. */
export const CLIENT_WINDOWS = ROWS.filter((row) => 'period' in row);
