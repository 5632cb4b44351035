/**
 * Screenshots of twelve incidents of real gateways, 60 s after their begin and 60 s after their
 * end: what does the page say at a
 * glance? `SCREENSHOTS=FOLDER node --import tsx --test test/browser/ten-seconds.ts`
 */

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TestContext } from 'node:test';

import { chatBody, providerToml, startGateway } from '../support/gateway.ts';
import { byModel } from '../support/scenario.ts';
import {
  answerWell,
  CHUNK,
  NOBODY_LISTENS,
  sendJson,
  startUpstream,
  type Script,
} from '../support/upstream.ts';
import { browserTest } from './browser.ts';

const SECONDS = Number(process.env['SECONDS'] ?? 60);
const FOLDER = process.env['SCREENSHOTS'] ?? '/tmp/ten-seconds';

const chats =
  (script: Script): Script =>
  (request, response) =>
    request.method === 'POST' ? script(request, response) : answerWell(request, response);
const fails = (status: number, message: string, headers = {}): Script =>
  chats((_, response) => sendJson(response, { error: { message } }, { status, headers }));
const streams = (end: (response: Parameters<Script>[1]) => void): Script =>
  chats((_, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write(CHUNK);
    end(response);
  });

interface Case {
  readonly script?: Script;
  readonly url?: string;
  readonly server?: string;
  readonly fallback?: string;
  readonly models?: readonly string[];
  readonly stream?: boolean;
  readonly reload?: string;
}

const CASES: Readonly<Record<string, Case>> = {
  down: { url: NOBODY_LISTENS },
  'down, fallback': { url: NOBODY_LISTENS, fallback: 'fallback = ["bolt"]' },
  'one model': { script: byModel({ small: fails(503, 'no capacity') }), models: ['small', 'big'] },
  'wrong key': { script: fails(401, 'Incorrect API key provided') },
  '429 storm': { script: fails(429, 'tokens per minute exceeded', { 'retry-after': '3600' }) },
  'no answer': { script: chats(() => {}), server: 'timeout = 2' },
  stall: { script: streams(() => {}), stream: true, server: 'stream_idle_timeout = 2' },
  cut: { script: streams((response) => setImmediate(() => response.destroy())), stream: true },
  nonsense: { script: chats((_, response) => response.end('<html>')) },
  slow: {
    script: chats((request, response) => void setTimeout(answerWell, 1500, request, response)),
    stream: true,
  },
  memory: {
    // The answer alone would fit.
    script: chats((_, response) => sendJson(response, { x: 'y'.repeat(1_048_560) })),
    server: 'max_buffered_bytes = 1048576',
  },
  reload: { reload: 'port = "x"\n' },
};

async function start(t: TestContext, { url, server = '', fallback = '' }: Case) {
  const [acme, bolt] = [await startUpstream(t, answerWell), await startUpstream(t, answerWell)];
  const lines = 'models = ["small", "big"]\ndefault_model = "small"';
  const toml = (own: string, baseUrl: string) =>
    `[server]\n${server}\n${own}[admin]\nport = 0\n[providers]\n${fallback}\n[aliases]\nfast = "acme/small"\n` +
    '[clients.agents]\nkey = "agents-key-canary"\n[clients.web]\nkey = "web-key-canary"\n' +
    providerToml({ baseUrl }, 'acme', lines) +
    providerToml(bolt, 'bolt', lines);
  const gateway = await startGateway(t, { toml: toml('', acme.baseUrl) });
  return {
    acme,
    gateway,
    begin: async ({ script, reload = '' }: Case) => {
      if (script) acme.script = script;
      if (url || reload) await gateway.reload(toml(reload, url ? `${url}/v1` : acme.baseUrl));
    },
    end: async ({ reload }: Case) => {
      acme.script = answerWell;
      if (url || reload) await gateway.reload(toml('', acme.baseUrl));
    },
  };
}

browserTest('twelve incidents at a glance', async (t, open) => {
  mkdirSync(FOLDER, { recursive: true });
  const worlds = await Promise.all(
    Object.entries(CASES).map(async ([name, one]) => ({ name, one, ...(await start(t, one)) })),
  );
  const timer = setInterval(() => {
    for (const { gateway, one } of worlds) {
      const { models = ['small'], stream = false } = one;
      for (const [at, model] of ['fast', ...models.map((name) => `acme/${name}`)].entries()) {
        const key = at === 0 ? 'agents' : 'web';
        const headers = { authorization: `Bearer ${key}-key-canary` };
        gateway.chat(chatBody({ model, stream }), { headers }).catch(() => {});
      }
    }
  }, 1000);
  t.after(() => clearInterval(timer));
  const shoot = async (when: string) => {
    for (const [at, { name, gateway }] of worlds.entries()) {
      for (const width of [1280, 390]) {
        const scheme = at % 2 === 0 ? 'light' : 'dark';
        const page = await open(`http://127.0.0.1:${gateway.adminPort}/`, { width, scheme });
        await page.locator('#connection', { hasText: 'Live' }).waitFor();
        await page.screenshot({ path: join(FOLDER, `${name}-${when}-${width}.png`) });
        const text = await page.locator('main').innerText();
        if (width === 390) writeFileSync(join(FOLDER, `${name}-${when}.txt`), text);
        await page.close();
      }
    }
  };
  await sleep(90_000);
  await Promise.all(worlds.map(async ({ begin, one }) => begin(one)));
  await sleep(1000 * SECONDS);
  await shoot('during');
  await Promise.all(worlds.map(async ({ end, one }) => end(one)));
  await sleep(1000 * SECONDS);
  await shoot('after');
});
