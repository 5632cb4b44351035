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
    url: 'http://127.0.0.1:8080/v1',
    needsKey: false,
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

/** The steps of the charts by their numbers, the last one at the feed's present. */
export function steps(values: readonly object[]): object {
  const first = NOW_MS / 10_000 + 1 - values.length;
  return Object.fromEntries(values.map((step, i) => [first + i, step]));
}

const figures = (more: object) => ({
  gateway_requests_in_flight: 0,
  gateway_open_streams: 0,
  gateway_buffered_bytes: 0,
  gateway_log_lines_dropped_total: 0,
  process_cpu_seconds_total: 0.4,
  process_resident_memory_bytes: 61_000_000,
  nodejs_eventloop_lag_p99_seconds: 0.0011,
  ...more,
});

/** Of a gateway that has done nothing, with no provider. */
export function idleView(more: object = {}): object {
  return {
    settings: settings(),
    now: at(0),
    draining: false,
    accepting: true,
    attention: [],
    figures: figures({}),
    steps: steps([{ openStreams: 0 }]),
    all: { recent: {}, start: {} },
    providers: {},
    models: {},
    clients: {},
    requests: {},
    ...more,
  };
}

/** The sums of a row: since the start ten times as much as in the last 15 minutes. */
function sums(requests: number, more: Readonly<Record<string, number>> = {}): object {
  const sum = {
    requests,
    inputTokens: requests * 913,
    outputTokens: requests * 341,
    ...(more['p50'] && { p95: more['p50'] * 3 }),
    ...more,
  };
  return { recent: sum, start: { ...sum, requests: requests * 10 } };
}

export function provider(more: object = {}): object {
  return { state: 'good', openModels: [], inFlight: 0, ...sums(0), ...more };
}

const BUSY_PROVIDERS = {
  openai: provider({
    ...sums(18_432, { p50: 412, timeout: 3, upstream_error: 11, clientErrors: 40 }),
    inFlight: 5,
    oldestSeconds: 14,
    lastError: { at: at(-340), text: 'read ECONNRESET' },
    openModels: [{ model: 'gpt-5', until: at(19), why: '503 The engine is currently overloaded' }],
  }),
  groq: provider({
    ...sums(2210, { p50: 96, upstream_error: 64, rate_limited: 2, failed: 66 }),
    state: 'open',
    why: 'connect ECONNREFUSED 127.0.0.1:9000',
    openUntil: at(24),
    lastError: { at: at(-6), text: 'connect ECONNREFUSED 127.0.0.1:9000' },
  }),
  ollama: provider({ ...sums(77, { p50: 1204 }), state: 'half-open', why: 'no answer in 60 s' }),
  xai: provider({
    ...sums(31, { upstream_error: 31, failed: 31 }),
    state: 'failing',
    why: '402 No credits left',
    since: at(-46_800),
    lastError: { at: at(-125), text: '402 No credits left' },
  }),
  mistral: { state: 'skipped', why: 'no api_key and no MISTRAL_API_KEY' },
};

const BUSY_FIGURES = {
  gateway_requests_in_flight: 9,
  gateway_open_streams: 7,
  gateway_buffered_bytes: 1_240_000,
  gateway_upstream_connections_open: 12,
  gateway_upstream_connections_made_total: 40,
  gateway_upstream_connections_reused_total: 20_611,
  process_cpu_seconds_total: 96.2,
  process_resident_memory_bytes: 83_000_000,
  nodejs_eventloop_lag_p99_seconds: 0.0024,
};

export function busyView(more: Record<string, object> = {}): object {
  const requests = wave(8, 64, 9);
  const openStreams = wave(1, 12, 5);
  const p50 = wave(240, 520, 7);
  const values = requests.map((count, i) => ({
    requests: count,
    failed: i > 60 && i < 68 ? (i % 4) + 1 : i % 29 === 3 ? 1 : 0,
    openStreams: openStreams[i],
    // Gaps, and a value alone between two of them.
    ...((i < 20 || i > 24 || i === 22) && {
      p50: p50[i],
      p95: Math.round(p50[i]! * (1.6 + (i % 5) / 4)),
    }),
  }));
  const attention = [
    'The reload of 2026-11-22T10:02:11.000Z failed: providers.groq.timeout: found "ten", expected an integer from 1 to 2147483. Correct the file and send SIGHUP again.',
    'Provider groq refuses key 2 (401): replace it in api_keys.',
  ];
  return idleView({
    attention,
    figures: figures(BUSY_FIGURES),
    steps: steps(values),
    all: sums(20_719, { failed: 80, p50: 388 }),
    providers: BUSY_PROVIDERS,
    models: {
      'fast openai': sums(14_020, { failed: 9, p50: 388 }),
      'openai/gpt-5 openai': sums(4412, { failed: 5, p50: 904 }),
      'groq/llama-3.3-70b-versatile groq': sums(2210, { failed: 66, p50: 96 }),
      'other ollama': sums(77, { p50: 1204 }),
    },
    clients: { 'team-search': sums(16_700, { failed: 61 }), ci: sums(4020, { failed: 19 }) },
    requests: requestsByNumber(),
    ...more,
  });
}

/** Of a gateway whose providers all fail, each in its own way, and with something of everything that needs attention. */
export function failingView(): object {
  const failed = (count: number, state: string, why: string, more: object = {}) => {
    const lastError = { at: at(-3), text: why };
    return provider({
      ...sums(count, { upstream_error: count, failed: count }),
      state,
      why,
      lastError,
      since: at(-240),
      ...more,
    });
  };
  return busyView({
    attention: [
      'Provider openai refuses key 1 (401), key 2 (401): replace it in api_keys.',
      'The store of [rate_limit] does not answer: each gateway limits by itself.',
      '58 of 60 file descriptors are open, 12 connections failed for want of them: raise ulimit -n.',
      'The list of models of groq cannot be read: see "model list failed" in the log.',
    ],
    all: sums(412, { failed: 412 }),
    steps: steps([{ requests: 412, failed: 412, openStreams: 3 }, { openStreams: 3 }]),
    providers: {
      openai: failed(120, 'key refused', '401 Incorrect API key provided: [secret]'),
      groq: failed(90, 'unreachable', 'ECONNREFUSED: connect ECONNREFUSED 127.0.0.1:9000'),
      xai: failed(80, 'failing', '503 no capacity'),
      ollama: failed(60, 'open', 'no complete answer in 1000 ms', { openUntil: at(12) }),
      mistral: failed(40, 'partly', '500 out of memory', {
        ...sums(200, { upstream_error: 62, failed: 62 }),
        share: 0.31,
        inFlight: 5,
        oldestSeconds: 14,
      }),
    },
    models: {
      'fast openai': sums(120, { failed: 120 }),
      'groq/llama-3.3-70b-versatile groq': sums(90, { failed: 90 }),
    },
  });
}

/** 30 providers with ten models each, of which some fail. */
export function largeView(): object {
  const providers = Array.from({ length: 30 }, (_, i) => {
    const isFailing = i % 9 === 4;
    const state = isFailing ? { state: 'failing', why: '503 Overloaded', since: at(-90) } : {};
    return [`provider-${i}`, provider({ ...sums(4000 - 100 * i, { p50: 200 + i }), ...state })];
  });
  const models = Array.from({ length: 300 }, (_, i) => [
    `provider-${i % 30}/model-${i} provider-${i % 30}`,
    sums(900 - i, { p50: 200 + i, ...(i % 60 === 59 && { failed: i }) }),
  ]);
  const clients = Array.from({ length: 60 }, (_, i) => [`client-${i}`, sums(i * 7)]);
  return busyView({
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
