/** Incidents that an operator must be able to read from the page and from the metrics. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { parseMetrics } from '../support/exposition.ts';
import { openFeed } from '../support/feed.ts';
import { chatBody, type TestGateway } from '../support/gateway.ts';
import { type ProviderSettings, scenario } from '../support/scenario.ts';
import { CHUNK, NOBODY_LISTENS, sendJson, type Script } from '../support/upstream.ts';

interface Incident {
  readonly title: string;
  readonly provider?: ProviderSettings;
  readonly server?: string;
  readonly clients?: Readonly<Record<string, string>>;
  readonly more?: string;
  readonly fallback?: readonly string[];
  /** Makes it happen. */
  readonly happen: (gateway: TestGateway, toml: string) => Promise<unknown>;
  /** Of provider `p` on the page. */
  readonly state?: string;
  readonly why?: RegExp;
  readonly row?: Readonly<Record<string, number>>;
  /** A line of what needs attention. */
  readonly attention?: RegExp;
  readonly metric: readonly [name: string, labels: Record<string, string>, value: number];
}

const fails =
  (status: number, message: string, headers = {}): Script =>
  (_, response) =>
    sendJson(response, { error: { message } }, { status, headers });
const streams =
  (end: (response: Parameters<Script>[1]) => void): Script =>
  (_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write(CHUNK);
    end(response);
  };
const ask =
  (count = 1, more = {}) =>
  async (gateway: TestGateway) => {
    for (let at = 0; at < count; at += 1) await gateway.chat(chatBody(more));
  };
const tries = (result: string, status: number | 'none') => ({
  provider: 'p',
  result,
  status: `${status}`,
});
const TWO_KEYS = 'api_keys = ["key-canary-2"]';

const INCIDENTS: readonly Incident[] = [
  {
    title: 'a provider is down',
    more: `[providers.p]\nbase_url = "${NOBODY_LISTENS}/v1"\napi_key = "none"\n`,
    happen: ask(),
    state: 'unreachable',
    why: /^ECONNREFUSED/,
    metric: ['gateway_tries_total', tries('upstream_error', 'none'), 1],
  },
  {
    title: 'a provider fails while a fallback answers, until its circuit is open',
    provider: fails(503, 'overloaded'),
    fallback: ['q'],
    happen: ask(6),
    state: 'failing',
    why: /^503 overloaded$/,
    row: { failed: 3 },
    metric: ['gateway_tries_total', tries('circuit_open', 'none'), 3],
  },
  {
    title: 'a fifth of the answers are errors',
    provider: (request, response) => {
      const isBad = request.headers['x-request-id'] === 'bad';
      sendJson(response, isBad ? {} : { choices: [] }, { status: isBad ? 503 : 200 });
    },
    happen: async (gateway) => {
      for (let at = 0; at < 10; at += 1) {
        await gateway.chat(chatBody(), {
          headers: { 'x-request-id': at % 5 === 4 ? 'bad' : 'ok' },
        });
      }
    },
    state: 'partly',
    row: { failed: 2, requests: 10 },
    metric: ['gateway_tries_total', tries('upstream_error', 503), 2],
  },
  {
    title: 'a provider is too slow',
    provider: { script: () => {}, lines: 'timeout = 1' },
    happen: ask(),
    state: 'failing',
    why: /^no complete answer in 1000 ms$/,
    row: { timeout: 1 },
    metric: ['gateway_tries_total', tries('timeout', 'none'), 1],
  },
  {
    title: 'a provider refuses a key',
    provider: { script: fails(401, 'invalid key'), lines: TWO_KEYS },
    happen: ask(),
    state: 'key refused',
    attention: /^Provider p refuses key 1 \(401\), key 2 \(401\): replace/,
    metric: ['gateway_tries_total', tries('upstream_error', 401), 2],
  },
  {
    title: 'a provider limits the rate',
    provider: fails(429, 'slow down', { 'retry-after': '7' }),
    happen: ask(),
    state: 'failing',
    why: /^429 slow down$/,
    row: { rate_limited: 1 },
    metric: ['gateway_tries_total', tries('rate_limited', 429), 1],
  },
  {
    title: 'a client is over its limit',
    clients: { alice: `key = "alice-key-canary"\nrequests_per_second = 1\nburst_capacity = 1` },
    happen: async (gateway) => {
      const headers = { authorization: 'Bearer alice-key-canary' };
      // On a slow machine a token may have come meanwhile.
      while ((await gateway.chat(chatBody(), { headers })).status !== 429);
    },
    state: 'good',
    metric: ['gateway_refusals_total', { reason: 'client', client: 'alice' }, 1],
  },
  {
    title: 'a stream is cut',
    provider: streams((response) => setImmediate(() => response.destroy())),
    happen: ask(1, { stream: true }),
    state: 'failing',
    why: /^200 /,
    metric: ['gateway_tries_total', tries('upstream_error', 200), 1],
  },
  {
    title: 'a client asks for what there is not',
    provider: fails(404, 'no such model'),
    happen: ask(3),
    state: 'good',
    row: { clientErrors: 3 },
    metric: ['gateway_tries_total', tries('upstream_error', 404), 3],
  },
  {
    title: 'a proxy answers for a provider',
    provider: (_, response) => {
      response.writeHead(502, { 'content-type': 'text/html' }).end('<html>Bad Gateway</html>');
    },
    happen: ask(),
    state: 'failing',
    why: /^502, text\/html, "Bad Gateway"$/,
    metric: ['gateway_tries_total', tries('upstream_error', 502), 1],
  },
  {
    title: 'a list of models cannot be read',
    provider: fails(500, 'no list'),
    happen: async (gateway) => gateway.send('/v1/models'),
    attention: /^The list of models of p cannot be read/,
    metric: ['gateway_model_list_up', { provider: 'p' }, 0],
  },
  {
    title: 'the settings could not be reloaded',
    happen: async (gateway, toml) =>
      gateway.reload(toml.replace('[server]', '[server]\nport = "x"')),
    attention:
      /^The reload of \S+ failed: .*server\.port.* Correct the file and send SIGHUP again\.$/,
    metric: ['gateway_config_last_reload_successful', {}, 0],
  },
];

describe('the page and the metrics tell that', { concurrency: true }, () => {
  for (const { title, happen, provider, more = '', fallback, metric, ...incident } of INCIDENTS) {
    test(title, async (t) => {
      const { gateway, toml } = await scenario<string>(t, {
        ...incident,
        providers: {
          ...(more ? {} : { p: provider ?? {} }),
          q: { lines: 'default_model = "d"\nmodels = ["d"]' },
        },
        more: `${more}\n[admin]\nport = 0`,
        ...(fallback && { fallback }),
      });
      await happen(gateway, toml);
      const feed = await openFeed(t, gateway.adminPort);
      const { state, why, row = {}, attention } = incident;
      const view = await feed.next('state', ({ providers, attention: lines }) => {
        const p = providers.find(({ id }: { id: string }) => id === 'p');
        const isCounted = Object.entries(row).every(([name, value]) => p[name] === value);
        const isTold = isCounted && (state === undefined || p.state === state);
        const isThere =
          attention === undefined || lines.some((line: string) => attention.test(line));
        return isTold && isThere;
      });
      const p = view.providers.find(({ id }: { id: string }) => id === 'p');
      if (why) assert.match(p.why, why);
      const { sum } = parseMetrics((await gateway.admin('/metrics')).text);
      const [name, labels, value] = metric;
      assert.equal(sum(name, labels), value, name);
    });
  }
});
