/** Views that a feed sends, with something in every place of the page. */

const NOW_MS = Date.parse('2026-11-22T10:15:30.000Z');
const STEPS = 90;

/** A time `seconds` after the feed's present. */
export const at = (seconds: number): string => new Date(NOW_MS + seconds * 1000).toISOString();

export function settings(more: object = {}): object {
  return {
    version: '0.1.0',
    host: 'gw-1',
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

/** The steps of the charts by their numbers, 90 of them, the last one at the feed's present. */
export function steps(values: readonly object[]): object {
  const all = Array.from({ length: STEPS }, (_, i) => {
    const time = NOW_MS - 10_000 * (STEPS - 1 - i);
    return [LAST_STEP + 1 - STEPS + i, { time, ...values[i - STEPS + values.length] }];
  });
  return Object.fromEntries(all) as object;
}

const figures = (more: object) => ({
  in_flight: 0,
  about: 'Node 24.18.0 \u00b7 up 3 h 12 min \u00b7 CPU 1 % \u00b7 61 MB',
  ...more,
});

/** Of a gateway that has done nothing, with no provider. */
export function idleView(more: object = {}): object {
  return {
    settings: settings(),
    now: at(0),
    draining: false,
    verdict: { icon: 'off', title: 'No traffic', notes: ['No request in the last minute.'] },
    order: [],
    incidents: {},
    ended: [],
    lanes: [],
    kept: 0,
    figures: figures({}),
    step: LAST_STEP,
    minute: {},
    steps: steps([]),
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

/** Affected requests for a name. */
export function affected(name: string, more: object = {}): object {
  return { name, shares: [1, 0], text: '9 of 9 failed', rest: '', words: name, ...more };
}

/** A lasting incident that began so many seconds before the feed's present. */
export function incident(subject: string, seconds: number, more: object = {}): object {
  const id = `i${subject}`;
  const words = { title: 'errors', effect: '', action: 'Look at its status page.', age: '1 min' };
  const lists = { causes: ['no capacity'], affected: [] };
  return { id, icon: 'warn', subject, ...words, since: at(-seconds), ...lists, ...more };
}

/** The members of a view that has these incidents. */
export function withIncidents(...all: readonly object[]): object {
  const known = all as { id: string; icon: string; subject: string; client?: string }[];
  const lanes = known
    .filter(({ client }) => client === undefined)
    .map(({ icon, subject }, i) => ({ icon, text: subject, from: LAST_STEP - 10 - i }));
  const isBad = known.some(({ icon }) => icon === 'bad');
  return {
    order: known.map(({ id }) => id),
    incidents: Object.fromEntries(known.map((one) => [one.id, one])) as object,
    lanes,
    verdict: {
      icon: isBad ? 'bad' : 'warn',
      title: isBad ? 'Requests fail' : `${known.length} incident`,
      notes: ['12 of 161 in the last minute, 7.5 %.', `${known.length} incidents.`],
    },
  };
}

export function provider(more: object = {}): object {
  const nothing = { states: [['off', 'Not asked']], details: [], rank: 1, inFlight: 0 };
  return { ...nothing, ...sums(0), ...more };
}

const state = (icon: string, text: string, ...details: string[]) => {
  const mark = icon === 'good' || icon === 'off' ? undefined : icon;
  return { states: [[icon, text]], details, mark, rank: mark ? 0 : 1 };
};

const BUSY_PROVIDERS = {
  openai: provider({
    ...sums(18_432, { p50: 412, failed: 14, rejected: 40, connect: 11 }),
    ...state(
      'bad',
      'gpt-5: errors',
      `streams of gpt-5 kept away until ${at(19)}`,
      'oldest request 14 s',
    ),
    minutes: '...ggggwwwbbggw',
    inFlight: 5,
  }),
  groq: provider({
    ...sums(2210, { p50: 96, failed: 66 }),
    ...state('warn', 'no connection', `kept away until ${at(24)}`),
    minutes: 'gggggggggggggbb',
  }),
  ollama: provider({ ...sums(77, { p50: 1204 }), ...state('good', 'Good'), inFlight: 1 }),
  xai: provider({ ...sums(31, { failed: 31 }), ...state('bad', 'errors') }),
  bolt: provider(),
  mistral: {
    ...state('off', 'Skipped', 'no api_key and no MISTRAL_API_KEY'),
    skipped: true,
    rank: 2,
  },
};

const BUSY_INCIDENTS = [
  incident('xai', 46_800, {
    icon: 'bad',
    age: '13 h 0 min',
    causes: ['402 No credits left'],
    affected: [affected('xai/grok-4', { text: '31 of 31 failed', clients: 'ci' })],
  }),
  incident('openai/gpt-5', 40, {
    icon: 'bad',
    age: '40 s',
    causes: ['The engine is currently overloaded'],
    affected: [
      affected('openai/gpt-5', { text: '9 of 12 failed', clients: 'ci, team-search' }),
      affected('smart', { shares: [0, 1], text: '4 of 4', rest: ' answered by ollama' }),
    ],
    more: 2,
  }),
  incident('groq', 61, {
    title: 'no connection',
    effect: 'other providers answer',
    causes: ['ECONNREFUSED 127.0.0.1:9000'],
    affected: [
      affected('fast', {
        shares: [0, 1],
        text: '107 of 107',
        rest: ' answered by ollama',
        clients: 'team-search',
        words: 'fast groq',
      }),
    ],
  }),
  incident('gateway', 799, {
    title: 'new settings refused, former ones in use',
    age: '13 min',
    causes: ['providers.groq.timeout: found "ten", expected an integer from 1 to 2147483'],
  }),
];

const BUSY_ENDED = [
  {
    id: 'i9',
    subject: 'gateway',
    text: `store of rate limits away ${at(-2000)} \u2013 ${at(-1500)} \u00b7 8 min 20 s`,
    cause: '10.0.0.9:6379: no answer in 50 ms',
  },
];

const BUSY_FIGURES = { in_flight: 9 };

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
    ...withIncidents(...BUSY_INCIDENTS),
    ended: BUSY_ENDED,
    kept: 200,
    figures: figures(BUSY_FIGURES),
    steps: steps(values),
    minute: {
      requests: 161,
      failed: 12,
      p50: 388,
      p95: 1164,
      connect: 11,
      gateway: 2,
      tokens: 12_300,
    },
    providers: BUSY_PROVIDERS,
    models: {
      fast: {
        ...sums(14_020, { failed: 9, p50: 388 }),
        chain: [
          ['bad', 'groq'],
          ['good', 'ollama'],
        ],
        rank: 1,
      },
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

/** Returns the view of a gateway whose providers all fail, and that fails itself in each way. */
export function failingView(): object {
  const failed = (count: number, more: object = {}) =>
    provider({ ...sums(count, { failed: count }), ...state('bad', 'errors'), ...more });
  const all = ['openai', 'groq', 'xai', 'ollama', 'mistral'].map((id, i) =>
    incident(id, 9 * i, { icon: i < 3 ? 'bad' : 'warn', affected: [affected('fast')] }),
  );
  const own = ['descriptors', 'memory', 'log_lines', 'store'].map((kind) =>
    incident(`gateway ${kind}`, 20, { icon: 'bad', title: kind }),
  );
  return busyView({
    ...withIncidents(...all, ...own),
    minute: sums(412, { failed: 412 }),
    steps: steps([{ requests: 412, failed: 412 }, {}]),
    providers: {
      openai: failed(120),
      groq: failed(90),
      xai: failed(80),
      ollama: failed(60, { details: [`kept away until ${at(12)}`] }),
      mistral: failed(40, { inFlight: 5 }),
    },
    models: {
      fast: sums(120, { failed: 120 }),
      'groq/llama-3.3-70b-versatile': sums(90, { failed: 90 }),
    },
  });
}

/** 40 providers with 200 models and 100 clients, of which some fail, and 30 ended incidents. */
export function largeView(): object {
  const failing = [4, 13, 22];
  const providers = Array.from({ length: 40 }, (_, i) => {
    const more = failing.includes(i) ? state('bad', 'errors') : {};
    return [`provider-${i}`, provider({ ...sums(4000 - 100 * i, { p50: 200 + i }), ...more })];
  });
  const models = Array.from({ length: 200 }, (_, i) => {
    const isBad = i % 60 === 59;
    const row = sums(900 - i, { p50: 200 + i, ...(isBad && { failed: i }) });
    return [`provider-${i % 40}/model-${i}`, { ...row, rank: isBad ? 0 : 1 }];
  });
  const clients = Array.from({ length: 100 }, (_, i) => [
    `client-${i}`,
    { ...sums(i * 7), rank: 1 },
  ]);
  const line = (i: number) => {
    const text = `errors ${at(-90 - i)} \u2013 ${at(-i)} \u00b7 1 min 30 s`;
    return { id: `e${i}`, subject: `provider-${i}`, text, cause: 'no capacity' };
  };
  const lines = Array.from({ length: 27 }, (_, i) => line(i + 3));
  return busyView({
    ...withIncidents(...failing.map((i) => incident(`provider-${i}`, 90))),
    ended: [line(0), line(1), line(2), { id: 'more', subject: '27 more', text: '', lines }],
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

const ICONS: Readonly<Record<string, string>> = {
  ok: 'good',
  client_closed: 'off',
  refused: 'warn',
};

let lastNumber = 0;

/** Finished requests by their numbers, the last one just now, each with the next number. */
export function requestsByNumber(length = 200): Record<number, object> {
  const requests = Array.from({ length }, (_, i) => {
    const { fallback, ...outcome } = OUTCOMES[i % OUTCOMES.length]!;
    const icon = ICONS[outcome.outcome] ?? 'bad';
    const tried = fallback
      ? [
          ['warn', 'openai'],
          ['good', 'groq'],
        ]
      : [[icon === 'good' ? '' : icon, outcome.outcome === 'refused' ? 'not sent' : 'openai']];
    const tries = [
      {
        provider: 'openai',
        key: 2,
        model: 'gpt-5-mini',
        outcome: 'upstream_error',
        status: 503,
        cause: 'The engine is currently overloaded, please try again later',
        url: 'https://api.openai.com/v1/chat/completions',
        duration_ms: 212,
      },
    ];
    lastNumber += 1;
    return {
      number: lastNumber,
      time: at(i - length),
      icon,
      ...outcome,
      model: i % 4 === 0 ? 'openai/gpt-5' : 'fast',
      tried,
      client: i % 3 === 0 ? 'ci' : 'team-search',
      first_ms: i % 2 === 0 ? 180 + ((i * 97) % 700) : undefined,
      duration_ms: 700 + ((i * 389) % 6000),
      request_id: `5f0c2b1e-0000-4000-8000-${String(i).padStart(12, '0')}`,
      trace_id: `4bf92f3577b34da6a3ce929d0e${String(i).padStart(6, '0')}`,
      ...(fallback && { tries }),
    };
  });
  return Object.fromEntries(requests.map((request) => [request.number, request]));
}
