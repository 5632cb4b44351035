/**
 * The metrics as the real Prometheus sees them: 1,000 mixed requests, and the figures that they
 * must give.
 */

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { test, type TestContext } from 'node:test';

import { idle } from '../support/clock.ts';
import {
  chatBody,
  providerToml,
  rawChat,
  startGateway,
  type TestGateway,
} from '../support/gateway.ts';
import { emptyFolder, ROOT } from '../support/process.ts';
import { eventually } from '../support/streams.ts';
import { checkMetrics, isPrometheusMissing, startPrometheus } from '../support/prometheus.ts';
import {
  completion,
  NOBODY_LISTENS,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
  type ReceivedRequest,
  type Script,
} from '../support/upstream.ts';

const ADMIN_KEY = 'admin-key-canary-5544332211';
const USAGE = {
  prompt_tokens: 20,
  completion_tokens: 8,
  total_tokens: 28,
  prompt_tokens_details: { cached_tokens: 4 },
  completion_tokens_details: { reasoning_tokens: 3 },
};

const modelOf = ({ body }: ReceivedRequest) =>
  // A list of models is asked for without a body.
  (JSON.parse(body.toString() || '{"model":""}') as { model: string }).model;

/** Answers as the model's name says. */
const answerByModel: Script = (request, response) => {
  const model = modelOf(request);
  const status = Number(/^status-(\d+)/.exec(model)?.[1] ?? 200);
  if (status !== 200) {
    sendJson(response, { error: { message: 'so it was told' } }, { status });
  } else if (model === 'streamed') {
    const chunk = (choices: unknown[], usage: unknown) =>
      `data: ${JSON.stringify({ id: '1', object: 'chat.completion.chunk', model, choices, usage })}\n\n`;
    const delta = (finish_reason: string | null) => [
      { index: 0, delta: { content: 'a' }, finish_reason },
    ];
    const events = [chunk(delta(null), null), chunk(delta('stop'), null), chunk([], USAGE)];
    sendEvents(response, `${events.join('')}data: [DONE]\n\n`);
  } else if (!model.startsWith('silent')) {
    const message = { role: 'assistant', content: 'a' };
    const choices = [{ index: 0, message, finish_reason: 'stop' }];
    sendJson(response, { id: '1', object: 'chat.completion', model, choices, usage: USAGE });
  }
};

/** A spare provider that knows only the models `covered` and `dead`. */
const answerCovered: Script = (request, response) => {
  const isKnown = ['covered', 'dead'].some((name) => modelOf(request).endsWith(name));
  if (isKnown) sendJson(response, { choices: [] });
  else sendJson(response, { error: { message: 'no such model' } }, { status: 404 });
};

const toml = (upstream: FakeUpstream, spare: FakeUpstream) =>
  [
    providerToml(upstream, 'p', 'models = ["plain", "streamed"]'),
    providerToml(upstream, 'slow', 'timeout = 1'),
    providerToml(upstream, 'limited', 'models = ["plain"]'),
    providerToml({ baseUrl: NOBODY_LISTENS }, 'down'),
    providerToml(spare, 'spare'),
    '[providers]\nfallback = ["spare"]',
    '[aliases]\nfast = "p/plain"',
    '[rate_limit]\nenabled = true',
    '[rate_limit.providers.limited]\nrequests_per_second = 1\nburst_capacity = 5',
    `[admin]\nport = 0\nkeys = ["${ADMIN_KEY}"]\n`,
  ].join('\n');

/** Sends `count` requests, 8 at a time, and returns how often each status came. */
async function repeat(
  count: number,
  send: (at: number) => Promise<{ readonly status: number }>,
): Promise<Record<number, number>> {
  const statuses: Record<number, number> = {};
  let next = 0;
  const work = async () => {
    while (next < count) {
      next += 1;
      const { status } = await send(next);
      statuses[status] = (statuses[status] ?? 0) + 1;
    }
  };
  await Promise.all(Array.from({ length: 8 }, work));
  return statuses;
}

/** Leaves once the provider has the request. */
async function leave(gateway: TestGateway, upstream: FakeUpstream): Promise<void> {
  const before = upstream.requests.length;
  const socket = connect(gateway.port, '127.0.0.1');
  socket.write(rawChat(chatBody({ model: 'p/silent' })));
  await eventually(() => upstream.requests.length > before, 'the request');
  const { closed } = upstream.requests.at(-1)!;
  socket.destroy();
  await once(socket, 'close');
  await closed;
}

/**
 * The script. Returns how many of the 20 limited requests were refused: that depends on the
 * machine.
 */
async function sendThousand(gateway: TestGateway, upstream: FakeUpstream): Promise<number> {
  const chat = async (model: string, more: object = {}) =>
    gateway.chat(chatBody({ model, ...more }));
  assert.deepEqual(await repeat(400, () => chat('fast')), { 200: 400 });
  assert.deepEqual(await repeat(250, () => chat('p/streamed', { stream: true })), { 200: 250 });
  assert.deepEqual(await repeat(100, () => gateway.chat('{"model":')), { 400: 100 });
  const anonymous = { headers: { authorization: undefined } };
  assert.deepEqual(await repeat(50, () => gateway.chat(chatBody(), anonymous)), { 401: 50 });
  assert.deepEqual(await repeat(50, () => chat('nobody/m')), { 400: 50 });
  assert.deepEqual(await repeat(30, () => chat('p/status-500')), { 500: 30 });
  assert.deepEqual(await repeat(20, () => chat('p/status-429')), { 429: 20 });
  assert.deepEqual(await repeat(20, () => chat('p/status-401')), { 401: 20 });
  assert.deepEqual(await repeat(20, () => chat('p/status-500-covered')), { 200: 20 });
  // Another model each time: three failures of one would open its circuit.
  assert.deepEqual(await repeat(10, (at) => chat(`slow/silent-${at}`)), { 504: 10 });
  // One after the other: the fourth and later ones pass the provider over.
  for (let at = 0; at < 20; at += 1) assert.equal((await chat('down/dead')).status, 200);
  const limited = await repeat(20, () => chat('limited/plain'));
  for (let at = 0; at < 10; at += 1) await leave(gateway, upstream);
  const refused = limited[429] ?? 0;
  assert.ok(refused > 0);
  assert.equal(limited[200], 20 - refused);
  return refused;
}

test('promtool has nothing to complain about', async (t) => {
  if (isPrometheusMissing(t)) return;
  const { gateway, upstream } = await start(t);
  const read = async () =>
    (await gateway.admin('/metrics', { headers: { authorization: `Bearer ${ADMIN_KEY}` } })).text;
  assert.equal(checkMetrics(await read()), '');
  await sendSome(gateway);
  const text = await read();
  assert.ok(text.includes('gen_ai_client_token_usage_count'), 'tokens');
  assert.equal(checkMetrics(text), '');
  assert.notEqual(checkMetrics('bad-name 1\n'), '');
  assert.ok(upstream.requests.length > 0);
});

async function start(t: TestContext) {
  const upstream = await startUpstream(t, answerByModel);
  const spare = await startUpstream(t, answerCovered);
  const gateway = await startGateway(t, { toml: toml(upstream, spare) });
  return { gateway, upstream };
}

async function sendSome(gateway: TestGateway): Promise<void> {
  for (const model of ['fast', 'p/status-500', 'p/status-500-covered']) {
    await gateway.chat(chatBody({ model }));
  }
  await gateway.chat(chatBody({ model: 'p/streamed', stream: true }));
}

test(
  'what Prometheus scrapes of 1,000 mixed requests is exactly what was sent',
  { timeout: 300_000 },
  async (t) => {
    if (isPrometheusMissing(t)) return;
    const { gateway, upstream } = await start(t);
    const target = `127.0.0.1:${gateway.adminPort}`;
    const { query } = await startPrometheus(t, { target, key: ADMIN_KEY });
    const refused = await sendThousand(gateway, upstream);
    const served = 20 - refused;
    const sumOf = async (expression: string) => (await query(expression)).values().next().value;
    const isScraped = async () => (await sumOf('sum(gateway_requests_total)')) === 1000;
    await eventually(isScraped, 'all requests are scraped');
    const expect = async (expression: string, rows: readonly [object, number][]) => {
      const expected = rows.map(([labels, value]) => [JSON.stringify(labels), value] as const);
      assert.deepEqual(await query(expression), new Map(expected), expression);
    };

    await expect('sum by (outcome) (gateway_requests_total) > 0', [
      [{ outcome: 'ok' }, 400 + 250 + 20 + 20 + served],
      [{ outcome: 'refused' }, 100 + 50 + 50],
      [{ outcome: 'upstream_error' }, 30 + 20],
      [{ outcome: 'rate_limited' }, 20 + refused],
      [{ outcome: 'timeout' }, 10],
      [{ outcome: 'client_closed' }, 10],
    ]);
    const chats = 400 + 250 + 30 + 20 + 20 + 20 + 10 + 20 + 20 + 10;
    await expect('sum(gen_ai_server_request_duration_seconds_count)', [[{}, chats]]);
    const answers = 650 + served;
    await expect('sum by (gen_ai_token_type) (gen_ai_client_token_usage_sum)', [
      [{ gen_ai_token_type: 'input' }, 20 * answers],
      [{ gen_ai_token_type: 'cached_input' }, 4 * answers],
      [{ gen_ai_token_type: 'output' }, 8 * answers],
      [{ gen_ai_token_type: 'reasoning' }, 3 * answers],
    ]);
    // Panels of what has not happened here are left out.
    const dashboard = JSON.parse(
      readFileSync(join(ROOT, 'deploy/grafana-dashboard.json'), 'utf8'),
    ) as {
      panels: { title: string; targets: { expr: string }[] }[];
    };
    for (const { title, targets } of dashboard.panels) {
      for (const { expr } of targets) {
        const expression = expr.replaceAll('$__rate_interval', '1m').replaceAll('$job', '.*');
        // A rate needs an increase between two scrapes.
        const hasData = async () => {
          await Promise.all([
            gateway.chat({}),
            gateway.chat(chatBody({ model: 'p/m' })),
            gateway.send('/v1/models'),
          ]);
          return (await query(expression)).size > 0;
        };
        await eventually(hasData, `${title}: ${expression}`);
      }
    }
  },
);

const RULES = readFileSync(join(ROOT, 'deploy/prometheus-rules.yml'), 'utf8');

type Labels = Readonly<Record<string, string>>;

/** An alert that fires: its severity, what else labels it, and its summary. */
type Firing = readonly ['page' | 'ticket', Labels, string];

/** The alerts of incidents: the severity, the label `provider` if any, and the kinds. */
const INCIDENTS: readonly [string, Firing[0], Labels, kinds: string][] = [
  [
    'GatewayProviderFailing',
    'page',
    { provider: 'p' },
    'unreachable lookup_failed certificate key_refused rate_limited errors timeout stall cut nonsense',
  ],
  ['GatewayProviderSlow', 'ticket', { provider: 'p' }, 'slow lookup_slow model_list'],
  ['GatewayOutOfResources', 'page', {}, 'descriptors memory'],
  ['GatewayOwnIncident', 'ticket', {}, 'log_lines store reload clock'],
];
/** The end of a summary of `GatewayRequestsFail`. */
const FEW =
  "of the last minute's requests of a have failed, too few of each model for an incident. More than a tenth fail since 1970-01-01 00:02:30 +0000 UTC. At fault, by failed tries and limits: p 80; Clients: (no name) 40;";
/** The summary of an incident of `p` without other series. */
const BARE = 'a: p. No request has failed.';

const failedOf = (instance: string, kind: string, provider: string) =>
  `gateway_incident_requests{instance="${instance}",kind="${kind}",provider="${provider}",result="failed"}`;

/** What else is alerted: the series, as promtool writes them, and who fires at which time. */
const OTHERS: readonly [alert: string, series: Labels, fires: Record<string, readonly Firing[]>][] =
  [
    [
      'GatewayDown',
      {
        'up{job="inference-gateway",instance="a"}': '1x3 0x20',
        'up{job="inference-gateway",instance="b"}': '1x23',
      },
      {
        '45s': [],
        '100s': [
          [
            'page',
            { job: 'inference-gateway', instance: 'a' },
            'a does not answer since 1970-01-01 00:00:45 +0000 UTC. At fault: its process, its machine, or the network to it. No client gets an answer from it.',
          ],
        ],
      },
    ],
    [
      'GatewayKeyRefused',
      {
        'gateway_incident{instance="a",kind="key_refused",provider="p"}': '1x12',
        'gateway_keys_accepted{instance="a",provider="p"}': '1x4 0x8',
        'gateway_incident{instance="a",kind="key_refused",provider="of-one-key"}': '1x12',
      },
      {
        '45s': [['ticket', { instance: 'a', kind: 'key_refused', provider: 'p' }, BARE]],
        '2m': [],
      },
    ],
    [
      'GatewayProviderFailing',
      {
        'gateway_incident{instance="a",kind="key_refused",provider="p"}': '1x12',
        'gateway_keys_accepted{instance="a",provider="p"}': '1x4 0x8',
      },
      {
        '45s': [],
        '2m': [['page', { instance: 'a', provider: 'p' }, BARE]],
      },
    ],
    [
      'GatewayInternalErrors',
      { 'gateway_requests_total{instance="a",client="ci",outcome="internal_error"}': '0x3 2x20' },
      {
        '45s': [],
        '1m30s': [
          [
            'page',
            { instance: 'a' },
            'a has failed 2 requests in the last minute for a reason of its own. At fault: this gateway. Clients: ci 2;',
          ],
        ],
        '3m': [],
      },
    ],
    [
      'GatewayRequestsFail',
      {
        'gateway_requests_total{instance="a",outcome="ok"}': '0+30x8 240+20x16 560+30x20',
        'gateway_requests_total{instance="a",outcome="upstream_error"}': '0x8 0+10x16 160x20',
        'gateway_tries_total{instance="a",provider="p",result="timeout"}': '0x8 0+20x16 160x20',
        'gateway_requests_total{instance="b",outcome="ok"}': '0+30x44',
        'gateway_requests_total{instance="b",outcome="rejected"}': '0+30x44',
      },
      {
        '2m': [],
        '3m30s': [['page', { instance: 'a' }, `33.33% ${FEW}`]],
        '6m': [['page', { instance: 'a' }, `33.33% ${FEW}`]],
        '7m45s': [],
      },
    ],
    [
      'GatewayProviderFailing',
      {
        'gateway_incident{instance="a",kind="errors",provider="p"}': '1x8 _x8',
        'gateway_incident{instance="a",kind="timeout",provider="p"}': '_x8 1x8',
      },
      {
        '1m': [['page', { instance: 'a', provider: 'p' }, BARE]],
        '3m': [['page', { instance: 'a', provider: 'p' }, BARE]],
      },
    ],
    [
      'GatewayInternalErrors',
      {
        'gateway_requests_total{instance="a",outcome="internal_error"}': '0x3 2x20',
        'gateway_incident{instance="a",kind="descriptors"}': '1x20',
      },
      { '1m30s': [] },
    ],
    [
      'GatewayInternalErrors',
      {
        'gateway_requests_total{instance="a",outcome="internal_error"}': '0x3 2x20',
        'gateway_incident{instance="a",kind="memory"}': '1x20',
      },
      { '1m30s': [] },
    ],
    [
      'GatewayRequestsFail',
      {
        'gateway_requests_total{instance="a",outcome="ok"}': '0+30x20',
        'gateway_requests_total{instance="a",outcome="upstream_error"}': '0+30x20',
        'gateway_tries_total{instance="a",provider="p",result="upstream_error"}': '0+30x20',
        [failedOf('a', 'errors', 'p')]: '0+30x20',
        'gateway_requests_total{instance="b",outcome="ok"}': '0+30x20',
        'gateway_requests_total{instance="b",outcome="upstream_error"}': '0+30x20',
        'gateway_tries_total{instance="b",provider="p",result="upstream_error"}': '0+30x20',
        [failedOf('b', 'slow', 'p')]: '0x20',
        [failedOf('b', 'key_refused', 'p')]: '0x20',
        [failedOf('b', 'errors', 'q')]: '3x20',
      },
      {
        '3m': [
          [
            'page',
            { instance: 'b' },
            "50% of the last minute's requests of b have failed, too few of each model for an incident. More than a tenth fail since 1970-01-01 00:00:15 +0000 UTC. At fault, by failed tries and limits: p 120; Clients: (no name) 120;",
          ],
        ],
      },
    ],
    // A provider's 429 and a limit of the gateway fail requests, and a client's own limit does not.
    [
      'GatewayRequestsFail',
      {
        'gateway_requests_total{instance="a",client="ci",outcome="ok"}': '0+30x20',
        'gateway_requests_total{instance="a",client="ci",outcome="rate_limited"}': '0+110x20',
        'gateway_refusals_total{instance="a",client="ci",reason="client"}': '0+100x20',
        'gateway_refusals_total{instance="a",client="ci",reason="upstream",provider="p"}':
          '0+10x20',
        'gateway_tries_total{instance="a",provider="p",result="rate_limited"}': '0+10x20',
        'gateway_requests_total{instance="b",client="ci",outcome="ok"}': '0+30x20',
        'gateway_requests_total{instance="b",client="ci",outcome="rate_limited"}': '0+100x20',
        'gateway_refusals_total{instance="b",client="ci",reason="client"}': '0+100x20',
        'gateway_tries_total{instance="b",provider="p",result="rate_limited"}': '0+10x20',
        'gateway_requests_total{instance="c",client="ci",outcome="ok"}': '0+30x20',
        'gateway_requests_total{instance="c",client="ci",outcome="rate_limited"}': '0+10x20',
        'gateway_refusals_total{instance="c",client="ci",reason="global"}': '0+10x20',
      },
      {
        '3m': ['a', 'c'].map((instance): Firing => {
          const fault = instance === 'a' ? 'p 40' : 'limit global 40';
          return [
            'page',
            { instance },
            `25% of the last minute's requests of ${instance} have failed, too few of each model for an incident. More than a tenth fail since 1970-01-01 00:00:15 +0000 UTC. At fault, by failed tries and limits: ${fault}; Clients: ci 40;`,
          ];
        }),
      },
    ],
    // An outage of 90 s has an alert of its own, and none before or after it.
    [
      'GatewayRequestsFail',
      {
        'gateway_requests_total{instance="a",outcome="ok"}': '0+45x8 360+22x6 492+45x20',
        'gateway_requests_total{instance="a",outcome="upstream_error"}': '0x8 0+23x6 138x20',
        'gateway_tries_total{instance="a",provider="p",result="upstream_error"}':
          '0x8 0+23x6 138x20',
        [failedOf('a', 'errors', 'p')]: '_x9 46+23x6 stale _x20',
      },
      Object.fromEntries(
        ['2m15s', '2m30s', '3m', '3m45s', '4m', '4m15s', '4m30s', '5m', '6m'].map((at) => [at, []]),
      ),
    ],
    [
      'GatewayNearLimit',
      {
        'gateway_client_requests_in_flight{instance="a",client="alice"}': '9x30',
        'gateway_limit{instance="a",limit="client_concurrency",client="alice"}': '10x30',
        'gateway_refusals_total{instance="a",client="alice",reason="client_concurrency"}': '0+5x30',
        'gateway_buffered_bytes{instance="a"}': '900x30',
        'gateway_limit{instance="a",limit="memory"}': '1000x30',
        'gateway_incident{instance="a",kind="memory"}': '1x30',
        'process_open_fds{job="inference-gateway",instance="b"}': '950x30',
        'process_max_fds{job="inference-gateway",instance="b"}': '1000x30',
        'gateway_incident{instance="b",kind="descriptors"}': '1x30',
      },
      { '3m': [] },
    ],
    [
      'GatewaySettingsDiffer',
      Object.fromEntries(
        [
          ['gateway', 'a', '1'],
          ['gateway', 'b', '1'],
          ['gateway', 'c', '2'],
          ['pair', 'd', '3'],
          ['pair', 'e', '4'],
          ['alike', 'f', '5'],
          ['alike', 'g', '5'],
          ['sole', 'h', '6'],
        ].map(([job, instance, digest]) => [
          `gateway_settings_info{job="${job}",instance="${instance}",digest="${digest}"}`,
          '1x40 _x20',
        ]),
      ),
      {
        '9m': [],
        '10m': [
          ['gateway', 'c'],
          // Both replicas differ, but only a single alert fires.
          ['pair', 'd e'],
        ].map(([job = '', instances]): Firing => [
          'ticket',
          { job },
          `${job}: replicas have had 2 different settings for ten minutes: ${instances}. At fault: their settings. The clients of these replicas get other limits, models or keys.`,
        ]),
      },
    ],
    [
      'GatewayRestarting',
      {
        'process_start_time_seconds{job="inference-gateway",instance="a"}': '1x4 2x4 3x4 4x60',
        'process_start_time_seconds{job="inference-gateway",instance="b"}': '1x4 2x4 3x64',
      },
      {
        '2m': [],
        '4m': [
          [
            'page',
            { job: 'inference-gateway', instance: 'a' },
            'a has restarted 3 times in ten minutes, last at 1970-01-01 00:00:04 +0000 UTC. At fault: its process or its machine. Each restart cuts the requests in flight.',
          ],
        ],
        '14m': [],
      },
    ],
    [
      'GatewayClientOverLimit',
      {
        'gateway_refusals_total{instance="a",client="alice",reason="client_tokens_per_minute"}':
          '0+1x60 60x60',
        'gateway_refusals_total{instance="a",client="bob",reason="client_concurrency"}':
          '0 9 18 27x100',
        'gateway_refusals_total{instance="a",client="carl",reason="global"}': '0+9x120',
        'gateway_refusals_total{instance="a",reason="client_concurrency"}': '0+9x120',
      },
      {
        '2m': [],
        '4m': [
          [
            'ticket',
            { instance: 'a', client: 'alice' },
            'a refuses requests of alice for its own limit since 1970-01-01 00:00:15 +0000 UTC: 4 for client_tokens_per_minute; in the last minute. At fault: the client. No provider is asked, and no other client is hit.',
          ],
        ],
        '20m': [],
      },
    ],
    [
      'GatewayNearLimit',
      {
        'gateway_client_requests_in_flight{instance="a",client="alice"}': '9x30',
        'gateway_limit{instance="a",limit="client_concurrency",client="alice"}': '10x30',
        'gateway_provider_requests_in_flight{instance="a",provider="p"}': '5x30',
        'gateway_provider_requests_in_flight{instance="a",provider="q"}': '10x30',
        'gateway_limit{instance="a",limit="provider_concurrency",provider="p"}': '10x30',
        'gateway_limit{instance="a",limit="provider_concurrency",provider="q"}': '10x30',
        'gateway_requests_in_flight{instance="a"}': '900x30',
        'gateway_limit{instance="a",limit="server_concurrency"}': '1000x30',
        'gateway_buffered_bytes{instance="a"}': '100x30',
        'gateway_limit{instance="a",limit="memory"}': '1000x30',
        'gateway_buffered_bytes{instance="b"}': '850x30',
        'gateway_client_buffered_bytes{instance="b",client="alice"}': '600x30',
        'gateway_client_buffered_bytes{instance="b"}': '250x30',
        'gateway_limit{instance="b",limit="memory"}': '1000x30',
        'process_open_fds{job="inference-gateway",instance="b"}': '950x30',
        'process_max_fds{job="inference-gateway",instance="b"}': '1000x30',
      },
      {
        '45s': [],
        '1m30s': [
          [
            'ticket',
            { instance: 'a', limit: 'client_concurrency', client: 'alice' },
            'a: 90% of the limit client_concurrency of alice is used since 1970-01-01 00:00:00 +0000 UTC; requests beyond it are refused.',
          ],
          [
            'ticket',
            { instance: 'a', limit: 'provider_concurrency', provider: 'q' },
            'a: 100% of the limit provider_concurrency of q is used since 1970-01-01 00:00:00 +0000 UTC; requests beyond it are refused. Most requests in flight are of alice: 9.',
          ],
          [
            'ticket',
            { instance: 'a', limit: 'server_concurrency' },
            'a: 90% of the limit server_concurrency is used since 1970-01-01 00:00:00 +0000 UTC; requests beyond it are refused. Most requests in flight are of alice: 9.',
          ],
          [
            'ticket',
            { instance: 'b', limit: 'memory' },
            'b: 85% of the limit memory is used since 1970-01-01 00:00:00 +0000 UTC; requests beyond it are refused. Most is held by alice: 600B.',
          ],
          [
            'ticket',
            { instance: 'b', job: 'inference-gateway', limit: 'descriptors' },
            'b: 95% of the limit descriptors is used since 1970-01-01 00:00:00 +0000 UTC; requests beyond it are refused.',
          ],
        ],
      },
    ],
  ];

const MORE = 'The page, and the log\'s line "incident", have more.';

/**
 * A case of `promtool test rules`. The annotation `action` is read from the rules, unless the rules
 * share it: then it is `act` and `MORE`.
 */
function ruleTest([alertname, series, fires]: (typeof OTHERS)[number], act = '') {
  const [, read = ''] = new RegExp(`alert: ${alertname}\n[^]*?action: (.*)`).exec(RULES) ?? [];
  const action = /^[&*]action/.test(read) ? act + MORE : read.replace(/^'(.*)'$/, '$1');
  const input_series = Object.entries(series).map(([name, values]) => ({ series: name, values }));
  const alert_rule_test = Object.entries(fires).map(([eval_time, firing]) => {
    const exp_alerts = firing.map(([severity, labels, summary]) => ({
      exp_labels: { severity, ...labels },
      exp_annotations: { summary, action },
    }));
    return { eval_time, alertname, exp_alerts };
  });
  return { interval: '15s', input_series, alert_rule_test };
}

/** The incident lasts from the first to the fifth minute. */
function incidentTests([alert, severity, labels, kinds]: (typeof INCIDENTS)[number]) {
  return kinds.split(' ').map((kind) => {
    const all = { ...labels, kind, instance: 'a' };
    const named = (metric: string, more: Labels = {}) => {
      const pairs = Object.entries({ ...all, ...more });
      return `${metric}{${pairs.map(([name, value]) => `${name}="${value}"`).join()}}`;
    };
    const words = { what: 'what it is', cause: 'why.', fault: 'whose', action: 'Act.' };
    const lasts = (value: number) => `_x4 ${value}x16 stale`;
    const series = {
      [named('gateway_incident')]: lasts(1),
      [named('gateway_incident_info', words)]: lasts(1),
      [named('gateway_incident_since_seconds')]: lasts(50),
      [named('gateway_incident_requests', { result: 'failed' })]: lasts(30),
      [named('gateway_incident_requests', { result: 'answered' })]: lasts(12),
      [named('gateway_incident_requests', { result: 'slow' })]: lasts(0),
      [named('gateway_incident_model', { model: 'big' })]: lasts(1),
      [named('gateway_incident_model', { model: 'small' })]: lasts(1),
      [named('gateway_incident_client', { client: 'alice', result: 'failed' })]: lasts(1),
      [named('gateway_incident_client', { client: 'bob', result: 'answered' })]: lasts(1),
      // Clients of another incident are left out.
      [`gateway_incident_client{instance="b",kind="${kind}",client="carl",result="failed"}`]:
        lasts(1),
      [`gateway_incident_client{instance="a",kind="other",client="dora",result="failed"}`]:
        lasts(1),
    };
    // The alert goes on when the kind changes.
    const { kind: _, ...steady } = all;
    const isSteady = alert === 'GatewayProviderFailing';
    const firing = (age: string): Firing[] => {
      const since = `since 1970-01-01 00:00:50 +0000 UTC, for ${age}`;
      const what = kind === 'store' ? 'what it is, each gateway limits by itself,' : 'what it is';
      const why = `a: ${labels['provider'] ?? 'gateway'} (big, small): ${what} ${since}. Cause: why.`;
      const hit = '12 answered by other providers, 30 failed. Clients: alice failed, bob answered.';
      return [[severity, isSteady ? steady : all, `${why} At fault: whose. Requests: ${hit}`]];
    };
    const fires = { '45s': [], '2m': firing('1m 10s'), '5m': firing('4m 10s'), '6m30s': [] };
    return ruleTest([alert, series, fires], 'Act. ');
  });
}

test('each alert of deploy/ fires when it should, and promtool finds it valid', (t) => {
  if (isPrometheusMissing(t)) return;
  const tests = [...INCIDENTS.flatMap(incidentTests), ...OTHERS.map((one) => ruleTest(one))];
  const cases = { rule_files: ['rules.yml'], evaluation_interval: '15s', tests };
  const cwd = emptyFolder(t, { 'rules.yml': RULES, 'test.yml': JSON.stringify(cases) });
  for (const args of ['check rules rules.yml', 'test rules test.yml']) {
    const { status, stdout, stderr } = spawnSync('promtool', args.split(' '), {
      cwd,
      encoding: 'utf8',
    });
    assert.equal(status, 0, stdout + stderr);
  }
  const tested = tests.map(({ alert_rule_test: [first] }) => first!.alertname);
  assert.deepEqual(
    new Set(tested),
    new Set([...RULES.matchAll(/alert: (\w+)/g)].map(([, alert]) => alert)),
  );
});

/** The limits of the rules' head, of a real clock. */
const FIRES_WITHIN_MS = 60_000;
const ENDS_WITHIN_MS = 90_000;

test('a real Prometheus fires in 60 s for an incident, and ends in 90 s', async (t) => {
  if (isPrometheusMissing(t)) return;
  let script: Script = (_, response) => sendJson(response, {}, { status: 503 });
  const upstream = await startUpstream(t, (request, response) => script(request, response));
  const settings = (server: string) =>
    `[server]\nmax_buffered_bytes = 1048576\n${server}[admin]\nport = 0\nkeys = ["${ADMIN_KEY}"]\n${providerToml(upstream, 'p', 'models = ["m"]')}`;
  const gateway = await startGateway(t, { toml: settings('') });
  const target = `127.0.0.1:${gateway.adminPort}`;
  const { alerts } = await startPrometheus(t, { target, key: ADMIN_KEY, rules: RULES });
  const wanted = ['GatewayProviderFailing', 'GatewayOwnIncident', 'GatewayInternalErrors'];
  const firing = async () => {
    const all = [...(await alerts())].filter(([name]) => wanted.includes(name));
    return new Map(all);
  };
  const untilFiring = async (count: number, withinMs: number) => {
    const startMs = performance.now();
    while ((await firing()).size !== count) {
      const names = [...(await firing()).keys()].join();
      assert.ok(performance.now() - startMs < withinMs, `${names} fire, and not ${count}`);
      await gateway.chat(chatBody());
      await idle(200);
    }
  };
  await gateway.reload(settings('port = "x"\n'));
  await untilFiring(2, FIRES_WITHIN_MS);
  const summaries = await firing();
  const since = 'since [\\d-]+ [\\d:]+ \\+0000 UTC, for \\d+s';
  assert.match(
    summaries.get('GatewayProviderFailing')!,
    new RegExp(
      `: p \\(m\\): errors ${since}\\. Cause: 503, application/json, "Service Unavailable"\\. ` +
        'At fault: the provider\\. Requests: \\d+ failed\\.$',
    ),
  );
  assert.match(
    summaries.get('GatewayOwnIncident')!,
    /gateway: new settings refused.*Cause: .*port/,
  );
  script = (_, response) => sendJson(response, { x: 'y'.repeat(1_100_000) });
  await untilFiring(3, FIRES_WITHIN_MS);
  script = (_, response) => sendJson(response, completion());
  await gateway.reload(settings(''));
  await untilFiring(0, ENDS_WITHIN_MS);
});
