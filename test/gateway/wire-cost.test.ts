/** The cost of answers, in the log and the metrics. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { parseMetrics } from '../support/exposition.ts';
import { chatBody, STREAM, type TestGateway } from '../support/gateway.ts';
import { scenario } from '../support/scenario.ts';
import { linesOf, openChat } from '../support/streams.ts';
import {
  CHUNK,
  completion,
  DONE,
  failWith,
  LAST,
  sendEvents,
  sendJson,
  type Script,
} from '../support/upstream.ts';

const ADMIN = '[admin]\nport = 0\n';

/** Returns the line for a model's prices: input, output, and perhaps cached input. */
function pricesOf(model: string, input: number, output: number, cached?: number): string {
  const more = cached === undefined ? '' : `, cached_input_price_per_million = ${cached}`;
  return `model_details."${model}" = { input_price_per_million = ${input}, output_price_per_million = ${output}${more} }`;
}

/** Answers with this usage, in a stream if the request asks for one. */
const using =
  (usage: object | undefined): Script =>
  ({ body }, response) =>
    body.includes('"stream":true')
      ? sendEvents(response, `${CHUNK}${LAST}${usageEvent(usage)}${DONE}`)
      : sendJson(response, { ...completion(), usage });

const usageEvent = (usage?: object) =>
  usage ? `data: ${JSON.stringify({ choices: [], usage })}\n\n` : '';

/** Returns the costs in the access lines, once there are so many. */
async function costsOf(gateway: TestGateway, count: number): Promise<unknown[]> {
  return (await linesOf(gateway, count)).map(({ cost }) => cost);
}

/** Returns the samples of `gateway_cost_total` above 0. */
async function totalsOf(gateway: TestGateway): Promise<string[]> {
  const { text } = await gateway.admin('/metrics');
  parseMetrics(text);
  return (text.match(/^gateway_cost_total\{.*$/gm) ?? []).filter((line) => !line.endsWith(' 0'));
}

test('a cost is that of the prompt, of its cached part, and of the completion', async (t) => {
  const { gateway, p } = await scenario(t, {
    providers: { p: { lines: pricesOf('m', 2.5, 10, 1.25) } },
    more: ADMIN,
  });
  const details = (cached_tokens: number) => ({ prompt_tokens_details: { cached_tokens } });
  const cases: [usage: object | undefined, cost: number | undefined][] = [
    [{ prompt_tokens: 1000, completion_tokens: 500 }, 0.0075],
    [{ prompt_tokens: 1000, completion_tokens: 500, ...details(800) }, 0.0065],
    // At most the whole prompt is cached.
    [{ prompt_tokens: 1000, completion_tokens: 0, ...details(5000) }, 0.00125],
    [{ prompt_tokens: 1000 }, 0.0025],
    [{ prompt_tokens: 0, completion_tokens: 0 }, 0],
    [{ prompt_tokens: 1, completion_tokens: 0 }, 0.0000025],
    [{ completion_tokens: 5 }, undefined],
    [{ prompt_tokens: 9e15, completion_tokens: 9e15 }, undefined],
    [{ prompt_tokens: -1, completion_tokens: 5 }, undefined],
    [undefined, undefined],
  ];
  for (const [usage] of cases) {
    p.script = using(usage);
    await gateway.chat(chatBody());
    await gateway.chat(STREAM);
  }
  const expected = cases.flatMap(([, cost]) => [cost, cost]);
  assert.deepEqual(await costsOf(gateway, expected.length), expected);
  const [total, ...others] = await totalsOf(gateway);
  assert.deepEqual(others, []);
  const [, labels, sum = ''] = /^gateway_cost_total(\{.*\}) (.*)$/.exec(total!)!;
  assert.equal(labels, '{provider="p",model="m"}');
  assert.ok(Math.abs(Number(sum) - 0.035505) < 1e-9, sum);
});

test('without a price of its own the cached part costs as much, without float noise', async (t) => {
  const { gateway } = await scenario(t, {
    providers: {
      p: {
        script: using({ prompt_tokens: 3, prompt_tokens_details: { cached_tokens: 2 } }),
        lines: pricesOf('m', 0.1, 5),
      },
    },
  });
  await gateway.chat(chatBody());
  // Not 3.0000000000000004e-7.
  assert.deepEqual(await costsOf(gateway, 1), [3e-7]);
});

test('the cost has the prices of the model that has answered', async (t) => {
  const usage = { prompt_tokens: 1_000_000, completion_tokens: 0 };
  const answer = using(usage);
  const { gateway, p, toml } = await scenario(t, {
    providers: {
      p: { script: answer, lines: `${pricesOf('m', 1, 1)}\n${pricesOf('org/m-1.5', 2, 2)}` },
      q: { script: answer, lines: `default_model = "d"\n${pricesOf('d', 3, 3)}` },
      free: answer,
    },
    clients: { team: 'key = "team-key-canary"' },
    fallback: ['q'],
    more: `[aliases]\nfast = ["p/m", "free/m"]\n${ADMIN}`,
  });
  const headers = { authorization: 'Bearer team-key-canary' };
  const ask = async (model: string) => gateway.chat(chatBody({ model }), { headers });
  for (const model of ['p/org/m-1.5', 'p/m', 'fast', 'free/m', 'p/unpriced', 'p/constructor']) {
    await ask(model);
  }
  p.script = failWith(500);
  await ask('p/m');
  await ask('fast');
  const costs = [2, 1, 1, undefined, undefined, undefined, 3, undefined];
  assert.deepEqual(await costsOf(gateway, costs.length), costs);
  assert.deepEqual((await totalsOf(gateway)).toSorted(), [
    'gateway_cost_total{provider="p",model="m",client="team"} 2',
    'gateway_cost_total{provider="p",model="org/m-1.5",client="team"} 2',
    'gateway_cost_total{provider="q",model="d",client="team"} 3',
  ]);
  p.script = answer;
  await gateway.reload(toml.replace(pricesOf('m', 1, 1), pricesOf('m', 7, 7)));
  await ask('p/m');
  assert.equal((await costsOf(gateway, costs.length + 1)).at(-1), 7);
});

test('a stream that was cut has a cost only if its usage had come', async (t) => {
  const event = usageEvent({ prompt_tokens: 1_000_000, completion_tokens: 1 });
  const { gateway, p } = await scenario(t, { providers: { p: { lines: pricesOf('m', 1, 0) } } });
  for (const events of [CHUNK, CHUNK + event]) {
    p.script = (_, response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(events);
      setImmediate(() => response.destroy());
    };
    await openChat(gateway.port, STREAM).ended.catch(() => {});
  }
  assert.deepEqual(await costsOf(gateway, 2), [undefined, 1]);
});

test('the cost counts a usage that the gateway has asked for', async (t) => {
  const { gateway } = await scenario(t, {
    providers: {
      p: {
        script: using({ prompt_tokens: 4, completion_tokens: 2 }),
        lines: `stream_usage = true\n${pricesOf('m', 1, 2)}`,
      },
    },
  });
  const { text } = await gateway.chat(STREAM);
  assert.doesNotMatch(text, /usage/);
  assert.deepEqual(await costsOf(gateway, 1), [0.000008]);
});

test('an embedding has a cost', async (t) => {
  const { gateway } = await scenario(t, {
    server: 'endpoints = ["/v1/embeddings"]',
    providers: {
      p: {
        script: (_, response) =>
          sendJson(response, { object: 'list', data: [], usage: { prompt_tokens: 100 } }),
        lines: pricesOf('e', 0.02, 0),
      },
    },
  });
  const body = JSON.stringify({ model: 'p/e', input: 'x' });
  const headers = { 'content-type': 'application/json' };
  await gateway.send('/v1/embeddings', { method: 'POST', body, headers });
  assert.deepEqual(await costsOf(gateway, 1), [0.000002]);
});

test('without prices there is no cost, and /v1/models shows no price', async (t) => {
  const lines = 'models = ["m"]';
  const { gateway, toml } = await scenario(t, { providers: { p: { lines } }, more: ADMIN });
  await gateway.chat(chatBody());
  assert.deepEqual(await costsOf(gateway, 1), [undefined]);
  assert.doesNotMatch((await gateway.admin('/metrics')).text, /^gateway_cost_total/m);
  const limited = 'model_details.m = { context_length = 8, input_price_per_million = 1, ';
  await gateway.reload(toml.replace(lines, `${lines}\n${limited}output_price_per_million = 1 }`));
  const { data } = (await gateway.send('/v1/models')).json() as { data: object[] };
  assert.deepEqual(data, [
    { id: 'p/m', object: 'model', created: 0, owned_by: 'p', context_length: 8 },
  ]);
});
