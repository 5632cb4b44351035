/**
 * The page of the built gateway, with real providers, during failures, fallbacks, open circuits and
 * streams.
 */

import assert from 'node:assert/strict';
import type { TestContext } from 'node:test';

import type { Page } from 'playwright-core';

import { chatBody, CLIENT_TOKEN, PROVIDER_KEY, providerToml } from '../support/gateway.ts';
import {
  buildOnce,
  emptyFolder,
  freePort,
  startServing,
  type Program,
} from '../support/process.ts';
import { openChat } from '../support/streams.ts';
import {
  completion,
  completionEvents,
  NOBODY_LISTENS,
  sendEvents,
  sendJson,
  startUpstream,
  type FakeUpstream,
} from '../support/upstream.ts';
import {
  assertAccessible,
  browserTest,
  assertFitsWidth,
  rowsOf,
  screenshot,
  shows,
} from './browser.ts';

const ADMIN_KEY = 'admin-key-canary-1234567890';
const FIRST_ROW = '#requests > li:first-child';
const FIRST_SUMMARY = `${FIRST_ROW} summary`;

interface Gateway {
  readonly port: number;
  readonly url: string;
  readonly toml: string;
  readonly upstream: FakeUpstream;
  readonly fallback: FakeUpstream;
  program: Program;
  /** Posts a chat completion and returns its status. */
  readonly chat: (body?: object, headers?: Record<string, string>) => Promise<number>;
  /** Ends it with this signal, and starts it again on the same ports. */
  readonly restart: (signal: NodeJS.Signals) => Promise<void>;
}

/** Providers: `p`, `spare` for whoever falls back, `down`, and one without a key. */
async function startGateway(t: TestContext, admin = ''): Promise<Gateway> {
  await buildOnce();
  const [upstream, fallback] = [await startUpstream(t), await startUpstream(t)];
  const [port, adminPort] = [await freePort(), await freePort()];
  const toml = [
    `[server]\nport = ${port}\nhost = "127.0.0.1"`,
    `[admin]\nport = ${adminPort}\n${admin}`,
    '[aliases]\nfast = "p/m"',
    '[providers]\nfallback = ["spare"]',
    providerToml(upstream, 'p', 'models = ["m"]'),
    providerToml(fallback, 'spare', 'default_model = "small"\nmodels = []'),
    providerToml({ baseUrl: NOBODY_LISTENS }, 'down', 'models = ["m"]'),
    '[providers.mistral]\nenabled = true',
  ].join('\n');
  const start = async () => startServing(t, [], { cwd: emptyFolder(t, { 'gateway.toml': toml }) });
  const gateway: Gateway = {
    port,
    url: `http://127.0.0.1:${adminPort}/`,
    toml,
    upstream,
    fallback,
    program: await start(),
    async chat(body = {}, headers = {}) {
      const response = await fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
        method: 'POST',
        headers: {
          authorization: `Bearer ${CLIENT_TOKEN}`,
          'content-type': 'application/json',
          ...headers,
        },
        body: JSON.stringify(chatBody(body)),
      });
      await response.text();
      return response.status;
    },
    async restart(signal) {
      gateway.program.child.kill(signal);
      await gateway.program.exit;
      gateway.program = await start();
    },
  };
  return gateway;
}

/** Waits for the text in a provider's row. */
async function showsProvider(page: Page, id: string, text: string | RegExp): Promise<void> {
  const row = page
    .locator('#providers > tr')
    .filter({ has: page.getByRole('rowheader', { name: id, exact: true }) });
  await row.filter({ hasText: text }).waitFor();
}

browserTest('a request appears on the empty page', async (t, open) => {
  const { url, chat } = await startGateway(t);
  const page = await open(url);
  await shows(page, '#connection', 'Live');
  await showsProvider(page, 'p', 'Not asked');
  await showsProvider(page, 'mistral', 'Skipped');
  await assertAccessible(page);
  assert.equal(await chat({ model: 'fast' }), 200);
  await shows(page, FIRST_ROW, 'ok');
  await page.locator('#requests-empty').waitFor({ state: 'hidden' });
  const [[, outcome, model, provider] = []] = await rowsOf(page, 'requests');
  assert.deepEqual([outcome, model, provider], ['ok 200', 'fast', 'p']);
  await shows(page, '#models', 'fast');
  await shows(page, '#tile-failed-note', '0 of 1');
});

browserTest(
  'failures, a fallback and open circuits are shown with their causes',
  async (t, open) => {
    const { url, upstream, chat } = await startGateway(t);
    const page = await open(url);
    await shows(page, '#connection', 'Live');
    const text = `overloaded <img src=x onerror="document.title=1">\u202e${'w'.repeat(10_240)}`;
    upstream.script = (_, response) =>
      sendJson(response, { error: { message: text } }, { status: 503 });

    assert.equal(await chat(), 200);
    await shows(page, FIRST_ROW, /p → *spare/);
    await page.locator(FIRST_SUMMARY).click();
    await shows(
      page,
      '.details .tries',
      /p\/m.*upstream_error.*503.*<img src=x onerror="document.title=1">/,
    );
    await page.locator(FIRST_SUMMARY).click();

    for (let i = 0; i < 3; i += 1) assert.equal(await chat(), 200);
    await showsProvider(page, 'p', /errors.*answers of m kept away until/);
    await shows(page, '#announcement', /^p: errors/);
    await shows(page, '#incidents', /^p: errors.*p\/m4 of 4 answered by spare/);
    for (let i = 0; i < 3; i += 1) assert.equal(await chat({ model: 'down/m' }), 200);
    await showsProvider(page, 'down', /no connection.*kept away until/);

    assert.equal(await chat({ messages: 1 }), 400);
    await shows(page, FIRST_ROW, 'refused 400');
    await page.locator(FIRST_SUMMARY).click();
    await shows(page, '.details', 'Invalid request: ');
    await page.locator(FIRST_SUMMARY).click();
    const filter = page.getByLabel('Requests with these words');
    await filter.fill('refused');
    await page.locator('#requests > li:only-child').waitFor();
    await filter.fill('');

    await assertAccessible(page);
    await screenshot(page, 'failures-1280-light');
    await page.setViewportSize({ width: 360, height: 900 });
    await assertFitsWidth(page);
    await screenshot(page, 'failures-360-light');

    assert.match(await page.title(), /^\(2\) [\w.-]+$/);
    upstream.script = (_, response) => sendJson(response, completion());
    await page.locator('#providers', { hasNotText: 'kept away' }).waitFor();
    await shows(page, '#incidents', 'p: errors');
    // Since the failures of the newest 15 s are gone.
    const asking = setInterval(() => void chat(), 500);
    await shows(page, '#incidents', /Ended: p: errors .* – .* · \d+ s/);
    clearInterval(asking);
  },
);

browserTest(
  'a stream is counted while it is open, and shown when the client has left',
  async (t, open) => {
    const { url, port, upstream } = await startGateway(t);
    const page = await open(url);
    await shows(page, '#connection', 'Live');
    const [first = ''] = completionEvents().split(/(?<=\n\n)/);
    upstream.script = (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(completionEvents().slice(0, first.length * 2));
    };
    const stream = openChat(port);
    stream.ended.catch(() => {});
    await stream.response;
    await shows(page, '#tile-requests-note', '1 in flight');
    stream.leave();
    await shows(page, FIRST_ROW, 'client_closed');
    await shows(page, '#tile-requests-note', '0 in flight');
    await shows(page, '#tile-p50', /\d/);
  },
);

browserTest(
  'the page shows the drain, and survives a restart on the same port',
  async (t, open) => {
    const gateway = await startGateway(t);
    const { url, port, upstream } = gateway;
    const page = await open(url, { losesConnection: true });
    assert.equal(await gateway.chat(), 200);
    await shows(page, FIRST_ROW, 'ok');
    upstream.script = (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(completionEvents().slice(0, -'data: [DONE]\n\n'.length));
    };
    const stream = openChat(port);
    stream.ended.catch(() => {});
    await stream.response;
    gateway.program.child.kill('SIGTERM');
    await shows(page, '#connection', 'Draining');
    stream.leave();
    await gateway.program.exit;
    await shows(page, '#connection', 'No data since');
    await gateway.restart('SIGKILL');
    await shows(page, '#connection', 'Live');
    await page.locator('#requests-empty').waitFor({ state: 'visible' });
  },
);

browserTest(
  'a client at its own limit and a model that is gone stand out, and connect has its time',
  async (t, open) => {
    const limit = '[clients.greedy]\nkey = "greedy-key-canary"\nrequests_per_minute = 4';
    const { url, chat, upstream } = await startGateway(t, limit);
    const page = await open(url);
    await shows(page, '#connection', 'Live');
    const ask = async (model: string) =>
      chat({ model, stream: true }, { authorization: 'Bearer greedy-key-canary' });
    upstream.script = (_, response) => sendEvents(response, completionEvents());
    assert.equal(await ask('p/m'), 200);
    const error = { message: 'no model m', code: 'model_not_found' };
    upstream.script = (_, response) => sendJson(response, { error }, { status: 404 });
    for (let at = 0; at < 3; at += 1) assert.notEqual(await ask('fast'), 200);
    for (let at = 0; at < 6; at += 1) assert.equal(await ask('fast'), 429);
    await shows(page, '#models > tr:first-child th', 'fast 404 of p');
    await shows(page, '#incidents', /p: no such model \(404\).*fast3 of 3 failed.*greedy/);
    await shows(page, '#incidents', /greedy: at its own limit.*requests_per_minute: .* of 4/);
    await shows(page, '#incidents', '6 of 10 refused by the gateway, no provider asked');
    await shows(page, '#verdict', /3 of 4 in the last minute, 75\.0 %.*1 client at its limit/);
    await shows(page, '#clients > tr:first-child', /greedy.*req\/min.* of 4/);
    await showsProvider(page, 'p', /\d ms/);
    await shows(page, '#providers-section thead', 'Connect');
    await page.getByRole('button', { name: 'requests of fast p' }).click();
    await shows(page, '#requests-note', '3, newest first');
  },
);

browserTest('with keys the browser asks for one, and no key is on the page', async (t, open) => {
  const { url, chat, upstream } = await startGateway(t, `keys = ["${ADMIN_KEY}"]`);
  assert.equal((await fetch(url)).status, 401);
  upstream.script = (_, response) =>
    sendJson(response, { error: { message: `wrong key ${PROVIDER_KEY}` } }, { status: 401 });
  await chat({}, { 'x-request-id': 'with-keys' });
  const page = await open(url, { credentials: { username: 'any', password: ADMIN_KEY } });
  await shows(page, '#connection', 'Live');
  await page.locator(FIRST_SUMMARY).click();
  await shows(page, '.details', 'with-keys');
  await page.locator('#settings-section button').click();
  await shows(page, '#settings', '[secret]');
  const html = await page.content();
  for (const key of [ADMIN_KEY, PROVIDER_KEY, CLIENT_TOKEN]) assert.ok(!html.includes(key), key);
});
