/** Unchanged SDKs and Codex against the endpoints of `[server] endpoints`. */

import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { ChatOpenAI, OpenAIEmbeddings } from '@langchain/openai';
import { Agent, OpenAIProvider, Runner } from '@openai/agents';
import { embed } from 'ai';
import OpenAI from 'openai';

import { LIMIT, aiSdk, describeSdks, langChain, serve } from './sdks.mjs';
import {
  CLIENT_KEY,
  NO_CODEX,
  askCodex,
  embeddings,
  errorEvent,
  response,
  sendError,
  sendJson,
  startTypedEvents,
  textCompletion,
  typedEnd,
  typedEvent,
  typedFailure,
} from './support.mjs';

const served = serve(['/v1/embeddings', '/v1/completions', '/v1/responses'], sendAnswer);

const openai = () => new OpenAI({ baseURL: served.baseURL, apiKey: CLIENT_KEY, maxRetries: 0 });
const model = (id = 'p/m') => createOpenAI({ baseURL: served.baseURL, apiKey: CLIENT_KEY })(id);
const call = (id) => ({ model: model(id), prompt: 'hello', maxRetries: 0 });
const chatOpenAI = (id = 'p/m') =>
  new ChatOpenAI({
    model: id,
    apiKey: CLIENT_KEY,
    maxRetries: 0,
    useResponsesApi: true,
    configuration: { baseURL: served.baseURL },
  });
const runAgent = (options, id = 'p/m') => {
  const modelProvider = new OpenAIProvider({ openAIClient: openai(), useResponses: true });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  return runner.run(new Agent({ name: 'clerk', model: id }), 'hello', options);
};

const sdks = {
  'the openai SDK': {
    complete: async (id = 'p/m') =>
      (await openai().responses.create({ model: id, input: 'hello' })).output_text,
    async *words() {
      const request = { model: 'p/m', input: 'hello', stream: true };
      for await (const event of await openai().responses.create(request)) {
        if (event.type === 'response.output_text.delta') yield event.delta;
        // The SDK hands this event on, and leaves it to the application.
        if (event.type === 'response.failed') throw new Error(event.response.error.message);
      }
    },
  },
  "the AI SDK's createOpenAI()": aiSdk(call),
  LangChain: langChain(chatOpenAI),
  'the Agents SDK': {
    complete: async (id) => (await runAgent({}, id)).finalOutput,
    async *words() {
      yield* (await runAgent({ stream: true })).toTextStream();
    },
  },
};

describeSdks('/v1/responses', served, sdks, {
  begin: startTypedEvents,
  failures: {
    'an event error': [errorIn, /API error: 502 - out of memory/],
    'an error of another dialect': [chatErrorIn, /API error: 500 - out of memory/],
    'a cut': [(upstream) => upstream.destroy(), /Provider error: /],
    'an end without response.completed': [(upstream) => upstream.end(), /Provider error: /],
  },
  lastEvent: typedFailure('out of memory'),
  reason: /out of memory/,
});

describe('the openai SDK', LIMIT, () => {
  test('raises an APIError with the members of the error', async () => {
    served.answer = (upstream) => startTypedEvents(upstream).end();
    const request = { model: 'p/m', input: 'hello', stream: true };
    const events = await openai().responses.create(request);
    const error = await Array.fromAsync(events).catch((thrown) => thrown);
    assert.ok(error instanceof OpenAI.APIError, String(error));
    assert.equal(error.code, 'PROVIDER_ERROR');
    assert.equal(error.type, 'provider_error');
  });

  test('has the event of an answer that fails after its first token', async () => {
    served.answer = (upstream) => startTypedEvents(upstream).end(typedFailure('out of memory'));
    const request = { model: 'p/m', input: 'hello', stream: true };
    const events = await Array.fromAsync(await openai().responses.create(request));
    assert.equal(events.at(-1).type, 'response.failed');
    assert.equal(events.at(-1).response.error.message, 'out of memory');
  });

  test('gets embeddings, as it asks for them: in base64', async () => {
    const input = ['hello'];
    const { data, usage } = await openai().embeddings.create({ model: 'p/m', input });
    assert.deepEqual([data[0].embedding, usage.total_tokens], [[0.25, -0.5], 3]);
    assert.deepEqual(served.bodies, [{ model: 'm', input, encoding_format: 'base64' }]);
  });

  test('gets the error of embeddings', async () => {
    served.answer = (upstream) => sendError(upstream, 400, 'input is too long');
    const request = { model: 'p/m', input: 'hello' };
    const error = await openai()
      .embeddings.create(request)
      .catch((thrown) => thrown);
    assert.ok(error instanceof OpenAI.BadRequestError, String(error));
    assert.match(error.message, /API error: 400 - input is too long/);
  });

  test('gets a text completion, and a stream of one', async () => {
    const request = { model: 'p/m', prompt: 'hello' };
    const { choices } = await openai().completions.create(request);
    assert.equal(choices[0].text, 'Hello there');
    const chunks = await openai().completions.create({ ...request, stream: true });
    const words = await Array.fromAsync(chunks, ({ choices: [choice] }) => choice.text);
    assert.deepEqual(words, ['Hello', ' there', '']);
  });

  test('gets APIError for a text completion that is cut', async () => {
    served.answer = (upstream) => startChunks(upstream).end();
    const request = { model: 'p/m', prompt: 'hello', stream: true };
    const chunks = await openai().completions.create(request);
    const error = await Array.fromAsync(chunks).catch((thrown) => thrown);
    assert.ok(error instanceof OpenAI.APIError, String(error));
  });
});

test('the AI SDK and LangChain get embeddings', LIMIT, async () => {
  const embedder = createOpenAI({ baseURL: served.baseURL, apiKey: CLIENT_KEY }).embedding('p/m');
  assert.deepEqual((await embed({ model: embedder, value: 'hello' })).embedding, [0.25, -0.5]);
  const configuration = { baseURL: served.baseURL };
  const langChains = new OpenAIEmbeddings({ model: 'p/m', apiKey: CLIENT_KEY, configuration });
  assert.deepEqual(await langChains.embedQuery('hello'), [0.25, -0.5]);
});

describe('Codex', { timeout: 240_000, skip: NO_CODEX }, () => {
  test('gets an answer', async () => {
    const { code, stdout } = await askCodex(served.baseURL, 'p/m');
    assert.deepEqual([code, stdout.trim()], [0, 'Hello there']);
    assert.equal(served.bodies[0].model, 'm');
  });

  for (const [what, end, message] of [
    ['a cut', (upstream) => upstream.destroy(), /stream/i],
    ['an event error', errorIn, /stream/i],
    ['response.failed', (upstream) => upstream.end(typedFailure('out of memory')), /out of memory/],
  ]) {
    test(`reports ${what}`, async () => {
      served.answer = (upstream) =>
        startTypedEvents(upstream).write(': so far\n\n', () => end(upstream));
      const { code, stderr } = await askCodex(served.baseURL, 'p/m');
      assert.equal(code, 1);
      assert.match(stderr, message);
    });
  }

  test('reports a provider that is not registered', async () => {
    const { code, stderr } = await askCodex(served.baseURL, 'nobody/m');
    assert.equal(code, 1);
    assert.match(stderr, /Unknown provider: nobody/);
  });
});

function errorIn(upstream) {
  const members = { code: 'server_error', message: 'out of memory', param: null };
  upstream.end(typedEvent('error', members));
}

function chatErrorIn(upstream) {
  upstream.end(errorEvent('out of memory', 500));
}

function startChunks(upstream) {
  upstream.writeHead(200, { 'content-type': 'text/event-stream' });
  for (const text of ['Hello', ' there']) {
    upstream.write(`data: ${JSON.stringify(textCompletion(text, null))}\n\n`);
  }
  return upstream;
}

function sendAnswer(upstream, { stream, encoding_format }, url) {
  if (url === '/v1/embeddings') return sendJson(upstream, embeddings(encoding_format));
  if (url === '/v1/completions') {
    if (!stream) return sendJson(upstream, textCompletion());
    const last = `data: ${JSON.stringify(textCompletion('', 'stop'))}\n\n`;
    return startChunks(upstream).end(`${last}data: [DONE]\n\n`);
  }
  if (!stream) return sendJson(upstream, response());
  return startTypedEvents(upstream).end(typedEnd());
}
