/**
 * Pictures of the page of the built gateway, with real providers and clients, whose clock runs ten
 * times as fast so that
 * a quarter of an hour takes 90 s: docs/page.png is `trouble-1280-light`.
 * `SCREENSHOTS=FOLDER node --import tsx --test test/browser/picture.ts [--test-name-pattern=NAME]`
 */

import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { TestContext } from 'node:test';

import { chatBody } from '../support/gateway.ts';
import { buildOnce, emptyFolder, freePort, startServing } from '../support/process.ts';
import { completion, completionEvents, sendEvents, sendJson } from '../support/upstream.ts';
import { browserTest, screenshot, shows } from './browser.ts';

const SPEED = 10;
const MINUTE_MS = 60_000 / SPEED;
/** The clocks of the gateway alone; its timers are those of the system. */
const FAST = `--import=data:text/javascript,${encodeURIComponent(
  `const [now,date]=[performance.now.bind(performance),Date.now],from=date();performance.now=()=>${SPEED}*now();` +
    `Date.now=()=>from+${SPEED}*(date()-from);const D=Date;globalThis.Date=class extends D{constructor(...a){super(...(a.length?a:[Date.now()]))}}`,
)}`;

type Answer = (response: ServerResponse, model: string, isStream: boolean) => unknown;

const USAGE = `data: ${JSON.stringify({ choices: [], usage: { prompt_tokens: 2000, completion_tokens: 900, total_tokens: 2900 } })}\n\n`;
const EVENTS = completionEvents().replace('data: [DONE]', `${USAGE}data: [DONE]`);

const well =
  (ms: number): Answer =>
  (response, _, isStream) => {
    const wait = (ms * (0.6 + Math.random() * (Math.random() < 0.1 ? 4 : 1))) / SPEED;
    const answer = () =>
      isStream ? sendEvents(response, EVENTS) : sendJson(response, completion());
    setTimeout(answer, wait);
  };
const limited: Answer = (response, model, isStream) =>
  model === 'gpt-5'
    ? sendJson(
        response,
        { error: { message: 'Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000' } },
        { status: 429, headers: { 'retry-after': '240' } },
      )
    : well(400)(response, model, isStream);
const sometimes =
  (share: number, ms: number): Answer =>
  (response, model, isStream) =>
    Math.random() < share
      ? sendJson(response, { error: { message: 'Bad Gateway' } }, { status: 502 })
      : well(ms)(response, model, isStream);
const cut: Answer = (response) => {
  sendEvents(
    response.on('error', () => {}),
    completionEvents().slice(0, 300),
  );
  setTimeout(() => response.destroy(), 5);
};

class Provider {
  answer: Answer;
  readonly #server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      if (request.method !== 'POST') return sendJson(response, { data: [] });
      const { model, stream } = JSON.parse(Buffer.concat(parts).toString()) as {
        model: string;
        stream?: boolean;
      };
      return this.answer(response, model, stream === true);
    });
  });
  #port = 0;

  constructor(answer: Answer) {
    this.answer = answer;
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(this.#port, '127.0.0.1', resolve));
    this.#port = (this.#server.address() as AddressInfo).port;
    return `http://127.0.0.1:${this.#port}/v1`;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }
}

const CLIENTS = {
  ci: 'requests_per_minute = 60',
  'team-search': 'tokens_per_day = 10_000_000',
  'team-chat': 'requests_per_second = 20',
  mobile: 'requests_per_minute = 600',
};
const ALIASES = {
  'gpt-5': '"openai/gpt-5"',
  smart: '["openai/gpt-5", "anthropic/claude-sonnet-5"]',
  fast: '["groq/llama-4-8b", "ollama/llama-4-8b"]',
  'claude-sonnet-5': '"anthropic/claude-sonnet-5"',
  'gpt-5-mini': '"openai/gpt-5-mini"',
  'llama-4-70b': '["groq/llama-4-70b", "ollama/llama-4-70b"]',
  local: '"ollama/llama-4-8b"',
};

const keyOf = (client: string) => `key-canary-of-number-${Object.keys(CLIENTS).indexOf(client)}`;

async function startWorld(t: TestContext) {
  await buildOnce();
  const providers = {
    openai: new Provider(well(410)),
    groq: new Provider(well(96)),
    ollama: new Provider(well(640)),
    anthropic: new Provider(well(370)),
  };
  const [port, adminPort] = [await freePort(), await freePort()];
  const sections = await Promise.all(
    Object.entries(providers).map(
      async ([id, one]) =>
        `[providers.${id}]\nbase_url = "${await one.listen()}"\napi_key = "k-${id}-0123456789"\nstream_usage = true\n`,
    ),
  );
  t.after(() => Object.values(providers).forEach((one) => one.close()));
  const toml = [
    `[server]\nport = ${port}\nhost = "127.0.0.1"\n[admin]\nport = ${adminPort}`,
    '[aliases]',
    ...Object.entries(ALIASES).map(([name, target]) => `"${name}" = ${target}`),
    ...Object.entries(CLIENTS).map(
      ([name, limit]) => `[clients.${name}]\nkey = "${keyOf(name)}"\n${limit}`,
    ),
    ...sections,
    '[providers.bolt]\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "k-bolt"\nmodels = []',
    '[providers.mistral]\nenabled = true',
  ].join('\n');
  const program = await startServing(t, [], {
    cwd: emptyFolder(t, { 'gateway.toml': toml }),
    env: { NODE_OPTIONS: FAST },
  });
  const ask = (client: string, model: string, more = {}) =>
    void fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${keyOf(client)}`, 'content-type': 'application/json' },
      body: JSON.stringify(chatBody({ model, stream: true, ...more })),
    })
      .then(
        async (response) => response.text(),
        () => {},
      )
      .catch(() => {});
  const begin = Date.now();
  const plan: [client: string, model: string, share: number][] = [
    ['team-search', 'gpt-5', 0.15],
    ['team-search', 'fast', 0.2],
    ['mobile', 'fast', 0.2],
    ['team-chat', 'claude-sonnet-5', 0.15],
    ['team-chat', 'smart', 0.1],
    ['mobile', 'gpt-5-mini', 0.08],
    ['ci', 'llama-4-70b', 0.07],
    ['team-search', 'local', 0.05],
  ];
  const traffic = setInterval(() => {
    const wave = 3 + Math.sin((Date.now() - begin) / 15_000);
    for (const [client, model, share] of plan) {
      if (Math.random() < share * wave * 0.7) ask(client, model);
    }
  }, 50);
  t.after(() => clearInterval(traffic));
  return { providers, ask, traffic, program, url: `http://127.0.0.1:${adminPort}/` };
}

type World = Awaited<ReturnType<typeof startWorld>>;

/** Each by its name: what happens in the last minutes of a quarter of an hour. */
const SITUATIONS: Readonly<Record<string, (world: World, t: TestContext) => Promise<unknown>>> = {
  well: async () => sleep(15 * MINUTE_MS),
  trouble: async ({ providers, ask }, t) => {
    await sleep(2 * MINUTE_MS);
    providers.ollama.answer = cut;
    await sleep(2.5 * MINUTE_MS);
    providers.ollama.answer = well(640);
    await sleep(4 * MINUTE_MS);
    providers.groq.close();
    await sleep(2.5 * MINUTE_MS);
    providers.openai.answer = limited;
    await sleep(2 * MINUTE_MS);
    const greedy = setInterval(() => ask('ci', 'gpt-5-mini'), MINUTE_MS / 95);
    t.after(() => clearInterval(greedy));
    await sleep(2 * MINUTE_MS);
  },
  amber: async ({ providers }) => {
    await sleep(13 * MINUTE_MS);
    providers.openai.answer = sometimes(0.06, 410);
    providers.groq.answer = sometimes(0.03, 96);
    await sleep(2 * MINUTE_MS);
  },
  'other-providers-answer': async ({ providers }) => {
    await sleep(9 * MINUTE_MS);
    providers.groq.close();
    await sleep(6 * MINUTE_MS);
  },
  'no-traffic': async ({ traffic }) => {
    await sleep(9 * MINUTE_MS);
    clearInterval(traffic);
    await sleep(6 * MINUTE_MS);
  },
  'unknown-model': async ({ providers }) => {
    await sleep(3 * MINUTE_MS);
    providers.openai.answer = (response, model, isStream) =>
      model === 'gpt-5-mini'
        ? sendJson(
            response,
            {
              error: { message: 'The model `gpt-5-mini` does not exist', code: 'model_not_found' },
            },
            { status: 404 },
          )
        : well(410)(response, model, isStream);
    await sleep(2 * MINUTE_MS);
  },
};

for (const [name, happen] of Object.entries(SITUATIONS)) {
  browserTest(name, async (t, open) => {
    const world = await startWorld(t);
    await happen(world, t);
    for (const width of [1280, 390]) {
      for (const scheme of ['light', 'dark'] as const) {
        const page = await open(world.url, { width, scheme, losesConnection: true });
        await shows(page, '#connection', 'Live');
        await sleep(2500);
        await screenshot(page, `${name}-${width}-${scheme}`);
        await screenshot(page, `${name}-${width}-${scheme}-full`, true);
        if (name === 'trouble' && width === 1280) {
          await page.locator('#cursor').hover({ position: { x: 700, y: 100 } });
          await sleep(300);
          await screenshot(page, `${name}-cursor-${scheme}`);
        }
        await page.close();
      }
    }
  });
}
