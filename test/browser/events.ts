/** Views that a feed sends, with something in every place of the page. */

const NOW_MS = Date.parse('2026-11-22T10:15:30.000Z');
const STEPS = 90;

/** A time `seconds` after the feed's present. */
export const at = (seconds: number): string => new Date(NOW_MS + seconds * 1000).toISOString();

export function settings(more: object = {}): object {
  return {
    version: '0.1.0',
    host: 'gw-1',
    node: 'v24.18.0',
    startedAt: at(-11_520),
    settings: [
      ['server.port', 8080],
      ['server.host', '127.0.0.1'],
      ['server.timeout', 60],
      ['server.auth.keys', '[secret]'],
      ['providers.fallback', ['groq', 'ollama']],
      ['providers.openai.api_key', '[secret]'],
      ['providers.groq.default_model', 'llama-3.3-70b-versatile'],
      ['aliases.fast', 'openai/gpt-5-mini'],
      ['aliases.smart', 'openai/gpt-5'],
    ],
    warnings: ['aliases.smart: provider "openai" is not registered'],
    ...more,
  };
}

const wave = (low: number, high: number, period: number) =>
  Array.from({ length: STEPS }, (_, i) =>
    Math.round(low + ((high - low) * (1 + Math.sin(i / period) + Math.sin(i * 1.7) / 9)) / 2.4),
  );

const LAST_STEP = NOW_MS / 10_000;

/** The steps of the charts by their numbers, the last one at the feed's present. */
export function steps(values: readonly object[]): object {
  return Object.fromEntries(values.map((step, i) => [LAST_STEP + 1 - values.length + i, step]));
}

const figures = (more: object) => ({
  gateway_requests_in_flight: 0,
  process_cpu_seconds_total: 0.4,
  process_resident_memory_bytes: 61_000_000,
  process_up_seconds: 11_520,
  ...more,
});

/** Of a gateway that has done nothing, with no provider. */
export function idleView(more: object = {}): object {
  return {
    settings: settings(),
    now: at(0),
    draining: false,
    incidents: [],
    figures: figures({}),
    step: LAST_STEP,
    minute: {},
    steps: {},
    all: {},
    providers: {},
    models: {},
    clients: {},
    requests: {},
    ...more,
  };
}

/** The sums of a row. */
export function sums(requests: number, more: Readonly<Record<string, number>> = {}): object {
  return {
    requests,
    ...(more['p50'] && { p95: more['p50'] * 3 }),
    ...more,
  };
}

interface Affected {
  readonly name: string;
  readonly failed?: number;
  readonly good?: number;
  readonly answered?: number;
  readonly by?: string;
  readonly clients?: string;
}

/** An incident that began so many seconds before the feed's present. */
export function incident(
  kind: string,
  seconds: number,
  more: { readonly affected?: readonly Affected[]; readonly [name: string]: unknown } = {},
): object {
  const affected = more.affected?.map((one) => ({ failed: 0, good: 0, answered: 0, ...one })) ?? [];
  return { kind, since: at(-seconds), tries: 40, failures: 38, ...more, affected };
}

export function provider(more: object = {}): object {
  return { keptAway: [], inFlight: 0, oldestSeconds: 0, ...sums(0), ...more };
}

const BUSY_PROVIDERS = {
  openai: provider({
    ...sums(18_432, { p50: 412, failed: 14, rejected: 40, connect: 11 }),
    inFlight: 5,
    oldestSeconds: 14,
    keptAway: [{ model: 'gpt-5', stream: true, until: at(19) }],
  }),
  groq: provider({
    ...sums(2210, { p50: 96, failed: 66 }),
    keptAway: [{ until: at(24) }],
  }),
  ollama: provider({
    ...sums(77, { p50: 1204 }),
    minute: { requests: 9 },
    inFlight: 1,
    oldestSeconds: 4,
  }),
  xai: provider({
    ...sums(31, { failed: 31 }),
  }),
  bolt: provider(),
  mistral: { skipped: 'no api_key and no MISTRAL_API_KEY' },
};

const BUSY_INCIDENTS = [
  incident('reload', 799, {
    cause: 'providers.groq.timeout: found "ten", expected an integer from 1 to 2147483, and 1 more',
  }),
  incident('errors', 46_800, {
    provider: 'xai',
    cause: '402 No credits left',
    affected: [{ name: 'xai/grok-4', failed: 31, clients: 'ci' }],
  }),
  incident('unreachable', 61, {
    provider: 'groq',
    cause: 'ECONNREFUSED 127.0.0.1:9000',
    affected: [{ name: 'fast', answered: 107, by: 'ollama', clients: 'team-search' }],
  }),
  incident('errors', 40, {
    provider: 'openai',
    model: 'gpt-5',
    cause: 'The engine is currently overloaded',
    affected: [
      { name: 'openai/gpt-5', failed: 9, good: 3, clients: 'ci, team-search' },
      { name: 'smart', answered: 4, by: 'ollama' },
    ],
    more: 2,
  }),
  incident('store', 2000, {
    ended: at(-1500),
    cause: '10.0.0.9:6379: no answer in 50 ms',
  }),
];

const BUSY_FIGURES = {
  gateway_requests_in_flight: 9,
  process_cpu_seconds_total: 96.2,
  process_resident_memory_bytes: 83_000_000,
};

export function busyView(more: Record<string, object> = {}): object {
  const requests = wave(8, 64, 9);
  const p50 = wave(240, 520, 7);
  const values = requests.map((count, i) => ({
    requests: count,
    failed: i > 60 && i < 68 ? (i % 4) + 1 : i % 29 === 3 ? 1 : 0,
    // With a gap.
    ...((i < 20 || i > 24) && { p50: p50[i], p95: 3 * p50[i]! }),
  }));
  return idleView({
    incidents: BUSY_INCIDENTS,
    figures: figures(BUSY_FIGURES),
    steps: steps(values),
    all: sums(20_719, { failed: 80, p50: 388 }),
    minute: { requests: 161, failed: 12, p50: 388, p95: 1164, connect: 11, gateway: 2 },
    providers: BUSY_PROVIDERS,
    models: {
      fast: sums(14_020, { failed: 9, p50: 388 }),
      'openai/gpt-5': sums(4412, { failed: 5, p50: 904 }),
      'groq/llama-3.3-70b-versatile': sums(2210, { failed: 66, p50: 96, rejected: 4 }),
      other: sums(77, { p50: 1204 }),
    },
    clients: {
      'team-search': sums(16_700, { failed: 61, client_closed: 2 }),
      ci: sums(4020, { failed: 19 }),
      'no valid key': sums(12, { rejected: 12 }),
    },
    requests: requestsByNumber(),
    ...more,
  });
}

/**
 * Of a gateway whose providers all fail, each in its own way, and that fails itself in each way.
 */
export function failingView(): object {
  const failed = (count: number, more: object = {}) =>
    provider({ ...sums(count, { failed: count }), ...more });
  const affected = (name: string, count: number) => [{ name, failed: count, clients: 'ci' }];
  return busyView({
    incidents: [
      incident('key_refused', 240, {
        provider: 'openai',
        key: 2,
        cause: 'no',
        affected: affected('fast', 120),
      }),
      incident('unreachable', 9, { provider: 'groq', cause: 'ECONNREFUSED 127.0.0.1:9000' }),
      incident('rate_limited', 99, {
        provider: 'xai',
        until: at(17),
        affected: affected('xai/grok-4', 80),
      }),
      incident('stall', 30, { provider: 'ollama', cause: 'no event in 30000 ms' }),
      incident('descriptors', 20, { cause: 'EMFILE: open files of the process (ulimit -n)' }),
      incident('memory', 20, { cause: 'server.max_buffered_bytes: 67108864 of 67108864' }),
      incident('log_lines', 20, { cause: '1200 lines since the start' }),
      incident('store', 20, { cause: '10.0.0.9:6379: connect ECONNREFUSED 10.0.0.9:6379' }),
      incident('slow', 200, {
        provider: 'mistral',
        cause: 'first token after 4000 ms, 400 ms is usual',
      }),
      incident('model_list', 200, { provider: 'mistral', cause: 'status 500' }),
    ] as unknown as object,
    all: sums(412, { failed: 412 }),
    minute: sums(412, { failed: 412 }),
    steps: steps([{ requests: 412, failed: 412 }, {}]),
    providers: {
      openai: failed(120),
      groq: failed(90),
      xai: failed(80),
      ollama: failed(60, { keptAway: [{ until: at(12) }] }),
      mistral: failed(40, { inFlight: 5, oldestSeconds: 14 }),
    },
    models: {
      fast: sums(120, { failed: 120 }),
      'groq/llama-3.3-70b-versatile': sums(90, { failed: 90 }),
    },
  });
}

/** 30 providers with ten models each, of which some fail. */
export function largeView(): object {
  const providers = Array.from({ length: 30 }, (_, i) => {
    return [`provider-${i}`, provider(sums(4000 - 100 * i, { p50: 200 + i }))];
  });
  const models = Array.from({ length: 300 }, (_, i) => [
    `provider-${i % 30}/model-${i}`,
    sums(900 - i, { p50: 200 + i, ...(i % 60 === 59 && { failed: i }) }),
  ]);
  const clients = Array.from({ length: 60 }, (_, i) => [`client-${i}`, sums(i * 7)]);
  return busyView({
    incidents: [4, 13, 22].map((i) => incident('errors', 90, { provider: `provider-${i}` })),
    providers: Object.fromEntries(providers) as object,
    models: Object.fromEntries(models) as object,
    clients: Object.fromEntries(clients) as object,
    requests: {},
  });
}

const OUTCOMES = [
  { outcome: 'ok', status: 200 },
  { outcome: 'upstream_error', status: 502, cause: 'connect ECONNREFUSED 127.0.0.1:9000' },
  { outcome: 'ok', status: 200, fallback: true },
  { outcome: 'client_closed', status: 200 },
  { outcome: 'ok', status: 200 },
  { outcome: 'refused', status: 400, reason: 'Invalid request: missing field "messages"' },
  { outcome: 'rate_limited', status: 429, reason: 'global' },
  { outcome: 'ok', status: 200 },
  { outcome: 'timeout', status: 504, cause: 'no first token in 20 s' },
  { outcome: 'ok', status: 200 },
];

let lastNumber = 0;

/** Finished requests by their numbers, the last one just now, each with the next number. */
export function requestsByNumber(length = 200): Record<number, object> {
  const requests = Array.from({ length }, (_, i) => {
    const { fallback, ...outcome } = OUTCOMES[i % OUTCOMES.length]!;
    const id = fallback ? 'groq' : 'openai';
    const failed = {
      provider: 'openai',
      key: 2,
      model: 'gpt-5-mini',
      outcome: 'upstream_error',
      status: 503,
      cause: 'The engine is currently overloaded, please try again later',
      url: 'https://api.openai.com/v1/chat/completions',
      duration_ms: 212,
    };
    const last = { provider: id, model: fallback ? 'llama-3.3-70b-versatile' : 'gpt-5-mini' };
    const isRefused = outcome.outcome === 'refused';
    lastNumber += 1;
    return {
      number: lastNumber,
      time: at(i - length),
      request_id: `5f0c2b1e-0000-4000-8000-${String(i).padStart(12, '0')}`,
      trace_id: `4bf92f3577b34da6a3ce929d0e${String(i).padStart(6, '0')}`,
      method: 'POST',
      path: '/v1/chat/completions',
      remote: '10.0.4.17',
      client: i % 3 === 0 ? 'ci' : 'team-search',
      ...outcome,
      ...(isRefused
        ? {}
        : {
            provider: id,
            model: i % 4 === 0 ? 'openai/gpt-5' : 'fast',
            upstream_model: last.model,
            stream: i % 2 === 0,
            first_byte_ms: 180 + ((i * 97) % 700),
            prompt_tokens: 40 + ((i * 577) % 4000),
            completion_tokens: (i * 131) % 900,
            finish_reason: 'stop',
            tries: [
              ...(fallback ? [failed] : []),
              { ...last, outcome: outcome.outcome, status: outcome.status, duration_ms: 340 },
            ],
          }),
      duration_ms: 700 + ((i * 389) % 6000),
      bytes: 18_233,
    };
  });
  return Object.fromEntries(requests.map((request) => [request.number, request]));
}
