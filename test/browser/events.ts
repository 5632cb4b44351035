/** Events of a feed with something in every place of the page. */

const NOW_MS = Date.parse('2026-11-22T10:15:30.000Z');
const STEPS = 90;

/** A time `seconds` after the feed's present. */
export const at = (seconds: number): string => new Date(NOW_MS + seconds * 1000).toISOString();

export function settingsEvent(more: object = {}): object {
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

const IDLE_HISTORY = {
  stepSeconds: 10,
  endsAt: at(4),
  requests: Array.from({ length: STEPS }, () => 0),
  failed: Array.from({ length: STEPS }, () => 0),
  openStreams: Array.from({ length: STEPS }, () => 0),
  firstTokenP50Ms: Array.from({ length: STEPS }, () => null),
  firstTokenP95Ms: Array.from({ length: STEPS }, () => null),
};

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
export function idleState(more: object = {}): object {
  return {
    now: at(0),
    draining: false,
    accepting: true,
    attention: [],
    figures: figures({}),
    history: IDLE_HISTORY,
    providers: [],
    models: [],
    clients: [],
    ...more,
  };
}

const counts = (requests: number, failed: number, p50: number | null) => ({
  requests,
  failed,
  inputTokens: requests * 913,
  outputTokens: requests * 341,
  firstTokenP50Ms: p50,
  firstTokenP95Ms: p50 && p50 * 3,
});

export function provider(id: string, more: object = {}): object {
  const { failed: _, ...totals } = counts(0, 0, null);
  const rest = { state: 'good', why: null, openUntil: null, openModels: [], share: 0, inFlight: 0 };
  return { id, ...rest, ...totals, clientErrors: 0, errors: {}, lastError: null, ...more };
}

const BUSY_PROVIDERS = [
  provider('openai', {
    ...counts(18_432, 0, 412),
    errors: { timeout: 3, upstream_error: 11 },
    lastError: { at: at(-340), text: 'read ECONNRESET' },
    openModels: [{ model: 'gpt-5', until: at(19), why: '503 The engine is currently overloaded' }],
  }),
  provider('groq', {
    ...counts(2210, 0, 96),
    state: 'open',
    why: 'connect ECONNREFUSED 127.0.0.1:9000',
    openUntil: at(24),
    errors: { upstream_error: 64, rate_limited: 2 },
    lastError: { at: at(-6), text: 'connect ECONNREFUSED 127.0.0.1:9000' },
  }),
  provider('ollama', { ...counts(77, 0, 1204), state: 'half-open', why: 'no answer in 60 s' }),
  provider('xai', {
    ...counts(31, 0, null),
    state: 'failing',
    why: '402 No credits left',
    since: at(-46_800),
    errors: { upstream_error: 31 },
    lastError: { at: at(-125), text: '402 No credits left' },
  }),
  provider('mistral', { state: 'skipped', why: 'no api_key and no MISTRAL_API_KEY' }),
];

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

export function busyState(more: Record<string, object> = {}): object {
  const requests = wave(8, 64, 9);
  const failed = requests.map((_, i) => (i > 60 && i < 68 ? (i % 4) + 1 : i % 29 === 3 ? 1 : 0));
  const p50 = wave(240, 520, 7).map((ms, i) => (i > 20 && i < 24 ? null : ms));
  return idleState({
    figures: figures(BUSY_FIGURES),
    history: {
      ...IDLE_HISTORY,
      requests,
      failed,
      openStreams: wave(1, 12, 5),
      firstTokenP50Ms: p50,
      firstTokenP95Ms: p50.map((ms, i) => ms && Math.round(ms * (1.6 + (i % 5) / 4))),
    },
    providers: BUSY_PROVIDERS,
    models: [
      { name: 'fast', provider: 'openai', ...counts(14_020, 9, 388) },
      { name: 'openai/gpt-5', provider: 'openai', ...counts(4412, 5, 904) },
      { name: 'groq/llama-3.3-70b-versatile', provider: 'groq', ...counts(2210, 66, 96) },
      { name: 'other', provider: 'ollama', ...counts(77, 0, 1204) },
    ],
    clients: [
      { name: 'team-search', ...counts(16_700, 61, 0) },
      { name: 'ci', ...counts(4020, 19, 0) },
    ],
    ...more,
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
  { outcome: 'timeout', status: 504, cause: 'no first event in 20 s' },
  { outcome: 'ok', status: 200 },
];

let lastNumber = 0;

/** Finished requests, oldest first, the last one just now, each with the next number. */
export function requestsEvent(length = 200): object[] {
  return Array.from({ length }, (_, i) => {
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
}
